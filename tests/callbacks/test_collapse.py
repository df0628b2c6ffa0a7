"""A collapse of the accuracy or of the reward is reported, at once and at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.callbacks import Collapse
from rlmods.errors import UserError
from tests.callbacks.stubs import trainer


class Recorder:
    def __init__(self) -> None:
        self.callback, self.trainer = Collapse(min_drop=0.05, window=2), trainer()
        self.learner: Any = SimpleNamespace(
            log_row=lambda row: self.logged.append(row), iteration=0
        )
        self.logged: list[dict[str, float]] = []

    def validate(self, value: float, num_prompts: int = 200) -> str | None:
        rows = [{"id": i} for i in range(num_prompts)] * 2
        self.callback.on_validation_metrics(
            self.trainer, self.learner, {"val/accuracy": value}, rows
        )
        return self.callback.finding

    def iterate(self, reward: float, std: float) -> str | None:
        self.learner.iteration += 1
        self.callback.on_iteration_end(
            self.trainer, self.learner, {"train/reward": reward, "train/reward_std": std}
        )
        return self.callback.finding


@pytest.mark.filterwarnings("ignore:iteration")
class TestCollapse:
    @pytest.mark.parametrize(
        ("values", "collapsed"),
        [
            ((0.4, 0.0), True),
            ((0.1, 0.5, 0.25), True),
            ((0.4, 0.21), False),
            ((0.04, 0.0), False),
            ((0.0, 0.0), False),
            ((0.2, 0.9), False),
        ],
    )
    def test_accuracy_at_most_half_of_the_best(
        self, values: tuple[float, ...], collapsed: bool
    ) -> None:
        recorder = Recorder()
        assert (([recorder.validate(value) for value in values][-1]) is not None) == collapsed
        assert recorder.logged == [{"alert/collapse": 1.0}] * collapsed

    @pytest.mark.parametrize(
        ("best", "value", "num_prompts", "collapsed"),
        [
            (1.0, 0.0, 2, False),
            (1.0, 0.0, 4, True),
            (0.5, 0.25, 16, False),
            (0.5, 0.25, 100, True),
            (0.4, 0.0, 0, True),
        ],
    )
    def test_the_noise_of_few_prompts_is_no_collapse(
        self, best: float, value: float, num_prompts: int, collapsed: bool
    ) -> None:
        recorder = Recorder()
        recorder.validate(best, num_prompts)
        assert (recorder.validate(value, num_prompts) is not None) == collapsed

    def test_prompts_of_named_sets_do_not_count(self) -> None:
        recorder = Recorder()
        recorder.validate(1.0)
        rows = [{"id": 0}, {"id": 1}, *({"id": i, "set": "other"} for i in range(100))]
        recorder.callback.on_validation_metrics(
            recorder.trainer, recorder.learner, {"val/accuracy": 0.0}, rows
        )
        assert recorder.callback.finding is None

    def test_reports_once_until_it_has_recovered(self) -> None:
        recorder = Recorder()
        findings = [recorder.validate(value) is not None for value in (0.4, 0.0, 0.0, 0.3, 0.0)]
        assert findings == [False, True, True, False, True]
        assert len(recorder.logged) == 2

    @pytest.mark.parametrize(
        ("reward", "std", "collapsed"),
        [(0.0, 0.0, True), (0.0, 0.4, False), (1.0, 0.0, False), (0.45, 0.0, False)],
        ids=["alike and lower", "lower", "solved", "hardly lower"],
    )
    def test_every_response_has_the_same_lower_reward(
        self, reward: float, std: float, collapsed: bool
    ) -> None:
        recorder = Recorder()
        for _ in range(2):
            assert recorder.iterate(0.5, 0.5) is None
        assert recorder.iterate(reward, std) is None  # the average still has an iteration of before
        assert (recorder.iterate(reward, std) is not None) == collapsed

    def test_resumed_state(self) -> None:
        recorder, resumed = Recorder(), Recorder()
        recorder.validate(0.4)
        recorder.validate(0.0)
        resumed.callback.load_state_dict(recorder.callback.state_dict())
        assert resumed.callback.finding == recorder.callback.finding
        resumed.validate(0.0)
        assert resumed.logged == []  # reported before


def test_warns() -> None:
    recorder = Recorder()
    recorder.validate(0.4)
    with pytest.warns(
        UserWarning,
        match=r"iteration 0: val/accuracy has collapsed to 0\.000, its best was 0\.400: go back",
    ):
        recorder.validate(0.0)


@pytest.mark.parametrize("setting", [{"min_drop": 0.0}, {"window": 0}])
def test_invalid_settings(setting: dict[str, Any]) -> None:
    [name] = setting
    with pytest.raises(UserError, match=rf"callbacks\.collapse\.{name}=0"):
        Collapse(**setting)
