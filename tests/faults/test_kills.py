"""`kill -9`, once at a random moment and once while a checkpoint is written: the run that goes on ends where an uninterrupted one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.kill_resume import differing, survive

TYPED = ("algo=dapo", "batch.prompts=4", "batch.samples=4", "policy.pretrained=false", "policy.hidden_size=32", "trainer.max_iterations=5")


@pytest.mark.slow
def test_a_killed_run_ends_bit_for_bit_where_another_does(tmp_path: Path) -> None:
    assert len(survive(tmp_path, TYPED, 2)) == 3


def test_a_bit_is_a_difference() -> None:
    straight = {"weights": torch.zeros(2), "rows": [{"reward": 0.5}], "text": "a"}
    assert differing(straight, {**straight, "weights": torch.zeros(2)}) == []
    assert differing(straight, {**straight, "weights": torch.tensor([0.0, -0.0])}) == ["/weights"]
    assert differing(straight, {**straight, "rows": [{"reward": 0.5}, {}]}) == ["/rows"]
    assert differing(straight, {**straight, "rows": [{"reward": 0.5, "more": 1}]}) == ["/rows/0/more"]
    assert differing(straight, {"text": "b"})
