import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlmods.grading.pool import NOT_STARTED, Outcome, Pool
from rlmods.reward import WeightedSum
from tests.grading.careless import Plugin
from tests.reward.samples import response

pytestmark = pytest.mark.slow

TARGET = "tests.grading.misbehaving:act"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(TARGET, workers=2)
    yield pool
    pool.close()


def run(
    pool: Pool, *actions: str, timeout_s: float = 1.0, batch_timeout_s: float = 60.0
) -> list[Outcome]:
    return pool.map(
        [(action,) for action in actions], timeout_s=timeout_s, batch_timeout_s=batch_timeout_s
    )


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition: object, *, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(condition())  # type: ignore[operator]


def check_all_outcomes(pool: Pool) -> None:
    actions = [
        "a",
        "hang",
        "b",
        "exit",
        "c",
        "raise",
        "d",
        "sys_exit",
        "no_json",
        "memory",
        "recurse",
        "print",
        "e",
    ]
    outcomes = run(pool, *actions)
    statuses = {action: outcome.status for action, outcome in zip(actions, outcomes, strict=True)}
    errors = dict.fromkeys(["exit", "raise", "sys_exit", "no_json", "memory", "recurse"], "error")
    assert statuses == {**dict.fromkeys("abcde", "ok"), "print": "ok", "hang": "timeout", **errors}
    assert outcomes[5].value == "LookupError: no such thing"
    assert outcomes[11].value == "print"


def test_hangs_and_crashes_affect_only_their_own_call(pool: Pool) -> None:
    start = time.monotonic()
    check_all_outcomes(pool)
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_from_threads(pool: Pool) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(check_all_outcomes, [pool, pool]))


def test_outcomes_are_in_the_order_of_the_calls(pool: Pool) -> None:
    actions = [str(n) for n in range(200)]
    assert [outcome.value for outcome in run(pool, *actions)] == actions


def test_calls_start_no_threads_of_their_own(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = threading.Thread.start

    def count(self: threading.Thread) -> None:
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", count)
    run(pool, *"a" * 20)
    assert len(started) == 2  # one for each worker


def test_batch_deadline(pool: Pool) -> None:
    start = time.monotonic()
    outcomes = run(pool, *["sleep"] * 6, timeout_s=50.0, batch_timeout_s=1.0)
    assert time.monotonic() - start < 10
    assert outcomes == [Outcome("timeout")] * 2 + [NOT_STARTED] * 4
    assert run(pool, "a") == [Outcome("ok", "a")]


def test_workers_are_kept_between_batches_and_a_killed_one_is_replaced(pool: Pool) -> None:
    before = {run(pool, "pid")[0].value for _ in range(4)}
    assert len(before) <= 2
    assert os.getpid() not in before
    run(pool, "hang", "hang", timeout_s=0.2)
    assert run(pool, "pid")[0].value not in before
    assert not any(map(is_running, before))


def test_workers_import_no_slow_packages() -> None:
    pool = Pool(TARGET, workers=1)
    assert run(pool, "modules") == [Outcome("ok", [])]
    pool.close()
    code = (
        "import rlmods.grading.grader as g, sys; g.verify(r'\\boxed{x+1}', '1+x'); "
        "print('torch' in sys.modules, 'sympy' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False False\n"
    )


def test_function_that_cannot_be_imported_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no_such_module"):
        run(Pool("no_such_module:act", workers=1), "a")
    assert "no_such_module" in capfd.readouterr().err


def test_workers_end_with_their_pool() -> None:
    pool = Pool(TARGET, workers=1)
    pid = run(pool, "pid")[0].value
    assert is_running(pid)
    del pool
    gc.collect()
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)"])
def test_workers_end_with_their_parent_in_the_middle_of_a_call(ending: str) -> None:
    code = f"""
import os, threading, time
from rlmods.grading.pool import Pool
pool = Pool({TARGET!r}, workers=1)
print(pool.map([("pid",)], timeout_s=30, batch_timeout_s=60)[0].value, flush=True)
threading.Thread(target=pool.map, args=([("hang",)],), kwargs=dict(timeout_s=300, batch_timeout_s=300), daemon=True).start()
time.sleep(0.3)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert wait_until(lambda: not is_running(int(done.stdout)))


def test_warmup_does_not_count_against_deadlines() -> None:
    """Each worker's warmup takes longer than `timeout_s`."""
    pool = Pool("tests.grading.misbehaving:slow_warmup", workers=1, warmup=1.0)
    [outcome] = pool.map([("x",)], timeout_s=0.5, batch_timeout_s=60)
    assert (outcome.status, outcome.value) == ("ok", "x")
    with pytest.raises(RuntimeError, match="cannot start: LookupError: no such thing"):
        Pool("tests.grading.misbehaving:act", workers=1, warmup="raise").map(
            [("a",)], timeout_s=5, batch_timeout_s=60
        )


@pytest.mark.slow
def test_worker_that_stops_reading_affects_only_its_own_call() -> None:
    """Writing to the pipe of a stopped worker must not block."""
    pool = Pool("tests.grading.misbehaving:stop_reading", workers=1)
    assert run(pool, "stop") == [Outcome("ok", "stop")]
    time.sleep(1.0)
    start = time.monotonic()
    outcomes = pool.map([("x" * 10**6,), ("y",)], timeout_s=2, batch_timeout_s=60)
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok"]
    assert time.monotonic() - start < 40


def test_garbage_on_the_reply_channel_is_an_error_of_its_call() -> None:
    pool = Pool("tests.grading.misbehaving:garbage", workers=1)
    actions = ["a", "text", "b", "list", "deep", "keys", "bytes", "c"]
    outcomes = pool.map([(action,) for action in actions], timeout_s=20, batch_timeout_s=60)
    assert [outcome.value for outcome in outcomes if outcome.status == "ok"] == ["a", "b", "c"]
    assert all(
        "the worker process sent something" in outcome.value
        for outcome in outcomes
        if outcome.status == "error"
    )


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_while_idle_is_replaced(sign: signal.Signals) -> None:
    pool = Pool(TARGET, workers=1)
    os.kill(run(pool, "pid")[0].value, sign)
    assert wait_until(lambda: not pool._workers[0].is_running)
    assert run(pool, "a", "b") == [Outcome("ok", "a"), Outcome("ok", "b")]


def test_a_batch_is_left_at_once() -> None:
    """As by Ctrl-C: the call in progress is killed, and the next batch works."""
    pool = Pool(TARGET, workers=1)
    run(pool, "a")
    pid = run(pool, "pid")[0].value
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(pool, "hang", "hang", timeout_s=60.0)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not is_running(pid)
    assert run(pool, "a") == [Outcome("ok", "a")]


def test_a_reward_that_ends_its_worker_is_an_error_of_its_response() -> None:
    rows = [response("", "1", attack="exit")] * 3
    scores = WeightedSum({"mine": {"reward": Plugin(), "timeout_s": 20.0}})(rows)
    assert scores.values == [None] * 3
    assert scores.counts["mine/errors"] == 3
