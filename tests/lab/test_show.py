"""`python -m rlmods.show`: prompts and whole responses of a saved iteration."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.lab import show as command
from rlmods.lab.show import show
from tests.lab import test_tree

LONG = "one two three " * 40


def row(name: str, response: str, reward: float | None, **columns: Any) -> dict[str, Any]:
    shown = {"id": name, "prompt": f"question {name}", "answer": "391", "response": response}
    tokens = list(range(len(response)))
    return shown | {"tokens": tokens, "finish": "stop", "reward": reward} | columns


GAME = row(
    "game",
    "I stop.",
    0.5,
    prompt=[{"role": "system", "content": "Play."}, {"role": "user", "content": "Begin"}],
    finish="length",
    correct=False,
    advantage=-0.25,
    turns=[
        {
            "start": 0,
            "stop": 3,
            "text": "first move",
            "raw": "<call>first move</call>",
            "reward": 0.125,
            "calls": [],
            "observed": [{"role": "user", "content": "The other moves.\nYour turn."}],
        },
        {
            "start": 8,
            "stop": 12,
            "text": "second move",
            "raw": "",
            "reward": None,
            "calls": [{"name": "board", "arguments": {}, "result": "You lost.", "error": None}],
            "observed": [],
        },
    ],
    tokens=list(range(12)),
    cuts=[5],
    credit=[[0, 3, 0.75, 0.5, 0.25], [8, 12, -0.75, -0.5, None]],
    credit_terms={"outcome": 1.0, "turns": 2.0},
    trained=[[0, 2], [8, 9]],
    **{"reward/accuracy": 0.0, "reward/format": 1.0},
)
WHOLE_GAME = """\
game  reward 0.5, answer 391

[system]
  Play.
[user]
  Begin

response 0: reward 0.5 (accuracy 0, format 1), advantage -0.250, wrong, 2 turns, 12 tokens, truncated
[assistant, turn 1, tokens 0-3, reward 0.125]
[advantage +0.750 = 1 x +0.500 outcome + 2 x +0.250 turns; trained 2 of 3 tokens, not 2]
  <call>first move</call>
[user, observed tokens 3-8, of a new context from 5]
  The other moves.
  Your turn.
[assistant, turn 2, tokens 8-12]
[advantage -0.750 = 1 x -0.500 outcome + 2 x none turns; trained 1 of 4 tokens: 8]
  second move
[result of board]
  You lost.
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [row("p1", "391\nsure", 1.0), row("p1", f"4\x1b[2J {LONG}", None), GAME]
    path = tmp_path / "samples/iteration_000007.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(x) + "\n" for x in rows))
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    return tmp_path


class TestList:
    def test_has_each_prompt_with_the_first_line_of_each_response(self, run: Path) -> None:
        first, game = show(run, "7", width=60).split("\n\n")
        assert first.splitlines() == [
            "p1  2 responses, mean reward 1, answer 391",
            "  question p1",
            "   0  reward 1  8 tokens, ended  391\\nsure",
            "   1  reward none  566 tokens, ended  4\\x1b[2J one two th...",
        ]
        assert game.splitlines()[1:] == [
            "  system: Play.\\nuser: Begin",
            "   0  reward 0.5  2 turns, 12 tokens, truncated  I stop.",
        ]

    @pytest.mark.parametrize("width", [80, 120])
    def test_is_never_wider_than_the_terminal(self, run: Path, width: int) -> None:
        assert all(len(line) <= width for line in show(run, "7", width=width).splitlines())


class TestWhole:
    def test_has_every_turn_and_what_the_environment_said(self, run: Path) -> None:
        assert show(run, "7", "game") + "\n" == WHOLE_GAME

    def test_cuts_nothing(self, run: Path) -> None:
        assert LONG in show(run, "7", "p1")

    def test_full_has_all_prompts(self, run: Path) -> None:
        whole = show(run, "7", full=True)
        assert whole == show(run, "7", "p1") + "\n\n" + show(run, "7", "game")

    def test_begins_with_the_tree_of_branches(self, tmp_path: Path) -> None:
        path = tmp_path / "samples/iteration_000001.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(x) + "\n" for x in test_tree.rows()))
        assert test_tree.TREE in show(tmp_path, "1", "p1")


class TestCommand:
    def test_prints_no_escapes(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command.main([str(run), "7", "p1"])
        command.main([str(run), "7", "--full"])
        assert "\x1b" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (("8",), "no responses of iteration 8: choose from 7"),
            (("x",), "no responses of iteration x"),
            (("7", "p3"), "choose from p1, game|did you mean p1"),
        ],
    )
    def test_names_what_there_is(self, run: Path, arguments: tuple[str, ...], problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            show(run, *arguments)

    def test_says_how_to_save_responses(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("seed: 1\n")
        with pytest.raises(UserError, match="every=1 saves them"):
            show(tmp_path, "7")

    def test_a_folder_without_a_run_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="is not a run directory"):
            show(tmp_path / "nothing", "1")
