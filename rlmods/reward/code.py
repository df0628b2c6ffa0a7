"""Reward for code that passes its unit tests."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from rlmods.errors import UserError
from rlmods.grading.pool import NOT_STARTED, Outcome, failure_counts, shared_pool
from rlmods.grading.sandbox.confinement import missing_support
from rlmods.grading.sandbox.tests import packages_used, read_tests, surely_calls_code
from rlmods.grading.turns import after_thoughts
from rlmods.needs import RewardNeeds
from rlmods.types import Prompt, Response, Scores

TARGET = "rlmods.grading.sandbox.tests:work"
SLACK_S = 30.0
"""Time for interpreters to start, on top of the timeouts of the tests."""
_FENCED = re.compile(
    r"(?<![`~])(```++|~~~++)[ \t]*+([^\s`~{]*+)[^\n`~]*+\n(.*?)(?:\1|\Z)", re.DOTALL
)
_PYTHON = ("python", "python3", "py", "py3")


@dataclass(frozen=True)
class Code:
    """Reward 1 if the Python code in a response passes all unit tests in `prompt.meta[tests]`, else
    0; with `partial`, the fraction passed. Abstains on a prompt without tests.

    The code is the last fenced block of Python after the last `</think>` and before the end of the
    turn (`extract_code`). It runs in processes of its own, confined by Landlock and seccomp
    (`rlmods.grading.sandbox`): it can open no files but the standard library's, write none, use no
    network, start no process, and is killed when it exceeds its time, memory or output. Tests never
    run in the process of the code they test. Not protected against: a bug in the kernel, timing and
    other side channels, learning that a file exists and how large it is, and code that recognises
    the tests' inputs.

    Responses that cannot be graded score 0 and are counted: `timeouts` (of any test), `errors`,
    `without_code` (no fenced block). Those whose grading has not started within `batch_timeout_s`
    are not at fault: they abstain, and are counted as `not_started`.

    Raises:
        UserError: settings out of range, or this machine cannot confine code.
        ValueError: unit tests of unknown form.
    """

    partial: bool = False
    """Reward the fraction of tests passed."""
    tests: str = "tests"
    """Column with the unit tests: `{inputs, outputs}`, a list of `{input, output}`, assertions, or
    `check(candidate)`."""
    entry_point: str = "entry_point"
    """Column with the name of the function that the tests call `candidate`."""
    setup: str = "setup"
    """Column with trusted Python code that runs before the tests, in their process, such as MBPP's
    `test_setup_code` or the helpers that a prompt defines. What it defines is not taken from the
    code."""
    timeout_s: float = 6.0
    """Timeout for one program, or for all assertions."""
    memory_mb: int = 512
    """Address space of one process."""
    output_bytes: int = 2**20
    """Limit of one program's stdout."""
    packages: bool = False
    """Let the code import installed packages, such as numpy."""
    walls: Literal["full", "limits"] = "full"
    """`full`: Landlock, seccomp and resource limits. `limits`: resource limits only; the code can
    then do anything your user can."""
    batch_timeout_s: float = 600.0
    """Timeout for all responses of one call. Those in progress then count as `timeouts`, those not
    started abstain (`not_started`)."""
    workers: int = 2
    """Responses graded at a time."""

    needs: ClassVar[RewardNeeds] = RewardNeeds(columns=("tests",), runs_code=True)

    def __post_init__(self) -> None:
        for name in ("timeout_s", "memory_mb", "output_bytes", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"Code: {name}={getattr(self, name)} is not positive")
        if self.walls not in ("full", "limits"):
            raise UserError(f"Code: walls={self.walls!r}: type walls=full or walls=limits")
        if self.walls == "full" and (reason := missing_support()) is not None:
            raise UserError(
                f"Code: {reason}, so code cannot be confined: run in a container of your own "
                "and type walls=limits"
            )

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the unit tests of `prompt` can be read, and that code which does nothing fails
        them.

        Raises:
            ValueError: unit tests of unknown form, or that test nothing.
        """
        if (tests := prompt.meta.get(self.tests)) is None:
            return
        entry_point, setup = prompt.meta.get(self.entry_point), prompt.meta.get(self.setup)
        if (
            entry_point is None
            and isinstance(tests, str)
            and "def check(candidate" in tests
            and "candidate =" not in tests
        ):
            raise ValueError(
                "the tests define check(candidate), but no column names the function that "
                "they call: "
                f"add the column {self.entry_point}, or type reward.entry_point=COLUMN"
            )
        unit_tests = read_tests(_to_plain(tests), entry_point, setup)
        for package in sorted(packages_used(unit_tests)):
            if not self.packages:
                raise ValueError(
                    f"the unit tests use the package {package}: type reward.packages=true, or "
                    "remove the prompt"
                )
            if find_spec(package) is None:
                raise ValueError(
                    f"the unit tests use the package {package}, which is not installed: type "
                    f"pip install {package}"
                )
        if unit_tests.asserts and not surely_calls_code(unit_tests):
            [outcome] = self._grade(
                [("untested", _to_plain(tests), entry_point, setup, self._limits)], len(unit_tests)
            )
            if outcome.status == "ok" and outcome.value:
                raise ValueError(
                    "the unit tests pass without calling the code, or when it only raises errors"
                )

    @property
    def _limits(self) -> dict[str, Any]:
        limits = {
            name: getattr(self, name)
            for name in ("timeout_s", "memory_mb", "output_bytes", "packages")
        }
        return limits | {"confined": self.walls == "full"}

    def _grade(self, calls: list[tuple[Any, ...]], max_tests: int) -> list[Outcome]:
        """Return the outcomes of `sandbox.tests.grade`. Raises WorkerError if the workers cannot
        confine code."""
        pool = shared_pool(
            TARGET, self.workers, os.getpid(), warmup=("start", tuple(self._limits.items()))
        )
        timeout_s = SLACK_S + max_tests * (self.timeout_s + 1.0)
        return (
            pool.map(
                [(call,) for call in calls],
                timeout_s=timeout_s,
                batch_timeout_s=self.batch_timeout_s,
            )
            if calls
            else []
        )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        sources = [extract_code(response.text) for response in responses]
        metas = [response.prompt.meta for response in responses]
        rows = [row for row, meta in enumerate(metas) if meta.get(self.tests) is not None]
        rows_with_code = [row for row in rows if sources[row] is not None]
        tests = {
            row: (_to_plain(metas[row][self.tests]), metas[row].get(self.entry_point))
            for row in rows_with_code
        }
        setups = [metas[row].get(self.setup) for row in rows_with_code]
        calls = [
            ("grade", sources[row], *tests[row], self._limits, not self.partial, setup)
            for row, setup in zip(rows_with_code, setups, strict=True)
        ]
        max_tests = max((len(read_tests(*row_tests)) for row_tests in tests.values()), default=1)
        outcomes = self._grade(calls, max_tests)
        fractions: list[float | None] = [None] * len(responses)
        passed: list[str | None] = [None] * len(responses)
        for row in rows:
            fractions[row] = 0.0
        for row, outcome in zip(rows_with_code, outcomes, strict=True):
            if outcome.status == "ok":
                fractions[row] = outcome.value["passed"] / outcome.value["total"]
                passed[row] = f"{outcome.value['passed']}/{outcome.value['total']}"
            elif outcome == NOT_STARTED:
                fractions[row] = None
        correct = [None if fraction is None else fraction == 1.0 for fraction in fractions]
        num_not_started = outcomes.count(NOT_STARTED)
        num_timeouts = sum(
            (outcome.status == "timeout" and outcome != NOT_STARTED)
            or (outcome.status == "ok" and outcome.value["late"] > 0)
            for outcome in outcomes
        )
        return Scores(
            values=fractions
            if self.partial
            else [None if ok is None else float(ok) for ok in correct],
            correct=correct,
            counts=failure_counts(outcomes)
            | {
                "timeouts": num_timeouts,
                "not_started": num_not_started,
                "without_code": len(rows) - len(rows_with_code),
            },
            columns={"passed": passed, "extracted": sources},
        )


def extract_code(text: str) -> str | None:
    """Return the last fenced block of Python in the first turn (`turns`) after its last `</think>`,
    or None. There is none within thoughts.

    A block of Python has the name of the language behind the fence, or none and is valid Python
    that does something: code wins over the block with its output that follows it. If there is no
    such block, it is the last one without the name of another language."""
    found = _FENCED.findall(after_thoughts(text).replace("\r\n", "\n"))
    blocks = [
        (language.lower(), code)
        for _, language, code in found
        if language.lower() in (*_PYTHON, "")
    ]
    best = [code for language, code in blocks if language or _is_code(code)] or [
        code for _, code in blocks
    ]
    return best[-1] if best and best[-1].strip() else None


def _is_code(text: str) -> bool:
    """Return True for Python that does more than write down a value, as the output of a program
    may."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in tree.body
    )


def _to_plain(tests: Any) -> Any:
    """Convert to lists and dicts, which a worker can unpickle without our packages."""
    if isinstance(tests, dict):
        return {str(key): _to_plain(value) for key, value in tests.items()}
    return [_to_plain(test) for test in tests] if isinstance(tests, list | tuple) else tests
