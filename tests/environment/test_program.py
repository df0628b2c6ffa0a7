"""Commands and functions that run as programs of sessions."""

from __future__ import annotations

import json
import math
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlmods.environment.program import Address, CommandProgram, FunctionProgram, as_rewards
from rlmods.environment.session import Outcome, Session, settle

ADDRESS = Address("http://127.0.0.1:1/v1", "the key")


def run(code: str, timeout_s: float = 20.0, task: Any = None) -> Outcome:
    """Return how a command ends that runs this Python code."""
    changed = threading.Condition()
    session = Session(timeout_s, changed)
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    program = CommandProgram(command, task or {}, session, ADDRESS)
    settle([session], changed)
    program.stop()
    assert session.outcome is not None
    return session.outcome


class TestCommand:
    def test_reads_the_task_and_finds_the_endpoint(self) -> None:
        code = (
            "import json, os, sys; task = json.load(sys.stdin); assert task == {'a': [1]}; "
            "assert os.environ['OPENAI_BASE_URL'] == 'http://127.0.0.1:1/v1'; "
            "assert os.environ['OPENAI_API_KEY'] == 'the key'; "
            "assert '127.0.0.1' in os.environ['NO_PROXY']"
        )
        assert run(code, task={"a": [1]}) == Outcome()

    @pytest.mark.parametrize(
        ("printed", "rewards"),
        [
            ("1", 1.0),
            ("a\\n0.5\\n", 0.5),
            ("[1, null, 2]", [1.0, None, 2.0]),
            ("", None),
            ("done", None),
            ("1 point", None),
            ("NaN", None),
            ('{"a": 1}', None),
        ],
    )
    def test_prints_its_reward(self, printed: str, rewards: Any) -> None:
        assert run(f"print('{printed}')").rewards == rewards

    def test_that_fails(self) -> None:
        assert run("raise ValueError('no   such\\n thing')") == Outcome("crash", error="thing")
        assert run("import sys; sys.exit(3)") == Outcome("crash", error="it ended with status 3")

    def test_that_does_not_start(self) -> None:
        changed = threading.Condition()
        session = Session(1.0, changed)
        CommandProgram("./no_such_program", {}, session, ADDRESS)
        assert session.outcome is not None
        assert session.outcome.kind == "crash"
        assert "No such file" in session.outcome.error

    def test_that_prints_much_and_reads_nothing(self) -> None:
        code = "print('x' * 10**7); print(2)"
        assert run(code, task={"a": "x" * 10**6}).rewards == 2.0

    @pytest.mark.slow
    def test_is_killed_with_its_children(self, tmp_path: Path) -> None:
        file = tmp_path / "alive"
        child = f"import time\nwhile True:\n open({str(file)!r}, 'a').write('x'); time.sleep(0.02)"
        start = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}])"
        assert run(f"{start}; time.sleep(60)", timeout_s=2.0).kind == "timeout"
        self.assert_dead(file)
        assert run(f"{start}; time.sleep(1)").kind == "ended"
        self.assert_dead(file)

    def assert_dead(self, file: Path) -> None:
        time.sleep(0.3)
        size = file.stat().st_size
        assert size > 0
        time.sleep(0.3)
        assert file.stat().st_size == size


def test_a_coroutine_is_cancelled() -> None:
    import asyncio

    ended: list[str] = []
    started = threading.Event()

    async def agent(task: Any, client: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    changed = threading.Condition()
    session = Session(0.2, changed)
    program = FunctionProgram(agent, {}, session, ADDRESS)
    started.wait()
    settle([session], changed)
    program.stop()
    end = time.monotonic() + 20
    while not ended:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert session.outcome is not None
    assert session.outcome.kind == "timeout"


def test_a_program_that_exits_ends_its_session_only() -> None:
    def agent(task: Any, client: Any) -> None:
        sys.exit(3)

    changed = threading.Condition()
    session = Session(20.0, changed)
    FunctionProgram(agent, {}, session, ADDRESS)
    settle([session], changed)
    assert session.outcome == Outcome("crash", error="SystemExit: 3")


def test_rewards() -> None:
    assert as_rewards(None) is None
    assert as_rewards(True) == 1.0
    assert as_rewards((1, None)) == [1.0, None]
    for bad in ("1", math.nan, math.inf, {}, [[1.0]], object()):
        with pytest.raises(
            ValueError, match="a reward is a finite number, a list of them, or None"
        ):
            as_rewards(bad)
    assert json.dumps(as_rewards([1])) == "[1.0]"
