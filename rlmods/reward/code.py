"""Reward for code that passes its unit tests."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from rlmods.errors import UserError
from rlmods.grading.pool import NOT_STARTED, Outcome, failure_counts, shared_pool
from rlmods.grading.sandbox.confinement import missing_support
from rlmods.grading.sandbox.run import Limits
from rlmods.grading.sandbox.tests import packages_used, read_tests, surely_calls_code
from rlmods.grading.turns import after_thoughts
from rlmods.needs import RewardNeeds
from rlmods.settings.bounds import Count, Positive, bounded
from rlmods.types import Prompt, Response, Scores

TARGET = "rlmods.grading.sandbox.tests:work"
SLACK_S = 30.0
"""Time for interpreters to start, on top of the timeouts of the tests."""
_FENCED = re.compile(
    r"(?<![`~])(```++|~~~++)[ \t]*+([^\s`~{]*+)[^\n`~]*+\n(.*?)(?:\1|\Z)", re.DOTALL
)
_PYTHON = ("python", "python3", "py", "py3")


def check_walls(reward: object, walls: str, confined: str) -> None:
    """Raise UserError if this machine cannot confine what is named `confined`."""
    reason = missing_support() if walls != "limits" else None
    if reason is not None:
        raise UserError(
            f"{type(reward).__name__}: {reason}, so {confined} cannot be confined: run in a "
            "container of your own and type walls=limits"
        )


@dataclass(frozen=True)
@bounded("reward")
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
        UserError: this machine cannot confine code.
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
    timeout_s: Positive = 6.0
    """Timeout for one program, or for all assertions."""
    memory_mb: Count = 512
    """Address space of one process."""
    output_bytes: Count = 2**20
    """Limit of one program's stdout."""
    packages: bool = False
    """Let the code import installed packages, such as numpy."""
    walls: Literal["full", "limits"] = "full"
    """`full`: Landlock, seccomp and resource limits. `limits`: resource limits only; the code can
    then do anything your user can."""
    batch_timeout_s: Positive = 600.0
    """Timeout for all responses of one call. Those in progress then count as `timeouts`, those not
    started abstain (`not_started`)."""
    workers: Count = 2
    """Responses graded at a time."""

    needs: ClassVar[RewardNeeds] = RewardNeeds(columns=("tests",), runs_code=True)

    def __post_init__(self) -> None:
        check_walls(self, self.walls, "code")

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the unit tests of `prompt` can be read, and that code which does nothing fails
        them.

        Raises:
            ValueError: unit tests of unknown form, or that test nothing.
        """
        if prompt.meta.get(self.tests) is None:
            return
        tests, entry_point, setup = self._unit_tests(prompt)
        needs_name = isinstance(tests, str) and "def check(candidate" in tests
        if needs_name and entry_point is None and "candidate =" not in tests:
            raise ValueError(
                "the tests define check(candidate), but no column names the function that "
                f"they call: add the column {self.entry_point}, or type "
                "reward.entry_point=COLUMN"
            )
        unit_tests = read_tests(tests, entry_point, setup)
        for package in sorted(packages_used(unit_tests)):
            self._check_package(package)
        if unit_tests.asserts and not surely_calls_code(unit_tests):
            call = ("untested", tests, entry_point, setup, self._limits)
            [outcome] = self._grade([call], len(unit_tests))
            if outcome.status == "ok" and outcome.value:
                raise ValueError("the unit tests pass without working code")

    def _check_package(self, package: str) -> None:
        """Raise ValueError for a package that the tests use and do not get."""
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

    def _unit_tests(self, prompt: Prompt) -> tuple[Any, str | None, str | None]:
        """Return the unit tests, the entry point and the setup of a prompt."""
        meta = prompt.meta
        return meta[self.tests], meta.get(self.entry_point), meta.get(self.setup)

    @property
    def _limits(self) -> Limits:
        return Limits(
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            output_bytes=self.output_bytes,
            packages=self.packages,
            confined=self.walls != "limits",
        )

    def _grade(self, calls: list[tuple[Any, ...]], max_tests: int) -> list[Outcome]:
        """Return the outcomes of `sandbox.tests.grade`. Raises WorkerError if the workers cannot
        confine code."""
        pool = shared_pool(TARGET, self.workers, warmup=("start", self._limits))
        return pool.map(
            [(call,) for call in calls],
            timeout_s=SLACK_S + max_tests * (self.timeout_s + 1.0),
            batch_timeout_s=self.batch_timeout_s,
        )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        sources = [extract_code(response.text) for response in responses]
        fractions: list[float | None] = [None] * len(responses)
        passed: list[str | None] = [None] * len(responses)
        calls: dict[int, tuple[Any, ...]] = {}
        max_tests = 1
        for row, response in enumerate(responses):
            if response.prompt.meta.get(self.tests) is None:
                continue
            fractions[row] = 0.0
            if sources[row] is not None:
                tests, entry_point, setup = self._unit_tests(response.prompt)
                max_tests = max(max_tests, len(read_tests(tests, entry_point)))
                settings = (self._limits, not self.partial)
                calls[row] = ("grade", sources[row], tests, entry_point, *settings, setup)
        num_without_code = fractions.count(0.0) - len(calls)
        outcomes = self._grade(list(calls.values()), max_tests)
        num_late = 0
        for row, outcome in zip(calls, outcomes, strict=True):
            if outcome.status == "ok":
                result = outcome.value
                fractions[row] = result["passed"] / result["total"]
                passed[row] = f"{result['passed']}/{result['total']}"
                num_late += result["late"] > 0
            elif outcome == NOT_STARTED:
                fractions[row] = None
        begun = [outcome for outcome in outcomes if outcome != NOT_STARTED]
        failures = failure_counts(begun)
        correct = [None if fraction is None else fraction == 1.0 for fraction in fractions]
        paid = {True: 1.0, False: 0.0, None: None}
        return Scores(
            values=fractions if self.partial else list(map(paid.get, correct)),
            correct=correct,
            counts={
                "timeouts": failures["timeouts"] + num_late,
                "errors": failures["errors"],
                "not_started": len(outcomes) - len(begun),
                "without_code": num_without_code,
            },
            columns={"passed": passed, "extracted": sources},
        )


def extract_code(text: str) -> str | None:
    """Return the last fenced block of Python in the first turn (`turns`) after its last `</think>`,
    or None. There is none within thoughts.

    A block of Python has the name of the language behind the fence, or none and is valid Python
    that does something: code wins over the block with its output that follows it. If there is no
    such block, it is the last one without the name of another language."""
    unnamed: list[str] = []
    code_blocks: list[str] = []
    for _, language, code in _FENCED.findall(after_thoughts(text).replace("\r\n", "\n")):
        if language.lower() in _PYTHON or (not language and _is_code(code)):
            code_blocks.append(code)
        elif not language:
            unnamed.append(code)
    last = (code_blocks or unnamed or [""])[-1]
    return last if last.strip() else None


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
