"""Rows of the supervised loss beside the RL loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlmods.training.extensions import PTX, ptx
from rlmods.types import Prompt
from tests.data.test_loader import CountingRows


def test_a_step_reads_its_own_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "sft_batch", lambda prompts, *_, **__: [p.id for p in prompts])
    rows = CountingRows(Prompt(id=str(i), text="x") for i in range(100))
    extension = PTX(0.5, rows, 4)
    extension.loop = SimpleNamespace(seed=3, policy=None)  # type: ignore[assignment]
    steps = []
    for step in range(25):
        steps.append(extension.rows(step))
        assert rows.num_read == 4 * (step + 1)
    assert {name for step in steps for name in step} == {str(i) for i in range(100)}
    assert extension.rows(7, 1, 2) == steps[7][1::2]
