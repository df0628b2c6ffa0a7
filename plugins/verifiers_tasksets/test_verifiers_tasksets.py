"""Tasksets of verifiers, played by the package itself."""

from pathlib import Path

import pytest
from verifiers_tasksets import Verifiers

from rlmods.environment import Agent
from rlmods.errors import UserError
from rlmods.rollout import Local, MultiTurn
from tests.support.smollm2 import assert_learns, train
from tests.support.tiny_setup import policy

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    answer: str = ""


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float(task.answer in trace.last_reply)

    @vf.reward(weight=0.25)
    async def short(self, task, trace) -> float:
        return 1.0 if task.idx else 1 / 0


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for i in range(6):
            yield Sum(Data(prompt=f"{i}+1=", answer="1"), self.config.task)
"""


def test_the_taskset_is_named() -> None:
    with pytest.raises(UserError, match=r"data=verifiers: type data\.taskset=PACKAGE"):
        Verifiers()()


@pytest.fixture
def _taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers")
    (tmp_path / "sums_of_test.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_taskset")
def test_rewards_and_failures_are_those_of_the_package() -> None:
    splits = Verifiers("sums_of_test", num_train=4, num_val=1, chat=False)()
    assert [x.text for x in (*splits.val, *splits.train)] == [f"{i}+1=" for i in range(5)]
    rollout = MultiTurn(Local(max_tokens=8, seed=1), Agent(agent="verifiers_tasksets:agent"))
    rollout.sync(policy(), iteration=0)
    played = rollout.generate([*splits.val, *splits.train], samples=4, iteration=0)
    for i, response in enumerate(played):
        assert response.session is not None
        assert response.session.requests == 1
        if i < 4:
            assert response.session.failure == "crash"
            assert response.session.error.startswith("RuntimeError: TaskError: ")
        else:
            assert response.session.failure is None
            assert response.turns[-1].reward == float("1" in response.text) + 0.25
    assert len({tuple(response.tokens) for response in played}) > 10


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_taskset")
def test_an_unknown_taskset_is_one_line() -> None:
    with pytest.raises(
        UserError, match=r"data\.taskset=no_such_taskset: taskset 'no_such_taskset'"
    ):
        Verifiers("no_such_taskset")()


ADDITION = """
import re

import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    answer: str = ""


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float(re.findall("[0-9]+", trace.last_reply)[-1:] == [task.answer])


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for i in range(20):
            x, y = divmod(i, 5)
            yield Sum(Data(prompt=f"What is {y}+{x}?", answer=str(x + y)), self.config.task)
"""


@pytest.mark.nightly
def test_a_taskset_trains_smollm2(tmp_path: Path) -> None:
    pytest.importorskip("verifiers")
    (tmp_path / "addition_of_test.py").write_text(ADDITION)
    rows = train(
        tmp_path / "run",
        "data=verifiers",
        "data.taskset=addition_of_test",
        "data.num_train=18",
        "data.num_val=1",
        "environment.agent=verifiers_tasksets:agent",
        modules=tmp_path,
    )
    assert_learns(rows)
