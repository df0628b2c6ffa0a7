"""`kill -9` at a random moment and while a checkpoint is written: the resumed run equals an
uninterrupted one."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.kill_resume import differing, survive

SMALL = (
    "algo=dapo",
    "batch.prompts=4",
    "batch.samples=4",
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "sampling=fixed",
    "+reward@reward.terms.length.reward=length",  # random text is never correct
    "data.num_train=64",
    "data.num_val=8",
    "trainer.max_iterations=5",
)


@pytest.mark.slow
def test_killed_and_resumed_run_is_bitwise_identical(tmp_path: Path) -> None:
    assert len(survive(tmp_path, SMALL, 2)) == 3
    rows = [
        json.loads(line)
        for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()
    ]
    # an optimizer step in every iteration
    assert sum("train/grad_norm" in row for row in rows) == 5


@pytest.mark.slow
def test_killed_and_resumed_run_in_float16_is_bitwise_identical(tmp_path: Path) -> None:
    float16 = ("trainer.precision=16-mixed", "trainer.accelerator=cpu")
    assert len(survive(tmp_path, (*SMALL, *float16), 2)) == 3


@pytest.mark.slow
def test_killed_and_resumed_run_of_a_program_is_bitwise_identical(tmp_path: Path) -> None:
    """Whose requests are sent at random moments, several at once."""
    program = (
        "environment=agent",
        "environment.agent=tests.support.agents:delayed_committee",
        "environment.parallel=true",
        "environment.max_tokens=200",
        "rollout.max_tokens=8",
        "reward=environment",
        "algo=grpo",
    )
    typed = [x for x in SMALL if not x.startswith(("+reward", "algo="))]
    assert len(survive(tmp_path, [*typed, *program], 2)) == 3


def test_differing_compares_bits() -> None:
    result = {"weights": torch.zeros(2), "rows": [{"reward": 0.5}], "text": "a"}
    assert differing(result, {**result, "weights": torch.zeros(2)}) == []
    assert differing(result, {**result, "weights": torch.tensor([0.0, -0.0])}) == ["/weights"]
    assert differing(result, {**result, "rows": [{"reward": 0.5}, {}]}) == ["/rows"]
    assert differing(result, {**result, "rows": [{"reward": 0.5, "more": 1}]}) == ["/rows/0/more"]
    assert differing(result, {"text": "b"})
