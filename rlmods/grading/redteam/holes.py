"""Grade the responses of `rlmods.grading.redteam.attacks` with a reward, and tell which of them are paid."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from math import ceil, inf
from random import Random
from typing import Any

from rlmods.cli.command import progress
from rlmods.errors import UserError
from rlmods.grading.redteam.attacks import (
    FAMILIES,
    FORMS,
    MIN_LONG_CHARS,
    OF_TEXT,
    Attack,
    Case,
    fill,
    form_of,
    same,
    wrong_answers,
)
from rlmods.needs import RewardNeeds, needs_of
from rlmods.reward.scores import as_scores
from rlmods.run.printable import one_line
from rlmods.types import Prompt, Response

CHARS_PER_TOKEN = 4
"""Length of a token in responses whose tokens are unknown, as no policy is loaded."""
MAX_ROWS_PER_CALL = 256
EXPENSIVE = ("longest", "repeated")
"""Families with long responses: tried for few prompts, one response a call."""
NUM_EXPENSIVE = 2
NUM_WRONG = 2
EXAMPLE_CHARS = 48
"""Characters of a response that are shown."""
MAX_LATE = 2
"""Late calls after which the rest of a family is left out."""


@dataclass(frozen=True)
class Settings:
    """Options of this command, described in `rlmods.cli.redteam`."""

    num_prompts: int = 64
    tolerance: float = 0.1
    call_timeout_s: float = 20.0
    out: str | None = None

    def __post_init__(self) -> None:
        number = {
            name: value
            for name, value in asdict(self).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        rules = {
            "num_prompts": (
                isinstance(number.get("num_prompts"), int) and self.num_prompts >= 1,
                "a whole number of at least 1",
            ),
            "tolerance": (0 <= number.get("tolerance", -1) < 1, "at least 0 and below 1"),
            "call_timeout_s": (number.get("call_timeout_s", 0) > 0, "above 0"),
        }
        for name, (valid, expected) in rules.items():
            if not valid:
                raise UserError(f"{name}={getattr(self, name)}: must be {expected}")


@dataclass
class Tally:
    """Outcome of one family of responses, or of a reference."""

    name: str
    tried: int = 0
    paid: int = 0
    """Responses marked correct, or with a reward above the threshold of their prompt."""
    abstained: int = 0
    highest: float | None = None
    example: dict[str, Any] = field(default_factory=dict)
    """A response with the highest reward, a paid one if there is any (of right answers the lowest,
    an unpaid one): prompt id, gold, text, reward, and the reward of an honest wrong answer beside
    it."""
    failed_example: dict[str, Any] = field(default_factory=dict)
    """The first response on which the reward raised or was late, with the `failure`."""
    slowest_s: float = 0.0
    """Wall time of the slowest call of the reward."""
    raised: list[str] = field(default_factory=list)
    """Messages of exceptions."""
    late: int = 0
    """Calls that were ended after `call_timeout_s`."""
    look_at: str = ""
    """What to look at if the family is paid."""

    @property
    def is_hole(self) -> bool:
        return bool(self.paid or self.raised or self.late)


@dataclass(frozen=True)
class Grade:
    """Reward of one response; both None if the call failed or the reward abstained."""

    value: float | None = None
    correct: bool | None = None
    failed: bool = False
    """True if the call raised or was late, so that the reward did not abstain."""

    def is_above(self, bound: float) -> bool:
        """Return True if the response is paid: it is marked correct, or its reward exceeds
        `bound`."""
        return self.correct is True or (self.value is not None and self.value > bound)


@dataclass(frozen=True)
class Report:
    """Outcomes of a reward on a data set."""

    references: Sequence[Tally]
    families: Sequence[Tally]
    chance: float
    """Fraction of the answers to other prompts that are paid."""
    num_prompts: int
    problems: Sequence[str] = ()
    """Reasons why the references are no basis for a comparison, so that a reward without holes is
    not shown to be a good one."""

    @property
    def holes(self) -> list[Tally]:
        return [tally for tally in self.families if tally.is_hole]

    @property
    def is_clean(self) -> bool:
        return not self.holes and not self.problems


class LateError(BaseException):
    """A call of the reward took too long. Not an Exception, so that no reward catches it."""


@dataclass(frozen=True)
class Target:
    """A reward under attack, with the settings that matter."""

    reward: Any
    settings: Settings
    max_tokens: int = 512
    record: Callable[[str], None] = lambda text: None
    """Called with a description of the responses before each call of the reward, which may end the
    process."""

    def grade(
        self, rows: Sequence[tuple[Case, Attack]], tally: Tally, per_call: int = MAX_ROWS_PER_CALL
    ) -> list[Grade]:
        """Return the grades of responses, and add failures and the slowest call to `tally`. Ends
        after `MAX_LATE` late calls."""
        grades: list[Grade] = []
        for start in range(0, len(rows), per_call):
            if tally.late < MAX_LATE:
                grades += self._call(rows[start : start + per_call], tally)
        return grades

    def _call(self, rows: Sequence[tuple[Case, Attack]], tally: Tally) -> list[Grade]:
        begin = time.perf_counter()
        try:
            with time_limit(self.settings.call_timeout_s):
                self.record(
                    f"{tally.name} ({len(rows)} responses, the first '{shorten(rows[0][1].text)}')"
                )
                return self._scores(rows)
        except LateError:
            tally.late += 1
            failure = f"no result after {self.settings.call_timeout_s:g} s"
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if len(rows) > 1:  # find the response that raises
                return [grade for row in rows for grade in self._call([row], tally)]
            tally.raised.append(f"{type(error).__name__}: {error}")
            failure = tally.raised[-1]
        finally:
            tally.slowest_s = max(tally.slowest_s, time.perf_counter() - begin)
        tally.failed_example = tally.failed_example or _example(*rows[0], None) | {
            "failure": failure
        }
        return [Grade(failed=True)] * len(rows)

    def _scores(self, rows: Sequence[tuple[Case, Attack]]) -> list[Grade]:
        # it compares responses: beside each stands an honest wrong answer
        if needs_of(self.reward, RewardNeeds).group:
            doubled = [
                row for case, attack in rows for row in ((case, attack), (case, _wrong(case)))
            ]
            return self._scores_of(doubled)[::2]
        return self._scores_of(rows)

    def _scores_of(self, rows: Sequence[tuple[Case, Attack]]) -> list[Grade]:
        responses = [
            Response(
                case.prompt,
                tokens=range(self._num_tokens(attack)),
                text=attack.text,
                finish=attack.finish,
                meta={"sample": i},
            )
            for i, (case, attack) in enumerate(rows)
        ]
        scores = as_scores(self.reward(responses), len(responses), "reward")
        correct = scores.correct or [None] * len(responses)
        return [
            Grade(value, verdict) for value, verdict in zip(scores.values, correct, strict=True)
        ]

    def _num_tokens(self, attack: Attack) -> int:
        if attack.finish == "length":
            return self.max_tokens
        return min(self.max_tokens, ceil(len(attack.text) / CHARS_PER_TOKEN) + 1)


def attack(
    reward: Any,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    seed: int = 0,
    max_tokens: int = 512,
    record: Callable[[str], None] = lambda text: None,
) -> Report:
    """Try every family on a reward; those of `OF_TEXT` only for prompts whose reward does not run
    code.

    Raises:
        UserError: no prompt has an answer or a response to compare with, or the reward is late on
        right or wrong answers.
    """
    target = Target(reward, settings, max_tokens, record)
    cases = _cases(
        Random(seed).sample(list(prompts), min(settings.num_prompts, len(prompts))), max_tokens
    )
    with progress("grading", len(FAMILIES) + 1) as update:
        cases, references, bounds, problems = _references(target, cases)
        update(1)
        tallies = []
        for i, (name, (generate, look_at)) in enumerate(FAMILIES.items()):
            expensive = name in EXPENSIVE
            rows = [
                (case, x)
                for case in cases[: NUM_EXPENSIVE if expensive else None]
                if name not in OF_TEXT or not _runs_code(reward, case.prompt)
                for x in dict.fromkeys(generate(case))
                if _hostile(case, x)
            ]
            tally = Tally(name, look_at=look_at)
            grades = target.grade(rows, tally, 1 if expensive else MAX_ROWS_PER_CALL)
            _count(tally, rows, grades, bounds)
            tallies.append(tally)
            update(i + 2)
    chance = references[2]
    return Report(references, tallies, chance.paid / max(1, chance.tried), len(cases), problems)


Bounds = dict[str, tuple[float, float]]
"""Rewards of an honest wrong answer and above which a response is paid, by prompt."""


def _runs_code(reward: Any, prompt: Prompt) -> bool:
    """Return True if a response to the prompt is graded as a program."""
    reward = reward.for_prompt(prompt) if hasattr(reward, "for_prompt") else reward
    return needs_of(reward, RewardNeeds).runs_code


def _cases(prompts: Sequence[Prompt], max_tokens: int) -> list[Case]:
    golds = [prompt.answer or _text(prompt.meta.get("response")) for prompt in prompts]
    if not any(golds):
        raise UserError(
            "no prompt has an answer or a good response to compare with: type "
            "data.answer=COLUMN or data.response=COLUMN"
        )
    others = [gold for gold in dict.fromkeys(golds) if gold]
    cases = []
    for i, (prompt, gold) in enumerate(zip(prompts, golds, strict=True)):
        if gold:
            wrong = wrong_answers(gold, [*others[i + 1 :], *others[: i + 1]])
            own = form_of(prompt.meta.get("response"), prompt.answer)
            cases.append(
                Case(
                    prompt,
                    prompt.answer,
                    wrong,
                    own,
                    max_chars=max(MIN_LONG_CHARS, CHARS_PER_TOKEN * max_tokens),
                )
            )
    return cases


def _references(
    target: Target, cases: Sequence[Case]
) -> tuple[list[Case], list[Tally], Bounds, list[str]]:
    """Grade right and wrong answers. Return the cases with the forms in which a right answer is
    paid, the references (plain, in the data's own form, of another prompt, right in any form, wrong
    in any form), the bounds by prompt, and what is wrong with the references.

    Raises:
        UserError: a call was late, so that rewards to compare with are missing.
    """
    rights = [[(case, Attack(text)) for text in _right(case)] for case in cases]
    wrongs = [
        [
            (case, _wrong(case, answer, form))
            for answer in case.wrong[:NUM_WRONG]
            for form in case.all_forms
        ]
        for case in cases
    ]
    for case, rows in zip(cases, wrongs, strict=True):
        rows += [(case, replace(_wrong(case), text=_long(_wrong(case).text, case.max_chars)))]
    right_tally, wrong_tally = Tally("right answer, any form"), Tally("wrong answer, any form")
    right_grades, wrong_grades = (
        iter(_graded(target, [row for rows in x for row in rows], t))
        for x, t in ((rights, right_tally), (wrongs, wrong_tally))
    )
    bounds: Bounds = {}
    graded_rights, graded_wrongs, unseparated = [], [], []
    for case, right, wrong in zip(cases, rights, wrongs, strict=True):
        graded = list(islice(right_grades, len(right)))
        graded_rights.append(graded)
        graded_wrongs.append(list(islice(wrong_grades, len(wrong))))
        low = max(
            (g.value for g in graded_wrongs[-1] if g.value is not None and not g.correct),
            default=0.0,
        )
        high = max((g.value for g in graded if g.value is not None), default=low)
        bounds[case.prompt.id] = (low, low + max(target.settings.tolerance * (high - low), 1e-6))
        if not any(grade.is_above(bounds[case.prompt.id][1]) for grade in graded):
            unseparated.append(f"prompt {case.prompt.id}: right {high:.3g}, wrong {low:.3g}")
    readable = [
        replace(case, forms=_readable(case, grades, bounds))
        for case, grades in zip(cases, graded_rights, strict=True)
    ]
    plain, own, shuffled = (
        Tally("gold answer, plain"),
        Tally("gold answer, data's own form"),
        Tally("answer to another prompt (chance)"),
    )
    golds = [(case, Attack(case.gold)) for case in cases if case.gold is not None]
    responses = [
        (case, Attack(text))
        for case in cases
        if (text := _text(case.prompt.meta.get("response"))) is not None
    ]
    turned = [*cases[1:], *cases[:1]]
    answers = [
        (case, Attack(fill(case.own_form or case.forms[0], other.gold)))
        for case, other in zip(readable, turned, strict=True)
        if other.gold
    ]
    for tally, rows, is_right in (
        (plain, golds, True),
        (own, responses, True),
        (shuffled, answers, False),
    ):
        _count(tally, rows, _graded(target, rows, tally), bounds, is_right=is_right)
    for tally, rows_of, grades_of in (
        (right_tally, rights, graded_rights),
        (wrong_tally, wrongs, graded_wrongs),
    ):
        _count(
            tally,
            [x for rows in rows_of for x in rows],
            [x for grades in grades_of for x in grades],
            bounds,
            tally is right_tally,
        )
    references = [plain, own, shuffled, right_tally, wrong_tally]
    return readable, references, bounds, list(_problems(references, unseparated, len(cases)))


def _graded(target: Target, rows: Sequence[tuple[Case, Attack]], tally: Tally) -> list[Grade]:
    """Return the grades of references.

    Raises:
        UserError: a call was late.
    """
    grades = target.grade(rows, tally)
    if tally.late:
        limit_s, num = target.settings.call_timeout_s, min(len(rows), MAX_ROWS_PER_CALL)
        raise UserError(
            f"call_timeout_s={limit_s:g}: the reward of {num} responses ({tally.name}) took "
            "longer, so there is nothing to compare with: "
            f"type call_timeout_s={10 * limit_s:g}, or fewer prompts: num_prompts=4"
        )
    return grades


def _problems(
    references: Sequence[Tally], unseparated: Sequence[str], num_cases: int
) -> Iterator[str]:
    """Yield a line for each reason why a comparison with these references shows nothing."""
    if unseparated:
        yield (
            f"right answers get no more than wrong ones for {len(unseparated)} of {num_cases} "
            f"prompts ({unseparated[0]}): the reward does "
            "not depend on the answer there, so a hole cannot be told from an answer; check "
            "reward= and the column of data.answer"
        )
    own = references[1]
    if own.paid < own.tried:
        yield (
            f"{own.name}: {own.tried - own.paid} of {own.tried} are not paid, so a policy "
            "that answers as the data does is not rewarded: "
            "check what the reward reads, and the gold answers"
        )
    for tally in references:
        if tally.raised:
            yield (
                f"{tally.name}: the reward raised {len(tally.raised)} times, which ends a "
                f"training run: {tally.raised[0]}"
            )
        if tally.abstained:
            yield (
                f"{tally.name}: the reward abstained on {tally.abstained} of {tally.tried}, which "
                "no training sees: check its counts"
            )


def _count(
    tally: Tally,
    rows: Sequence[tuple[Case, Attack]],
    grades: Sequence[Grade],
    bounds: Bounds,
    is_right: bool = False,
) -> None:
    """Add the grades of a family, or of a reference that `is_right` and should be paid, to its
    tally."""
    best = (False, -inf)
    for (case, attack), grade in zip(rows, grades, strict=False):  # fewer grades after late calls
        low, bound = bounds[case.prompt.id]
        tally.tried += 1
        tally.abstained += grade.value is None and not grade.failed
        paid = grade.is_above(bound)
        tally.paid += paid
        value = -inf if grade.value is None else grade.value
        key = (paid is not is_right, -value if is_right else value)
        if key > best and not grade.failed:
            best, tally.example = key, _example(case, attack, grade.value) | {"wrong_answer": low}
        if grade.value is not None:
            tally.highest = value if tally.highest is None else max(tally.highest, value)


def _example(case: Case, attack: Attack, value: float | None) -> dict[str, Any]:
    return {
        "prompt": case.prompt.id,
        "answer": case.gold,
        "response": attack.text,
        "finish": attack.finish,
        "reward": value,
    }


def _hostile(case: Case, attack: Attack) -> bool:
    """Return False for a response that is or states the right answer, by chance or because the
    data's own response is so."""
    right = {text.strip() for text in (case.gold, _text(case.prompt.meta.get("response"))) if text}
    return attack.text.strip() not in right and not (
        case.gold and attack.answer and same(attack.answer, case.gold)
    )


def _right(case: Case) -> list[str]:
    """Return right responses: the gold answer in each form, or the data's own response."""
    response = _text(case.prompt.meta.get("response"))
    own = [response] if response else []
    return own if case.gold is None else [fill(form, case.gold) for form in case.all_forms]


def _wrong(case: Case, answer: str | None = None, form: str | None = None) -> Attack:
    """Return an honest wrong answer."""
    answer = answer or (case.wrong[0] if case.wrong else "no")
    return Attack(
        fill(form or case.own_form or FORMS["plain"], answer) if case.gold is not None else answer
    )


def _readable(case: Case, grades: Sequence[Grade], bounds: Bounds) -> tuple[str, ...]:
    """Return the forms in which the right answer is paid; all of them if it is paid in none."""
    if case.gold is None:
        return tuple(case.all_forms)
    bound = bounds[case.prompt.id][1]
    forms = tuple(
        form for form, grade in zip(case.all_forms, grades, strict=False) if grade.is_above(bound)
    )
    return forms or tuple(case.all_forms)


def shorten(text: str) -> str:
    """Return the beginning of a text, on one line."""
    text = one_line(text)
    return text if len(text) <= EXAMPLE_CHARS else f"{text[: EXAMPLE_CHARS - 4]} ..."


def _long(text: str, size: int) -> str:
    return "It takes many steps. " * (max(0, size - len(text)) // 21) + text


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise LateError in the block after `seconds`, also within a regular expression. Outside the
    main thread there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(*_: object) -> None:
        raise LateError

    start, handler = time.monotonic(), signal.signal(signal.SIGALRM, on_alarm)
    previous_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if previous_s:  # such as that of a test runner
            signal.setitimer(signal.ITIMER_REAL, max(0.1, previous_s - (time.monotonic() - start)))
