"""Training on a CUDA device without a GPU: no tensor is left on another device, weights are those
of the CPU, and nobody waits for the device without need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.simulated_cuda import library
from tests.support.two_ranks import CASES, ORDERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(library.missing()), reason=library.missing()),
]
HALF = len(CASES) // 2


def run(*command: str) -> str:
    """Run a module of the device in a process of its own, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-6000:]}"
    return done.stdout


def test_device() -> None:
    run("tests.support.simulated_cuda.itself")


def test_library_of_another_folder_of_torch_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library refers to torch by its folder: the folder of a deleted checkout cannot be used."""
    here = library.library_path()
    monkeypatch.setattr(library, "torch_folder", lambda: Path("/deleted/torch"))
    assert library.library_path() != here


def test_command_prints_counts(tmp_path: Path) -> None:
    """The unchanged program, with checkpoint, export and report."""
    sizes = ("batch.prompts=2", "batch.samples=2", "rollout.max_tokens=4", "data.num_train=16")
    typed = ["algo=grpo", "reward=math", *sizes, "validation.max_prompts=2", "logger=none"]
    more = ["trainer.max_iterations=1", f"run_dir={tmp_path / 'run'}"]
    counts = tmp_path / "counts.json"
    run("tests.support.simulated_cuda", "--counts", str(counts), "train.py", *typed, *more)
    assert sum(json.loads(counts.read_text())["launches"].values()) > 1000
    assert (tmp_path / "run/export/model.safetensors").exists()


@pytest.mark.parametrize("cases", [CASES[:HALF], CASES[HALF:]], ids=["first half", "second half"])
def test_training_is_that_of_the_cpu(cases: list[str]) -> None:
    run("tests.support.simulated_cuda.cases", "32-true", *cases)


def test_training_in_16_bits_uses_fast_attention() -> None:
    run("tests.support.simulated_cuda.cases", "bf16-mixed", *ORDERS)


def test_training_in_float16() -> None:
    run("tests.support.simulated_cuda.cases", "16-mixed", "ppo", "grpo lora", "dpo")


LIMITS = {
    "decode step": {"launches": 483, "waits": 1, "copies": 0},
    "decode step, padded": {"launches": 488, "waits": 1, "copies": 0},
    "decode step, adapter": {"launches": 483, "waits": 1, "copies": 0},
    # 43, and one growth of the cache in 8 steps
    "decode step, recorded": {"launches": 49, "waits": 1, "copies": 0},
    "microbatch": {
        "forward launches": 1436,
        "forward waits": 1,
        "forward copies": 7,
        "backward launches": 2637,
        "backward waits": 0,
        "waits": 1,
    },
}
"""Largest counts in a model of 24 layers: lower them where the code comes to need less."""
ITERATION_WAITS = 40
"""Largest number of waits in an iteration with two optimizer steps, sampling not counted."""


def test_nobody_waits_for_the_device_without_need() -> None:
    measured = json.loads(run("tests.support.simulated_cuda.measure"))
    above = {
        f"{part}, {name}": measured[part][name]
        for part, limits in LIMITS.items()
        for name, limit in limits.items()
        if measured[part][name] > limit
    }
    assert not above
    for part in LIMITS:
        assert set(measured[part]["kernels"]) <= {"bfloat16 flash", "bfloat16 efficient"}
    assert measured["decode step"]["cache"] == ["bfloat16 bfloat16"]
    waits = measured["iteration"]
    assert sum(waits.values()) <= ITERATION_WAITS, waits
