"""Find where and why two runs first differ: `python -m rlmods.diff RUN RUN`.

Compares the files of two run directories in the order in which a run computes them: for each
iteration the stages rollout, reward, advantage and update, then validation. Prints the first
difference, down to row and token, and its most likely cause: a setting (`config.yaml`), a source
file (`sources.txt`), a package, the platform or the processor (`versions.txt`). Causes are ordered
by how close before that stage they act. Runs repeat bit for bit, so that any difference counts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlmods.cli.command import command
from rlmods.errors import UserError
from rlmods.lab.saved import SavedRun
from rlmods.run.jsonl import read_rows
from rlmods.run.printable import one_line

STAGES = ("rollout", "reward", "advantage", "update", "validation")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "rollout": ("id", "prompt", "tokens", "response", "finish"),
    "reward": ("answer", "reward", "correct", "reward/", "accuracy/"),
    "advantage": ("kept", "advantage", "branch"),
}
"""Columns of the sample log that a stage computes; those that end with a slash are prefixes."""
ACTS: Mapping[str, tuple[str, ...]] = {
    "rollout": (
        "data",
        "policy",
        "adapter",
        "rollout",
        "environment",
        "branching",
        "seed",
        "batch.prompts",
        "batch.samples",
    ),
    "reward": ("reward", "judge", "teacher"),
    "advantage": ("advantage", "sampling", "critic", "reference", "algo"),
    "update": (
        "ratio",
        "correction",
        "aggregation",
        "kl",
        "router",
        "optimizer",
        "schedule",
        "batch",
        "ptx",
        "preference",
        "ranking",
    ),
    "validation": ("validation",),
}
"""Settings and packages of source files by the first stage in which they act. Others may act in all
stages."""
WITHOUT_EFFECT = ("run_dir", "resume", "logger", "callbacks", "fork")
"""Settings that do not change what a run computes."""
UNMEASURED = ("wall_s", "time/", "perf/")
"""Metrics that differ between equal runs."""
MAX_BYTES = 4_000_000
"""Limit of the files of sources and versions, which may be received."""
SHOWN = 8
"""Further differences that are printed."""


@dataclass(frozen=True)
class Parting:
    """First difference between two runs."""

    iteration: int
    stage: str
    where: str
    """Row, column and token, or metric, with both values."""
    computed_by: str = ""
    """Stage whose code computes what differs, if it is another one: held-out prompts are sampled
    and graded too."""


@dataclass(frozen=True)
class Cause:
    """Difference in settings, code or environment."""

    kind: str
    """"setting", "source", "package" or "machine"."""
    name: str
    values: tuple[Any, Any]

    def __str__(self) -> str:
        return (
            f"{self.kind} {one_line(self.name)}: {_shorten(self.values[0])} -> "
            f"{_shorten(self.values[1])}"
        )


def diff(first: Path, second: Path) -> tuple[Parting | None, list[Cause]]:
    """Return where two runs first differ (None: nowhere, in the iterations that both have), and the
    causes, the most likely one first.

    Raises:
        UserError: one of them is not a run directory, or has a broken file.
    """
    for run in (first, second):
        if not (run / "config.yaml").is_file():
            raise UserError(f"{run} is not a run directory, it has no config.yaml")
    parting = next(_differences(first, second), None)
    parting = _weights(first, second, parting) or parting
    return parting, causes(first, second, parting)


def _differences(first: Path, second: Path) -> Iterator[Parting]:
    metrics = [
        {(row["iteration"], _is_validation(row)): row for row in SavedRun(run).metrics}
        for run in (first, second)
    ]
    for iteration in _common_iterations(first, second):
        sampled = [run / "samples" / f"iteration_{iteration:06d}.jsonl" for run in (first, second)]
        if all(path.is_file() for path in sampled):
            yield from _rows(iteration, [read_rows(path) for path in sampled])
        yield from _metrics(
            iteration, "update", *(rows.get((iteration, False), {}) for rows in metrics)
        )
        held_out = [
            run / "samples" / f"validation_{iteration:06d}.jsonl" for run in (first, second)
        ]
        if all(path.is_file() for path in held_out):
            for parting in _rows(iteration, [read_rows(path) for path in held_out]):
                yield Parting(iteration, "validation", parting.where, parting.stage)
        both = [rows.get((iteration, True)) for rows in metrics]
        if both[0] is not None and both[1] is not None:
            yield from _metrics(iteration, "validation", both[0], both[1])


def _common_iterations(first: Path, second: Path) -> list[int]:
    """Return the iterations with training metrics, or validation metrics, of both runs."""
    keys = [
        {(row["iteration"], _is_validation(row)) for row in SavedRun(run).metrics}
        for run in (first, second)
    ]
    return sorted({iteration for iteration, _ in keys[0] & keys[1]})


def _is_validation(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("val/") for name in row)


def _rows(iteration: int, rows: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[Parting]:
    """Yield the first difference of each stage in two sample logs."""
    for stage, columns in COLUMNS.items():
        for i, (a, b) in enumerate(zip(*rows, strict=False)):
            names = [
                name
                for name in {**a, **b}
                if any(name == x or (x[-1] == "/" and name.startswith(x)) for x in columns)
            ]
            if name := next(
                (
                    name
                    for name in sorted(names, key=lambda x: _rank(x, columns))
                    if _differ(a.get(name), b.get(name))
                ),
                None,
            ):
                prompt = f"row {i} (prompt {_shorten(a.get('id'))})"
                yield Parting(
                    iteration,
                    stage,
                    f"{prompt}, {one_line(name)}{_values(a.get(name), b.get(name))}",
                )
                break
        if stage == "rollout" and len(rows[0]) != len(rows[1]):
            yield Parting(
                iteration, stage, f"number of responses: {len(rows[0])} -> {len(rows[1])}"
            )


def _differ(a: Any, b: Any) -> bool:
    """Return whether two values differ; NaN equals NaN."""
    return a != b and not (a != a and b != b)


def _rank(name: str, columns: Sequence[str]) -> int:
    return next(
        i for i, x in enumerate(columns) if name == x or (x[-1] == "/" and name.startswith(x))
    )


def _values(a: Any, b: Any) -> str:
    """Return both values; of lists, the first items that differ."""
    if isinstance(a, list) and isinstance(b, list):
        i = next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )
        a, b = (x[i] if i < len(x) else "end" for x in (a, b))
        return f", token {i}: {_shorten(a)} -> {_shorten(b)}"
    return f": {_shorten(a)} -> {_shorten(b)}"


def _metrics(
    iteration: int, stage: str, a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[Parting]:
    """Yield the metrics that differ, by the stage that computes them."""
    names = [
        name
        for name in {**a, **b}
        if _differ(a.get(name), b.get(name)) and not name.startswith(UNMEASURED)
    ]
    order = {
        "train/response_tokens": "rollout",
        "train/reward": "reward",
        "reward/": "reward",
        "train/accuracy": "reward",
    }
    found = []
    for name in names:
        own = (
            next((value for prefix, value in order.items() if name.startswith(prefix)), stage)
            if stage == "update"
            else stage
        )
        found.append(
            Parting(
                iteration,
                own,
                f"{one_line(name)}: {_shorten(a.get(name))} -> {_shorten(b.get(name))}",
            )
        )
    yield from sorted(found, key=lambda x: STAGES.index(x.stage))


def _weights(first: Path, second: Path, parting: Parting | None) -> Parting | None:
    """Return the update before `parting` if the checkpoints show that the weights differ
    already."""
    if (
        parting is not None
        and (parting.iteration < 2 or parting.stage != "rollout")
        and parting.stage != "validation"
    ):
        return None
    names = [
        {path.name for path in (run / "checkpoints").glob("iteration_*.ckpt") if path.is_file()}
        for run in (first, second)
    ]
    both = {
        int(match[1]): name
        for name in names[0] & names[1]
        if (match := re.fullmatch(r"iteration_(\d{1,9})\.ckpt", name))
    }
    wanted = (
        max(both, default=0)
        if parting is None
        else parting.iteration - (parting.stage == "rollout")
    )
    if wanted not in both:
        return None
    a, b = (_state(run / "checkpoints" / both[wanted]) for run in (first, second))
    for name in a.keys() & b.keys():
        if a[name].shape != b[name].shape or not torch.equal(a[name], b[name]):
            return Parting(wanted, "update", f"weights {one_line(name)}")
    return None


def _state(path: Path) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        tensors = {str(name): x for name, x in state.items() if isinstance(x, torch.Tensor)}
        if others := [
            name
            for name, x in tensors.items()
            if x.layout != torch.strided or x.device.type != "cpu" or x.is_quantized
        ]:
            raise ValueError(f"{others[0]} is no dense tensor")
        return tensors
    except Exception as error:  # torch raises many kinds on a damaged file
        raise UserError(
            f"{path}: cannot be read ({_shorten(str(error))}): delete it or give another run"
        ) from error


def causes(first: Path, second: Path, parting: Parting | None) -> list[Cause]:
    """Return the differences in settings, code and environment, the most likely cause of `parting`
    first."""
    found = []
    for kind, read in (
        ("setting", lambda run: dict(_leaves(SavedRun(run).config))),
        ("source", _sources),
        ("", _versions),
    ):
        a, b = read(first), read(second)
        if kind == "source" and not (a and b):
            continue
        for name in sorted({*a, *b}):
            if a.get(name) != b.get(name):
                own = kind or (
                    "machine" if name in ("platform", "processor", "threads") else "package"
                )
                found.append(Cause(own, name, (a.get(name), b.get(name))))
    effective = [cause for cause in found if _distance(cause, parting) is not None]
    kinds = ("setting", "source", "package", "machine")
    return sorted(
        effective,
        key=lambda cause: (
            _distance(cause, parting),
            kinds.index(cause.kind),
            cause.name.count("."),
            cause.name,
        ),
    )


def _distance(cause: Cause, parting: Parting | None) -> int | None:
    """Return the number of stages between a cause and the parting, None for a cause that cannot
    have been one."""
    if cause.kind in ("package", "machine"):
        return 2 * len(STAGES)
    name = (
        re.sub(r"^rlmods/|\.py$", "", cause.name).replace("/", ".")
        if cause.kind == "source"
        else cause.name
    )
    if cause.kind == "setting" and name.split(".")[0] in WITHOUT_EFFECT:
        return None
    if parting is None:
        return 0
    acts = [
        (len(key), stage)
        for stage, keys in ACTS.items()
        for key in keys
        if f"{name}.".startswith(f"{key}.")
    ]
    if not acts:
        return len(STAGES)
    stage = max(acts)[1]
    if stage == "validation":
        return 0 if parting.stage == "validation" else None
    found, own = STAGES.index(parting.computed_by or parting.stage), STAGES.index(stage)
    if own <= found:
        return found - own
    return found - own + len(STAGES) + (0 if parting.iteration > 1 else len(STAGES))


def _read(path: Path) -> str:
    """Return the text of a file, "" if there is none."""
    try:
        if not path.is_file():
            return ""
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES} bytes: give another run")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({_shorten(str(error))}): give another run"
        ) from error


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a run with their keys with dots."""
    if isinstance(node, Mapping | list) and node:
        items = node.items() if isinstance(node, Mapping) else enumerate(node)
        for name, value in items:
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def _sources(run: Path) -> dict[str, str]:
    """Return the digest of each source file of a run."""
    return {
        name: digest
        for digest, _, name in (
            line.partition(" ") for line in _read(run / "sources.txt").splitlines()
        )
        if name
    }


def _versions(run: Path) -> dict[str, str]:
    """Return the versions of a run by package. `git`, the commit, is one of them; the command is
    not."""
    pairs = (line.partition(" ") for line in _read(run / "versions.txt").splitlines())
    return {name: value for name, _, value in pairs if value and name != "command"}


def _shorten(value: Any) -> str:
    text = one_line(str(value))
    return text if len(text) <= 60 else f"{text[:60]}..."


def text(first: Path, second: Path) -> str:
    """Return the first difference and its causes as text."""
    parting, found = diff(first, second)
    if parting is None:
        both = _common_iterations(first, second)
        equal = (
            f"are equal in all iterations that both have, {both[0]} to {both[-1]}"
            if both
            else "have no iteration in common"
        )
        lines = [f"{first} and {second} {equal}"]
    else:
        where = f"iteration {parting.iteration}, stage {parting.stage}: {parting.where}"
        lines = [f"{first} and {second} first differ in {where}"]
        num_settings = sum(cause.kind == "setting" for cause in found)
        certainty = (
            f"{num_settings} settings differ, and any of them may be the cause; the most likely one"
            if num_settings > 1
            else "cause"
        )
        lines.append(
            f"{certainty}: {found[0]}"
            if found
            else "no cause is recorded: settings, sources, packages and processor are equal"
        )
        found = found[1:]
    lines += [f"also different: {cause}" for cause in found[:SHOWN]]
    return "\n".join([*lines, *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])])


def main(arguments: Sequence[str]) -> None:
    command(arguments, __doc__, lambda: _action(arguments))


def _action(arguments: Sequence[str]) -> str:
    if len(arguments) != 2:
        raise UserError("type: python -m rlmods.diff RUN RUN")
    return text(*(Path(x).expanduser() for x in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
