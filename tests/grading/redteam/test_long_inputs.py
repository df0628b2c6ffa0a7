"""Inputs of 100 kB: no shipped reward is busy with one for longer than its time limit and a
margin."""

from collections.abc import Callable
from typing import Any

import pytest

from rlmods.grading.time_limit import time_limit
from rlmods.judge import Rule
from rlmods.reward import (
    JSON,
    Accuracy,
    Copying,
    Cosine,
    Diversity,
    Format,
    Language,
    Length,
    Overlong,
    Preference,
    Regex,
    Repetition,
    ToolCall,
    WeightedSum,
)
from rlmods.types import Prompt, Response

pytestmark = pytest.mark.slow

SIZE = 100_000
TIMEOUT_S = 1.0
SECONDS = 20.0
"""Limit of a call, far above `TIMEOUT_S` for the start of worker processes on a busy machine."""
TEXTS = {
    "formulas": "The answer is " + ", ".join(f"${i}$" for i in range(SIZE)),
    "formulas and": "The answer is " + "$1$ and " * SIZE + "more",
    "stated": "the answer is " * SIZE,
    "stated with colons": "answer is" + ":" * SIZE,
    "stated with spaces": "the answer is" + " " * SIZE + "!",
    "bold": "**answer**\n" * SIZE,
    "boxes": r"\boxed{1} and " * SIZE,
    "boxes with commas": r"\boxed{1} , " * SIZE + "x",
    "open boxes": r"\boxed{" * SIZE,
    "deep box": r"\boxed{" + "{" * (SIZE // 2) + "}" * (SIZE // 2) + "}",
    "tags": "<answer>" * SIZE,
    "tag pairs": "<answer></answer>" * SIZE,
    "thoughts": "<think></think>" * SIZE,
    "hashes": "#### \n" * SIZE,
    "dollars": "$" * SIZE,
    "brackets": r"\(" * (SIZE // 2) + r"\)" * (SIZE // 2),
    "parentheses": "(" * (SIZE // 2) + ")" * (SIZE // 2),
    "digits": "9" * SIZE,
    "spaces": " " * SIZE,
    "lines": "\n" * SIZE,
    "words": "the cat sat on the mat and " * SIZE,
    "json lists": "[" * SIZE,
    "json objects": '{"a":' * SIZE,
    "json strings": '"' + "\\" * SIZE,
    "calls": '<tool_call>{"name": "f"' * SIZE,
    "fences": "```json\n" * SIZE,
    "turns": "<|im_end|>" * SIZE,
    "surrogates": "\ud800" * SIZE,
    "combining": "e" + "\u0301" * SIZE,
    "fractions": r"\frac{1}{" * SIZE,
    "letters": "a" * SIZE + "!",
}
REWARDS: dict[str, Callable[[], Any]] = {
    "accuracy": lambda: Accuracy(timeout_s=TIMEOUT_S),
    "format answer": Format,
    "format think": lambda: Format("think_answer"),
    "format boxed": lambda: Format("boxed"),
    "json": lambda: JSON(timeout_s=TIMEOUT_S),
    "tool_call": lambda: ToolCall(timeout_s=TIMEOUT_S),
    "regex": lambda: Regex("(a|a)*b", timeout_s=TIMEOUT_S),
    "regex full": lambda: Regex(r"\s*(\d+\s*)*x", full=True, timeout_s=TIMEOUT_S),
    "length": Length,
    "overlong": lambda: Overlong(100, 10),
    "repetition": Repetition,
    "language": Language,
    "copying": Copying,
    "diversity": Diversity,
    "cosine": lambda: Cosine(100, reward=Accuracy(timeout_s=TIMEOUT_S)),
    "preference": lambda: Preference(Rule()),
    "weighted sum": lambda: WeightedSum(
        {"accuracy": {"reward": Accuracy(timeout_s=TIMEOUT_S)}, "format": {"reward": Format()}}
    ),
}
"""Every shipped reward that needs no model, server or sandbox."""


@pytest.mark.parametrize("reward", REWARDS)
def test_a_long_response_does_not_hold_a_reward(reward: str) -> None:
    part, late = REWARDS[reward](), []
    # starts worker processes
    part(
        [
            Response(
                Prompt("0", text="1+1=", answer="2", meta={"tools": []}), tokens=range(2), text="2"
            )
        ]
    )
    for name, text in TEXTS.items():
        prompt = Prompt("0", text="1+1=", answer=r"\frac{2}{3}", meta={"tools": []})
        response = Response(prompt, tokens=range(50), text=text[:SIZE], finish="length")
        try:
            with time_limit(SECONDS):
                scores = part([response, Response(prompt, tokens=range(2), text="2")])
            assert len(scores) == 2
        except BaseException as error:
            late.append(f"{name}: {type(error).__name__} {error}"[:200])
            if len(late) == 2:
                break
    assert not late


def test_a_long_gold_answer_does_not_hold_the_grader() -> None:
    for text in TEXTS.values():
        with time_limit(SECONDS):
            Accuracy(timeout_s=TIMEOUT_S)(
                [Response(Prompt("0", text="?", answer=text[:SIZE]), text=r"\boxed{\frac{1}{2}}")]
            )
