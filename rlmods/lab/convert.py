"""Convert logs of other trainers into a run directory: `python -m rlmods.convert SOURCE... --out
DIR [--seed 1] [--name trl]`.

SOURCE is an output folder or a file of TRL, verl, prime-rl or NeMo RL, or an export of Weights &
Biases or TensorBoard (docs/comparing.md). `report`, `compare`, `watch` and `show` then read DIR.
Metrics get the names that they have here, and the rules of the monitor are applied to them."""

import argparse
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlmods.errors import Parser, UserError, counted, one_line_errors
from rlmods.lab.formats import Metrics, Responses, our_name, read
from rlmods.run.alerts import IDLE, MAXIMA, WARNINGS, Alerts, derived, limit_rules
from rlmods.run.files import atomic_write, dumps

SEED = re.compile(r"seed[-_=]?([0-9]+)")
"""Seed in the name of a folder."""
ABSENT: dict[str, Any] = {"tokens": [], "finish": None, "reward": None, "advantage": None}
"""What logs may lack of a response."""


@dataclass
class Log:
    """What was read of a run."""

    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics by step, with their names there. A later value of a step takes the place of an
    earlier one, as in a run that was resumed."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of sample logs by file name."""

    sources: dict[tuple[int, str], Path] = field(default_factory=dict)
    """The source of each step's metric."""

    def add(self, found: Metrics | Responses, source: Path) -> None:
        """Add what a reader has found in a source.

        Raises:
            UserError: another source has another value of a metric at the same step.
        """
        if isinstance(found, Responses):
            file = f"{found.kind}_{found.step:06d}.jsonl"
            self.samples.setdefault(file, []).extend(found.rows)
            return
        row = self.rows.setdefault(found.step, {})
        for name, value in found.values.items():
            other = self.sources.setdefault((found.step, name), source)
            if name == "wall_s" and other != source:
                continue  # each process has its own clock: the first one counts
            if other != source and row[name] != value:
                raise UserError(
                    f"{source}: {name} of step {found.step} is {value:.4g}, and {row[name]:.4g} in "
                    f"{other}: convert each run into a folder of its own"
                )
            row[name] = value


def renamed(
    rows: Mapping[int, Mapping[str, float]], typed: Mapping[str, str]
) -> list[dict[str, float]]:
    """Return the rows with our names and `iteration`, in the order of the steps. Where two metrics
    would get the same name, as with several data sources, both keep theirs. `typed`: names that
    take the place of the tables."""
    theirs = dict.fromkeys(name for row in rows.values() for name in row)
    ours = {name: typed.get(name) or our_name(name) for name in theirs}
    taken = list(ours.values())
    for name in theirs:
        if taken.count(ours[name]) > 1:
            ours[name] = name
    found = []
    for step, row in sorted(rows.items()):
        values = {ours[name]: value for name, value in row.items()}
        found.append({"iteration": step, "optimizer_step": step} | values)
    return found


def add_clock(rows: Sequence[dict[str, float]]) -> None:
    """Let `wall_s` start at 0. Without it, add up the seconds of the steps, of which some may not
    be logged."""
    starts = [row["wall_s"] for row in rows if "wall_s" in row]
    clock = 0.0
    before = 0.0
    for row in rows:
        if starts:
            clock = row.get("wall_s", min(starts) + clock) - min(starts)
        else:
            clock += row.get("time/iteration_s", 0.0) * (row["iteration"] - before)
        before = row["iteration"]
        row["wall_s"] = clock


def add_alerts(rows: list[dict[str, float]]) -> list[str]:
    """Add a row for each rule of the monitor that begins to hold, and return their messages."""
    has_norm = any("train/grad_norm" in row for row in rows)
    alerts = Alerts((*limit_rules(MAXIMA), *IDLE, *WARNINGS))
    messages = []
    for row in list(rows):
        is_step = has_norm and any(name.startswith("train/") for name in row)
        for rule, message, value in alerts.add(row | (derived(row) if is_step else {})):
            iteration = row["iteration"]
            messages.append(f"iteration {iteration}: {message}")
            rows.append({"iteration": iteration, f"alert/{rule.name}": value})
    rows.sort(key=lambda row: row["iteration"])
    return messages


def sample_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of a sample log, the responses to a prompt one after the other, with an `id` made
    of the prompt. The logs do not say why a response ended; most have no tokens."""
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = hashlib.sha256(row["prompt"].encode(errors="replace")).hexdigest()[:12]
        same = by_prompt.setdefault(name, [])
        same.append({"id": name, **ABSENT, **row})
    return [row for same in by_prompt.values() for row in same]


def convert(
    sources: Sequence[Path],
    out: Path,
    seed: int | None = None,
    name: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """Write a run directory and return what it holds.

    Args:
        sources: folders and files of one run.
        out: the run directory.
        seed: its seed; None: the one in the name of the first source, such as `seed_3`.
        name: what it is called in comparisons; None: what wrote the first source.
        names: our names of metrics, by theirs.

    Raises:
        UserError: nothing to read, a broken file, or `out` has files.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out}: has files already: type another folder")
    log = Log()
    formats = []
    for source in sources:
        kind, contents = read(source)
        formats.append(kind)
        for found in contents:
            log.add(found, source)
    unknown = sorted((names or {}).keys() - {name for row in log.rows.values() for name in row})
    if unknown:
        raise UserError(f"--rename {unknown[0]}=...: there is no such metric in {sources[0]}")
    rows = renamed(log.rows, names or {})
    add_clock(rows)
    messages = add_alerts(rows)
    match = SEED.search(sources[0].name)
    if seed is None and match:
        seed = int(match[1])
    name = name or formats[0]
    config: dict[str, Any] = {"algo": {"name": name}}
    if seed is not None:
        config["seed"] = seed
    summary = {"label": name, "algo": name, "parts": {"algo": name}, "exit": "finished"}
    for file, responses in log.samples.items():
        _write_rows(out / "samples" / file, sample_rows(responses))
    _write_rows(out / "metrics.jsonl", rows)
    atomic_write(out / "summary.json", dumps(summary | {"warnings": messages}, indent=2))
    atomic_write(out / "config.yaml", yaml.safe_dump(config))
    num_metrics = len({name for row in rows for name in row if "/" in name})
    num_responses = sum(map(len, log.samples.values()))
    read_from = ", ".join(dict.fromkeys(formats))
    size = f"{counted(len(log.rows), 'step')}, {counted(num_metrics, 'metric')}"
    first = f"wrote {out} ({read_from}: {size}, {counted(num_responses, 'response')})"
    return "\n".join([first, *messages])


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    atomic_write(path, "".join(f"{dumps(row)}\n" for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = Parser("convert", __doc__)
    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="SOURCE", help="folders and files of one run"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="run directory")
    parser.add_argument(
        "--seed", type=int, help="seed of the run; default: the one in the name of SOURCE, if any"
    )
    parser.add_argument("--name", help="name in comparisons; default: what wrote SOURCE")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="THEIRS=OURS",
        help="name of a metric, such as train/rewards/correct/mean=train/accuracy",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parsed = parse(arguments)
    with one_line_errors():
        pairs = [text.rpartition("=") for text in parsed.rename]
        names = {theirs: ours for theirs, _, ours in pairs}
        print(convert(parsed.sources, parsed.out, parsed.seed, parsed.name, names))


if __name__ == "__main__":
    main()
