"""What a part finds, in a file that is complete after each entry: a part that is ended keeps what it
had."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LINES = 12
"""Last lines of a traceback that are kept."""


@dataclass(frozen=True)
class Check:
    """A number and the bound that it must keep."""

    name: str
    value: float
    bound: float
    at_least: bool
    """True if the bound is the least value, False if it is the largest."""

    @property
    def holds(self) -> bool:
        """False also for NaN."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True)
class Failure:
    """An error, or an end without a result."""

    step: str
    error: str
    lines: list[str]
    """Last lines of the traceback, or of the output."""


@dataclass
class Findings:
    """Checks, figures, failures and what was skipped, of one part."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Measured numbers by step."""
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons by step."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by step."""
    is_complete: bool = False
    path: Path | None = None
    """File that is written after each entry."""

    @classmethod
    def read(cls, path: Path) -> Findings:
        """Return what a part has written; nothing if there is no file."""
        if not path.exists():
            return cls()
        entries = json.loads(path.read_text())
        entries["checks"] = [Check(**x) for x in entries["checks"]]
        entries["failures"] = [Failure(**x) for x in entries["failures"]]
        return cls(**entries)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        entries = asdict(self)
        del entries["path"]
        return entries

    def write(self) -> None:
        """Write the file, and replace it in one step."""
        if self.path is not None:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.as_dict()))
            new.replace(self.path)

    def check(self, name: str, value: float, bound: float, *, at_least: bool = False) -> None:
        """Record a number that must be at most `bound`, or at least."""
        check = Check(name, float(value), bound, at_least)
        self.checks.append(check)
        relation = ">=" if at_least else "<="
        verdict = "holds" if check.holds else "FAILS"
        print(f"{verdict}  {name}: {check.value:.3g} {relation} {bound:g}", flush=True)
        self.write()

    def figure(self, name: str, value: Any) -> None:
        """Record a measurement."""
        self.figures[name] = value
        print(f"{name}: {value}", flush=True)
        self.write()

    def fail(self, step: str, error: str, lines: list[str]) -> None:
        """Record a failure."""
        self.failures.append(Failure(step, error, lines[-LINES:]))
        print("\n".join([f"FAILED  {step}: {error}", *lines]), flush=True)
        self.write()

    def skip(self, step: str, reason: str) -> None:
        """Record what is not done, and why."""
        self.skipped[step] = reason
        print(f"skipped {step}: {reason}", flush=True)
        self.write()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record an error of the block, and its time. What follows the block goes on."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            self.fail(name, text[:400], traceback.format_exc().splitlines())
        self.seconds[name] = round(time.perf_counter() - start, 2)
        self.write()

    def end(self) -> None:
        """Record that the part has come to its end."""
        self.is_complete = True
        self.write()
