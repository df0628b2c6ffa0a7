"""Whatever a server does: no traceback, no wait beyond the limit, every lost verdict counted."""

from __future__ import annotations

import threading

import pytest

from tests.judge import misbehaving_servers
from tests.judge.misbehaving_servers import Behaviour, ask

ALL = misbehaving_servers.behaviours()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


def test_there_are_at_least_40():
    assert len({behaviour.name for behaviour in ALL}) == len(ALL) >= 40


def test_no_exit_waits_for_a_name():
    before = set(threading.enumerate())
    [behaviour] = [
        behaviour for behaviour in ALL if behaviour.name == "a name that is not resolved"
    ]
    ask(behaviour, replied_before=True)
    assert [thread.daemon for thread in threading.enumerate() if thread not in before] == [
        True,
        True,
    ], "two tries in its deadline"


@pytest.mark.parametrize("behaviour", ALL, ids=lambda behaviour: behaviour.name)
class TestJudge:
    def test_counts_what_is_lost(self, behaviour: Behaviour):
        row = ask(behaviour, replied_before=True)
        assert row["error"] is None
        assert row["verdict"] == (1.0 if behaviour.expected == "verdict" else None)
        assert row["counts"] == {"verdict": {}, "without_verdict": {"without_verdict": 3}}.get(
            behaviour.expected, {behaviour.expected: 1}
        )
        assert row["seconds"] < (
            10 * misbehaving_servers.SHORT_S if behaviour.expected == "timeouts" else row["limit_s"]
        )

    def test_first_question_that_is_lost_is_a_one_line_error(self, behaviour: Behaviour):
        row = ask(behaviour, replied_before=False)
        if behaviour.expected in ("verdict", "without_verdict"):
            assert row["error"] is None
            return
        assert row["error"].startswith(
            ("judge.url=http://127.0.0.1:", "judge.url=http://localhost:")
        )
        assert row["error"].isprintable()
        assert len(row["error"]) < 800
