"""Unit tests of the formats that data sets use, and grading of code by them."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlmods.grading.sandbox import names
from rlmods.grading.sandbox.run import Limits, check, run_program, run_tests, test_results


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


def read_tests(tests: Any, entry_point: str | None = None, setup: str | None = None) -> Tests:
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
    if isinstance(tests, str):
        text = tests + (
            "\ncheck(candidate)\n" if "def check(" in tests and "\ncheck(" not in tests else ""
        )
        parsed = Tests(asserts=(text,), entry_point=entry_point)
    elif isinstance(tests, Mapping) and {"inputs", "outputs"} <= set(tests):
        name = tests.get("fn_name") or entry_point
        if len(tests["inputs"]) != len(tests["outputs"]):
            raise ValueError(
                f"unit tests have {len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs"
            )
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        parsed = (
            Tests(cases=tuple(map(_case, pairs)))
            if name is None
            else Tests((), tuple(_call(*pair) for pair in pairs), name)
        )
    elif isinstance(tests, Sequence) and all(isinstance(test, str) for test in tests):
        parsed = Tests(asserts=tuple(tests), entry_point=entry_point)
    elif isinstance(tests, Sequence) and all(
        isinstance(test, Mapping) and {"input", "output"} <= set(test) for test in tests
    ):
        functional = any(test.get("testtype") == "functional" for test in tests)
        if functional and entry_point is None:
            raise ValueError(
                "functional unit tests need the name of the function, in the column entry_point"
            )
        if functional:
            lines = [
                ([json.loads(line) for line in test["input"].splitlines()], test["output"])
                for test in tests
            ]
            parsed = Tests((), tuple(_call(*pair) for pair in lines), entry_point)
        else:
            parsed = Tests(cases=tuple(_case((test["input"], test["output"])) for test in tests))
    else:
        raise ValueError(
            "unit tests are {inputs, outputs}, a list of {input, output}, or Python with assertions"
        )
    if setup:
        parsed = replace(parsed, asserts=tuple(f"{setup}\n{text}" for text in parsed.asserts))
    if not len(parsed):
        raise ValueError("there are no unit tests")
    if parsed.cases and not any(expected.strip() for _, expected in parsed.cases):
        raise ValueError("an empty program passes the unit tests: all expected outputs are empty")
    trees = [_parse(test) for test in parsed.asserts]
    taken = names.names_under_test(trees, parsed.entry_point).union(
        *map(_imported_from_the_code, trees)
    )
    if judges := sorted(
        name for name in taken if name.lower().startswith("assert") or name == "approx"
    ):
        raise ValueError(
            f"the unit tests take {judges[0]} from the code under test, which could accept "
            "anything: define it in the setup"
        )
    return parsed


@lru_cache(4096)  # the responses to a prompt have the same tests
def _parse(test: str) -> ast.Module:
    try:
        tree = ast.parse(test)
        compile(tree, "unit tests", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"one of the unit tests is not valid Python: {error}") from error
    for node in ast.walk(tree):
        imported = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [getattr(node, "module", None) or ""]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            name.split(".")[0] == "pytest" for name in imported
        ):
            raise ValueError(
                "unit tests cannot use pytest: write plain test functions or unittest cases"
            )
    needy = [
        f.name
        for f in tree.body
        if isinstance(f, ast.FunctionDef)
        and f.name.startswith("test_")
        and len(f.args.args) > len(f.args.defaults)
    ]
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    if missing := [name for name in needy if name not in called]:
        raise ValueError(f"unit tests need arguments that nothing passes: {missing[0]}")
    return tree


@lru_cache(4096)
def _imported_from_the_code(tree: ast.Module) -> frozenset[str]:
    """Return the names that the tests import from modules that are neither of the standard library
    nor of known packages, and the attributes of such modules."""
    found, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not _is_known(node.module or ""):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {
                alias.asname or alias.name for alias in node.names if not _is_known(alias.name)
            }
    nodes = ast.walk(tree) if modules else ()
    return frozenset(
        found
        | {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules
        }
    )


def _is_known(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names | names.PACKAGES


def packages_used(unit_tests: Tests) -> set[str]:
    """Return the packages, which are not in the standard library, that the tests import or use
    without an import."""
    trees = [_parse(test) for test in unit_tests.asserts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {
        alias.name.split(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        node.module.split(".")[0]
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
    }
    bases = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    unbound = (
        {name for tree in trees for name in names.free_names([tree])}
        & bases
        & set(names.PACKAGE_NAMES)
    )
    return imported & names.PACKAGES | {names.PACKAGE_NAMES[name].split(".")[0] for name in unbound}


def untested(
    tests: Any, entry_point: str | None, setup: str | None, limits: Mapping[str, Any]
) -> bool:
    """Return True if code that only raises errors passes one of the tests, or one never calls the
    code."""
    unit_tests = read_tests(tests, entry_point, setup)
    tested = names.names_under_test(
        [_parse(test) for test in unit_tests.asserts], unit_tests.entry_point
    )
    stub = "".join(
        f"def {name}(*_, **__): raise RuntimeError\n"
        for name in sorted(tested)
        if name.isidentifier()
    )
    results, _ = test_results(stub, unit_tests.asserts, Limits(**limits), unit_tests.entry_point)
    return any(result != "0" for result in results)


def surely_calls_code(unit_tests: Tests) -> bool:
    """Return True if each text calls a name under test unconditionally, so that it fails for code
    that raises errors (a quick check)."""
    trees = [_parse(test) for test in unit_tests.asserts]
    tested = names.names_under_test(trees, unit_tests.entry_point) | {"candidate"}
    return all(any(_calls(statement, tested) for statement in _certain(tree)) for tree in trees)


def _certain(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run in any case: of the module and of a function `check` that it
    calls."""
    called = {
        s.value.func.id
        for s in tree.body
        if isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Name)
    }
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield from statement.body if statement.name in called & {"check"} else ()
        else:
            yield statement


def _calls(statement: ast.stmt, tested: set[str]) -> bool:
    """Return True if a simple statement certainly calls one of the names."""
    if not isinstance(statement, ast.Assert | ast.Expr | ast.Assign):
        return False
    pending: list[ast.AST] = [
        statement.test if isinstance(statement, ast.Assert) else statement.value
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in tested:
                return True
            pending += [node.func, *node.args]
        elif isinstance(node, ast.Compare):
            pending += [node.left, node.comparators[0]]
        elif isinstance(node, ast.BoolOp):
            pending.append(node.values[0])
        elif isinstance(
            node,
            ast.BinOp
            | ast.UnaryOp
            | ast.Attribute
            | ast.Subscript
            | ast.Starred
            | ast.List
            | ast.Tuple,
        ):
            pending += list(ast.iter_child_nodes(node))
    return False


def work(job: Sequence[Any]) -> Any:
    """Do one job of `reward.code` in a worker of `reward.pool`: ("start", limits), ("untested",
    ...) or ("grade", ...)."""
    action, *args = job
    functions: dict[str, Callable[..., Any]] = {
        "start": _start,
        "untested": untested,
        "grade": grade,
    }
    return functions[action](*args)


def _start(limits: Iterable[tuple[str, Any]]) -> None:
    """Start the server of confined processes. Raises RuntimeError if this machine cannot confine
    code."""
    check("child", Limits(**dict(limits)))


def grade(
    source: str,
    tests: Any,
    entry_point: str | None,
    limits: Mapping[str, Any],
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
    unit_tests, run_limits = read_tests(tests, entry_point, setup), Limits(**limits)
    passed, late = 0, 0
    for stdin, expected in unit_tests.cases:
        run = run_program(source, stdin, run_limits)
        ok = run.status == "ok" and same_output(run.stdout, expected)
        passed, late = passed + ok, late + (run.status == "timeout")
        if stop_early and not ok:
            break
    if unit_tests.asserts:
        results, status = run_tests(source, unit_tests.asserts, run_limits, unit_tests.entry_point)
        passed, late = sum(results), int(status == "timeout")
    return {"passed": passed, "total": len(unit_tests), "late": late}


def same_output(stdout: str, expected: str) -> bool:
    """Compare line by line and word by word; a number with a decimal point may differ by 1e-6,
    relative or absolute."""
    actual_lines, expected_lines = (
        [line.split() for line in text.strip().splitlines()] for text in (stdout, expected)
    )
    if [len(line) for line in actual_lines] != [len(line) for line in expected_lines]:
        return False
    pairs = [
        pair
        for lines in zip(actual_lines, expected_lines, strict=True)
        for pair in zip(*lines, strict=True)
    ]
    return all(a == b or _is_close(a, b) for a, b in pairs)


def _is_close(word: str, expected: str) -> bool:
    if "." not in expected:
        return False
    try:
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _case(pair: tuple[Any, Any]) -> tuple[str, str]:
    stdin, stdout = (
        "\n".join(map(str, text)) if isinstance(text, list) else str(text) for text in pair
    )
    return stdin, stdout


_CALL = """\
result = candidate(*{args!r})
result = list(result) if isinstance(result, tuple) else result
assert result == {expected!r} or [result] == {expected!r}, result
"""
"""APPS wraps the expected value in a list, others do not; JSON has no tuples."""


def _call(args: Any, expected: Any) -> str:
    arguments = _values(args) if isinstance(args, str) else args
    value = json.loads(expected) if isinstance(expected, str) else expected
    return _CALL.format(args=arguments, expected=value)


def _values(text: str) -> list[Any]:
    """Arguments given as one JSON list, or as one JSON value per line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]
    return value if isinstance(value, list) and "\n" not in text.strip() else [value]
