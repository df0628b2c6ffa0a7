"""Print the responses to a prompt as a tree: `python -m rlmods.show RUN ITERATION [PROMPT]`.

RUN is a run directory; its file `samples/iteration_ITERATION.jsonl` is read. PROMPT is the id of a
prompt; without one, the prompts of the iteration are listed. Every line is a segment: a range of
tokens that the same responses share, the mean reward of these responses, and the advantage of the
tokens. Below a segment are those that follow it; where responses branch off, also the entropy and
the probability by which the rollout decided (`rlmods.branching`). Responses without branches are
segments from the prompt on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rlmods.errors import UserError, one_line_errors, suggest
from rlmods.run.files import one_line, read_rows

Row: TypeAlias = Mapping[str, Any]
Start = tuple[int | None, int]
"""Parent of a response (None: the prompt), and number of tokens shared with it."""
LAST = "└── "
INNER = "├── "
BLANK = "    "
BAR = "│   "
TEXT_LENGTH = 100
"""Characters of a prompt or response that are printed."""


def show(run: Path, iteration: str, prompt: str | None = None) -> str:
    """Return the tree of the responses to a prompt, or a list of the prompts.

    Raises:
        UserError: there is no such file or prompt.
    """
    rows = read_rows(_sample_file(run / "samples", iteration))
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row["id"], []).append(row)
    if prompt is None:
        return "\n".join(f"{name}  {_summary(own)}" for name, own in by_prompt.items())
    if prompt not in by_prompt:
        known = suggest(prompt, by_prompt)
        raise UserError(f"iteration {iteration} has no responses to prompt {prompt}: {known}")
    return "\n\n".join("\n".join(tree_lines(tree)) for tree in groups(by_prompt[prompt]))


def _sample_file(folder: Path, iteration: str) -> Path:
    """Return the sample log of an iteration, or of a file name such as `validation_000010.jsonl`.

    Raises:
        UserError: there is none.
    """
    name = f"iteration_{int(iteration):06d}.jsonl" if iteration.isdecimal() else iteration
    path = folder / name
    if path.is_file():
        return path
    problem = f"{folder} has no responses of iteration {iteration}"
    files = sorted(folder.glob("iteration_*.jsonl"))
    if not files:
        raise UserError(f"{problem}: callbacks.samples.every=1 saves them")
    saved = [int(file.stem.removeprefix("iteration_")) for file in files]
    raise UserError(f"{problem}: {suggest(iteration, saved)}")


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
    prompt = rows[0].get("prompt")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[-1]["content"]
    yield f"{rows[0]['id']}  {_summary(rows)}  {_shorten(str(prompt))}"
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
    line += f"  {_summary([rows[j] for j in segment.members])}"
    if segment.advantages:
        line += ", advantage " + " ".join(f"{value:+.3f}" for value in segment.advantages)
    if not segment.children:
        response = _shorten(row["response"])
        line = f"response {segment.response}  {line}  {row['finish']}  {response}"
    for d in segment.decisions:
        line += (
            f"  entropy {d['initial_entropy']:.3f} -> {d['entropy']:.3f}, P {d['probability']:.3f}"
        )
    return line


def _summary(rows: Sequence[Row]) -> str:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    count = f"{len(rows)} responses, mean reward" if len(rows) > 1 else "reward"
    return f"{count} {sum(rewards) / len(rewards):.3g}" if rewards else f"{count} none"


def _advantages(row: Row, begin: int, end: int) -> list[float]:
    """Return the advantages of the sampled tokens of a segment, which have one unless the estimator
    gives each token its own."""
    runs = (row.get("branch") or {}).get("segments")
    if runs is None:
        return [] if row.get("advantage") is None else [row["advantage"]]
    return list(dict.fromkeys(value for first, last, value in runs if first < end and last > begin))


def _shorten(text: str) -> str:
    line = one_line(text.strip())
    return line if len(line) <= TEXT_LENGTH else f"{line[:TEXT_LENGTH]}..."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.show",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("iteration", metavar="ITERATION", help="a number, or the name of a file")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="id of a prompt")
    parsed = parser.parse_args(arguments)
    with one_line_errors():
        print(show(parsed.run.expanduser(), parsed.iteration, parsed.prompt))


if __name__ == "__main__":
    main()
