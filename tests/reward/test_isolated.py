"""Rewards that hang, crash or exit do not affect other responses, and are counted."""

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.grading import isolation
from rlmods.needs import RewardNeeds
from rlmods.reward import Accuracy, WeightedSum
from rlmods.reward.isolated import Isolated
from tests.grading.careless import Plugin
from tests.grading.hostile import check_scores, grade_batch
from tests.reward.samples import response
from tests.support.processes import Process

FEW = 48
"""Responses of a small batch, which has each attack once."""


def zombies() -> list[str]:
    """Names of the zombie children of this process."""
    names = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if parent == str(os.getpid()) and state == "Z":
            names.append(name)
    return names


def in_a_thread_of_asyncio() -> Any:
    async def main() -> Any:
        return await asyncio.to_thread(grade_batch, FEW)

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("run", [grade_batch, in_a_thread_of_asyncio], ids=lambda f: f.__name__)
def test_batch_with_hostile_responses(run: Any) -> None:
    check_scores(*run())
    assert zombies() == []
    assert Isolated(Plugin(), timeout_s=20.0)(
        [response(r"\boxed{3}", "3", attack=None)]
    ).values == [1.0], "workers are replaced"


@pytest.mark.slow
def test_on_two_ranks() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        Process(["-m", "tests.grading.hostile"], env=os.environ | shared | {"RANK": str(rank)})
        for rank in (0, 1)
    ]
    try:
        for process in ranks:
            _, stderr = process.communicate(timeout=240)
            assert process.returncode == 0, stderr[-3000:]
    finally:
        for process in ranks:
            process.kill()


class TestIsolated:
    def test_timeout_s_of_a_term_isolates_it(self) -> None:
        rows = [
            response(r"\boxed{1}", "1", attack="exit"),
            response(r"\boxed{1}", "1", attack=None),
        ]
        scores = WeightedSum({"plugin": {"reward": Plugin(), "timeout_s": 20.0, "weight": 2.0}})(
            rows
        )
        assert scores.values == [None, 2.0]
        assert scores.counts == {"plugin/timeouts": 0, "plugin/errors": 1}

    @pytest.mark.parametrize("value", ["nan", "inf"])
    def test_a_score_that_is_not_finite_is_an_error_of_its_response(self, value: str) -> None:
        rows = [response(r"\boxed{1}", "1", attack=value), response(r"\boxed{1}", "1", attack=None)]
        scores = Isolated(Plugin(), timeout_s=20.0)(rows)
        assert scores.values == [None, 1.0]
        assert scores.counts == {"timeouts": 0, "errors": 1}

    @pytest.mark.slow
    def test_batch_deadline(self) -> None:
        start = time.monotonic()
        scores = Isolated(Plugin(), timeout_s=60.0, batch_timeout_s=2.0)(
            [response("", "1", attack="loop")] * 4
        )
        assert time.monotonic() - start < 30
        assert scores.counts == {"timeouts": 4, "errors": 0}

    def test_reward_that_cannot_be_pickled_is_refused(self) -> None:
        with pytest.raises(UserError, match="this reward cannot be pickled"):
            WeightedSum({"mine": {"reward": lambda rows: [0.0] * len(rows), "timeout_s": 1.0}})

    @pytest.mark.slow
    def test_all_scores_of_the_reward_are_returned(self) -> None:
        reward = Accuracy()
        rows = [response(r"\boxed{1}", "1"), response(r"\boxed{2}", "1"), response("", None)]
        isolated, direct = Isolated(reward, timeout_s=60.0, workers=1)(rows), reward(rows)
        assert (isolated.values, isolated.correct) == (direct.values, direct.correct)
        assert (isolated.columns, isolated.counts) == (direct.columns, direct.counts)

    @pytest.mark.parametrize("trait", ["group", "gives_steps", "gives_tokens", "turns"])
    def test_a_reward_that_needs_more_than_one_response_is_refused(self, trait: str) -> None:
        reward = type("Group", (Plugin,), {"needs": RewardNeeds(**{trait: True})})()
        with pytest.raises(UserError, match="timeout_s scores one response at a time"):
            Isolated(reward, timeout_s=1.0)


@pytest.mark.parametrize("scores", [[], [0.5, 1.0]])
def test_a_reward_returns_one_score_for_the_one_response_it_gets(
    scores: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_REWARD", [lambda responses: scores])
    with pytest.raises(ValueError, match=f"{len(scores)} scores for 1 response"):
        isolation.answer(isolation.to_message(response("x")))
