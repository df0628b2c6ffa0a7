"""Detection of lost and hanging ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rlmods import activity
from rlmods.callbacks import Watchdog
from rlmods.callbacks.heartbeat import Heartbeat, HeartbeatStore, is_alive
from rlmods.judge.chat import Endpoint
from tests.support.processes import Process


class Store(dict[str, str]):
    """In-memory store."""

    set = dict.__setitem__
    get = dict.__getitem__  # type: ignore[assignment]


def make_stores(num: int = 3) -> list[HeartbeatStore]:
    store = Store()
    stores = [
        HeartbeatStore(store, num, Heartbeat(rank, "here", os.getpid())) for rank in range(num)
    ]
    for each in stores:
        each.publish()
    for each in stores:
        each.poll()
    return stores


class TestHeartbeatStore:
    def test_healthy_ranks(self) -> None:
        first, *_ = make_stores()
        assert first.find_lost(60) is None
        assert first.find_hanging(60) is None

    def test_dead_process(self) -> None:
        first, second, _ = make_stores()
        child = os.fork()
        if child == 0:
            os._exit(0)
        second.own = Heartbeat(1, "here", child, phase="update", iteration=7)
        second.publish()
        first.poll()
        while is_alive(child):
            time.sleep(0.01)
        assert first.find_lost(60) == "rank 1 died in phase update of iteration 7"
        os.waitpid(child, 0)
        assert not is_alive(child)

    def test_missing_heartbeats(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, _, third = make_stores()
        first.max_pause_s = 1000
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 50)
        third.publish()
        first.poll()
        monkeypatch.setattr(time, "monotonic", lambda: now + 70)
        assert (
            first.find_lost(60)
            == "rank 1 has sent no heartbeat for 70 s, last in phase start of iteration 1"
        )

    def test_failed_rank(self) -> None:
        first, second, _ = make_stores()
        second.publish(exit_reason="ValueError: no", phase="reward")
        first.poll()
        assert first.find_lost(60) == "rank 1 failed in phase reward of iteration 1: ValueError: no"

    def test_finished_rank_is_not_lost(self) -> None:
        first, second, _ = make_stores()
        second.own = Heartbeat(1, "here", 2**22 + 1)
        second.publish(exit_reason="")
        first.poll()
        assert first.find_lost(0) is None or "rank 1" not in str(first.find_lost(60))

    def test_rank_that_is_behind_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second, third = make_stores()
        first.publish(progress=5, phase="update")
        third.publish(progress=5, phase="update")
        second.publish(progress=4, phase="reward", iteration=3)
        first.poll()
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 20)
        assert first.find_hanging(30) is None
        assert first.find_hanging(10) == (
            "no progress for 20 s: rank 1 in phase reward of iteration 3; the other ranks "
            "wait for it",
            [1],
        )
        second.publish(forward_count=1)
        first.poll()
        assert first.find_hanging(10) is None

    def test_a_rank_that_waits_for_the_others_does_not_hang(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its progress stands still for as long as one other rank makes some."""
        first, second, _ = make_stores()
        now = time.monotonic()
        for step in range(1, 9):
            monkeypatch.setattr(time, "monotonic", lambda step=step: now + 4 * step)
            second.publish(forward_count=step, phase="update")
            first.poll()
            assert first.find_hanging(10) is None
            assert first.find_lost(60) is None
        monkeypatch.setattr(time, "monotonic", lambda: now + 43)
        message, late = first.find_hanging(10) or ("", [])
        assert message.startswith("no progress for 11 s: rank 0 in phase start of iteration 1")
        assert late == [0, 1, 2]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_zombie_is_not_alive() -> None:
    assert is_alive(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    assert not is_alive(child)
    os.waitpid(child, 0)
    assert not is_alive(child)


@pytest.mark.parametrize("name", ["timeout_s", "lost_s"])
def test_zero_timeout_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Watchdog(**{name: 0})


def test_timers_restart_after_a_suspension_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was suspended cannot know how long the others were silent."""
    first, *_ = make_stores()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    first.poll()
    assert first.find_lost(60) is None
    assert first.find_hanging(60) is None


@contextmanager
def start(what: str) -> Iterator[Process]:
    """Start a single rank in a process group of its own, wait until it is watched, and end it at
    last."""
    process = Process(["-m", "tests.callbacks.single_rank", what], stdin=True)
    try:
        process.wait_for("started\n")
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("sleep", 1, "rank 0 in phase reward of iteration 3; resume=auto"),
        (
            "regex",
            -signal.SIGABRT,
            "native code holds the interpreter in rank 0, phase reward of iteration 3; resume=auto",
        ),
        ("nothing", 0, ""),
        ("workers", 0, ""),
    ],
)
def test_a_single_rank_that_hangs_is_ended(what: str, code: int, message: str) -> None:
    with start(what) as process:
        out, errors = process.communicate(timeout=100)
    assert process.returncode == code, errors
    assert message in errors
    assert ("finished" in out) is (code == 0)
    if code:
        assert "error: no progress for" in errors
        assert 'single_rank.py", line ' in errors
    if what == "sleep":
        assert "on_lost_rank no progress" in out


def test_a_debugger_that_waits_is_no_hang() -> None:
    with start("debugger") as process:
        time.sleep(5)
        out, errors = process.communicate("continue\n", timeout=100)
    assert process.returncode == 0, errors
    assert "finished" in out


def test_a_suspended_rank_goes_on() -> None:
    """Suspended alone, as by SIGSTOP, and with its process group, as by Ctrl-Z or a scheduler, for
    longer than all limits."""
    with start("work") as process:
        for send, target in ((os.kill, process.pid), (os.killpg, process.pid)):
            send(target, signal.SIGSTOP)
            time.sleep(5)
            send(target, signal.SIGCONT)
            time.sleep(1)
        out, errors = process.communicate("end\n", timeout=100)
    assert process.returncode == 0, errors
    assert "finished" in out


def test_replies_of_servers_are_progress() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        before = activity.num_replies()
        Endpoint(f"http://127.0.0.1:{server.server_port}/v1", None, timeout_s=20).post({})
        server.shutdown()
    assert activity.num_replies() == before + 1
