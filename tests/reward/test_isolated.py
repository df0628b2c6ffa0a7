"""Rewards that hang, crash and exit: the batch comes back, and says what happened."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlmods.reward import Accuracy, Format, WeightedSum
from rlmods.reward.isolated import Isolated
from rlmods.types import UserError
from tests.reward.careless import Plugin
from tests.reward.hostile import check, graded
from tests.reward.samples import response


def zombies() -> list[str]:
    """Children of this process that have ended and that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if parent == str(os.getpid()) and state == "Z":
            found.append(name)
    return found


def in_a_thread() -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(graded()))
    thread.start()
    thread.join()
    return found[0]


def in_asyncio() -> Any:
    async def main() -> Any:
        return graded()

    return asyncio.run(main())


def in_a_thread_of_asyncio() -> Any:
    async def main() -> Any:
        return await asyncio.to_thread(graded)

    return asyncio.run(main())


@pytest.mark.parametrize("where", [graded, in_a_thread, in_asyncio, in_a_thread_of_asyncio], ids=lambda f: f.__name__)
def test_an_eighth_of_a_batch_is_hostile(where: Any) -> None:
    check(*where())
    assert zombies() == []
    assert Isolated(Plugin(), timeout_s=20.0)([response(r"\boxed{3}", "3", attack=None)]).values == [1.0], "workers recover"


@pytest.mark.slow
def test_on_two_ranks() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.reward.hostile"]
    ranks = [subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, stderr=subprocess.PIPE) for rank in (0, 1)]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said.decode()[-3000:]
    finally:
        for process in ranks:
            process.kill()


class TestIsolated:
    def test_scores_what_the_reward_scores(self) -> None:
        rows = [response("<answer>1</answer>", "1"), response("1", "1"), response("", None)]
        assert Isolated(Format(), timeout_s=60.0)(rows).values == Format()(rows).values

    def test_is_asked_for_by_one_field(self) -> None:
        rows = [response(r"\boxed{1}", "1", attack="exit"), response(r"\boxed{1}", "1", attack=None)]
        scores = WeightedSum({"plugin": {"reward": Plugin(), "timeout_s": 20.0, "weight": 2.0}})(rows)
        assert scores.values == [None, 2.0]
        assert scores.counts == {"plugin/timeouts": 0, "plugin/errors": 1}

    def test_traits_are_those_of_the_reward(self) -> None:
        assert WeightedSum({"a": {"reward": Accuracy(), "timeout_s": 1.0}}).needs_answer

    def test_the_batch_has_a_deadline(self) -> None:
        start = time.monotonic()
        scores = Isolated(Plugin(), timeout_s=60.0, batch_timeout_s=2.0)([response("", "1", attack="loop")] * 4)
        assert time.monotonic() - start < 30
        assert scores.counts == {"timeouts": 4, "errors": 0}

    def test_what_cannot_be_sent_is_refused_at_once(self) -> None:
        with pytest.raises(UserError, match="this one cannot be sent there"):
            WeightedSum({"mine": {"reward": lambda rows: [0.0] * len(rows), "timeout_s": 1.0}})
        with pytest.raises(UserError, match="timeout_s=0: must be above 0"):
            Isolated(Plugin(), timeout_s=0)

    def test_what_a_reward_says_arrives_whole(self) -> None:
        reward = Accuracy()
        rows = [response(r"\boxed{1}", "1"), response(r"\boxed{2}", "1"), response("", None)]
        alone, here = Isolated(reward, timeout_s=60.0)(rows), reward(rows)
        assert (alone.values, alone.correct, alone.columns, alone.counts) == (here.values, here.correct, here.columns, here.counts)

    @pytest.mark.parametrize("trait", ["needs_group", "gives_steps"])
    def test_a_reward_that_needs_more_than_one_response_is_refused(self, trait: str) -> None:
        made = type("Group", (Plugin,), {trait: True})()
        with pytest.raises(UserError, match="timeout_s scores one response at a time"):
            Isolated(made, timeout_s=1.0)
