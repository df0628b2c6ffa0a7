"""Responses to a prompt as a tree: some branch off from others.

Every line is a segment: a range of tokens that the same responses share, the mean reward of these
responses, and the advantage of the tokens. Below a segment are the ones that follow it; where
responses branch off, also the entropy and the probability by which the rollout decided
(`rlmods.branching`). Responses without branches are segments from the prompt on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.lab.credit import Row, credit, overlap
from rlmods.run.files import shorten

Start = tuple[int | None, int]
"""Parent of a response (None: the prompt), and number of tokens shared with it."""
LAST = "└── "
INNER = "├── "
BLANK = "    "
BAR = "│   "
TEXT_LENGTH = 100
"""Characters of a response that are printed in one line."""


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Split the rows of a prompt that occurs several times in an iteration: the first response of a
    tree begins a group."""
    found: list[list[Row]] = []
    for row in rows:
        branch = row.get("branch")
        if not found or (branch and branch["sample"] == 0):
            found.append([])
        found[-1].append(row)
    return found


@dataclass(frozen=True)
class Segment:
    """A range of tokens that the same responses share."""

    response: int
    """Index of the first response that has it."""
    begin: int
    end: int
    members: Sequence[int]
    """Indices of the responses that have it."""
    advantages: Sequence[float]
    """Different advantages of its sampled tokens, in their order."""
    decisions: Sequence[Mapping[str, Any]]
    """Decisions of `rlmods.branching` at its end, where responses branch off."""
    children: Sequence[Segment]
    """Segments that follow it; none at the end of a response."""


def segments(rows: Sequence[Row]) -> list[Segment]:
    """Return the tree of responses to one prompt, given in the order of their indices: the segments
    at the prompt."""
    starts = [_start(rows, i) for i in range(len(rows))]
    return [_segment(rows, starts, i, 0) for i, (parent, _) in enumerate(starts) if parent is None]


def tree_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the tree of responses to one prompt, given in the order of their
    indices."""
    yield from _segment_lines(rows, segments(rows), "")


def _start(rows: Sequence[Row], i: int) -> Start:
    """Return the response from which response i takes its last shared token, and the number of
    shared tokens. A branch that begins before its parent does is one of the parent's parent."""
    branch = rows[i].get("branch")
    if not branch or not branch["shared"]:
        return None, 0
    parent = branch["parent"]
    shared = branch["shared"]
    while parent is not None:
        above = rows[parent]["branch"]
        if above["parent"] is None or shared > above["shared"]:
            break
        parent = above["parent"]
    return parent, shared


def _segment(rows: Sequence[Row], starts: Sequence[Start], i: int, begin: int) -> Segment:
    """Return the segment of response i that begins with token `begin`, and those that follow it."""
    row = rows[i]
    ends = [shared for parent, shared in starts if parent == i and shared > begin]
    end = min(ends, default=len(row["tokens"]))
    branches = [j for j, start in enumerate(starts) if start == (i, end) and end > begin]
    if not branches:
        return Segment(i, begin, end, [i], _advantages(row, begin, end), [], [])
    decisions = [d for d in row["branch"]["decisions"] if d["position"] == end]
    children = [_segment(rows, starts, j, end) for j in [i, *branches]]
    members: list[int] = []
    for child in children:
        members += child.members
    advantages = _advantages(row, begin, end)
    return Segment(i, begin, end, sorted(members), advantages, decisions, children)


def _segment_lines(rows: Sequence[Row], found: Sequence[Segment], indent: str) -> Iterator[str]:
    for segment in found:
        is_last = segment is found[-1]
        yield f"{indent}{LAST if is_last else INNER}{_segment_line(rows, segment)}"
        yield from _segment_lines(rows, segment.children, indent + (BLANK if is_last else BAR))


def _segment_line(rows: Sequence[Row], segment: Segment) -> str:
    row = rows[segment.response]
    cuts = [str(cut) for cut in row.get("cuts") or () if segment.begin <= cut < segment.end]
    line = f"tokens {segment.begin}-{segment.end}"
    if cuts:  # the context of the response begins anew there (`Response.cuts`)
        line += f" (cut at {', '.join(cuts)})"
    line += f"  {summary([rows[j] for j in segment.members])}"
    if segment.advantages:
        line += ", advantage " + " ".join(f"{value:+.3f}" for value in segment.advantages)
    if not segment.children:
        response = shorten(row["response"], TEXT_LENGTH)
        line = f"response {segment.response}  {line}  {row['finish']}  {response}"
    for d in segment.decisions:
        line += (
            f"  entropy {d['initial_entropy']:.3f} -> {d['entropy']:.3f}, P {d['probability']:.3f}"
        )
    return line


def summary(rows: Sequence[Row]) -> str:
    """Return the number of responses and their mean reward in words."""
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    count = f"{len(rows)} responses, mean reward" if len(rows) > 1 else "reward"
    return f"{count} {sum(rewards) / len(rewards):.3g}" if rewards else f"{count} none"


def _advantages(row: Row, begin: int, end: int) -> list[float]:
    """Return the different advantages of the sampled tokens of a segment, in their order."""
    return list(dict.fromkeys(run[2] for run in overlap(credit(row), begin, end)))
