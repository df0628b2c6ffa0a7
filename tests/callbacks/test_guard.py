"""Explosions, and steps that were not finite."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.algo import Batch
from rlmods.callbacks import Guard, IterationCheckpoint
from rlmods.types import Experience, UserError
from tests.callbacks.stubs import Tiny, fit, notify
from tests.support.tiny_setup import fit as train
from tests.support.tiny_setup import learner
from tests.training.test_nonfinite import poisoned


class Exploding(Tiny):
    """With a metric for every iteration."""

    def __init__(self, name: str, values: list[float]) -> None:
        super().__init__()
        self.name, self.values = name, values

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        notify(self.trainer, "on_iteration_end", self, {self.name: self.values[self.iteration - 1]})


class TestExplosion:
    @pytest.mark.parametrize(
        ("name", "setting"),
        [
            ("train/ratio_max", "max_ratio=1000"),
            ("train/kl_old", "max_kl=10"),
            ("train/kl_ref", "max_kl=10"),
            ("train/grad_norm", "max_grad_norm=10000"),
        ],
    )
    @pytest.mark.parametrize("value", [2e4, math.inf, math.nan])
    def test_stops_and_is_saved(self, tmp_path: Path, name: str, setting: str, value: float) -> None:
        made = Exploding(name, [1.0, value, value, 1.0, value, value, value, value])
        says = rf"{name} is \S+ after iteration 7, and 3 in a row were beyond callbacks.guard.{setting}: the run has exploded"
        with pytest.raises(UserError, match=says) as error:
            fit(made, 8, [IterationCheckpoint(tmp_path, every=0), Guard(tmp_path)])
        assert "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == ["iteration_000007.ckpt"]

    def test_may_be_a_warning(self, tmp_path: Path) -> None:
        """Once, until it was gone."""
        made = Exploding("train/ratio_max", [9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 1.0])
        with pytest.warns(UserWarning, match="beyond callbacks.guard.max_ratio=8") as warned:
            fit(made, 7, [Guard(tmp_path, max_ratio=8.0, patience=2, action="warn")])
        assert len(warned) == 2
        assert made.iteration == 7

    def test_null_is_no_bound(self, tmp_path: Path) -> None:
        guard = Guard(tmp_path, max_ratio=None, max_kl=None, max_grad_norm=None, patience=1)
        assert fit(Exploding("train/ratio_max", [math.inf] * 3), 3, [guard]).iteration == 3

    def test_a_healthy_run_is_left_alone(self, tmp_path: Path) -> None:
        made = learner(batch=Batch(prompts=4, samples=4, epochs=4, minibatches=4))
        train(made, 4, callbacks=(Guard(tmp_path, patience=1),))
        assert made.iteration == 4

    @pytest.mark.parametrize("wrong", [{"max_ratio": 0}, {"max_kl": -1}, {"patience": 0}, {"action": "cry"}])
    def test_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(UserError, match=f"callbacks.guard.{next(iter(wrong))}="):
            Guard("x", **wrong)


class TestNonfinite:
    def test_the_rows_can_be_looked_at(self, tmp_path: Path) -> None:
        made = poisoned(learner(batch=Batch(prompts=4, samples=4, token_budget=40, max_nonfinite=2)), 1, 2)
        path = tmp_path / "nonfinite/iteration_000003.pt"
        with pytest.raises(UserError, match=rf"its rows are in {path}: torch.load\(PATH, weights_only=True\)$") as error:
            train(made, 9, callbacks=(Guard(tmp_path / "nonfinite"),))
        assert "\n" not in str(error.value)
        study = torch.load(path, weights_only=True)
        assert (study["iteration"], study["rank"], study["optimizer_steps"]) == (3, 0, 1)
        rows = Experience(**study["shares"][0])
        assert len(rows) == 16
        assert len(study["losses"]) > 1, "several microbatches"
        assert sorted(i for entry in study["losses"] for i in entry["rows"].tolist()) == list(range(16))
        assert all(math.isnan(entry["loss"]) for entry in study["losses"])
        assert math.isnan(study["norms"]["policy"])
