"""A rank that is lost is named, and nobody waits for it."""

from __future__ import annotations

import os
import time

import pytest

from rlmods.callbacks import Watchdog
from rlmods.callbacks.beats import Beat, Board, lives


class Store(dict[str, str]):
    """A store in memory."""

    set = dict.__setitem__
    get = dict.__getitem__  # type: ignore[assignment]


def boards(num: int = 3) -> list[Board]:
    store = Store()
    made = [Board(store, num, Beat(rank, "here", os.getpid())) for rank in range(num)]
    for board in made:
        board.tell()
    for board in made:
        board.listen()
    return made


class TestBoard:
    def test_all_is_well(self) -> None:
        first, *_ = boards()
        assert first.lost(60) is None
        assert first.hanging(60) is None

    def test_a_process_that_has_ended(self) -> None:
        first, second, _ = boards()
        child = os.fork()
        if child == 0:
            os._exit(0)
        second.own = Beat(1, "here", child, stage="update", iteration=7)
        second.tell()
        first.listen()
        while lives(child):
            time.sleep(0.01)
        assert first.lost(60) == "rank 1 died, last heard of in stage update of iteration 7"
        os.waitpid(child, 0)
        assert not lives(child)

    def test_a_machine_that_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, _, third = boards()
        first.pause_s = 1000
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 50)
        third.tell()
        first.listen()
        monkeypatch.setattr(time, "monotonic", lambda: now + 70)
        assert first.lost(60) == "rank 1 has not been heard of for 70 s, and was in stage start of iteration 1"

    def test_one_that_failed_says_why(self) -> None:
        first, second, _ = boards()
        second.tell(ended="ValueError: no", stage="reward")
        first.listen()
        assert first.lost(60) == "rank 1 failed in stage reward of iteration 1: ValueError: no"

    def test_one_that_is_done_is_not_lost(self) -> None:
        first, second, _ = boards()
        second.own = Beat(1, "here", 2**22 + 1)
        second.tell(ended="")
        first.listen()
        assert first.lost(0) is None or "rank 1" not in str(first.lost(60))

    def test_the_one_that_is_behind_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second, third = boards()
        first.tell(place=5, stage="update")
        third.tell(place=5, stage="update")
        second.tell(place=4, stage="reward", iteration=3)
        first.listen()
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 20)
        assert first.hanging(30) is None
        assert first.hanging(10) == ("no sign of life for 20 s: rank 1 in stage reward of iteration 3, and the others wait for it", [1])
        second.tell(signs=1)
        first.listen()
        assert first.hanging(10) is None


@pytest.mark.parametrize("name", ["timeout_s", "lost_s"])
def test_no_time_at_all_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Watchdog(**{name: 0})


def test_one_that_stood_still_itself_takes_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended and woken up, it cannot say how long the others were silent."""
    first, *_ = boards()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    first.listen()
    assert first.lost(60) is None
    assert first.hanging(60) is None
