"""Answers to reasoning-gym tasks: the score of the package's own scorer, which worker processes ask
for, and beside it the form of an answer, which is necessary for a right one.

Scorers compare with tolerances, search for the right answer in a text, evaluate answers as code, or
take any text for True. So an answer is refused, for all tasks, if it has NaN, infinity or numbers
that overflow, or if the gold is a number, a truth value or a list of numbers and the answer is not.
Answers that are evaluated must be arithmetic or formulas."""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlmods.grading.grader.evaluate import calculate
from rlmods.grading.grader.syntax import ParseError, word_set
from rlmods.grading.sandbox.run import Limits, call_function, check
from rlmods.grading.sandbox.wire import encode, refuse

TARGET = f"{__name__}:work"
PACKAGES = Limits(timeout_s=10.0, memory_mb=2048, output_bytes=1000, packages=True)
MAX_CHARACTERS = 20_000
"""Longer answers are not scored."""
ARITHMETIC_TASKS = ("countdown", "puzzle24")
FORMULA_TASKS = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
EVALUATED_TASKS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Tasks whose scorers evaluate the answer: as arithmetic on the prompt's numbers, as a formula of
sympy, as a literal of Python."""
BOOLEANS = ("true", "false", "yes", "no")
FUNCTIONS = word_set(
    "exp log ln sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech "
    "csch asinh acosh atanh sqrt Abs abs erf erfi Si Ci pi"
)
"""Names in formulas, besides variables."""

_NOT_FINITE = re.compile(
    r"(?<![^\W\d_])(?:nan|inf|infinity|z?oo)(?![^\W\d_])|\d[eE]\+?\d{3}", re.IGNORECASE
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NAME = re.compile(r"[^\W\d]\w*")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_ARITHMETIC = re.compile(r"(?:[\d\s+\-()]|\*(?!\*)|/(?!/)){1,1000}")
_FORMULA = re.compile(r"(?:[\w\s+\-*/^(),]|\.(?!\s*[^\W\d]))*")


def has_form(task: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Return False if `answer` has not the form of an answer to the entry of the task, so that it
    is wrong whatever the scorer says."""
    gold = str(entry.get("answer", ""))
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(gold):
        return False
    if task in ARITHMETIC_TASKS:
        metadata = entry["metadata"]
        return _reaches(answer, metadata["numbers"], metadata.get("target", 24))
    if task in FORMULA_TASKS:
        names = set(_NAME.findall(answer)) - FUNCTIONS - set(_NAME.findall(gold))
        return _FORMULA.fullmatch(answer) is not None and all(len(name) == 1 for name in names)
    if task in EVALUATED_TASKS and "(" in answer:
        return False
    if gold.lower() in BOOLEANS:
        return answer.strip().strip(".").lower() == gold.lower()
    right = _plain(gold)
    if _number(right) is not None:
        return _same_number(_plain(answer), right)
    if any(map(str.isalpha, right)) or not _NUMBER.search(right):
        return True
    own = _plain(answer)
    as_many = len(_NUMBER.findall(own)) == len(_NUMBER.findall(right))
    return as_many and not any(map(str.isalpha, own))


def _plain(text: str) -> str:
    """Return a text without what LaTeX and prices put around numbers."""
    return _FRACTION.sub(r"\1/\2", text).replace("$", "").strip()


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def _same_number(answer: str, gold: str) -> bool:
    """Return True for a number that equals the gold, rounded to the digits that both have, and
    differs by 1 % at most."""
    own = _number(answer)
    right = _number(gold)
    if own is None or right is None:
        return False
    difference = abs(own - right)
    decimals = [Decimal(x.replace(",", "")) for x in (answer, gold) if "/" not in x]
    last_digits = [int(decimal.as_tuple().exponent) for decimal in decimals]
    tolerance = Fraction(10) ** max(last_digits) / 2 if last_digits else 0
    return difference <= tolerance and difference <= abs(right) / 100


def _reaches(answer: str, numbers: list[int], target: int) -> bool:
    """Return True for sums, products and quotients of exactly these numbers, with exactly the
    target."""
    if not _ARITHMETIC.fullmatch(answer):
        return False
    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(numbers):
        return False
    try:
        return bool(calculate(answer) == target)
    except ParseError:
        return False


def work(job: tuple[Any, ...]) -> float | None:
    """Do one job of `TaskScore`: (limits) starts the server of confined processes, (limits, task,
    answer, entry) scores an answer."""
    if len(job) == 1:
        check("scorer", *job)
        return None
    limits, task, answer, entry = job
    return score(task, answer, entry, limits)


def score(task: str, answer: str, entry: Mapping[str, Any], limits: Limits = PACKAGES) -> float:
    """Return the score of `answer` as the answer to `entry`, by the scorer of the reasoning-gym
    task `task`.

    Raises:
        RuntimeError: this machine cannot confine the scorer, or there is no such task.
        TimeoutError: the scorer was stopped.
        ValueError: the scorer failed.
    """
    job = {"task": task, "answer": answer, "entry": encode(entry, refuse)}
    text, status = call_function("scorer", job, limits, context=task)
    if status == "timeout":
        raise TimeoutError("the scorer was stopped at its time limit")
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError as error:
        raise ValueError("the scorer failed") from error
