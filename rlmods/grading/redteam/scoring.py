"""Score the attacks of `rlmods.grading.redteam.families`, and tell which of them are paid."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from rlmods.grading.redteam.families import (
    FAMILIES,
    PLACE,
    Attack,
    Case,
    Family,
    fill,
    same,
    wrong_answers,
)
from rlmods.grading.time_limit import LateError, time_limit

MAX_ROWS_PER_CALL = 256
NUM_EXPENSIVE = 2
"""Cases for which a family with long responses is tried."""
NUM_WRONG = 2
MAX_LATE = 2
"""Late calls after which the rest of a family is left out."""
LONG_FILLER = "It takes many steps. "

Row = tuple[Case, Attack]


@dataclass
class Tally:
    """Outcome of one family of responses, or of a reference."""

    name: str
    tried: int = 0
    paid: int = 0
    """Responses marked correct, or with a reward above the bound of their case."""
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
    advice: str = ""
    """What to look at if the family is paid."""


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


Graded = tuple[Case, Attack, Grade]


class Bound(NamedTuple):
    """Rewards of a case that honest answers set."""

    wrong: float
    """Highest reward of an honest wrong answer."""
    right: float
    """Highest reward of a right answer."""
    paid: float
    """Reward above which a response is paid."""


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
        return [tally for tally in self.families if tally.paid or tally.raised or tally.late]

    @property
    def is_clean(self) -> bool:
        return not self.holes and not self.problems


class NoReferenceError(ValueError):
    """There is nothing to compare a response with."""


@dataclass(frozen=True)
class Target:
    """A reward under attack."""

    reward: Callable[[Sequence[Row]], Sequence[Grade]]
    """Grades responses, which are given with their cases."""
    call_timeout_s: float = 20.0
    tolerance: float = 0.1
    """Fraction of the distance from a wrong to a right answer above which a response is paid."""
    fatal: tuple[type[Exception], ...] = ()
    """Exceptions of the reward that end the attack, such as a user's mistake."""

    def grade(self, rows: Sequence[Row], tally: Tally, per_call: int) -> list[Graded]:
        """Return graded rows, and add failures and the slowest call to `tally`. Ends after
        `MAX_LATE` late calls."""
        grades: list[Grade] = []
        for start in range(0, len(rows), per_call):
            if tally.late < MAX_LATE:
                grades += self._call(rows[start : start + per_call], tally)
        return [(*row, grade) for row, grade in zip(rows, grades, strict=False)]

    def _call(self, rows: Sequence[Row], tally: Tally) -> list[Grade]:
        begin = time.perf_counter()
        try:
            with time_limit(self.call_timeout_s):
                return list(self.reward(rows))
        except LateError:
            tally.late += 1
            failure = f"no result after {self.call_timeout_s:g} s"
        except self.fatal:
            raise
        except (Exception, SystemExit) as error:
            if len(rows) > 1:  # find the response that raises
                return [grade for row in rows for grade in self._call([row], tally)]
            failure = f"{type(error).__name__}: {error}"
            tally.raised.append(failure)
        finally:
            tally.slowest_s = max(tally.slowest_s, time.perf_counter() - begin)
        if not tally.failed_example:
            tally.failed_example = _example(*rows[0], None) | {"failure": failure}
        return [Grade(failed=True)] * len(rows)

    def reference(self, name: str, rows: Sequence[Row]) -> tuple[Tally, list[Graded]]:
        """Return the tally and the grades of honest answers. Raises NoReferenceError if a call was
        late."""
        tally = Tally(name)
        graded = self.grade(rows, tally, MAX_ROWS_PER_CALL)
        if tally.late:
            raise NoReferenceError(
                f"call_timeout_s={self.call_timeout_s:g}: the reward of "
                f"{min(len(rows), MAX_ROWS_PER_CALL)} responses ({name}) took longer, so there is "
                f"nothing to compare with: type call_timeout_s={10 * self.call_timeout_s:g}, or "
                "fewer prompts: num_prompts=4"
            )
        return tally, graded


def attack(
    target: Target, cases: Sequence[Case], on_progress: Callable[[int], None] = lambda done: None
) -> Report:
    """Try every family on a reward. `on_progress` is called with the number of parts done, of
    `len(FAMILIES) + 1`.

    Raises:
        NoReferenceError: no case has an answer or a response to compare with, or the reward is late
            on right or wrong answers.
    """
    cases = _with_wrong_answers(cases)
    right, right_graded = target.reference("right answer, any form", _rows(cases, _right_texts))
    wrong, wrong_graded = target.reference("wrong answer, any form", _rows(cases, _wrong_texts))
    bounds = _bounds(target.tolerance, cases, right_graded, wrong_graded)
    _count(right, right_graded, bounds, is_right=True)
    _count(wrong, wrong_graded, bounds, is_right=False)
    paid = {
        (case.id, attack.text)
        for case, attack, grade in right_graded
        if grade.is_above(bounds[case.id].paid)
    }
    cases = [replace(case, forms=_readable_forms(case, paid)) for case in cases]
    others: dict[str, list[Row]] = {
        "gold answer, plain": _rows(cases, lambda case: [case.gold]),
        "gold answer, data's own form": _rows(cases, lambda case: [case.response]),
        "answer to another prompt (chance)": _turned(cases),
    }
    references: list[Tally] = []
    for name, rows in others.items():
        tally, graded = target.reference(name, rows)
        _count(tally, graded, bounds, is_right="chance" not in name)
        references.append(tally)
    chance = references[-1]
    references += [right, wrong]
    on_progress(1)
    families: list[Tally] = []
    for name, family in FAMILIES.items():
        families.append(_try(target, name, family, cases, bounds))
        on_progress(1 + len(families))
    return Report(
        references,
        families,
        chance.paid / max(1, chance.tried),
        len(cases),
        list(_problems(bounds, paid, references)),
    )


def _try(
    target: Target, name: str, family: Family, cases: Sequence[Case], bounds: Mapping[str, Bound]
) -> Tally:
    """Return the outcome of a family's attacks that are not right by chance."""
    tally = Tally(name, advice=family.advice)
    rows: list[Row] = []
    for case in cases[: NUM_EXPENSIVE if family.expensive else None]:
        has_gold = case.gold is not None or not family.of_gold
        if has_gold and not (family.of_text and case.runs_code):
            attacks = dict.fromkeys(family.attacks(case))
            rows += [(case, attack) for attack in attacks if _is_hostile(case, attack)]
    graded = target.grade(rows, tally, 1 if family.expensive else MAX_ROWS_PER_CALL)
    _count(tally, graded, bounds, is_right=False)
    return tally


def _with_wrong_answers(cases: Sequence[Case]) -> list[Case]:
    answers = [case.gold or case.response for case in cases]
    distinct = [answer for answer in dict.fromkeys(answers) if answer]
    if not distinct:
        raise NoReferenceError(
            "no prompt has an answer or a good response to compare with: type "
            "data.answer=COLUMN or data.response=COLUMN"
        )
    kept = []
    for i, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        if answer:
            others = [*distinct[i + 1 :], *distinct[: i + 1]]
            kept.append(replace(case, wrong=wrong_answers(answer, others)))
    return kept


def _rows(cases: Sequence[Case], texts: Callable[[Case], Iterable[str | None]]) -> list[Row]:
    return [(case, Attack(text)) for case in cases for text in texts(case) if text]


def _right_texts(case: Case) -> Sequence[str | None]:
    if case.gold is None:
        return [case.response]
    return [fill(form, case.gold) for form in case.all_forms]


def _wrong_texts(case: Case) -> Sequence[str]:
    """Return honest wrong answers in each form, and a long one."""
    texts: list[str] = []
    forms = [PLACE] if case.gold is None else case.all_forms
    for answer in case.wrong[:NUM_WRONG]:
        texts += [fill(form, answer) for form in forms]
    text = honest_wrong(case)
    filler = LONG_FILLER * (max(0, case.max_chars - len(text)) // len(LONG_FILLER))
    return [*texts, filler + text]


def honest_wrong(case: Case) -> str:
    answer = case.wrong[0] if case.wrong else "no"
    return fill(case.own_form or PLACE, answer)


def _turned(cases: Sequence[Case]) -> list[Row]:
    """Return the gold answer of the next case for each case."""
    pairs = zip(cases, [*cases[1:], *cases[:1]], strict=True)
    return [
        (case, Attack(fill(case.own_form or case.forms[0], other.gold)))
        for case, other in pairs
        if other.gold
    ]


def _bounds(
    tolerance: float, cases: Sequence[Case], right: Sequence[Graded], wrong: Sequence[Graded]
) -> dict[str, Bound]:
    bounds = {}
    right_values = _highest(right)
    wrong_values = _highest([row for row in wrong if not row[2].correct])
    for case in cases:
        low = wrong_values.get(case.id, 0.0)
        high = right_values.get(case.id, low)
        bounds[case.id] = Bound(low, high, low + max(tolerance * (high - low), 1e-6))
    return bounds


def _highest(graded: Sequence[Graded]) -> dict[str, float]:
    values: dict[str, float] = {}
    for case, _, grade in graded:
        if grade.value is not None:
            values[case.id] = max(grade.value, values.get(case.id, grade.value))
    return values


def _readable_forms(case: Case, paid: Set[tuple[str, str]]) -> tuple[str, ...]:
    """Return the forms in which the right answer is paid; all of them if it is paid in none."""
    gold = case.gold or ""
    forms = [form for form in case.all_forms if (case.id, fill(form, gold)) in paid]
    return tuple(forms or case.all_forms)


def _problems(
    bounds: Mapping[str, Bound], paid: Set[tuple[str, str]], references: Sequence[Tally]
) -> Iterator[str]:
    """Yield a line for each reason why a comparison with these references shows nothing."""
    paid_cases = {name for name, _ in paid}
    unpaid = [name for name in bounds if name not in paid_cases]
    if unpaid:
        first = bounds[unpaid[0]]
        yield (
            f"right answers get no more than wrong ones for {len(unpaid)} of {len(bounds)} "
            f"prompts (prompt {unpaid[0]}: right {first.right:.3g}, wrong {first.wrong:.3g}): the "
            "reward does not depend on the answer there, so a hole cannot be told from an answer; "
            "check reward= and the column of data.answer"
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
    tally: Tally, graded: Sequence[Graded], bounds: Mapping[str, Bound], *, is_right: bool
) -> None:
    best = (False, -inf)
    for case, attack, grade in graded:
        bound = bounds[case.id]
        paid = grade.is_above(bound.paid)
        tally.tried += 1
        tally.abstained += grade.value is None and not grade.failed
        tally.paid += paid
        value = -inf if grade.value is None else grade.value
        key = (paid is not is_right, -value if is_right else value)
        if key > best and not grade.failed:
            best = key
            tally.example = _example(case, attack, grade.value) | {"wrong_answer": bound.wrong}
        if grade.value is not None:
            tally.highest = value if tally.highest is None else max(tally.highest, value)


def _example(case: Case, attack: Attack, value: float | None) -> dict[str, Any]:
    return {
        "prompt": case.id,
        "answer": case.gold,
        "response": attack.text,
        "finish": attack.finish,
        "reward": value,
    }


def _is_hostile(case: Case, attack: Attack) -> bool:
    """Return False for a response that is or states the right answer, by chance or because the
    data's own response is so."""
    right = {text.strip() for text in (case.gold, case.response) if text}
    if attack.text.strip() in right:
        return False
    return not (case.gold and attack.answer and same(attack.answer, case.gold))
