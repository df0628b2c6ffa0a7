"""Print prompts and responses of a run: `python -m rlmods.show RUN ITERATION [PROMPT]`.

RUN is a run directory, ITERATION a number, or the name of a file in RUN/samples, such as
validation_000010.jsonl. Without PROMPT, an id, each prompt is listed with the first line of each
response. With it, the whole prompt and each whole response are printed: every turn and what the
environment replied, rewards by part, length, and why it ended. Below a turn are its advantage, with
the terms of advantage=sum, and the tokens that `tokens` selected. Of responses that branch off from
others, the tree comes first (`rlmods.lab.tree`)."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rlmods.errors import Parser, UserError, counted, one_line_errors, suggest
from rlmods.lab.credit import Row, TokenTexts, advantage_text, trained_text, turns
from rlmods.lab.tree import TEXT_LENGTH, groups, summary, tree_lines
from rlmods.run.files import message_text, printable, read_rows, shorten
from rlmods.run.saved import check_run

PREVIEW = 100
"""Columns of a line of the list if the output is not a terminal."""
INDENT = "  "


def show(
    run: Path,
    iteration: str,
    prompt: str | None = None,
    *,
    width: int = PREVIEW,
    full: bool = False,
) -> str:
    """Return the prompts of an iteration with the first line of each response, or one prompt with
    whole responses.

    Args:
        width: columns of a line of the list.
        full: all prompts with whole responses.

    Raises:
        UserError: there is no such run, file or prompt.
    """
    by_prompt: dict[str, list[Row]] = {}
    for row in read_rows(_sample_file(run, iteration)):
        by_prompt.setdefault(row["id"], []).append(row)
    if prompt is not None and prompt not in by_prompt:
        known = suggest(prompt, by_prompt)
        raise UserError(f"iteration {iteration} has no responses to prompt {prompt}: {known}")
    shown = by_prompt if prompt is None else {prompt: by_prompt[prompt]}
    decode = TokenTexts(run)
    blocks = []
    for rows in shown.values():
        for occurrence in groups(rows):
            if prompt is None and not full:
                lines = _list_lines(occurrence, width)
            else:
                lines = whole_lines({"": occurrence}, decode)
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _sample_file(run: Path, iteration: str) -> Path:
    """Return the sample log of an iteration, or of a file name such as `validation_000010.jsonl`.

    Raises:
        UserError: there is none.
    """
    folder = run / "samples"
    name = f"iteration_{int(iteration):06d}.jsonl" if iteration.isdecimal() else iteration
    path = folder / name
    if path.is_file():
        return path
    check_run(run)
    problem = f"{folder} has no responses of iteration {iteration}"
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(f"{problem}: the run saved none; callbacks.samples.every=1 saves them")
    saved = [re.sub(r"iteration_0*(\d+)\.jsonl", r"\1", file.name) for file in files]
    raise UserError(f"{problem}: {suggest(iteration, saved)}")


def _heading(rows: Sequence[Row]) -> str:
    answer = rows[0].get("answer")
    heading = f"{rows[0]['id']}  {summary(rows)}"
    return heading if answer is None else f"{heading}, answer {shorten(str(answer), TEXT_LENGTH)}"


def _list_lines(rows: Sequence[Row], width: int) -> Iterator[str]:
    """Yield a heading, the prompt and each response, one line each."""
    yield shorten(_heading(rows), width)
    prompt = message_text(rows[0].get("prompt"))
    yield INDENT + shorten(prompt, width - len(INDENT))
    for i, row in enumerate(rows):
        facts = f"{INDENT}{i:>2}  reward {_number(row['reward'])}  {_ending(row)}"
        room = max(20, width - len(facts) - 2)
        yield f"{facts}  {shorten(str(row['response']), room)}"


def _ending(row: Row) -> str:
    """Return the length of a response and why it ended."""
    if not row["tokens"]:  # logged by another trainer
        return "tokens not logged"
    turns = row.get("turns") or ()
    length = counted(len(row["tokens"]), "token")
    if turns:
        length = f"{counted(len(turns), 'turn')}, {length}"
    return f"{length}, {'truncated' if row['finish'] == 'length' else 'ended'}"


def whole_lines(variants: Mapping[str, Sequence[Row]], decode: TokenTexts) -> Iterator[str]:
    """Yield everything about the responses to a prompt.

    Args:
        variants: the same responses by the name of the parts that their credit is computed with.
    """
    rows = next(iter(variants.values()))
    yield _heading(rows)
    if any(row.get("branch") for row in rows):
        yield from tree_lines(rows)
    yield ""
    prompt = rows[0].get("prompt")
    for message in prompt if isinstance(prompt, list) else [{"content": prompt}]:
        yield from _said(str(message.get("role", "prompt")), str(message.get("content")))
    for i, row in enumerate(rows):
        yield ""
        yield f"response {i}: {', '.join(_facts(row))}"
        of_response = {name: others[i] for name, others in variants.items()}
        yield from _turn_lines(of_response, decode)


def _facts(row: Row) -> Iterator[str]:
    """Yield the reward of a response with its parts, its advantage, correctness, and ending."""
    parts = []
    for key, value in row.items():
        if key.startswith("reward/"):
            parts.append(f"{key.removeprefix('reward/')} {_number(value)}")
    yield f"reward {_number(row['reward'])}" + (f" ({', '.join(parts)})" if parts else "")
    if row.get("advantage") is not None:
        yield f"advantage {row['advantage']:+.3f}"
    if row.get("correct") is not None:
        yield "correct" if row["correct"] else "wrong"
    if row.get("kept") is False:
        yield "filtered out"
    yield _ending(row)


def _turn_lines(variants: Mapping[str, Row], decode: TokenTexts) -> Iterator[str]:
    """Yield the credit and the text of each turn of a response, and what followed."""
    row = next(iter(variants.values()))
    width = max(map(len, variants))
    in_turns = turns(row)
    starts = [turn["start"] for turn in in_turns[1:]] + [len(row["tokens"])]
    for i, (turn, following) in enumerate(zip(in_turns, starts, strict=True), 1):
        start, stop = turn["start"], turn["stop"]
        role = f"assistant, turn {i}" if row.get("turns") else "response"
        reward = "" if turn.get("reward") is None else f", reward {_number(turn['reward'])}"
        span = f", tokens {start}-{stop}" if row["tokens"] else ""
        yield f"[{role}{span}{reward}]"
        for name, other in variants.items():
            yield from _credit_line(name.ljust(width), other, start, stop, decode)
        yield from _text(turn.get("raw") or turn["text"])
        observed = turn.get("observed") or ()
        between = f", observed tokens {stop}-{following}" if stop < following else ""
        cuts = [str(cut) for cut in row.get("cuts") or () if stop <= cut < following]
        if cuts:  # (`Response.cuts`)
            between += f", of a new context from {cuts[0]}"
        for message in observed:
            yield from _said(f"{message.get('role')}{between}", str(message.get("content")))
            between = ""
        if not observed:  # the last turn, or a call whose result no turn followed
            for call in turn.get("calls") or ():
                yield from _said(f"result of {call['name'] or 'a malformed call'}", call["result"])


def _credit_line(name: str, row: Row, start: int, stop: int, decode: TokenTexts) -> Iterator[str]:
    """Yield advantage and selection of a turn, unless they say no more than the response's line."""
    if name or row.get("credit") or row.get("trained") is not None:
        parts = [advantage_text(row, start, stop), trained_text(row, start, stop, decode)]
        line = "; ".join(filter(None, parts))
        yield f"[{name}  {line}]" if name else f"[{line}]"


def _said(role: str, text: str) -> Iterator[str]:
    """Yield a role, and below it its text."""
    yield f"[{role}]"
    yield from _text(text)


def _text(text: str) -> Iterator[str]:
    for line in printable(text).split("\n"):
        yield INDENT + line


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value + 0.0:.3g}"  # -0.0 as 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = Parser("show", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("iteration", metavar="ITERATION", help="a number, or the name of a file")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="id of a prompt")
    parser.add_argument("--full", action="store_true", help="print all prompts and responses whole")
    parsed = parser.parse_args(arguments)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PREVIEW
    with one_line_errors():
        run = parsed.run.expanduser()
        print(show(run, parsed.iteration, parsed.prompt, width=width, full=parsed.full))


if __name__ == "__main__":
    main()
