"""Plain functions as rewards: three signatures, several functions, and what users mistype."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.reward import Function
from rlmods.types import Prompt, Response, Scores

MODULE = """import json

import asyncio

def ours(responses):
    return [float(len(response.tokens)) for response in responses]

def trl(completions, solution, **kwargs):
    assert set(kwargs) >= {"prompts", "completion_ids", "answer", "level"}
    return [float(text == wanted) for text, wanted in zip(completions, solution)]

def chat(prompts, completions):
    return [p[-1]["content"] == c[0]["content"] for p, c in zip(prompts, completions)]

def abstains(completions, level=None):
    return [None if x is None else 1.0 for x in level]

async def waits(completions, **kwargs):
    await asyncio.sleep(0)
    return [0.5] * len(completions)

def logs(completions, log_extra):
    log_extra("length", [len(text) for text in completions])
    return [0.0] * len(completions)

def verl(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth), "source": data_source}

def needs_a_column(completions, gold):
    return [0.0] * len(completions)

def raises(completions):
    return [int(text) / 0 for text in completions]

def calls_library(completions):
    return json.loads("{")

def wrong_length(completions):
    return [0.0]

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "my_rewards.py"


def rows(**changes: Any) -> list[Response]:
    first = {"solution": "4", "level": 1, "data_source": "sums"}
    second = {"solution": "6", "level": None, "data_source": "sums"}
    prompts = [
        Prompt(id="a", text="2+2=", answer="4", meta=first),
        Prompt(id="b", text="3+3=", answer="6", meta=second),
    ]
    return [Response(prompt, tokens=(1, 2), text="4", **changes) for prompt in prompts]


class TestSignatures:
    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("ours", [2.0, 2.0]),
            ("trl", [1.0, 0.0]),
            ("abstains", [1.0, None]),
            ("waits", [0.5, 0.5]),
            ("logs", [0.0, 0.0]),
            ("verl", [1.0, 0.0]),
        ],
    )
    def test_values(self, module: str, name: str, values: list[float | None]) -> None:
        assert Function(f"{module}:{name}")(rows()).values == values

    def test_messages_for_chat_data(self, module: str) -> None:
        prompt = Prompt(id="a", messages=[{"role": "user", "content": "say 4"}])
        responses = [Response(prompt, text="say 4"), Response(prompt, text="5")]
        assert Function(f"{module}:chat")(responses).values == [1.0, 0.0]

    def test_columns_of_the_sample_log(self, module: str) -> None:
        assert Function(f"{module}:logs")(rows()).columns == {"length": [1, 1]}
        assert Function(f"{module}:verl")(rows()).columns == {"source": ["sums", "sums"]}

    def test_a_module_of_the_working_directory(self, module: str) -> None:
        assert Function("my_rewards:ours")(rows()).values == [2.0, 2.0]


class TestSeveral:
    def test_sum_of_terms_with_weights(self, module: str) -> None:
        names = [f"{module}:{name}" for name in ("trl", "ours")]
        scores = Function(names, weights=[1.0, 0.25], success=1.0)(rows())
        assert scores.values == [1.5, 0.5]
        assert scores.terms == {"trl": [1.0, 0.0], "ours": [2.0, 2.0]}
        assert scores.correct == [True, False]

    def test_functions_of_one_name_are_two_terms(self, module: str, tmp_path: Path) -> None:
        (tmp_path / "other.py").write_text("def ours(responses):\n    return [1.0] * 2\n")
        scores = Function([f"{module}:ours", "other.py:ours"])(rows())
        assert set(scores.terms) == {"ours", "other.py.ours"}

    def test_is_picklable_for_worker_processes(self, module: str) -> None:
        reward = Function([f"{module}:trl", f"{module}:ours"])
        scores: Scores = reward(rows())
        assert pickle.loads(pickle.dumps(reward))(rows()).values == scores.values


class TestMistakes:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({}, "needs a function"),
            ({"function": "ours"}, "MODULE:FUNCTION"),
            ({"function": "nothing.py:f"}, "no file"),
            ({"function": "nothing_at_all:f"}, "No module named"),
            ({"function": "my_rewards.py:our"}, "did you mean ours"),
            ({"function": "my_rewards.py:number"}, "no function number"),
            ({"function": "my_rewards.py:ours", "weights": [1.0, 2.0]}, "2 weights for 1 func"),
        ],
    )
    def test_while_composing(self, module: str, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match=words):
            Function(**settings)

    def test_a_module_that_raises_is_named_with_its_line(self, module: str, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
        with pytest.raises(UserError, match=r"ZeroDivisionError.*broken\.py:2"):
            Function("broken.py:f")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("raises", r"function raises: ZeroDivisionError: division by zero \(.*my_rewards\.py:"),
            ("calls_library", r"function calls_library: JSONDecodeError: .* \(.*my_rewards\.py:"),
        ],
    )
    def test_a_function_that_raises_is_named_with_its_line(
        self, module: str, name: str, words: str
    ) -> None:
        with pytest.raises(UserError, match=words):
            Function(f"{module}:{name}")(rows())

    def test_a_column_that_the_data_lacks(self, module: str) -> None:
        with pytest.raises(UserError, match="missing 1 required positional argument: 'gold'"):
            Function(f"{module}:needs_a_column")(rows())

    def test_a_result_of_another_length(self, module: str) -> None:
        with pytest.raises(UserError, match="1 values for 2 responses"):
            Function(f"{module}:wrong_length")(rows())


def test_a_file_with_a_dataclass_and_a_short_signature_of_verl(tmp_path: Path) -> None:
    lines = [
        "from __future__ import annotations",
        "from dataclasses import dataclass",
        "@dataclass",
        "class Settings:",
        "    scale: float = 2.0",
        "def f(solution_str, ground_truth):",
        "    return Settings().scale * (solution_str == ground_truth)",
    ]
    path = tmp_path / "rewards_with_settings.py"
    path.write_text("\n".join(lines))
    assert Function(f"{path}:f")(rows()).values == [2.0, 0.0]
