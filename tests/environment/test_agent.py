"""Settings of `environment=agent`, what programs are given, and commands and functions that run as
programs of sessions."""

import asyncio
import json
import math
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlmods.environment import Agent
from rlmods.environment.agent import CommandProgram, FunctionProgram, as_rewards, as_task
from rlmods.environment.session import Outcome, Session, settle
from rlmods.errors import UserError
from rlmods.types import Prompt


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, r"type environment\.agent=MODULE:FUNCTION, or environment\.command="),
        ({"agent": "a:b", "command": "c"}, r"type environment\.agent=MODULE:FUNCTION, or"),
        ({"agent": "no_such_module:agent"}, r"environment\.agent=no_such_module:agent: ModuleNot"),
        ({"agent": "no_such_file.py:agent"}, r"environment\.agent=no_such_file\.py:agent: no file"),
        ({"agent": "json:dumb"}, r"json:dumb: no function dumb; did you mean dump"),
        ({"agent": ""}, r"type environment\.agent=MODULE:FUNCTION, or environment\.agent=FILE"),
        ({"command": "no_such_program x"}, r"there is no program 'no_such_program': type environ"),
        ({"command": "python 'x"}, r"environment\.command=python 'x: No closing quotation"),
        ({"command": "python x", "timeout_s": 0}, r"environment\.timeout_s=0: must be above 0"),
        ({"command": "python x", "port": 1 << 16}, r"environment\.port=65536: must be from 0 to"),
        ({"command": "python x", "max_turns": 0}, r"environment\.max_turns=0: must be at least 1"),
    ],
)
def test_wrong_settings_are_one_line(settings: dict[str, Any], text: str) -> None:
    with pytest.raises((UserError, ValueError), match=text) as error:
        Agent(**settings)
    assert "\n" not in str(error.value)


def test_the_task_is_the_row_of_the_data() -> None:
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert as_task(Prompt(id="1", messages=chat, answer="c", meta={"d": 2})) == {
        "id": "1",
        "messages": chat,
        "answer": "c",
        "meta": {"d": 2},
    }
    assert as_task(Prompt(id="1", text="b"))["messages"] == [{"role": "user", "content": "b"}]


def test_a_file_or_a_module_of_the_current_folder_is_found(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "agent_of_this_folder.py").write_text("def agent(task, client):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/"])
    for name in ("agent_of_this_folder:agent", "agent_of_this_folder.py:agent"):
        assert Agent(agent=name).agent == name


def test_a_key_is_refused_after_the_end() -> None:
    environment = Agent(agent="tests.support.agents:script")
    changed = threading.Condition()
    running = [environment.start(Prompt(id="1", text="b"), changed=changed) for _ in range(2)]
    assert len({x.session.key for x in running}) == 2
    for x in running:
        assert x.sessions[x.session.key] is x.session
        x.close()
        assert x.session.key not in x.sessions


def begin(timeout_s: float = 20.0) -> Session:
    return Session(timeout_s, threading.Condition(), "http://127.0.0.1:1/v1", "the key")


def run(code: str, timeout_s: float = 20.0, task: Any = None) -> Outcome:
    """Return how a command ends that runs this Python code."""
    session = begin(timeout_s)
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    program = CommandProgram(command, task or {}, session)
    settle([session], session.changed)
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
        session = begin()
        CommandProgram("./no_such_program", {}, session)
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
    ended: list[str] = []
    started = threading.Event()

    async def agent(task: Any, client: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    session = begin(0.2)
    program = FunctionProgram(agent, {}, session)
    started.wait()
    settle([session], session.changed)
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

    session = begin()
    FunctionProgram(agent, {}, session)
    settle([session], session.changed)
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
