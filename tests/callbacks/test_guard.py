"""Diverging metrics, and non-finite steps."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.algo import Batch
from rlmods.callbacks import Guard, IterationCheckpoint
from rlmods.correction import Truncated
from rlmods.errors import UserError
from rlmods.rollout import Local
from rlmods.training.extensions import Extension
from rlmods.types import Experience, Prompt, Response
from tests.callbacks.stubs import Tiny, fit, notify
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_setup import fit as train
from tests.support.tiny_setup import learner
from tests.training.test_train_step import poisoned


@dataclass
class Reporting(FakeEngine):
    """Reports the log-probabilities of the weights it was last given, or of the first ones; after
    the first transfer with an offset."""

    forgets: bool = False
    offset: float = 0.0

    def sync(self, policy: Any, *, iteration: int) -> None:
        super().sync(policy, iteration=iteration)
        self.latest = iteration
        if iteration == 0 or not self.forgets:
            self.copy = policy.frozen_copy()

    def _response(self, prompt: Prompt, *key: Any) -> Response:
        response = super()._response(prompt, *key)
        row = torch.tensor([[*response.prompt_tokens, *response.tokens]])
        mask = torch.arange(row.shape[1])[None] >= len(response.prompt_tokens)
        offset = self.offset if self.latest else 0.0
        return replace(
            response, behavior_logprobs=(self.copy(row, mask).logprobs[mask] - offset).tolist()
        )


class Diverging(Tiny):
    """Reports the given value of a metric after each iteration."""

    def __init__(self, name: str, values: list[float]) -> None:
        super().__init__()
        self.name, self.values = name, values

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        notify(self.trainer, "on_iteration_end", self, {self.name: self.values[self.iteration - 1]})


class TestBounds:
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
    def test_stops_and_saves(self, tmp_path: Path, name: str, setting: str, value: float) -> None:
        trained = Diverging(name, [1.0, value, value, 1.0, value, value, value, value])
        message = (
            rf"{name} is \S+ after iteration 7, beyond callbacks.guard.{setting} for 3 iterations "
            r"in a row: training has diverged"
        )
        with pytest.raises(UserError, match=message) as error:
            fit(trained, 8, [IterationCheckpoint(tmp_path, every=0), Guard(tmp_path)])
        assert "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == ["iteration_000007.ckpt"]

    @pytest.mark.parametrize("value", [0.31, math.nan])
    def test_a_sampler_that_disagrees_stops_the_first_iteration(
        self, tmp_path: Path, value: float
    ) -> None:
        trained = Diverging("train/sampler_logprob_gap", [value] * 3)
        about = (
            r"train/sampler_logprob_gap is \S+ after iteration 1, beyond "
            r"callbacks.guard.max_sampler_gap=0.1: the sampler and the trainer"
        )
        with pytest.raises(UserError, match=about) as error:
            fit(trained, 3, [IterationCheckpoint(tmp_path, every=0), Guard(tmp_path)])
        assert all(
            cause in str(error.value)
            for cause in ("padding", "temperature", "weights", "type rollout=local")
        )
        assert [path.name for path in tmp_path.iterdir()] == ["iteration_000001.ckpt"]

    def test_the_update_of_one_iteration_is_within_the_bound(self, tmp_path: Path) -> None:
        rows = train(
            learner(rollout=Reporting(ahead=1), correction=Truncated()),
            12,
            callbacks=(Guard(tmp_path),),
        )
        assert 0.01 < max(row.get("train/ahead_logprob_gap", 0.0) for row in rows) < 0.5

    def test_a_failed_transfer_of_weights_is_noticed_when_sampling_ahead(
        self, tmp_path: Path
    ) -> None:
        """The policy hardly moves, so that rows sampled ahead would be within their bound: the gap
        of weights that lack a tied one."""
        trained = learner(
            rollout=Reporting(ahead=1, offset=0.14),
            correction=Truncated(),
            optimizer=partial(torch.optim.AdamW, lr=1e-7),
        )
        about = (
            r"train/sampler_logprob_gap is 0\.14 after iteration 2, beyond "
            r"callbacks.guard.max_sampler_gap=0.1"
        )
        with pytest.raises(UserError, match=about):
            train(trained, 4, callbacks=(Guard(tmp_path),))

    def test_old_weights_are_noticed_when_sampling_ahead(self, tmp_path: Path) -> None:
        trained = learner(rollout=Reporting(ahead=1, forgets=True), correction=Truncated())
        with pytest.raises(
            UserError,
            match=r"train/sampler_logprob_gap is \S+ after iteration \d+, beyond "
            r".*max_sampler_gap=0.1",
        ):
            train(trained, 40, callbacks=(Guard(tmp_path),))

    def test_a_policy_that_moves_too_far_is_noticed_when_sampling_ahead(
        self, tmp_path: Path
    ) -> None:
        trained = learner(rollout=Reporting(ahead=1, forgets=True), correction=Truncated())
        with pytest.raises(
            UserError,
            match=r"beyond callbacks.guard.max_ahead_gap=0.5 for 3 iterations in a row: .* type "
            r"rollout.ahead=0",
        ):
            train(trained, 40, callbacks=(Guard(tmp_path, max_sampler_gap=None),))

    def test_the_real_loop_measures_it(self, tmp_path: Path) -> None:
        """A rollout that reports the log-probabilities of another temperature."""

        class Warm(Local):
            def generate(self, *args: Any, **options: Any) -> Any:
                return [
                    replace(r, behavior_logprobs=[2 * x for x in r.behavior_logprobs])
                    for r in super().generate(*args, **options)
                ]

        trained = learner(rollout=Warm(max_tokens=8))
        with pytest.raises(
            UserError, match=r"after iteration 1, beyond callbacks.guard.max_sampler_gap=0.1"
        ):
            train(trained, 4, callbacks=(Guard(tmp_path),))
        assert trained.iteration == 1

    def test_action_warn(self, tmp_path: Path) -> None:
        """Warns once until the metric is back within its bound."""
        trained = Diverging("train/ratio_max", [9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 1.0])
        with pytest.warns(UserWarning, match="beyond callbacks.guard.max_ratio=8") as warned:
            fit(trained, 7, [Guard(tmp_path, max_ratio=8.0, patience=2, action="warn")])
        assert len(warned) == 2
        assert trained.iteration == 7

    def test_null_disables_a_bound(self, tmp_path: Path) -> None:
        guard = Guard(tmp_path, max_ratio=None, max_kl=None, max_grad_norm=None, patience=1)
        assert fit(Diverging("train/ratio_max", [math.inf] * 3), 3, [guard]).iteration == 3

    def test_healthy_run_continues(self, tmp_path: Path) -> None:
        trained = learner(batch=Batch(prompts=4, samples=4, epochs=4, minibatches=4))
        train(trained, 4, callbacks=(Guard(tmp_path, patience=1),))
        assert trained.iteration == 4

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
    @pytest.mark.parametrize("kind", ["mean", "maximum"])
    def test_metrics_of_the_loop_that_are_not_finite_stop_it(
        self, tmp_path: Path, kind: str, value: float
    ) -> None:
        """They reach the guard and the log as they are."""

        class Diverged(Extension):
            def before_iteration_end(self) -> None:
                x, where = torch.tensor([value]), torch.tensor([True])
                self.loop.meter.mean(
                    "train/kl_ref", x
                ) if kind == "mean" else self.loop.meter.maximum("train/kl_ref", x, where)

        trained = learner()
        trained.add_extension(Diverged())
        with pytest.raises(
            UserError,
            match=f"train/kl_ref is {value} after iteration 2, beyond callbacks.guard.max_kl=10 for "
            "2 iterations",
        ):
            train(trained, 5, callbacks=(Guard(tmp_path, patience=2),))
        assert trained.iteration == 2

    @pytest.mark.parametrize(
        "invalid", [{"max_ratio": 0}, {"max_kl": -1}, {"patience": 0}, {"action": "raise"}]
    )
    def test_invalid_settings_are_rejected(self, invalid: dict[str, Any]) -> None:
        with pytest.raises(UserError, match=f"callbacks.guard.{next(iter(invalid))}="):
            Guard("x", **invalid)


class TestNonfinite:
    def test_writes_the_rows_of_the_last_step(self, tmp_path: Path) -> None:
        trained = poisoned(
            learner(batch=Batch(prompts=4, samples=4, token_budget=40, max_nonfinite=2)), 1, 2
        )
        path = tmp_path / "nonfinite/iteration_000003.pt"
        with pytest.raises(
            UserError, match=rf"its rows are in {path}: torch.load\(PATH, weights_only=True\)$"
        ) as error:
            train(trained, 9, callbacks=(Guard(tmp_path / "nonfinite"),))
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
