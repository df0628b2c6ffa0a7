"""Runs on disk: what `rlmods.compare` and `rlmods.lab.report` read of a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from rlmods.errors import UserError
from rlmods.run.config_file import read_config
from rlmods.run.jsonl import read_rows

MAX_DEPTH = 4
"""Levels of folders below a given one in which runs are found."""
MAX_ITERATION, MAX_SUMMARY_BYTES = 10**12, 10_000_000
"""Largest values that are read; runs have far smaller ones."""
NOT_COMPARED = (
    "seed",
    "rollout.seed",
    "run_dir",
    "resume",
    "logger",
    "callbacks",
    "trainer.precision",
    "fork",
)
"""Settings in which runs of one group may differ: the seed, and what decides where results are
written."""

RECIPES = ("algo", "variant")
"""Groups whose options choose those of other groups."""


def is_value(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number whose square, in a variance, is one too."""
    return type(value) in (int, float) and -1e100 < value < 1e100


@dataclass(frozen=True)
class SavedRun:
    """A run directory. Its files may be of somebody else: they are parsed as data, and nothing in
    them is executed or instantiated."""

    path: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`, empty while the run has not ended."""
        file = self.path / "summary.json"
        try:
            if file.is_file() and file.stat().st_size > MAX_SUMMARY_BYTES:
                raise ValueError("too large")
            summary = json.loads(file.read_text()) if file.is_file() else {}
        except (ValueError, OSError, RecursionError) as error:
            raise UserError(
                f"{file}: cannot be read ({type(error).__name__}): delete it, or leave the run out"
            ) from error
        return summary if isinstance(summary, dict) else {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.yaml`.

        Raises:
            UserError: it cannot be read.
        """
        file = self.path / "config.yaml"
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            config = yaml.load(read_config(file), Loader=loader)
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(
                f"{file}: cannot be read ({type(error).__name__}): give another run"
            ) from error
        return config if isinstance(config, dict) else {}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of `metrics.jsonl` with their iteration."""
        rows = read_rows(self.path / "metrics.jsonl")
        return [
            row
            for row in rows
            if type(row.get("iteration")) is int and 0 <= row["iteration"] < MAX_ITERATION
        ]

    @property
    def seed(self) -> int | str:
        """Seed of the run, its name if it has none."""
        seed = self.config.get("seed", self.path.name)
        return seed if type(seed) is int else str(seed)

    @property
    def label(self) -> str:
        """Name of the algorithm and what departs from its recipe."""
        return str(self.summary.get("label") or _get(self.config, "algo.name") or self.path.name)

    @property
    def parts(self) -> dict[str, str]:
        """Option of each group."""
        parts = self.summary.get("parts")
        return (
            {str(group): str(option) for group, option in parts.items()}
            if isinstance(parts, dict)
            else {}
        )

    @property
    def overrides(self) -> list[str] | None:
        """Overrides of the command line, None for a run that has not recorded them."""
        overrides = self.summary.get("overrides")
        return list(map(str, overrides)) if isinstance(overrides, list) else None

    @property
    def exit(self) -> str:
        """How the run ended."""
        return str(self.summary.get("exit", "not finished"))

    def series(self, metric: str) -> list[tuple[int, float]]:
        """Return iteration and value of each row that has a number as the metric."""
        return [
            (row["iteration"], float(row[metric]))
            for row in self.metrics
            if is_value(row.get(metric))
        ]

    def result(self, metric: str, last: int = 1) -> float | None:
        """Return the mean of the last values of a metric, None if there is none."""
        values = [value for _, value in self.series(metric)[-last:]]
        return sum(values) / len(values) if values else None

    def by_prompt(self) -> dict[str, float]:
        """Return whether the greedy response to each prompt of the last saved validation is correct
        (0 or 1). Prompts that were not graded are left out, and those of named sets
        (`validation.data`)."""
        files = sorted((self.path / "samples").glob("validation_*.jsonl"))
        rows = read_rows(files[-1]) if files else []
        graded = (
            (row.get("id"), row.get("correct"), row.get("temperature"))
            for row in rows
            if row.get("set") is None
        )
        return {
            str(name): float(correct)
            for name, correct, temperature in graded
            if isinstance(correct, bool) and temperature == 0
        }

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted name, without those of `NOT_COMPARED` and paths within the run
        directory."""
        run_dir = str(self.config.get("run_dir"))
        leaves = dict(_leaves(self.config))
        return {
            key: value
            for key, value in leaves.items()
            if not any(key == name or key.startswith(f"{name}.") for name in NOT_COMPARED)
            and not (isinstance(value, str) and value.startswith(run_dir))
        }


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    """What distinguishes it from the other groups."""
    runs: Sequence[SavedRun]

    def results(self, metric: str, last: int = 1) -> dict[int | str, float]:
        """Return the result by seed, of the runs that have one."""
        found = {run.seed: run.result(metric, last) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}


def find_runs(paths: Iterable[Path]) -> list[SavedRun]:
    """Return the runs in and below the folders, in the order of the arguments and then of their
    names, each once.

    Raises:
        UserError: there is no such folder, or no run in it.
    """
    found: dict[Path, SavedRun] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(
                f"{path}: no such folder; give a run directory, or a folder of them such as "
                "runs/sweep"
            )
        runs = list(_runs(path, MAX_DEPTH, set()))
        if not runs:
            raise UserError(f"{path}: no run in it (a folder with config.yaml and metrics.jsonl)")
        found |= {run.resolve(): SavedRun(run) for run in runs if run.resolve() not in found}
    return list(found.values())


def _runs(folder: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
    """Yield the runs in and below a folder. `seen` has the folders that were visited, as links may
    lead back to them."""
    if (real := folder.resolve()) in seen:
        return
    seen.add(real)
    if (folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir(), key=_natural):
            if child.is_dir() and not child.name.startswith("."):
                yield from _runs(child, depth - 1, seen)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Return the key by which `seed=2` precedes `seed=10`."""
    words: list[str] = []
    for character in path.name:
        if words and character.isdecimal() == words[-1].isdecimal():
            words[-1] += character
        else:
            words.append(character)
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def group_runs(runs: Sequence[SavedRun]) -> list[Group]:
    """Return the runs grouped by their settings other than the seed, in the order of their first
    runs.

    A group is named by the options and settings in which the groups differ, or by its label if
    there is only one.

    Raises:
        UserError: two runs of a group have the same seed.
    """
    grouped: dict[str, list[SavedRun]] = {}
    for run in runs:
        grouped.setdefault(_canonical(run.settings), []).append(run)
    groups = list(grouped.values())
    for members in groups:
        by_seed: dict[Any, SavedRun] = {}
        for run in members:
            if run.seed in by_seed:
                raise UserError(
                    f"{by_seed[run.seed].path} and {run.path} have the same settings and "
                    "seed: leave one out"
                )
            by_seed[run.seed] = run
    names = [
        ", ".join(difference) or groups[i][0].label
        for i, difference in enumerate(differences([members[0] for members in groups]))
    ]
    return [Group(name, members) for name, members in zip(names, groups, strict=True)]


def differences(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Return, for each run, `group=option` for the groups whose option differs between the runs,
    then `setting=value` for the settings that differ between runs with the same option of their
    group."""
    recipes = [tuple(run.parts.get(group) for group in RECIPES) for run in runs]
    by_recipe = [
        [run for run, own in zip(runs, recipes, strict=True) if own == recipe]
        for recipe in dict.fromkeys(recipes)
    ]

    def differs(value: Callable[[SavedRun], Any], among: Sequence[Sequence[SavedRun]]) -> bool:
        return any(len({_canonical(value(run)) for run in same}) > 1 for same in among)

    # Recipes choose options and settings of other groups: these are shown only where they differ
    # between runs of one recipe.
    groups = dict.fromkeys(group for run in runs for group in run.parts)
    shown = [
        g
        for g in groups
        if differs(lambda run, g=g: run.parts.get(g), [runs] if g in RECIPES else by_recipe)
    ]  # type: ignore[misc]
    keys = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.settings)
        if key.split(".")[0] not in shown
    ]
    settings = [
        key for key in keys if differs(lambda run, key=key: run.settings.get(key), by_recipe)
    ]  # type: ignore[misc]
    order = (*RECIPES, *(runs[0].parts if runs else ()))
    shown.sort(key=lambda group: order.index(group) if group in order else len(order))
    return [
        [f"{g}={run.parts.get(g)}" for g in shown]
        + [f"{key}={_typed(run.settings.get(key))}" for key in settings]
        for run in runs
    ]


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else _canonical(value)


def _canonical(value: Any) -> str:
    """Return equal texts for equal values."""

    def with_text_keys(x: Any) -> Any:
        if isinstance(x, Mapping):
            return {str(key): with_text_keys(item) for key, item in x.items()}
        return [with_text_keys(item) for item in x] if isinstance(x, list) else x

    return json.dumps(with_text_keys(value), sort_keys=True, default=str)


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _get(node: Any, key: str) -> Any:
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node
