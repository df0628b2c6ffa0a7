"""Rows of optimizer steps that are not finite."""

import math
from pathlib import Path

import pytest
import torch

from rlmods.algo import Batch
from rlmods.callbacks import NonfiniteRows
from rlmods.errors import UserError
from rlmods.types import Experience
from tests.support.tiny_setup import fit as train
from tests.support.tiny_setup import learner
from tests.training.test_train_step import poisoned


def test_writes_the_rows_of_the_last_step(tmp_path: Path) -> None:
    trained = poisoned(
        learner(batch=Batch(prompts=4, samples=4, token_budget=40, max_nonfinite=2)), 1, 2
    )
    path = tmp_path / "nonfinite/iteration_000003.pt"
    with pytest.raises(
        UserError, match=rf"its rows are in {path}: torch.load\(PATH, weights_only=True\)$"
    ) as error:
        train(trained, 9, callbacks=(NonfiniteRows(tmp_path / "nonfinite"),))
    assert "\n" not in str(error.value)
    report = torch.load(path, weights_only=True)
    assert (report["iteration"], report["rank"], report["optimizer_steps"]) == (3, 0, 1)
    rows = Experience(**report["shares"][0])
    assert len(rows) == 16
    assert len(report["losses"]) > 1, "several microbatches"
    assert sorted(i for entry in report["losses"] for i in entry["rows"].tolist()) == list(
        range(16)
    )
    assert all(math.isnan(entry["loss"]) for entry in report["losses"])
    assert math.isnan(report["norms"]["policy"])
