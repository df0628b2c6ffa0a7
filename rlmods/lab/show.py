"""Print the responses to a prompt as a tree: `python -m rlmods.show RUN ITERATION [PROMPT]`.

RUN is a run directory, of which `samples/iteration_ITERATION.jsonl` is read. PROMPT is the id of a
prompt; without one, the prompts of the iteration are listed. Every line is a segment: a range of
tokens that the same responses share, the mean reward of these responses, and the advantage of the
tokens. Below a segment are those that follow it; where responses branch off, also the entropy and
the probability by which the rollout decided (`rlmods.branching`). Responses without branches are
segments from the prompt on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlmods.cli.command import command
from rlmods.errors import UserError, suggest
from rlmods.run.jsonl import read_rows
from rlmods.run.printable import one_line
from rlmods.run.sample_row import checked

Row = Mapping[str, Any]
Start = tuple[int | None, int]
"""Parent of a response (None: the prompt), and number of tokens shared with it."""
LAST, INNER, BLANK, BAR = "└── ", "├── ", "    ", "│   "
TEXT_LENGTH = 100
"""Characters of a prompt or response that are printed."""


def show(run: Path, iteration: str, prompt: str | None = None) -> str:
    """Return the tree of the responses to a prompt, or a list of the prompts.

    Raises:
        UserError: there is no such file or prompt, or the file holds something else than responses.
    """
    folder = run / "samples"
    path = (
        folder / f"iteration_{int(iteration):06d}.jsonl"
        if iteration.isdecimal()
        else folder / iteration
    )
    if not path.is_file():
        saved = sorted(
            int(n)
            for file in folder.glob("iteration_*.jsonl")
            if (n := file.stem.removeprefix("iteration_")).isdecimal()
        )
        problem = f"{folder} has no responses of iteration {iteration}"
        raise UserError(
            f"{problem}: {suggest(iteration, saved)}"
            if saved
            else f"{problem}: callbacks.samples.every=1 saves them"
        )
    found = read_rows(path)
    rows = [row for row in map(checked, found) if row is not None]
    if len(rows) < len(found):
        raise UserError(f"{path}: holds rows that are no responses: give another run")
    if prompt is None:
        counts = Counter(row["id"] for row in rows)
        return "\n".join(
            f"{one_line(name)}  {_summary([row for row in rows if row['id'] == name])}"
            for name in counts
        )
    selected = [row for row in rows if row["id"] == prompt]
    if not selected:
        known = suggest(prompt, dict.fromkeys(row["id"] for row in rows))
        raise UserError(f"iteration {iteration} has no responses to prompt {prompt}: {known}")
    trees = groups(selected)
    for tree in trees:
        check_tree(tree, path)
    try:
        return "\n\n".join("\n".join(tree_lines(tree)) for tree in trees)
    except RecursionError as error:
        raise UserError(
            f"{path}: the tree of responses to prompt {one_line(prompt)} is too deep to be printed"
        ) from error


def check_tree(rows: Sequence[Row], path: Path) -> None:
    """Check that the responses to a prompt are in the order of their indices, and that each
    branches off from an earlier one or from none.

    Raises:
        UserError: they are not.
    """
    branches = [row.get("branch") for row in rows]
    if all(branch is None for branch in branches):
        return
    for i, branch in enumerate(branches):
        if (
            isinstance(branch, dict)
            and branch.get("sample") == i
            and isinstance(branch.get("decisions"), list)
        ):
            parent, shared = branch.get("parent"), branch.get("shared")
            if (
                (parent is None or (type(parent) is int and 0 <= parent < i))
                and type(shared) is int
                and shared >= 0
            ):
                continue
        raise UserError(
            f"{path}: the branches of response {i} to prompt {one_line(str(rows[i]['id']))} "
            "are not those of a tree"
        )


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Split the rows of a prompt that occurs several times in an iteration: the first response of a
    tree begins a group."""
    found: list[list[Row]] = []
    for row in rows:
        branch = row.get("branch")
        if not found or (isinstance(branch, dict) and branch.get("sample") == 0):
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
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    yield (
        f"{one_line(rows[0]['id'])}  {_summary(rows)}  "
        f"{_shorten(str(last.get('content') if isinstance(last, dict) else last))}"
    )
    yield from _segment_lines(rows, segments(rows), "")


def _start(rows: Sequence[Row], i: int) -> Start:
    """Return the response from which response i takes its last shared token, and the number of
    shared tokens. A branch that begins before its parent does is one of the parent's parent."""
    branch = rows[i].get("branch") or {"parent": None, "shared": 0}
    parent, shared = branch["parent"], branch["shared"]
    while (
        parent is not None
        and (above := rows[parent]["branch"])["parent"] is not None
        and shared <= above["shared"]
    ):
        parent = above["parent"]
    return (parent, shared) if shared else (None, 0)


def _segment(rows: Sequence[Row], starts: Sequence[Start], i: int, begin: int) -> Segment:
    """Return the segment of response i that begins with token `begin`, and those that follow it."""
    length = len(rows[i]["tokens"])
    end = min(
        [shared for parent, shared in starts if parent == i and shared > begin], default=length
    )
    branches = [j for j, start in enumerate(starts) if start == (i, end) and end > begin]
    decisions = (
        [d for d in rows[i]["branch"]["decisions"] if d["position"] == end] if branches else []
    )
    children = [_segment(rows, starts, j, end) for j in [i, *branches]] if branches else []
    members = sorted(j for child in children for j in child.members) if children else [i]
    return Segment(i, begin, end, members, _advantages(rows[i], begin, end), decisions, children)


def _segment_lines(rows: Sequence[Row], found: Sequence[Segment], indent: str) -> Iterator[str]:
    """Yield the lines of segments that begin at the same token, and of those that follow them."""
    for segment in found:
        row, is_last = rows[segment.response], segment is found[-1]
        advantage = (
            ", advantage " + " ".join(f"{value:+.3f}" for value in segment.advantages)
            if segment.advantages
            else ""
        )
        tokens = f"tokens {segment.begin}-{segment.end}{_cuts(row, segment.begin, segment.end)}"
        line = f"{tokens}  {_summary([rows[j] for j in segment.members])}{advantage}"
        if not segment.children:
            line = (
                f"response {segment.response}  {line}  {one_line(row['finish'])}  "
                f"{_shorten(row['response'])}"
            )
        for d in segment.decisions:
            line += (
                f"  entropy {d['initial_entropy']:.3f} -> {d['entropy']:.3f}, P "
                f"{d['probability']:.3f}"
            )
        yield f"{indent}{LAST if is_last else INNER}{line}"
        yield from _segment_lines(rows, segment.children, indent + (BLANK if is_last else BAR))


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


def _cuts(row: Row, begin: int, end: int) -> str:
    """Return the cuts of a segment of the tree, at which the context of the response begins anew
    (`Response.cuts`)."""
    cuts = row.get("cuts")
    found = (
        [str(cut) for cut in cuts if type(cut) is int and begin <= cut < end]
        if isinstance(cuts, list)
        else []
    )
    return f" (cut at {', '.join(found)})" if found else ""


def _shorten(text: str) -> str:
    line = one_line(text.strip())
    return line if len(line) <= TEXT_LENGTH else f"{line[:TEXT_LENGTH]}..."


def main(arguments: Sequence[str]) -> None:
    command(arguments, __doc__, lambda: _action(arguments))


def _action(arguments: Sequence[str]) -> str:
    match list(arguments):
        case [run, iteration, *prompt] if len(prompt) < 2:
            return show(Path(run).expanduser(), iteration, *prompt)
    raise UserError(
        "type: python -m rlmods.show RUN ITERATION, or python -m rlmods.show RUN ITERATION PROMPT"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
