"""Settings of `environment=agent`, and what programs are given."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rlmods.environment import Agent
from rlmods.environment.agent import as_task
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
    assert len({x.key for x in running}) == 2
    assert all(x.keys[x.key] is x.session for x in running)
    for x in running:
        x.close()
        assert x.key not in x.keys
