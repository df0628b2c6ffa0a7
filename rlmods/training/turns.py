"""Responses of several turns: their metrics, and the columns of a batch for responses that branch
off from others or have cuts."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.training.meter import Meter
from rlmods.types import Response


def segment_starts(responses: Sequence[Response], shape: tuple[int, int]) -> Tensor:
    """Return `Experience.cuts`."""
    starts = torch.zeros(shape, dtype=torch.bool)
    for row, response in enumerate(responses):
        for cut in response.cuts:
            starts[row, len(response.prompt_tokens) + cut] = True
    return starts


def branch_origins(
    responses: Sequence[Response], group: Sequence[int], shape: tuple[int, int]
) -> Tensor:
    """Return `Experience.origin`: for each response token, the index within its group of the
    response that sampled it. Prompt and padding slots hold the row's own index.

    A response with a branch begins with the tokens of its parent."""
    members: dict[int, list[Response]] = {}
    origin = torch.empty(shape, dtype=torch.long)
    for row, response in enumerate(responses):
        siblings = members.setdefault(group[row], [])
        origin[row] = len(siblings)
        siblings.append(response)
    for row, response in enumerate(responses):
        start = len(response.prompt_tokens)
        branch = response.branch
        shared = 0 if branch is None else branch.shared
        while branch is not None:  # up to the root of the tree
            shared = min(shared, branch.shared)
            origin[row, start : start + shared] = branch.parent
            branch = members[group[row]][branch.parent].branch
    return origin


def turn_columns(responses: Sequence[Response], shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return `Experience.turn` and `Experience.state`. A response without turns is one turn."""
    turns = torch.full(tuple(shape), -1)
    states = torch.zeros_like(turns)
    for row, response in enumerate(responses):
        first = len(response.prompt_tokens)
        turns[row, first : first + len(response.tokens)] = 0
        state = 0
        for index, turn in enumerate(response.turns):
            columns = slice(first + turn.start, first + len(response.tokens))
            turns[row, columns] = index
            states[row, columns] = state
            state = state_key(turn.observed)
    return turns, states


def state_key(observed: Sequence[Mapping[str, Any]]) -> int:
    """Return a positive number that is equal for equal messages, whatever the ids of calls: an id
    says where in its response a call stands."""
    messages = []
    for message in observed:
        said: dict[str, Any] = {**message, "tool_call_id": None}
        said["tool_calls"] = [call["function"] for call in said.get("tool_calls", ())]
        messages.append(said)
    text = json.dumps(messages, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:7], "big") + 1


def log_turns(meter: Meter, phase: str, responses: Sequence[Response]) -> None:
    """Log means per response of several turns.

    If responses may branch, they include the fraction that branches off from another response, and
    the sampled tokens and calls that were taken from it."""
    values: dict[str, list[float]] = {}
    branches = any(r.turns and r.in_tree for r in responses)
    for response in responses:
        if not response.turns:
            continue
        calls = [call for turn in response.turns for call in turn.calls]
        errors = [call.error for call in calls if call.error is not None]
        row: dict[str, float] = {
            "turns": len(response.turns),
            "observation_tokens": len(response.tokens) - response.num_sampled,
            "tool_calls": len(calls),
            "tool_errors": len(errors) - errors.count("malformed"),
            "malformed_calls": errors.count("malformed"),
            "tool_s": sum(call.seconds for call in calls),
            "cut_fraction": bool(response.cuts),
        }
        session = response.session
        if session is not None:
            row |= {
                "requests": session.requests,
                "request_cuts": session.cuts,
                "request_branches": session.branches,
                "refused_requests": session.refused,
            }
        if branches:
            row |= {
                "branched_fraction": response.branch is not None,
                "shared_tokens": response.num_sampled - response.num_new,
                "shared_tool_calls": response.num_shared_calls,
            }
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    for name, column in values.items():
        meter.mean(f"{phase}/{name}", torch.tensor(column, dtype=torch.float64))
