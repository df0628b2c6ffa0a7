"""Rules on the metrics of a run: which hold, and what they say."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.algo import Batch, OnlineDPO
from rlmods.callbacks import IterationCheckpoint, Monitor, NonfiniteRows
from rlmods.correction import Truncated
from rlmods.errors import UserError
from rlmods.preference import Sigmoid
from rlmods.rollout import Local
from rlmods.sampling import BestOf, Dynamic
from rlmods.training.extensions import Extension
from rlmods.types import Experience, Prompt, Response, Scores
from tests.callbacks.stubs import Tiny, fit, trainer
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_setup import fit as train, learner
from tests.training.test_train_step import poisoned


class Run:
    """Monitor that is given metrics by hand."""

    def __init__(self, **settings: Any) -> None:
        self.monitor = Monitor(**settings)
        self.trainer = trainer()
        self.trainer.should_stop = False
        self.logged: list[dict[str, float]] = []
        self.learner: Any = SimpleNamespace(iteration=0, log_row=self.logged.append)

    def iterate(self, **metrics: float) -> list[str]:
        """Return the messages of an iteration with these metrics of `train/`, which has a gradient
        unless they say otherwise."""
        self.learner.iteration += 1
        named = {f"train/{name}": value for name, value in ({"grad_norm": 1.0} | metrics).items()}
        return self.hear(self.monitor.on_iteration_end, named)

    def validate(self, accuracy: float) -> list[str]:
        return self.hear(self.monitor.on_validation_metrics, {"val/accuracy": accuracy}, [])

    def hear(self, hook: Any, metrics: Mapping[str, float], *rows: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hook(self.trainer, self.learner, metrics, *rows)
        return [str(warning.message) for warning in caught]


Values = Sequence[float]
RULES: dict[str, tuple[dict[str, Values], str]] = {
    "entropy": (
        {"entropy": [2.0] * 5 + [0.1] * 5, "accuracy": [0.2] * 10},
        "train/entropy fell from 2 to 0.1: the policy hardly explores",
    ),
    "diversity": (
        {"unique_fraction": [0.9] * 5 + [0.4] * 5},
        "train/unique_fraction fell from 0.9 to 0.4",
    ),
    "length": (
        {"truncated_fraction": [0.1] * 5 + [0.5] * 5},
        "train/truncated_fraction rose from 0.1 to 0.5: responses reach the limit; type a larger "
        "rollout.max_tokens",
    ),
    "drift": (
        {"kl_ref": [0.0] * 5 + [2.0] * 5, "reward": [0.1] * 5 + [0.9] * 5},
        "train/kl_ref is 2, beyond 1 for 5 iterations in a row while train/reward rose from 0.1 to "
        "0.9",
    ),
    "gap": (
        {"accuracy": [0.5] * 5 + [0.3] * 5, "reward": [0.1] * 5 + [0.9] * 5},
        "train/accuracy fell from 0.5 to 0.3 while train/reward rose from 0.1 to 0.9",
    ),
    "reward": (
        {"reward_std": [0.4] * 3 + [0.0] * 3, "reward": [0.5] * 3 + [0.1] * 3},
        "train/reward_std fell from 0.4 to 0 while train/reward fell from 0.5 to 0.1",
    ),
    "idle": (
        {"zero_advantage_fraction": [1.0] * 5, "all_wrong_fraction": [1.0] * 5},
        "train/all_wrong_fraction is 1 for 5 iterations in a row: nothing is trained, every "
        "response is wrong: type easier data",
    ),
}
"""Metrics of which the last iteration makes a rule hold, and the message, by name of the rule."""
FINE: dict[str, dict[str, Values]] = {
    "entropy, as the task is solved": {
        "entropy": [2.0] * 5 + [0.1] * 5,
        "accuracy": [0.2] * 5 + [0.95] * 5,
    },
    "distance from the reference without more reward": {
        "kl_ref": [0.0] * 5 + [2.0] * 5,
        "reward": [0.5] * 10,
    },
    "accuracy and reward fall together": {
        "accuracy": [0.5] * 5 + [0.3] * 5,
        "reward": [0.5] * 5 + [0.3] * 5,
    },
    "rewards of a group are equal at last, as all are right": {
        "reward_std": [0.4] * 3 + [0.0] * 3,
        "reward": [0.5] * 3 + [1.0] * 3,
    },
    "responses become alike, as the policy learns": {
        "unique_fraction": [0.9] * 5 + [0.4] * 5,
        "accuracy": [0.2] * 5 + [0.5] * 5,
    },
    "a rare reward is missing for some batches": {
        "reward_std": [0.03] * 3 + [0.0] * 3,
        "reward": [0.01] * 3 + [0.0] * 3,
    },
    "single samples are flat groups, and have advantages": {
        "flat_group_fraction": [1.0] * 8,
        "zero_advantage_fraction": [0.1] * 8,
    },
    "all of it in a short run": {"entropy": [2.0, 2.0, 0.1, 0.1], "reward": [0.1, 0.1, 0.9, 0.9]},
}


def messages(run: Run, metrics: Mapping[str, Values]) -> list[list[str]]:
    names = list(metrics)
    rows = zip(*metrics.values(), strict=True)
    return [run.iterate(**dict(zip(names, row, strict=True))) for row in rows]


class TestWarnings:
    @pytest.mark.parametrize("name", RULES)
    def test_holds_from_the_last_iteration_on(self, name: str) -> None:
        metrics, text = RULES[name]
        run = Run()
        *before, last = messages(run, metrics)
        assert not any(before)
        [message] = last
        assert message.startswith(f"iteration {len(before) + 1}: {text}")
        assert list(run.monitor.fired.items()) == [(name, message)]
        assert [list(row) for row in run.logged] == [[f"alert/{name}"]]
        assert not run.trainer.should_stop

    @pytest.mark.parametrize("name", FINE)
    def test_is_silent(self, name: str) -> None:
        assert not any(messages(Run(), FINE[name]))

    def test_failing_graders(self) -> None:
        run = Run()
        metrics = {"reward/code/errors": 1.0, "reward/code/timeouts": 4.0, "train/responses": 64.0}
        [message] = run.hear(run.monitor.on_iteration_end, metrics)
        assert "ungraded_fraction is 0.0625, beyond 0.05: such responses count as wrong" in message

    def test_collapse_of_the_validation(self) -> None:
        run = Run()
        heard = [run.validate(value) for value in (0.4, 0.5, 0.2, 0.4, 0.2, 0.1)]
        assert [len(messages) for messages in heard] == [0, 0, 0, 0, 0, 1]
        assert "val/accuracy has collapsed to 0.1, its best was 0.5: go back" in heard[-1][0]

    def test_warns_again_after_it_has_recovered(self) -> None:
        run = Run()
        norms = [0.0] * 5 + [1.0] + [0.0] * 6
        heard = [len(run.iterate(grad_norm=norm)) for norm in norms]
        assert heard == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
        assert run.logged == [{"alert/idle": 1.0}] * 2

    def test_can_stop(self) -> None:
        run = Run(stop_on_warning=True)
        assert not any(messages(run, RULES["length"][0]))
        assert run.trainer.should_stop
        with pytest.raises(UserError, match=r"^iteration 10: train/truncated_fraction rose"):
            run.monitor.teardown(run.trainer, run.learner, "fit")

    def test_state(self) -> None:
        """A resumed run warns as an uninterrupted one, and lists what the first part has."""
        metrics, _ = RULES["gap"]
        whole = Run()
        expected = messages(whole, metrics)
        first = Run()
        second = Run()
        messages(first, {name: values[:7] for name, values in metrics.items()})
        second.monitor.load_state_dict(first.monitor.state_dict())
        second.learner.iteration = 7
        rest = {name: values[7:] for name, values in metrics.items()}
        assert messages(second, rest) == expected[7:]
        assert second.monitor.state_dict() == whole.monitor.state_dict()
        again = Run()
        again.monitor.load_state_dict(whole.monitor.state_dict())
        assert again.iterate(accuracy=0.3, reward=0.9) == []


class Diverging(Tiny):
    """Reports the given value of a metric after each iteration."""

    def __init__(self, name: str, values: list[float]) -> None:
        super().__init__()
        self.name, self.values = name, values

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.ended = {"train/grad_norm": 1.0, self.name: self.values[self.iteration - 1]}


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "setting", "limit"),
        [
            ("train/ratio_max", "max_ratio", 1000),
            ("train/kl_old", "max_kl", 10),
            ("train/kl_ref", "max_kl", 10),
            ("train/grad_norm", "max_grad_norm", 10000),
        ],
    )
    @pytest.mark.parametrize("value", [2e4, math.inf, math.nan])
    def test_stops_and_saves(
        self, tmp_path: Path, name: str, setting: str, limit: int, value: float
    ) -> None:
        trained = Diverging(name, [1.0, value, value, 1.0, value, value, value, value])
        message = (
            rf"^iteration 7: {name} is \S+, beyond {limit} for 3 iterations in a row: training has "
            rf"diverged; .* type a smaller optimizer.lr, or another callbacks.monitor.{setting}$"
        )
        with pytest.raises(UserError, match=message):
            fit(trained, 8, [IterationCheckpoint(tmp_path, every=0), Monitor()])
        assert [path.name for path in tmp_path.iterdir()] == ["iteration_000007.ckpt"]

    @pytest.mark.parametrize("value", [0.31, math.nan])
    def test_a_sampler_that_disagrees_stops_the_first_iteration(
        self, tmp_path: Path, value: float
    ) -> None:
        trained = Diverging("train/sampler_logprob_gap", [value] * 3)
        with pytest.raises(
            UserError, match=r"^iteration 1: train/sampler_logprob_gap is \S+, beyond 0.1: the"
        ) as error:
            fit(trained, 3, [IterationCheckpoint(tmp_path, every=0), Monitor()])
        causes = ("padding", "temperature", "weights", "type rollout=local", "max_sampler_gap")
        assert all(cause in str(error.value) for cause in causes)
        assert [path.name for path in tmp_path.iterdir()] == ["iteration_000001.ckpt"]

    def test_null_disables_a_limit(self) -> None:
        monitor = Monitor(max_ratio=None)
        assert fit(Diverging("train/ratio_max", [math.inf] * 4), 4, [monitor]).iteration == 4

    @pytest.mark.parametrize("kind", ["mean", "maximum"])
    def test_metrics_of_the_loop_that_are_not_finite_stop_it(self, kind: str) -> None:
        """They reach the monitor and the log as they are."""

        class Diverged(Extension):
            def before_iteration_end(self) -> None:
                x, where = torch.tensor([math.nan]), torch.tensor([True])
                if kind == "mean":
                    self.loop.meter.mean("train/kl_ref", x)
                else:
                    self.loop.meter.maximum("train/kl_ref", x, where)

        trained = learner()
        trained.add_extension(Diverged())
        with pytest.raises(UserError, match=r"^iteration 3: train/kl_ref is nan, beyond 10"):
            train(trained, 5, callbacks=(Monitor(),))
        assert trained.iteration == 3


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


class TestSampler:
    """The real loop measures the difference between sampler and trainer."""

    @pytest.mark.slow
    def test_the_update_of_one_iteration_is_within_the_bound(self) -> None:
        rows = train(
            learner(rollout=Reporting(ahead=1), correction=Truncated()),
            12,
            callbacks=(Monitor(),),
        )
        assert 0.01 < max(row.get("train/ahead_logprob_gap", 0.0) for row in rows) < 0.5

    def test_a_failed_transfer_of_weights_is_noticed_when_sampling_ahead(self) -> None:
        """The policy hardly moves, so that rows sampled ahead would be within their bound: the gap
        of weights that lack a tied one."""
        trained = learner(
            rollout=Reporting(ahead=1, offset=0.14),
            correction=Truncated(),
            optimizer=partial(torch.optim.AdamW, lr=1e-7),
        )
        about = r"iteration 2: train/sampler_logprob_gap is 0\.14, beyond 0\.1: "
        with pytest.raises(UserError, match=about):
            train(trained, 4, callbacks=(Monitor(),))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("max_sampler_gap", "message"),
        [
            (0.1, r"train/sampler_logprob_gap is \S+, beyond 0\.1: "),
            (None, r"beyond 0\.5 for 3 iterations in a row: .* type rollout\.ahead=0"),
        ],
    )
    def test_old_weights_are_noticed_when_sampling_ahead(
        self, max_sampler_gap: float | None, message: str
    ) -> None:
        trained = learner(rollout=Reporting(ahead=1, forgets=True), correction=Truncated())
        with pytest.raises(UserError, match=message):
            train(trained, 40, callbacks=(Monitor(max_sampler_gap=max_sampler_gap),))

    def test_the_real_loop_measures_it(self) -> None:
        """A rollout that reports the log-probabilities of another temperature."""

        class Warm(Local):
            def generate(self, *args: Any, **options: Any) -> Any:
                return [
                    replace(r, behavior_logprobs=[2 * x for x in r.behavior_logprobs])
                    for r in super().generate(*args, **options)
                ]

        trained = learner(rollout=Warm(max_tokens=8))
        with pytest.raises(UserError, match=r"^iteration 1: train/sampler_logprob_gap is"):
            train(trained, 4, callbacks=(Monitor(),))
        assert trained.iteration == 1

    @pytest.mark.parametrize("truncated", [{"top_p": 0.5}, {"top_k": 2}])
    def test_a_truncated_distribution_is_no_disagreement(self, truncated: dict[str, Any]) -> None:
        trained = learner(rollout=Local(max_tokens=8, **truncated), correction=Truncated())
        rows = train(trained, 2, callbacks=(Monitor(),))
        assert trained.iteration == 2
        assert max(row.get("train/sampler_logprob_gap", 0.0) for row in rows) > 0.1


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "flat groups": (
        {
            "reward": lambda rs: Scores([1.0] * len(rs), correct=[True] * len(rs)),
            "sampling": Dynamic(),
            "max_draws": 1,
        },
        "every response is correct: type harder data",
    ),
    "all wrong, with a KL or entropy term": (
        {
            "reward": lambda rs: Scores([0.0] * len(rs), correct=[False] * len(rs)),
            "entropy_coefficient": 0.1,
        },
        "every response is wrong",
    ),
    "flat groups that are trained on": (
        {"reward": lambda rs: [0.3] * len(rs)},
        "train/flat_group_fraction is 1 for 5",
    ),
    "one sample": (
        {"sampling": Dynamic(), "batch": Batch(prompts=4, samples=1), "max_draws": 1},
        "type batch.samples=8 or more",
    ),
    "no score": (
        {"reward": lambda rs: [None] * len(rs)},
        "every response: check reward=",
    ),
    "nothing selected": (
        {"sampling": BestOf(threshold=9.0), "max_draws": 1},
        "sampling= selects no response",
    ),
    "no preference": (
        {"kind": OnlineDPO, "preference": Sigmoid(), "judge": lambda prompt, first, second: 0.5},
        "all responses to a prompt score alike",
    ),
}


def warnings_of(iterations: int, **change: Any) -> list[str]:
    monitor = Monitor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(learner(**change), iterations, callbacks=(monitor,))
    return list(monitor.fired.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_names_the_likely_cause(name: str) -> None:
    change, says = CASES[name]
    [message] = warnings_of(5, **change)
    assert message.startswith("iteration 5: ")
    assert "nothing is trained, " in message
    assert says in message


@pytest.mark.slow
def test_a_healthy_run_is_silent() -> None:
    batch = Batch(prompts=4, samples=4, epochs=4, minibatches=4)
    assert warnings_of(6, batch=batch) == []


def test_nonfinite_rows_of_the_last_step_are_written(tmp_path: Path) -> None:
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
