"""Columns and metrics of responses of several turns, by hand."""

import pytest
import torch

from rlmods.training.meter import Meter
from rlmods.training.turns import branch_origins, equal_runs, log_turns, segment_starts
from rlmods.types import Branch, Prompt, Response, ToolCall, Turn

PROMPT = Prompt(id="p", text="?")


def response(num_tokens: int, num_prompt: int = 1, **fields: object) -> Response:
    return Response(PROMPT, [1] * num_prompt, [2] * num_tokens, **fields)  # type: ignore[arg-type]


def test_cuts_are_counted_from_the_end_of_the_prompt() -> None:
    rows = [response(4, num_prompt=2, cuts=(1, 3)), response(2)]
    starts = segment_starts(rows, (2, 6))
    assert starts.nonzero().tolist() == [[0, 3], [0, 5]]


def test_origin_is_the_response_that_sampled_the_token() -> None:
    """In the second group row 1 has 3 tokens of row 0, and row 2 has 4 of row 1: 3 of them are of
    row 0."""
    rows = [
        response(2),
        response(5, num_prompt=2),
        response(5, num_prompt=2, branch=Branch(parent=0, shared=3)),
        response(5, num_prompt=2, branch=Branch(parent=1, shared=4)),
    ]
    origin = branch_origins(rows, [0, 1, 1, 1], (4, 8))
    assert origin.tolist() == [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 1, 1],
        [2, 2, 0, 0, 0, 1, 2, 2],
    ]


@pytest.mark.parametrize(
    ("values", "mask", "expected"),
    [
        ([1.0, 1.0, 2.0], [1, 1, 1], [[0, 2, 1.0], [2, 3, 2.0]]),
        ([1.0, 1.0, 1.0, 1.0], [1, 0, 1, 1], [[0, 1, 1.0], [2, 4, 1.0]]),
        ([3.0], [0], []),
    ],
)
def test_runs_of_equal_values(
    values: list[float], mask: list[int], expected: list[list[float]]
) -> None:
    assert equal_runs(torch.tensor(values), torch.tensor(mask, dtype=torch.bool)) == expected


def test_turns_are_logged_per_response() -> None:
    calls = (
        ToolCall("add", seconds=0.5),
        ToolCall("add", error="timeout", seconds=1.0),
        ToolCall("", error="malformed"),
    )
    long = response(
        6,
        mask=[True, True, False, True, True, True],
        turns=(Turn(0, 2, calls=calls), Turn(3, 6)),
        cuts=(3,),
    )
    branched = response(
        5,
        mask=[True, True, False, True, True],
        turns=(Turn(0, 2, calls=calls[:1]), Turn(3, 5)),
        branch=Branch(parent=0, shared=3),
    )
    meter = Meter()
    log_turns(meter, "train", [long, response(2), branched])
    assert meter.compute() == {
        "train/turns": 2.0,
        "train/observation_tokens": 1.0,
        "train/tool_calls": 2.0,
        "train/tool_errors": 0.5,
        "train/malformed_calls": 0.5,
        "train/tool_s": 1.0,
        "train/cut_fraction": 0.5,
        "train/branched_fraction": 0.5,
        "train/shared_tokens": 1.0,
        "train/shared_tool_calls": 0.5,
    }
