"""Unit tests of the formats that data sets use, and grading of code by them."""

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlmods.grading.sandbox import names
from rlmods.grading.sandbox.run import Limits, check, run_program, run_tests
from rlmods.grading.sandbox.test_runner import FAILED, PASSED


@dataclass(frozen=True)
class Tests:
    """Unit tests: either inputs and outputs of a program, or Python code that calls what the source
    defines."""

    __test__ = False  # keeps pytest from collecting the class

    cases: tuple[tuple[str, str], ...] = ()
    """(stdin, stdout)"""
    asserts: tuple[str, ...] = ()
    entry_point: str | None = None
    """Name of the function that `asserts` call `candidate`."""

    def __len__(self) -> int:
        return len(self.cases) + len(self.asserts)

    def names_under_test(self) -> set[str]:
        return names.names_under_test(list(self.asserts), self.entry_point)


def read_tests(tests: object, entry_point: str | None = None, setup: str | None = None) -> Tests:
    """Return unit tests given in one of these forms, or as JSON of one:

    - `{"inputs": [...], "outputs": [...]}` (APPS, TACO), with `fn_name` if the inputs are arguments
      of a function
    - `[{"input": ..., "output": ...}, ...]` (CodeContests, LiveCodeBench)
    - `["assert f(1) == 2", ...]` (MBPP), or one text, whose `check(candidate)` is called if it
      defines one (HumanEval)

    A text is run as a script and as a test runner would: functions `test_...`, classes `Test...`,
    unittest cases, what a `__main__` guard holds. Imports of modules that do not exist are of the
    code under test, except packages (`names.PACKAGES`).

    Args:
        setup: trusted Python code that runs before each text, in the process of the tests (MBPP's
        `test_setup_code`). What it defines is
            not taken from the code under test.

    Raises:
        ValueError: another form, no tests at all, programs that all must print nothing, or
        assertion functions of unknown packages.
    """
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        tests = json.loads(tests)
    parsed = _read(tests, entry_point)
    if setup:
        parsed = replace(parsed, asserts=tuple(f"{setup}\n{text}" for text in parsed.asserts))
    if not len(parsed):
        raise ValueError("there are no unit tests")
    if parsed.cases and not any(expected.strip() for _, expected in parsed.cases):
        raise ValueError("an empty program passes the unit tests: all expected outputs are empty")
    taken: set[str] = set()
    for test in parsed.asserts:
        taken |= _imported_from_the_code(_parse(test))
    taken |= parsed.names_under_test()
    for name in sorted(taken):
        if names.is_assertion(name):
            raise ValueError(
                f"the unit tests take {name} from the code under test, which could accept "
                "anything: define it in the setup"
            )
    return parsed


def _read(tests: Any, entry_point: str | None) -> Tests:
    if isinstance(tests, str):
        defines_check = "def check(" in tests and "\ncheck(" not in tests
        text = tests + (_CALL_CHECK if defines_check else "")
        return Tests(asserts=(text,), entry_point=entry_point)
    if isinstance(tests, Mapping) and {"inputs", "outputs"} <= set(tests):
        name = tests.get("fn_name") or entry_point
        return _read_columns(tests["inputs"], tests["outputs"], name)
    if _all_are(tests, str):
        return Tests(asserts=tuple(tests), entry_point=entry_point)
    if _all_are(tests, Mapping) and all({"input", "output"} <= set(test) for test in tests):
        return _read_rows(tests, entry_point)
    raise ValueError(
        "unit tests are {inputs, outputs}, a list of {input, output}, or Python with assertions"
    )


def _all_are(tests: object, kind: type) -> bool:
    return isinstance(tests, Sequence) and all(isinstance(test, kind) for test in tests)


def _read_columns(inputs: Sequence[Any], outputs: Sequence[Any], name: str | None) -> Tests:
    pairs = zip(inputs, outputs, strict=True)
    if name is None:
        return Tests(cases=tuple((_lines(stdin), _lines(stdout)) for stdin, stdout in pairs))
    return Tests(asserts=tuple(_call(*pair) for pair in pairs), entry_point=name)


def _read_rows(rows: Sequence[Mapping[str, Any]], entry_point: str | None) -> Tests:
    if not any(row.get("testtype") == "functional" for row in rows):
        return Tests(cases=tuple((_lines(row["input"]), _lines(row["output"])) for row in rows))
    if entry_point is None:
        raise ValueError(
            "functional unit tests need the name of the function, in the column entry_point"
        )
    asserts = []
    for row in rows:
        arguments = list(map(json.loads, row["input"].splitlines()))
        asserts.append(_call(arguments, row["output"]))
    return Tests(asserts=tuple(asserts), entry_point=entry_point)


def _lines(text: object) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


_CALL_CHECK = "\ncheck(candidate)\n"
_CALL = """\
result = candidate(*{args!r})
result = list(result) if isinstance(result, tuple) else result
assert result == {expected!r} or [result] == {expected!r}, result
"""
"""APPS wraps the expected value in a list, others do not; JSON has no tuples."""


def _call(args: object, expected: object) -> str:
    arguments = _values(args) if isinstance(args, str) else args
    value = json.loads(expected) if isinstance(expected, str) else expected
    return _CALL.format(args=arguments, expected=value)


def _values(text: str) -> list[Any]:
    """Arguments given as one JSON list, or as one JSON value per line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return list(map(json.loads, text.splitlines()))
    return value if isinstance(value, list) and "\n" not in text.strip() else [value]


@lru_cache(4096)  # the responses to a prompt have the same tests
def _parse(test: str) -> ast.Module:
    """Return the syntax tree of a text of tests. Raises ValueError if it cannot be run."""
    try:
        tree = ast.parse(test)
        compile(tree, "unit tests", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"one of the unit tests is not valid Python: {error}") from error
    if any(module.split(".")[0] == "pytest" for module in names.imported_modules(tree)):
        raise ValueError(
            "unit tests cannot use pytest: write plain test functions or unittest cases"
        )
    return tree


def _imported_from_the_code(tree: ast.Module) -> set[str]:
    """Return the names that the tests import, or use as attributes, from modules that are neither
    of the standard library nor of known packages."""
    found = set()
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not names.is_known(node.module or ""):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {x.asname or x.name for x in node.names if not names.is_known(x.name)}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            found.add(node.attr)
    return found


def packages_used(unit_tests: Tests) -> set[str]:
    """Return the packages, which are not in the standard library, that the tests import or use by
    their usual names."""
    found = set()
    for test in unit_tests.asserts:
        tree = _parse(test)
        used = names.imported_modules(tree)
        for name in names.names_with_attributes(tree) & names.free_names(test):
            used.add(names.PACKAGE_NAMES.get(name, ""))
        found |= {module.split(".")[0] for module in used}
    return found.intersection(names.PACKAGES)


def untested(tests: object, entry_point: str | None, setup: str | None, limits: Limits) -> bool:
    """Return True if code that only raises errors passes one of the tests, or one never calls the
    code."""
    unit_tests = read_tests(tests, entry_point, setup)
    tested = filter(str.isidentifier, sorted(unit_tests.names_under_test()))
    stub = "".join(f"def {name}(*_, **__): raise RuntimeError\n" for name in tested)
    results, _ = run_tests(stub, unit_tests.asserts, limits, unit_tests.entry_point)
    return results.count(FAILED) < len(results)


def surely_calls_code(unit_tests: Tests) -> bool:
    """Return True if each text calls a name under test unconditionally, so that it fails for code
    that raises errors. A quick check, which may return False for such texts too."""
    tested = unit_tests.names_under_test() | {"candidate"}
    for test in unit_tests.asserts:
        statements = _parse(test).body
        for statement in _parse(test).body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "check":
                statements = statement.body if test.endswith(_CALL_CHECK) else statements
        if not any(_calls(statement, tested) for statement in statements):
            return False
    return True


_MAY_SKIP = (
    *(ast.BoolOp, ast.IfExp, ast.Lambda, ast.Compare),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Expressions that may leave a part of theirs unevaluated."""


def _calls(statement: ast.stmt, tested: set[str]) -> bool:
    """Return True if a simple statement certainly calls one of the names."""
    if isinstance(statement, ast.Assert):
        expression = statement.test
    elif isinstance(statement, ast.Expr | ast.Assign):
        expression = statement.value
    else:
        return False
    if isinstance(expression, ast.Compare):
        expression = expression.left
    skips = any(isinstance(node, _MAY_SKIP) for node in ast.walk(expression))
    return not skips and bool(names.called_names(expression) & tested)


def work(job: Sequence[Any]) -> Any:
    """Do one job of `reward.code` in a worker of `reward.pool`: ("start", limits), ("untested",
    ...) or ("grade", ...)."""
    action, *args = job
    if action == "start":
        check("child", *args)
        return None
    return untested(*args) if action == "untested" else grade(*args)


def grade(
    source: str,
    tests: Any,
    entry_point: str | None,
    limits: Limits,
    stop_early: bool,
    setup: str | None = None,
) -> dict[str, Any]:
    """Return the numbers of tests that `source` `passed`, of `total`, and of `late` (timed out).

    Args:
        stop_early: do not run further programs after the first failure.

    Raises:
        ValueError: tests of unknown form.
        RuntimeError: this machine cannot confine code.
    """
    unit_tests = read_tests(tests, entry_point, setup)
    passed = 0
    late = 0
    for stdin, expected in unit_tests.cases:
        run = run_program(source, stdin, limits)
        ok = run.status == "ok" and same_output(run.stdout, expected)
        passed += ok
        late += run.status == "timeout"
        if stop_early and not ok:
            break
    if unit_tests.asserts:
        results, is_late = run_tests(source, unit_tests.asserts, limits, unit_tests.entry_point)
        passed = results.count(PASSED)
        late = int(is_late)
    return {"passed": passed, "total": len(unit_tests), "late": late}


def same_output(stdout: str, expected: str) -> bool:
    """Compare line by line and word by word; a number with a decimal point may differ by 1e-6
    of its value, or by 1e-9."""
    words = _words(stdout)
    expected_words = _words(expected)
    return len(words) == len(expected_words) and all(map(_same_word, words, expected_words))


def _words(text: str) -> list[str]:
    return " \0 ".join(text.strip().splitlines()).split()


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in expected:
        return False
    try:
        decimals = len(expected.partition(".")[2]) if expected[-1:].isdigit() else 9
        half_a_unit = min(1e-6, 0.51 * 10.0**-decimals) if "e" not in expected.lower() else 1e-9
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=half_a_unit)
    except ValueError:
        return False
