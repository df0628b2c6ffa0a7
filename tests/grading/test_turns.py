"""What a response says after the end of its turn earns nothing, whichever reward reads it."""

from collections.abc import Callable
from typing import Any

import pytest

from rlmods.grading.turns import first_turn, without_thoughts
from rlmods.reward import JSON, Accuracy, Cosine, Format, Regex, ToolCall
from tests.reward.samples import response

ENDS = (
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "</s>",
    "<end_of_turn>\n<start_of_turn>model\n",
    "<｜end▁of▁sentence｜>",
    "[INST]",
)
TOOLS = [{"name": "f", "parameters": {}}]
CALL = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
REWARDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "accuracy": (Accuracy, r"\boxed{5}", r"\boxed{6}"),
    "cosine": (lambda: Cosine(10, wrong_short=0.0, reward=Accuracy()), r"\boxed{5}", r"\boxed{6}"),
    "format": (Format, "<answer>5</answer>", "5"),
    "format think": (
        lambda: Format("think_answer"),
        "<think>a</think><answer>5</answer>",
        "<think>a",
    ),
    "json": (JSON, "```json\n[1]\n```\n", "```json\n[1\n```\n"),
    "regex": (lambda: Regex("good"), "good", "bad"),
    "regex full": (lambda: Regex("good", full=True), "good", "bad"),
    "tool call": (ToolCall, CALL % "f", CALL % "g"),
}
"""Each reward that reads an answer, a right response and a wrong one."""


@pytest.mark.parametrize("name", REWARDS)
def test_another_turn_is_not_graded(name: str) -> None:
    make, right, wrong = REWARDS[name]
    texts = [
        wrong + end + between + right
        for end in ENDS
        for between in ("", "<think>Let me see.</think>", "</think>")
    ]
    scores = make()([response(text, "5", tools=TOOLS) for text in [right, *texts]])
    assert scores[0] > 0
    assert list(scores)[1:] == [0.0] * len(texts)


@pytest.mark.parametrize("name", REWARDS)
def test_what_follows_a_right_turn_does_not_matter(name: str) -> None:
    make, right, wrong = REWARDS[name]
    scores = make()(
        [
            response(text, "5", tools=TOOLS)
            for text in [right, *(right + end + wrong for end in ENDS)]
        ]
    )
    assert len(set(scores)) == 1


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("plain", "plain"),
        (" a\n", " a\n"),
        ("", ""),
        ("<|im_end|>", ""),
        ("<|im_start|>assistant\n5<|im_end|>6", "\n5"),
        ("\n<s><|start_header_id|>assistant<|end_header_id|>\n\n5<|eot_id|>", "\n\n5"),
        ("<start_of_turn>models of 5<eos>", "models of 5"),
        ("a <s>b</s> c", "a <s>b</s> c"),
        ("a</s><s>b</s>", "a"),
        (
            "<|begin_of_thought|>a<|end_of_thought|>b<|tool_calls_begin|>c",
            "<|begin_of_thought|>a<|end_of_thought|>b<|tool_calls_begin|>c",
        ),
        ("1 <| 2 |> 3", "1 <| 2 |> 3"),
    ],
)
def test_first_turn(text: str, turn: str) -> None:
    assert first_turn(text) == turn


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a</think>b</think>c", "c"),
        ("a<|im_end|></think>b", "a"),
        ("<think>a</think>b<|im_end|><think>c</think>d", "b"),
    ],
)
def test_without_thoughts(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest
