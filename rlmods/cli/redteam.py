"""Look for holes in a reward before a policy does: `python -m rlmods.redteam [group=option]
[key=value]`, with the overrides of `train.py`.

Composes the run's data and reward, and grades responses that a policy finds when it looks for
holes, by family: the question itself, nothing at all, tags without an answer, garbage in the gold's
format, several answers at once, answers of other prompts, text after the end, and so on. Loads no
policy; a model is loaded only if the reward has one.

    num_prompts=64          number of prompts, drawn with the run's seed tolerance=0.1           a
    response is paid if it is marked correct, or if its reward exceeds that of an honest wrong
    answer by more than
                            this fraction of the distance to the right answer
    call_timeout_s=20       a call of the reward that takes longer is ended, and counts as late
    out=null                FILE.json: also write the report there

Prints a table: by family the number of responses tried and paid, the highest reward with its
response, and the slowest call. Above it stand the references: the gold answer, plain and in the
form of the data's own response, which must be paid; wrong answers; and answers to other prompts,
whose share of right ones is the level of chance. A hostile answer that happens to be the gold one
is left out. The exit status is 1 if a family is paid, raises an exception or is late, and if the
references show nothing: right answers get no more than wrong ones, the data's own responses are not
paid, or the reward raises or abstains on them. The lines below the table say what to look at."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlmods.cli.command import command, compose_run
from rlmods.cli.supervised import supervised
from rlmods.errors import UserError
from rlmods.grading.redteam.holes import Report, Settings, attack, shorten
from rlmods.run import dumps
from rlmods.run.files import atomic_write
from rlmods.run.printable import one_line


def redteam(
    overrides: Sequence[str], record: Callable[[str], None] = lambda text: None
) -> tuple[Report, Settings]:
    """Compose the run and attack its reward. `record` is called with what is graded, before each
    call of the reward.

    Raises:
        UserError: an invalid override, a run that would not start, or data without answers.
    """
    plan, config, settings = compose_run(overrides, Settings, trains=False)
    if "reward" not in plan.parts:
        raise UserError(f"algo={config.algo.name} has no reward: type algo=dapo")
    max_tokens = int(getattr(plan.parts.get("rollout"), "max_tokens", 512))
    report = attack(
        plan.parts["reward"],
        plan.splits.train,
        settings,
        seed=config.seed,
        max_tokens=max_tokens,
        record=record,
    )
    if settings.out is not None:
        atomic_write(Path(settings.out).expanduser(), dumps(as_dict(report), indent=2) + "\n")
    return report, settings


def as_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    return {**asdict(report), "holes": [tally.name for tally in report.holes]}


def show(report: Report, width: int | None = None) -> str:
    """Return the table, and a line about each hole."""
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column, justify in (
        ("family", "left"),
        ("tried", "right"),
        ("paid", "right"),
        ("abstained", "right"),
        ("highest", "right"),
        ("slowest", "right"),
        ("response", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=column != "response")  # type: ignore[arg-type]
    for tally in (*report.references, *report.families):
        highest = "" if tally.highest is None else f"{tally.highest:.3g}"
        style = "bold red" if tally in report.holes else ""
        cells = (
            tally.name,
            str(tally.tried),
            str(tally.paid),
            str(tally.abstained),
            highest,
            f"{tally.slowest_s:.2f} s",
            shorten(str((tally.example or tally.failed_example).get("response", ""))),
        )
        table.add_row(*map(Text, cells), style=style, end_section=tally is report.references[-1])
    console = Console(
        file=io.StringIO(), width=width or max(120, Console().width), force_terminal=False
    )
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join([*lines, "", *map(one_line, _notes(report))])


def _notes(report: Report) -> Iterable[str]:
    for tally in report.references[:2]:
        if tally.paid < tally.tried:
            example = _described(tally.example or tally.failed_example)
            yield (
                f"{tally.name}: {tally.tried - tally.paid} of {tally.tried} are not paid, e.g. "
                f"{example}"
            )
    for tally in report.holes:
        outcomes = (
            [f"{tally.paid} of {tally.tried} paid, e.g. {_described(tally.example)}"]
            if tally.paid
            else []
        )
        if tally.failed_example:
            failures = [f"raised {len(tally.raised)} times"] if tally.raised else []
            failures += [f"{tally.late} calls were late"] if tally.late else []
            outcomes.append(f"{' and '.join(failures)}, e.g. {_described(tally.failed_example)}")
        yield (
            f"{tally.name}: {'; '.join(outcomes)}. Look at: "
            f"{tally.look_at if tally.paid else 'the reward at that response'}"
        )
    yield (
        f"{report.num_prompts} prompts; answers to other prompts are right by chance in "
        f"{report.chance:.1%} of cases"
    )
    yield from (f"problem: {problem}" for problem in report.problems)
    if report.is_clean:
        yield "no hole found"


def _described(example: Mapping[str, Any]) -> str:
    if not example:
        return "(no example)"
    beside = (
        f", an honest wrong answer {example['wrong_answer']:.3g}"
        if "wrong_answer" in example
        else ""
    )
    reward = example["reward"]
    got = example.get("failure") or (
        f"gets {reward:.3g}{beside}" if reward is not None else "gets no reward: it abstained"
    )
    return (
        f"'{shorten(example['response'])}' to prompt {shorten(str(example['prompt']))} "
        f"(answer {shorten(str(example['answer']))}) {got}"
    )


def main(arguments: list[str], record: Callable[[str], None] = lambda text: None) -> None:
    reports: list[Report] = []

    def action() -> str:
        report, _ = redteam(arguments, record)
        reports.append(report)
        return show(report)

    command(arguments, __doc__, action)
    if reports and not reports[0].is_clean:
        sys.exit(1)


if __name__ == "__main__":
    supervised(
        lambda record: main(sys.argv[1:], record),
        "the reward must not end its process: look for os._exit and native code, or make it "
        "a term with a time limit, which runs in "
        "workers (reward=weighted_sum +reward@reward.terms.NAME.reward=OPTION "
        "+reward.terms.NAME.timeout_s=5)",
    )
