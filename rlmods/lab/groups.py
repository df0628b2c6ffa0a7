"""Groups of runs that differ only in their seed."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.run.saved import SavedRun
from rlmods.run.settings import leaves, readable

METRIC = "val/accuracy"
"""Metric that is compared unless another is typed."""
MAX_DEPTH = 4
"""Runs are found so many levels of folders below a given one."""
NOT_COMPARED = (
    "seed",
    "rollout.seed",
    "run_dir",
    "resume",
    "logger",
    "callbacks",
    "fork",
)
"""Runs of one group may differ in these settings: the seed, and where results are written."""
RECIPES = ("algo", "variant")
"""Groups whose options choose options of other groups."""
NEVER_OF_RECIPES = ("data", "policy", "validation", "optimizer", "trainer")
"""Groups that no algorithm chooses: runs of two algorithms that differ in them differ in more than
the algorithm."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    """What distinguishes it from the other groups."""
    runs: Sequence[SavedRun]
    """Runs of different seeds."""

    @property
    def by_seed(self) -> dict[int | str, SavedRun]:
        """The runs by their seed."""
        return {run.seed: run for run in self.runs}

    def results(self, metric: str, last: int = 1) -> dict[int | str, float]:
        """Return the result by seed, of the runs that have one."""
        found: dict[int | str, float] = {}
        for run in self.runs:
            value = run.result(metric, last)
            if value is not None:
                found[run.seed] = value
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select runs and the metric that is compared."""
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, or a folder of runs"
    )
    parser.add_argument(
        "--metric", default=METRIC, help=f"metric that is compared; default: {METRIC}"
    )
    parser.add_argument(
        "--last",
        type=positive,
        default=1,
        help="number of last values whose mean is the result of a run; default: 1",
    )
    parser.add_argument(
        "--baseline",
        help="name of the group that the others are compared with; default: the first one",
    )


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


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
        runs = list(_runs(path, MAX_DEPTH))
        if not runs:
            raise UserError(f"{path}: no run in it (a folder with config.yaml and metrics.jsonl)")
        for run in runs:
            found.setdefault(run.resolve(), SavedRun(run))
    return list(found.values())


def settings(run: SavedRun) -> dict[str, Any]:
    """Return the settings by dotted name (`readable`), without `NOT_COMPARED` and paths within the
    run directory."""
    run_dir = str(run.config.get("run_dir"))
    kept = {}
    for key, value in readable(dict(leaves(run.config))).items():
        is_compared = not any(f"{key}.".startswith(f"{name}.") for name in NOT_COMPARED)
        is_own_path = isinstance(value, str) and value.startswith(run_dir)
        if is_compared and not is_own_path:
            kept[key] = value
    return kept


def group_runs(runs: Sequence[SavedRun]) -> list[Group]:
    """Return the runs grouped by their settings other than the seed, in the order of their first
    runs.

    A group is named by the options and settings in which the groups differ, or by its label if
    there is only one.

    Raises:
        UserError: two runs of a group have the same seed.
    """
    grouped: dict[str, dict[int | str, SavedRun]] = {}
    for run in runs:
        members = grouped.setdefault(_canonical(settings(run)), {})
        other = members.setdefault(run.seed, run)
        if other is not run:
            raise UserError(
                f"{other.path} and {run.path} have the same settings and seed: leave one out"
            )
    groups = [list(members.values()) for members in grouped.values()]
    names = differences([members[0] for members in groups])
    return [
        Group(", ".join(name) or members[0].label, members)
        for name, members in zip(names, groups, strict=True)
    ]


def differences(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Return, for each run, `group=option` for the groups whose option differs between the runs,
    then `setting=value` for the settings that differ between runs with the same option of their
    group."""
    parts = [run.parts for run in runs]
    typed = list(map(settings, runs))
    # Recipes choose options and settings of other groups: these are shown only where they differ
    # between runs of one recipe.
    recipes = [_canonical(list(map(options.get, RECIPES))) for options in parts]
    shown = []
    groups = dict.fromkeys(group for options in parts for group in options)
    for group in (*RECIPES, *(group for group in groups if group not in RECIPES)):
        kinds = [""] * len(runs) if group in RECIPES else recipes
        own = [options.get(group) for options in parts]
        if group in NEVER_OF_RECIPES:
            own = [option for option in own if option is not None]
            kinds = [""] * len(own)
        if _differ(own, kinds):
            shown.append(group)
    keys = []
    for key in dict.fromkeys(key for values in typed for key in values):
        group = key.split(".")[0]
        own = [values.get(key) for values in typed]
        kinds = [""] * len(runs) if group in NEVER_OF_RECIPES else recipes
        if group in shown:
            chosen = [options.get(group) for options in parts]
            kinds = list(map(_canonical, zip(kinds, chosen, strict=True)))
        if group in NEVER_OF_RECIPES:  # a run of another trainer has none
            known = [i for i, values in enumerate(typed) if key in values]
            own = [own[i] for i in known]
            kinds = [kinds[i] for i in known]
        if _differ(own, kinds):
            keys.append(key)
    found = []
    for options, values in zip(parts, typed, strict=True):
        found.append([f"{group}={options.get(group)}" for group in shown])
        told = [key for key in keys if key in values or key.split(".")[0] not in shown]
        found[-1] += [f"{key}={_text(values.get(key))}" for key in told]
    return found


def _differ(values: Sequence[Any], kinds: Sequence[str]) -> bool:
    """Return whether values differ within a kind."""
    pairs = zip(kinds, map(_canonical, values), strict=True)
    return len(set(pairs)) > len(set(kinds))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir(), key=_natural):
            if child.is_dir() and not child.name.startswith("."):
                yield from _runs(child, depth - 1)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Return a key that sorts `seed=2` before `seed=10`."""
    words = re.findall(r"[0-9]+|[^0-9]+", path.name)
    return [(word.isdecimal(), int(word) if word.isdecimal() else 0, word) for word in words]


def _text(value: object) -> str:
    return value if isinstance(value, str) else _canonical(value)


def _canonical(value: object) -> str:
    """Return equal texts for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
