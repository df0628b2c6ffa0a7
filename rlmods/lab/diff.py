"""Find where and why two runs first differ: `python -m rlmods.diff RUN RUN`.

Compares the files of two run directories in the order of the computation: for each
iteration the stages rollout, reward, advantage and update, then validation. Prints the first
difference, down to row and token, and its most likely cause: an option of a group (`summary.json`),
a setting (`config.yaml`), a source file (`sources.txt`), a package, the platform or the processor
(`versions.txt`). Causes are ordered by how close before that stage they act, and options come
before settings. Runs repeat bit for bit, so that any difference counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rlmods.errors import Parser, one_line_errors
from rlmods.run.files import read_rows, shorten
from rlmods.run.saved import SavedRun, check_run
from rlmods.run.settings import leaves, readable

Row: TypeAlias = Mapping[str, Any]

STAGES = ("rollout", "reward", "advantage", "update", "validation")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "rollout": ("id", "prompt", "tokens", "response", "finish", "branch"),
    "reward": ("answer", "reward", "correct", "reward/", "accuracy/"),
    "advantage": ("kept", "advantage", "credit"),
}
"""Columns of the sample log that a stage computes; those that end with a slash are prefixes."""
METRICS: Mapping[str, str] = {
    "train/response_tokens": "rollout",
    "train/reward": "reward",
    "reward/": "reward",
    "train/accuracy": "reward",
}
"""Stages that compute metrics of an iteration, by prefix. The update computes the others."""
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
        "tokens",
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
"""Settings and packages of source files by the first stage that they act on. Others may act on all
stages."""
WITHOUT_EFFECT = ("run_dir", "resume", "logger", "callbacks", "fork")
"""Settings that do not change what a run computes."""
UNMEASURED = ("wall_s", "time/", "perf/", "train/tool_s", "val/tool_s")
"""Metrics that differ between equal runs."""
MACHINE = (
    "platform",
    "processor",
    "threads",
    "gpu",
    "driver",
    "cuda",
    "cudnn",
    "nccl",
    "attention",
)
"""Lines of `versions.txt` that are not packages."""
KINDS = ("option", "setting", "source", "package", "machine")
SHOWN = 8
"""Further differences that are printed."""
VALUE_LENGTH = 60
"""Characters of a value that are printed."""


@dataclass(frozen=True)
class FirstDifference:
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
    """One of `KINDS`."""
    name: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {_shorten(self.before)} -> {_shorten(self.after)}"


def diff(first: Path, second: Path) -> tuple[FirstDifference | None, list[Cause]]:
    """Return where two runs first differ (None: nowhere, in the iterations that both have), and the
    causes, the most likely one first.

    Raises:
        UserError: one of them is not a run directory, or has a broken file.
    """
    check_run(first)
    check_run(second)
    a = SavedRun(first)
    b = SavedRun(second)
    found = next(_differences(a, b), None)
    return found, causes(a, b, found)


def _differences(a: SavedRun, b: SavedRun) -> Iterator[FirstDifference]:
    before = _by_iteration(a)
    after = _by_iteration(b)
    for iteration in common_iterations(a, b):
        sampled = f"samples/iteration_{iteration:06d}.jsonl"
        yield from _rows(iteration, a.path / sampled, b.path / sampled)
        trained = (iteration, False)
        yield from _metrics(iteration, "update", before.get(trained, {}), after.get(trained, {}))
        held_out = f"samples/validation_{iteration:06d}.jsonl"
        for found in _rows(iteration, a.path / held_out, b.path / held_out):
            yield FirstDifference(iteration, "validation", found.where, found.stage)
        validated = (iteration, True)
        if validated in before and validated in after:
            yield from _metrics(iteration, "validation", before[validated], after[validated])


def common_iterations(a: SavedRun, b: SavedRun) -> list[int]:
    """Return the iterations with training metrics, or validation metrics, of both runs."""
    common = _by_iteration(a).keys() & _by_iteration(b).keys()
    return sorted({iteration for iteration, _ in common})


def _by_iteration(run: SavedRun) -> dict[tuple[int, bool], Row]:
    """Return the rows of metrics by iteration and whether they are of a validation."""
    rows: dict[tuple[int, bool], Row] = {}
    for row in run.metrics:
        is_validation = any(name.startswith("val/") for name in row)
        rows[row["iteration"], is_validation] = row
    return rows


def _rows(iteration: int, first: Path, second: Path) -> Iterator[FirstDifference]:
    """Yield the first difference of each stage in two sample logs, if both exist."""
    if not (first.is_file() and second.is_file()):
        return
    before = read_rows(first)
    after = read_rows(second)
    for stage, columns in COLUMNS.items():
        where = _first_row(before, after, columns)
        if where:
            yield FirstDifference(iteration, stage, where)
        if stage == "rollout" and len(before) != len(after):
            where = f"number of responses: {len(before)} -> {len(after)}"
            yield FirstDifference(iteration, stage, where)


def _first_row(before: Sequence[Row], after: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the first row, and its first column, in which two sample logs differ; "" if they are
    equal."""
    for i, (a, b) in enumerate(zip(before, after, strict=False)):
        for column in columns:
            for name in sorted({**a, **b}):
                is_own = name == column or (column.endswith("/") and name.startswith(column))
                if is_own and a.get(name) != b.get(name):
                    values = _values(a.get(name), b.get(name))
                    return f"row {i} (prompt {_shorten(a.get('id'))}), {name}{values}"
    return ""


def _values(a: object, b: object) -> str:
    """Return both values; of lists, the first items that differ."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return f": {_shorten(a)} -> {_shorten(b)}"
    i = 0
    while i < min(len(a), len(b)) and a[i] == b[i]:
        i += 1
    before = a[i] if i < len(a) else "end"
    after = b[i] if i < len(b) else "end"
    return f", token {i}: {_shorten(before)} -> {_shorten(after)}"


def _metrics(iteration: int, stage: str, a: Row, b: Row) -> Iterator[FirstDifference]:
    """Yield the metrics that differ, by the stage that computes them."""
    found = []
    for name in {**a, **b}:
        if name.startswith(UNMEASURED) or a.get(name) == b.get(name):
            continue
        own = stage
        if stage == "update":
            own = next((METRICS[x] for x in METRICS if name.startswith(x)), stage)
        where = f"{name}: {_shorten(a.get(name))} -> {_shorten(b.get(name))}"
        found.append(FirstDifference(iteration, own, where))
    yield from sorted(found, key=lambda x: STAGES.index(x.stage))


def causes(a: SavedRun, b: SavedRun, found: FirstDifference | None) -> list[Cause]:
    """Return the differences in settings, code and environment, the most likely cause of `found`
    first."""
    everything = list(_changes("option", a.parts, b.parts))
    swapped = {option.name for option in everything}
    settings = _changes("setting", _settings(a), _settings(b))
    # the class of an option that differs is not a further cause
    everything += [setting for setting in settings if setting.name not in swapped]
    everything += _changes("", a.versions(), b.versions())
    before = _sources(a)
    after = _sources(b)
    if before and after:
        everything += _changes("source", before, after)
    ranked = []
    for cause in everything:
        distance = _distance(cause, found)
        if distance is not None:
            rank = (distance, KINDS.index(cause.kind), cause.name.count("."), cause.name)
            ranked.append((rank, cause))
    return [cause for _, cause in sorted(ranked, key=lambda x: x[0])]


def _settings(run: SavedRun) -> dict[str, Any]:
    return readable(dict(leaves(run.config, lists=True)))


def _changes(kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield the values that differ. Without a kind, it is a package or a property of the
    machine."""
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name) and name != "command":
            own = kind or ("machine" if name in MACHINE else "package")
            yield Cause(own, name, a.get(name), b.get(name))


def _distance(cause: Cause, found: FirstDifference | None) -> int | None:
    """Return the number of stages between a cause and the first difference, None for a cause that
    cannot have been one."""
    if cause.kind in ("package", "machine"):
        return 2 * len(STAGES)
    name = cause.name
    if cause.kind == "source":
        name = name.removeprefix("rlmods/").removesuffix(".py").replace("/", ".")
    elif name.split(".")[0] in WITHOUT_EFFECT:
        return None
    if found is None:
        return 0
    # the first stage in which the setting or module acts, by the longest key
    stages = {key: stage for stage, keys in ACTS.items() for key in keys}
    acting = [key for key in stages if f"{name}.".startswith(f"{key}.")]
    if not acting:
        return len(STAGES)
    stage = stages[max(acting, key=len)]
    if stage == "validation":
        return 0 if found.stage == "validation" else None
    distance = STAGES.index(found.computed_by or found.stage) - STAGES.index(stage)
    if distance >= 0:
        return distance
    # later stages act in the iterations before
    return distance + len(STAGES) * (1 if found.iteration > 1 else 2)


def _sources(run: SavedRun) -> dict[str, str]:
    pairs = (line.partition(" ") for line in run.text("sources.txt").splitlines())
    return {name: digest for digest, _, name in pairs if name}


def _shorten(value: object) -> str:
    return shorten(str(value), VALUE_LENGTH)


def text(first: Path, second: Path) -> str:
    """Return the first difference and its causes as text."""
    found, likely = diff(first, second)
    lines = []
    if found is None:
        both = common_iterations(SavedRun(first), SavedRun(second))
        equal = "have no iteration in common"
        if both:
            equal = f"are equal in all iterations that both have, {both[0]} to {both[-1]}"
        lines.append(f"{first} and {second} {equal}")
    else:
        where = f"iteration {found.iteration}, stage {found.stage}: {found.where}"
        lines.append(f"{first} and {second} first differ in {where}")
        swapped = {cause.name for cause in likely if cause.kind == "option"}
        settings = [cause.name.split(".")[0] for cause in likely if cause.kind == "setting"]
        # the settings of an option that differs are its consequences
        num_settings = len(swapped) + sum(group not in swapped for group in settings)
        if not likely:
            reason = "no cause is recorded: settings, sources, packages and processor are equal"
        elif num_settings > 1:
            reason = (
                f"{num_settings} settings differ, and any of them may be the cause; the most "
                f"likely one: {likely[0]}"
            )
        else:
            reason = f"cause: {likely[0]}"
        lines.append(reason)
        likely = likely[1:]
    lines += [f"also different: {cause}" for cause in likely[:SHOWN]]
    if len(likely) > SHOWN:
        lines.append(f"and {len(likely) - SHOWN} more")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = Parser("diff", __doc__)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="a run directory")
    with one_line_errors():
        print(text(*parser.parse_args(arguments).runs))


if __name__ == "__main__":
    main()
