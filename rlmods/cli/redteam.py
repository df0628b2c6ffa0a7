"""Look for holes in a reward before a policy does: `python -m rlmods.redteam [group=option]
[key=value]`, with the overrides of `train.py`.

Composes the run's data and reward, and grades responses that a policy finds when it looks for
holes, by family: the question itself, nothing at all, tags without an answer, garbage in the gold's
format, several answers at once, answers of other prompts, text after the end, and so on. Loads no
policy; a model is loaded only if the reward has one.

    num_prompts=64          number of prompts, drawn with the run's seed
    tolerance=0.1           a response is paid if it is marked correct, or if its reward exceeds
                            the reward of an honest wrong answer by more than this fraction of the
                            distance to the right answer
    call_timeout_s=20       a call of the reward that takes longer is ended, and counts as late
    out=null                FILE.json: also write the report there

Prints a table: by family the number of responses tried and paid, the highest reward with its
response, and the slowest call. Above it stand the references: the gold answer, plain and in the
form of the data's own response, which must be paid; wrong answers; and answers to other prompts,
whose share of right ones is the level of chance. A hostile answer that happens to be the gold one
is left out. The exit status is 1 if a family is paid, raises an exception or is late, and if the
references show nothing: right answers get no more than wrong ones, the data's own responses are not
paid, or the reward raises or abstains on them. The lines below the table say what to look at."""

import sys

from rlmods.errors import UserError, counted, print_usage
from rlmods.settings.bounds import Count, Positive, ProperFraction, bounded

print_usage(__name__, __doc__)

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from rlmods.cli.command import command, compose_run, progress
from rlmods.grading.redteam import scoring
from rlmods.grading.redteam.families import FAMILIES, MIN_LONG_CHARS, Attack, Case
from rlmods.grading.redteam.scoring import Grade, NoReferenceError, Report, Row, Target
from rlmods.needs import RewardNeeds, needs_of
from rlmods.reward.scores import as_scores
from rlmods.run.files import atomic_write, dumps, one_line, shorten
from rlmods.types import Prompt, Response

CHARS_PER_TOKEN = 4
"""Length of a token in responses whose tokens are unknown, as no policy is loaded."""
EXAMPLE_CHARS = 48
"""Characters of a response that are shown."""


@dataclass(frozen=True)
@bounded("")
class Settings:
    """Options of this command, described above."""

    num_prompts: Count = 64
    tolerance: ProperFraction = 0.1
    call_timeout_s: Positive = 20.0
    out: str | None = None


def redteam(overrides: Sequence[str]) -> Report:
    """Compose the run and attack its reward.

    Raises:
        UserError: an invalid override, a run that would not start, or data without answers.
    """
    spec, settings = compose_run(overrides, Settings, trains=False)
    if "reward" not in spec.parts:
        raise UserError(f"algo={spec.config.algo.name} has no reward: type algo=dapo")
    max_tokens = int(getattr(spec.parts.get("rollout"), "max_tokens", 512))
    report = attack(
        spec.parts["reward"],
        spec.splits.train,
        settings,
        seed=spec.config.seed,
        max_tokens=max_tokens,
    )
    if settings.out is not None:
        written = asdict(report) | {"holes": [tally.name for tally in report.holes]}
        atomic_write(Path(settings.out).expanduser(), dumps(written, indent=2) + "\n")
    return report


def attack(
    reward: Any,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    seed: int = 0,
    max_tokens: int = 512,
) -> Report:
    """Try every family of attacks on a reward, for prompts drawn with `seed`.

    Raises:
        UserError: no prompt has an answer or a response to compare with, or the reward is late on
            right or wrong answers.
    """
    drawn = Random(seed).sample(list(prompts), min(settings.num_prompts, len(prompts)))
    target = Target(
        _Reward(reward, {prompt.id: prompt for prompt in drawn}, max_tokens),
        settings.call_timeout_s,
        settings.tolerance,
        fatal=(UserError,),
    )
    max_chars = max(MIN_LONG_CHARS, CHARS_PER_TOKEN * max_tokens)
    cases = [_case(reward, prompt, max_chars) for prompt in drawn]
    try:
        with progress("grading", len(FAMILIES) + 1) as update:
            return scoring.attack(target, cases, update)
    except NoReferenceError as error:
        raise UserError(str(error)) from None


def _case(reward: Any, prompt: Prompt, max_chars: int) -> Case:
    turns = [("user", prompt.text or "")]
    if prompt.messages is not None:
        turns = [(turn["role"], turn["content"]) for turn in prompt.messages]
    response = prompt.meta.get("response")
    reward = reward.for_prompt(prompt) if hasattr(reward, "for_prompt") else reward
    return Case(
        prompt.id,
        turns,
        prompt.answer or None,
        response if isinstance(response, str) and response else None,
        runs_code=needs_of(reward, RewardNeeds).runs_code,
        max_chars=max_chars,
    )


@dataclass(frozen=True)
class _Reward:
    """A reward of rows of the red team."""

    reward: Any
    prompts: Mapping[str, Prompt]
    """Prompts by id."""
    max_tokens: int

    def __call__(self, rows: Sequence[Row]) -> list[Grade]:
        if not needs_of(self.reward, RewardNeeds).group:
            return self._grade(rows)
        # it compares responses: beside each stands an honest wrong answer
        doubled: list[Row] = []
        for case, tried in rows:
            doubled += [(case, tried), (case, Attack(scoring.honest_wrong(case)))]
        return self._grade(doubled)[::2]

    def _grade(self, rows: Sequence[Row]) -> list[Grade]:
        responses = []
        for i, (case, tried) in enumerate(rows):
            num_tokens = min(self.max_tokens, ceil(len(tried.text) / CHARS_PER_TOKEN) + 1)
            responses.append(
                Response(
                    self.prompts[case.id],
                    tokens=range(self.max_tokens if tried.finish == "length" else num_tokens),
                    text=tried.text,
                    finish=tried.finish,
                    meta={"sample": i},
                )
            )
        scores = as_scores(self.reward(responses), len(responses), "reward")
        correct = scores.correct or [None] * len(responses)
        return list(map(Grade, scores.values, correct))


def show(report: Report) -> str:
    tallies = (*report.references, *report.families)
    width = max(len(tally.name) for tally in tallies)
    columns = f"{{:<{width}}}{{:>7}}{{:>7}}{{:>11}}{{:>9}}{{:>9}}  {{}}"
    lines = [
        columns.format("family", "tried", "paid", "abstained", "highest", "slowest", "response")
    ]
    for tally in tallies:
        highest = "" if tally.highest is None else f"{tally.highest:.3g}"
        example = tally.example or tally.failed_example
        slowest = f"{tally.slowest_s:.2f} s"
        response = _shown(example.get("response", ""))
        counts = (tally.tried, tally.paid, tally.abstained)
        lines.append(columns.format(tally.name, *counts, highest, slowest, response).rstrip())
        if tally is report.references[-1]:
            lines.append("")
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
        advice = tally.advice if tally.paid else "the reward at that response"
        outcomes = []
        if tally.paid:
            outcomes.append(f"{tally.paid} of {tally.tried} paid")
            outcomes.append(f"e.g. {_described(tally.example)}")
        if tally.failed_example:
            late = counted(tally.late, "late call")
            outcomes.append(f"raised {counted(len(tally.raised), 'time')}, {late}")
            outcomes.append(f"e.g. {_described(tally.failed_example)}")
        yield f"{tally.name}: {', '.join(outcomes)}. Look at: {advice}"
    yield (
        f"{counted(report.num_prompts, 'prompt')}; answers to other prompts are right by chance in "
        f"{report.chance:.1%} of cases"
    )
    yield from (f"problem: {problem}" for problem in report.problems)
    if report.is_clean:
        yield "no hole found"


def _described(example: Mapping[str, Any]) -> str:
    if not example:
        return "(no example)"
    got = example.get("failure", "gets no reward: it abstained")
    if example["reward"] is not None:
        beside = example["wrong_answer"]
        got = f"gets {example['reward']:.3g}, an honest wrong answer {beside:.3g}"
    return (
        f"'{_shown(example['response'])}' to prompt {_shown(example['prompt'])} "
        f"(answer {_shown(example['answer'])}) {got}"
    )


def _shown(value: object) -> str:
    return shorten(str(value), EXAMPLE_CHARS)


def main(arguments: list[str]) -> None:
    reports: list[Report] = []

    def action() -> str:
        reports.append(redteam(arguments))
        return show(reports[0])

    command(action)
    if reports and not reports[0].is_clean:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
