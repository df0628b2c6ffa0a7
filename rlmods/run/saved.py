"""Runs on disk: plain readers of what a run directory holds. Files are parsed as data, and nothing
in them is executed or instantiated."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from rlmods.errors import UserError, counted, in_one_line
from rlmods.run.files import read_rows

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NOT_FINISHED = "not finished"
"""Exit of a run that trains, or that was killed."""


def is_value(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number (not a truth value)."""
    return type(value) in (int, float)


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a `config.yaml`.

    Raises:
        UserError: it cannot be read, or holds no settings.
    """
    try:
        config = yaml.load(path.read_text(), Loader=LOADER)
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        reason = in_one_line(error, 120)
        raise UserError(f"{path}: cannot be read ({reason}): give another run") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no settings: give another run")
    return config


def check_run(path: Path, kind: str = "a run directory", file: str = "config.yaml") -> None:
    """Check that a path is a run directory. `kind`, `file`: what else it may be, and what that
    holds, for the message.

    Raises:
        UserError: it is not; the message names runs in it, or the run that it is a part of.
    """
    if (path / "config.yaml").is_file():
        return
    inside = sorted(config.parent for config in path.glob("*/config.yaml"))
    around = [folder for folder in path.parents if (folder / "config.yaml").is_file()]
    problem = f"it has no {file}"
    if inside:
        problem = f"it holds {counted(len(inside), 'run')}: type one of them, such as {inside[0]}"
    elif around:
        problem = f"it is a part of the run {around[0]}: type that"
    elif not path.exists():
        problem = "there is no such folder"
    raise UserError(f"{path} is not {kind}: {problem}")


@dataclass(frozen=True)
class SavedRun:
    """A run directory."""

    path: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`, empty while the run has not ended.

        Raises:
            UserError: it cannot be read.
        """
        file = self.path / "summary.json"
        if not file.is_file():
            return {}
        try:
            summary: dict[str, Any] = json.loads(file.read_text())
        except (ValueError, OSError) as error:
            raise UserError(
                f"{file}: cannot be read ({type(error).__name__}): delete it, or leave the run out"
            ) from error
        return summary

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.yaml`.

        Raises:
            UserError: it cannot be read.
        """
        return read_config(self.path / "config.yaml")

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of `metrics.jsonl`."""
        return read_rows(self.path / "metrics.jsonl")

    @property
    def seed(self) -> int | str:
        """Seed of the run, its name if it has none."""
        seed = self.config.get("seed", self.path.name)
        return seed if isinstance(seed, int) else str(seed)

    @property
    def label(self) -> str:
        """Name of the algorithm and what departs from its recipe."""
        algo = self.config.get("algo") or {}
        return str(self.summary.get("label") or algo.get("name") or self.path.name)

    @property
    def parts(self) -> dict[str, str]:
        """Option of each group."""
        return dict(self.summary.get("parts", {}))

    @property
    def overrides(self) -> list[str] | None:
        """Overrides of the command line, None for a run that has not recorded them."""
        return self.summary.get("overrides")

    @property
    def exit(self) -> str:
        """How the run ended."""
        return str(self.summary.get("exit", NOT_FINISHED))

    @property
    def iteration(self) -> int:
        """Last iteration with a row of metrics, 0 if there is none."""
        return max((row["iteration"] for row in self.metrics), default=0)

    def series(self, metric: str) -> list[tuple[int, float]]:
        """Return iteration and value of each row that has a number as the metric."""
        found = []
        for row in self.metrics:
            value = row.get(metric)
            if is_value(value):
                found.append((row["iteration"], float(value)))
        return found

    def result(self, metric: str, last: int = 1) -> float | None:
        """Return the mean of the last values of a metric, None if there is none."""
        values = [value for _, value in self.series(metric)[-last:]]
        return sum(values) / len(values) if values else None

    def by_prompt(self) -> dict[str, float]:
        """Return whether the greedy response to each prompt of the last saved validation is correct
        (0 or 1). Prompts that were not graded are left out, and prompts of named sets
        (`validation.data`)."""
        files = sorted((self.path / "samples").glob("validation_*.jsonl"))
        found: dict[str, float] = {}
        for row in read_rows(files[-1]) if files else []:
            is_greedy = row.get("set") is None and row.get("temperature") == 0
            if is_greedy and isinstance(row.get("correct"), bool):
                found[str(row["id"])] = float(row["correct"])
        return found

    def text(self, name: str) -> str:
        """Return the text of a file of the run, "" if there is none."""
        file = self.path / name
        return file.read_text(errors="replace") if file.is_file() else ""

    def versions(self) -> dict[str, str]:
        """Return `versions.txt`: version by package, and the lines `command`, `platform` etc."""
        pairs = (line.partition(" ") for line in self.text("versions.txt").splitlines())
        return {name: value for name, _, value in pairs if value}
