"""Whether the code in a response passes its unit tests."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlmods.reward.pool import failures, shared
from rlmods.reward.sandbox.run import lacking
from rlmods.reward.sandbox.tests import read_tests
from rlmods.types import Prompt, Response, Scores, UserError

TARGET = "rlmods.reward.sandbox.tests:grade"
SLACK_S = 30.0
"""For interpreters to start, on top of the seconds of the tests."""
_FENCED = re.compile(r"```[ \t]*(?:(?:python3?|py)[ \t]*)?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Code:
    """The share of the unit tests in `prompt.meta[tests]` that the Python code in a response passes, or 1 for all of them and else 0. A
    prompt without tests abstains; a response without code scores 0.

    The code is what stands in the last fenced block after the last `</think>`. It runs in processes of its own, confined by Landlock and
    seccomp (`rlmods.reward.sandbox`): it opens no file but the standard library's, writes none, has no network, starts no process, and is
    ended when it exceeds its time, memory or output. Tests are never in the process of the code they test. Not protected against: a bug in
    the kernel, timing and other side channels, learning that a file exists and how large it is, and code that recognises the tests' inputs.

    What cannot be graded is 0 and counted: `timeouts` (some test ran out of time), `errors`; so is what has no code, `without_code`.

    Raises:
        UserError: settings out of range, or a machine that cannot confine code.
        ValueError: unit tests of unknown form.
    """

    partial: bool = False
    """Pay the share of tests passed, and not all or nothing."""
    tests: str = "tests"
    """Column of the unit tests: `{inputs, outputs}`, a list of `{input, output}`, assertions, or `check(candidate)`."""
    entry_point: str = "entry_point"
    """Column of the name of the function under test, where the tests say `candidate`."""
    timeout_s: float = 6.0
    """For one program, or for all assertions."""
    memory_mb: int = 512
    """Address space of one process."""
    output_bytes: int = 2**20
    """On stdout, of one program."""
    packages: bool = False
    """Let the code import installed packages, such as numpy, too."""
    walls: Literal["full", "limits"] = "full"
    """`limits`: where Landlock or seccomp is missing, do without; the code can then do what you can."""
    batch_timeout_s: float = 600.0
    """For all the answers of one call. What is not graded by then counts under `timeouts`."""
    workers: int = 2
    """Answers graded at a time."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("timeout_s", "memory_mb", "output_bytes", "batch_timeout_s", "workers"):
            if not getattr(self, name) > 0:
                raise UserError(f"Code: {name}={getattr(self, name)} is not positive")
        if self.walls not in ("full", "limits"):
            raise UserError(f"Code: walls={self.walls!r} is neither full nor limits")
        if self.walls == "full" and (lack := lacking()) is not None:
            raise UserError(f"Code: {lack}, so code cannot be confined: run in a container of your own and type walls=limits")

    def check_prompt(self, prompt: Prompt) -> None:
        """
        Raises:
            ValueError: its unit tests have no known form.
        """
        if (tests := prompt.meta.get(self.tests)) is not None:
            read_tests(_plain(tests), prompt.meta.get(self.entry_point))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        sources = [extract_code(response.text) for response in responses]
        metas = [response.prompt.meta for response in responses]
        rows = [row for row, meta in enumerate(metas) if meta.get(self.tests) is not None]
        asked = [row for row in rows if sources[row] is not None]
        limits = {name: getattr(self, name) for name in ("timeout_s", "memory_mb", "output_bytes", "packages")}
        limits["confined"] = self.walls == "full"
        given = {row: (_plain(metas[row][self.tests]), metas[row].get(self.entry_point)) for row in asked}
        calls = [(sources[row], *given[row], limits, not self.partial) for row in asked]
        most = max((len(read_tests(*tests)) for tests in given.values()), default=1)
        pool = shared(TARGET, self.workers, os.getpid())
        longest = SLACK_S + most * (self.timeout_s + 1.0)
        outcomes = pool.map(calls, timeout_s=longest, batch_timeout_s=self.batch_timeout_s) if calls else []
        shares: list[float | None] = [None] * len(responses)
        told: list[str | None] = [None] * len(responses)
        for row in rows:
            shares[row] = 0.0
        for row, outcome in zip(asked, outcomes, strict=True):
            if outcome.status == "ok":
                shares[row] = outcome.value["passed"] / outcome.value["total"]
                told[row] = f"{outcome.value['passed']}/{outcome.value['total']}"
        right = [None if share is None else share == 1.0 for share in shares]
        late = sum(outcome.status == "timeout" or (outcome.status == "ok" and outcome.value["late"] > 0) for outcome in outcomes)
        return Scores(
            values=shares if self.partial else [None if ok is None else float(ok) for ok in right],
            correct=right,
            counts=failures(outcomes) | {"timeouts": late, "without_code": len(rows) - len(asked)},
            columns={"passed": told, "extracted": sources},
        )


def extract_code(text: str) -> str | None:
    """The last fenced block after the last `</think>`; None where there is none."""
    blocks = _FENCED.findall(text.rpartition("</think>")[2])
    return blocks[-1] if blocks and blocks[-1].strip() else None


def _plain(tests: Any) -> Any:
    """As lists and dicts: a worker knows nothing of ours."""
    if isinstance(tests, dict):
        return {str(key): _plain(value) for key, value in tests.items()}
    return [_plain(test) for test in tests] if isinstance(tests, list | tuple) else tests
