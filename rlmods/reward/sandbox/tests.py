"""Unit tests as data sets write them, in one form; and how much of them some code passes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.reward.sandbox.run import Limits, run_program, run_tests


@dataclass(frozen=True)
class Tests:
    """Either programs' inputs and outputs, or Python that calls what the code defines."""

    __test__ = False  # pytest takes a name like this for tests

    cases: tuple[tuple[str, str], ...] = ()
    """(stdin, stdout)"""
    asserts: tuple[str, ...] = ()
    entry_point: str | None = None
    """Name that `asserts` know as `candidate`."""

    def __len__(self) -> int:
        return len(self.cases) + len(self.asserts)


def read_tests(given: Any, entry_point: str | None = None) -> Tests:
    """
    - `{"inputs": [...], "outputs": [...]}` (APPS, TACO), a `fn_name` among them where the inputs are arguments
    - `[{"input": ..., "output": ...}, ...]` (CodeContests, LiveCodeBench)
    - `["assert f(1) == 2", ...]` (MBPP), or one text, whose `check(candidate)` is called if it defines that (HumanEval)

    or any of these as JSON.

    Raises:
        ValueError: none of these forms, or no test at all.
    """
    if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
        given = json.loads(given)
    if isinstance(given, str):
        text = given + ("\ncheck(candidate)\n" if "def check(" in given and "\ncheck(" not in given else "")
        tests = Tests(asserts=(text,), entry_point=entry_point)
    elif isinstance(given, Mapping) and {"inputs", "outputs"} <= set(given):
        name = given.get("fn_name") or entry_point
        if len(given["inputs"]) != len(given["outputs"]):
            raise ValueError(f"unit tests have {len(given['inputs'])} inputs and {len(given['outputs'])} outputs")
        pairs = list(zip(given["inputs"], given["outputs"], strict=True))
        tests = Tests(cases=tuple(map(_case, pairs))) if name is None else Tests((), tuple(_call(*pair) for pair in pairs), name)
    elif isinstance(given, Sequence) and all(isinstance(test, str) for test in given):
        tests = Tests(asserts=tuple(given), entry_point=entry_point)
    elif isinstance(given, Sequence) and all(isinstance(test, Mapping) and {"input", "output"} <= set(test) for test in given):
        functional = any(test.get("testtype") == "functional" for test in given)
        if functional and entry_point is None:
            raise ValueError("functional unit tests need the name of the function, in the column entry_point")
        if functional:
            lines = [([json.loads(line) for line in test["input"].splitlines()], test["output"]) for test in given]
            tests = Tests((), tuple(_call(*pair) for pair in lines), entry_point)
        else:
            tests = Tests(cases=tuple(_case((test["input"], test["output"])) for test in given))
    else:
        raise ValueError("unit tests are {inputs, outputs}, a list of {input, output}, or Python with assertions")
    if not len(tests):
        raise ValueError("there are no unit tests")
    for test in tests.asserts:
        try:
            compile(test, "unit tests", "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"one of the unit tests is no Python: {error}") from error
    return tests


def grade(source: str, given: Any, entry_point: str | None, limits: Mapping[str, Any], stop_early: bool) -> dict[str, Any]:
    """What came of `source`: `passed` of `total`, and how many were out of time. A function for `reward.pool`.

    Args:
        stop_early: one failure is enough; the rest are not run.

    Raises:
        ValueError: tests of unknown form.
        RuntimeError: this machine cannot confine code.
    """
    tests, bounds = read_tests(given, entry_point), Limits(**limits)
    passed, late = 0, 0
    for stdin, wanted in tests.cases:
        ran = run_program(source, stdin, bounds)
        right = ran.status == "ok" and same_output(ran.stdout, wanted)
        passed, late = passed + right, late + (ran.status == "timeout")
        if stop_early and not right:
            break
    if tests.asserts:
        results, status = run_tests(source, tests.asserts, bounds, tests.entry_point)
        passed, late = sum(results), int(status == "timeout")
    return {"passed": passed, "total": len(tests), "late": late}


def same_output(said: str, wanted: str) -> bool:
    """Line by line, word by word; a number with a decimal point may differ by 1e-6, relative or absolute."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (said, wanted))
    if [len(line) for line in ours] != [len(line) for line in theirs]:
        return False
    pairs = [pair for lines in zip(ours, theirs, strict=True) for pair in zip(*lines, strict=True)]
    return all(a == b or _near(a, b) for a, b in pairs)


def _near(said: str, wanted: str) -> bool:
    if "." not in wanted:
        return False
    try:
        return math.isclose(float(said), float(wanted), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _case(pair: tuple[Any, Any]) -> tuple[str, str]:
    stdin, stdout = ("\n".join(map(str, text)) if isinstance(text, list) else str(text) for text in pair)
    return stdin, stdout


_CALL = """\
found = candidate(*{args!r})
found = list(found) if isinstance(found, tuple) else found
assert found == {wanted!r} or [found] == {wanted!r}, found
"""
"""APPS wraps the wanted value in a list, others do not; JSON knows no tuples."""


def _call(args: Any, wanted: Any) -> str:
    given = _values(args) if isinstance(args, str) else args
    expected = json.loads(wanted) if isinstance(wanted, str) else wanted
    return _CALL.format(args=given, wanted=expected)


def _values(text: str) -> list[Any]:
    """Arguments as one JSON list, or as JSON values a line each."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]
    return found if isinstance(found, list) and "\n" not in text.strip() else [found]
