"""Columns and metrics of responses of several turns, by hand."""

from rlmods.training.meter import Meter
from rlmods.training.metrics import log_lengths
from rlmods.training.turns import (
    branch_origins,
    segment_starts,
    state_key,
    turn_columns,
)
from rlmods.types import Branch, Prompt, Response, ToolCall, Turn

PROMPT = Prompt(id="p", text="?")


def response(num_tokens: int, num_prompt: int = 1, **fields: object) -> Response:
    return Response(PROMPT, [1] * num_prompt, [2] * num_tokens, **fields)  # type: ignore[arg-type]


def test_cuts_are_counted_from_the_end_of_the_prompt() -> None:
    rows = [response(4, num_prompt=2, cuts=(1, 3)), response(2)]
    starts = segment_starts(rows, (2, 6))
    assert starts.nonzero().tolist() == [[0, 3], [0, 5]]


def test_turns_hold_their_observations_and_states_what_was_observed_before() -> None:
    """Both responses observe `seen` before a turn: the first before its second turn, the second
    before its third. A response without turns is one turn."""
    seen = ({"role": "user", "content": "seen"},)
    other = ({"role": "user", "content": "other"},)
    first = response(4, num_prompt=2, turns=(Turn(0, 1, observed=seen), Turn(2, 4)))
    second = response(
        5,
        turns=(Turn(0, 1, observed=other), Turn(2, 3, observed=seen), Turn(4, 5)),
    )
    turn, state = turn_columns([first, second, response(2)], (3, 7))
    assert turn.tolist() == [
        [-1, -1, 0, 0, 1, 1, -1],
        [-1, 0, 0, 1, 1, 2, -1],
        [-1, 0, 0, -1, -1, -1, -1],
    ]
    key = int(state[0, 4])
    assert key > 0
    assert state[0].tolist() == [0, 0, 0, 0, key, key, 0]
    between = int(state[1, 3])
    assert between not in (0, key)
    assert state[1].tolist() == [0, 0, 0, between, between, key, 0]
    assert state[2].eq(0).all()


def test_a_state_is_the_same_whatever_the_ids_of_calls() -> None:
    """Ids name the place of a call in its response; arguments belong to the state."""

    def key(name: str, place: int) -> int:
        function = {"name": "buy", "arguments": {"id": place}}
        calls = [{"id": name, "type": "function", "function": function}]
        asked = {"role": "assistant", "content": "", "tool_calls": calls}
        told = {"role": "tool", "tool_call_id": name, "content": "sold"}
        return state_key([asked, told])

    assert key("000000001", 3) == key("000000007", 3) != key("000000001", 4)
    message = {"role": "user", "content": "hi"}
    assert state_key([message]) == state_key([dict(reversed(message.items()))])


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
    whole = response(2, turns=(Turn(0, 2),), meta={"decisions": ()})
    meter = Meter()
    log_lengths(meter, "train", [long, response(2), branched, whole, whole])
    of_turns = meter.compute()
    del of_turns["train/response_tokens"], of_turns["train/truncated_fraction"]
    assert of_turns == {
        "train/turns": 1.5,
        "train/observation_tokens": 0.5,
        "train/tool_calls": 1.0,
        "train/tool_errors": 0.25,
        "train/malformed_calls": 0.25,
        "train/tool_s": 0.5,
        "train/cut_fraction": 0.25,
        "train/branched_fraction": 0.25,
        "train/shared_tokens": 0.5,
        "train/shared_tool_calls": 0.25,
    }
