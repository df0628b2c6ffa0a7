from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rlmods.reward import WeightedSum
from rlmods.reward.pool import Outcome, Pool, WorkerError
from rlmods.types import UserError
from tests.reward.careless import Plugin
from tests.reward.samples import response

TARGET = "tests.reward.misbehaving:act"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(TARGET, workers=2)
    yield pool
    pool.close()


def run(pool: Pool, *whats: str, timeout_s: float = 1.0, batch_timeout_s: float = 60.0) -> list[Outcome]:
    return pool.map([(what,) for what in whats], timeout_s=timeout_s, batch_timeout_s=batch_timeout_s)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def until(condition: object, *, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(condition())  # type: ignore[operator]


def check_everything(pool: Pool) -> None:
    whats = ["a", "hang", "b", "exit", "c", "raise", "d", "sys_exit", "no_json", "memory", "recurse", "print", "e"]
    outcomes = run(pool, *whats)
    found = {what: outcome.status for what, outcome in zip(whats, outcomes, strict=True)}
    errors = dict.fromkeys(["exit", "raise", "sys_exit", "no_json", "memory", "recurse"], "error")
    assert found == {**dict.fromkeys("abcde", "ok"), "print": "ok", "hang": "timeout", **errors}
    assert outcomes[5].value == "LookupError: no such thing"
    assert outcomes[11].value == "print"


def test_hangs_crashes_and_nonsense_cost_their_own_call_alone(pool: Pool) -> None:
    start = time.monotonic()
    check_everything(pool)
    assert time.monotonic() - start < 30


def test_from_a_thread(pool: Pool) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            check_everything(pool)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_from_an_event_loop(pool: Pool) -> None:
    async def work() -> list[Outcome]:
        return run(pool, "a", "raise")

    assert [outcome.status for outcome in asyncio.run(work())] == ["ok", "error"]


def test_answers_come_in_the_order_of_the_calls(pool: Pool) -> None:
    whats = [str(n) for n in range(200)]
    assert [outcome.value for outcome in run(pool, *whats)] == whats


def test_the_batch_has_a_deadline(pool: Pool) -> None:
    start = time.monotonic()
    outcomes = run(pool, *["sleep"] * 6, timeout_s=50.0, batch_timeout_s=1.0)
    assert time.monotonic() - start < 10
    assert outcomes == [Outcome("timeout")] * 6
    assert run(pool, "a") == [Outcome("ok", "a")]


def test_workers_are_kept_between_batches_and_a_killed_one_is_replaced(pool: Pool) -> None:
    before = {run(pool, "pid")[0].value for _ in range(4)}
    assert len(before) <= 2
    assert os.getpid() not in before
    run(pool, "hang", "hang", timeout_s=0.2)
    assert run(pool, "pid")[0].value not in before
    assert not any(map(alive, before))


def test_workers_import_nothing_heavy() -> None:
    pool = Pool(TARGET, workers=1)
    assert run(pool, "modules") == [Outcome("ok", [])]
    pool.close()
    code = "import rlmods.reward.grader as g, sys; g.verify(r'\\boxed{x+1}', '1+x'); print('torch' in sys.modules, 'sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False False\n"


def test_a_function_that_cannot_be_imported_is_an_error_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no_such_module"):
        run(Pool("no_such_module:act", workers=1), "a")
    assert "no_such_module" in capfd.readouterr().err


def test_no_process_outlives_its_pool() -> None:
    pool = Pool(TARGET, workers=1)
    pid = run(pool, "pid")[0].value
    assert alive(pid)
    del pool
    gc.collect()
    assert until(lambda: not alive(pid))


def test_a_worker_closed_beneath_its_reader_is_gone() -> None:
    """As when the interpreter ends in the middle of a call."""
    worker = Pool(TARGET, workers=1).take()
    worker.kill()
    assert worker.receive() is None


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)"])
def test_no_process_outlives_its_parent_even_in_the_middle_of_a_call(ending: str) -> None:
    code = f"""
import os, threading, time
from rlmods.reward.pool import Pool
pool = Pool({TARGET!r}, workers=1)
print(pool.map([("pid",)], timeout_s=30, batch_timeout_s=60)[0].value, flush=True)
threading.Thread(target=pool.map, args=([("hang",)],), kwargs=dict(timeout_s=300, batch_timeout_s=300), daemon=True).start()
time.sleep(0.3)
{ending}
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert until(lambda: not alive(int(done.stdout)))


def test_what_warms_a_worker_costs_no_call_its_deadline() -> None:
    """`sleep` takes 60 s where it is a call."""
    pool = Pool("tests.reward.misbehaving:warmed", workers=1, warm=1.0)
    [outcome] = pool.map([("x",)], timeout_s=0.5, batch_timeout_s=60)
    assert (outcome.status, outcome.value) == ("ok", "x")
    with pytest.raises(RuntimeError, match="cannot start: LookupError: no such thing"):
        Pool("tests.reward.misbehaving:act", workers=1, warm="raise").map([("a",)], timeout_s=5, batch_timeout_s=60)


def test_a_worker_that_does_not_listen_costs_its_call_alone() -> None:
    """Nobody waits for a pipe to be read."""
    pool = Pool("tests.reward.misbehaving:deaf", workers=1)
    assert run_all(pool, ["stop"]) == ["stop"]
    time.sleep(1.0)
    start = time.monotonic()
    outcomes = pool.map([("x" * 10**6,), ("y",)], timeout_s=2, batch_timeout_s=60)
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok"]
    assert time.monotonic() - start < 40


def test_a_fork_that_returns_says_nothing() -> None:
    pool = Pool("tests.reward.misbehaving:forked", workers=1)
    for _ in range(2):
        outcomes = pool.map([("fork",), ("a",), ("b",), ("c",)], timeout_s=5, batch_timeout_s=60)
        assert [outcome.value for outcome in outcomes] == ["fork", "a", "b", "c"]


def test_a_worker_that_was_not_needed_has_its_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.pool.START_TIMEOUT_S", 6.0)
    pool = Pool("tests.reward.misbehaving:warmed", workers=2, warm=0.5)
    assert run_all(pool, "ab") == ["a", "b"]
    time.sleep(7)
    assert run_all(pool, "abcd") == ["a", "b", "c", "d"]


class TestWorkersThatOnlyEnd:
    """They are not started for ever."""

    def test_many_in_a_row_are_an_error_that_says_how_they_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.pool.DEATHS", 4)
        with pytest.raises(WorkerError, match=r"4 worker processes for .*:act in a row ended in the middle of a call \(with code 3\)"):
            run(Pool(TARGET, workers=1), *["exit"] * 9)
        killed = Pool(TARGET, workers=1)
        run(killed, "kill", "kill")
        with pytest.raises(WorkerError, match="killed, as where memory runs out"):
            run(killed, "kill", "kill")

    def test_an_answer_between_them_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.pool.DEATHS", 3)
        outcomes = run(Pool(TARGET, workers=1), "exit", "exit", "raise", "exit", "exit", "a")
        assert [outcome.status for outcome in outcomes] == ["error"] * 5 + ["ok"]

    def test_those_that_were_late_are_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.pool.DEATHS", 2)
        assert [o.status for o in run(Pool(TARGET, workers=1), "hang", "hang", "hang", timeout_s=0.2)] == ["timeout"] * 3

    def test_the_term_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.pool.DEATHS", 3)
        rows = [response("", "1", attack="exit")] * 8
        with pytest.raises(UserError, match=r"^reward mine: 3 worker processes for") as error:
            WeightedSum({"mine": {"reward": Plugin(), "timeout_s": 20.0}})(rows)
        assert "\n" not in str(error.value)


def run_all(pool: Pool, calls: Sequence[str]) -> list[object]:
    return [outcome.value for outcome in pool.map([(call,) for call in calls], timeout_s=20, batch_timeout_s=60)]
