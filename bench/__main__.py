"""Compare this project with TRL and with the limit of the machine: `make bench`.

    python -m bench [WORKLOAD ...] [--rounds 3] [--iterations N] [--warmup N] [--rate-seconds S] [--out FOLDER]
                    [--without-trl] [--trl KEY=VALUE ...]

Each round runs both sides in fresh processes, one after the other. Writes RESULTS.md and
results.json to FOLDER after every workload, and logs to runs/bench. Run it on a machine that does
nothing else."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import ours
from bench.limit import Architecture, Rates
from bench.process import ROOT, exit_on_sigterm, run_python
from bench.records import Record, Run, Side, check_same_work, read, speedup
from bench.report import Comparison, command_line, noted, page, section
from bench.workloads import WORKLOADS, Inputs, Workload, prepare

MAX_TOKENS = 2048
"""Tokens of the update's matrix products whose rate is measured, at most: more do not change the
rate."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare with TRL and with the limit of the machine."
    )
    default = [name for name in WORKLOADS if name != "mini"]
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"{', '.join(WORKLOADS)}; default: all but mini",
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the two sides")
    parser.add_argument(
        "--iterations",
        type=int,
        help="measured iterations of a process; default: those of the workload",
    )
    parser.add_argument("--warmup", type=int, help="iterations before them")
    parser.add_argument(
        "--rate-seconds",
        type=float,
        default=0.2,
        help="time to measure the rate of each matrix product for",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench", help="folder of RESULTS.md and results.json"
    )
    parser.add_argument("--without-trl", action="store_true", help="measure this project only")
    parser.add_argument(
        "--trl",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="fields of GRPOConfig, to try other settings of TRL",
    )
    parsed = parser.parse_args(arguments)
    parsed.workloads = parsed.workloads or default
    if unknown := [name for name in parsed.workloads if name not in WORKLOADS]:
        parser.error(f"{unknown[0]} is not a workload: type some of {', '.join(WORKLOADS)}")
    if not parsed.without_trl and find_spec("trl") is None:
        parser.error(
            "TRL is not installed: type make bench, which installs it into .venv-bench, or "
            "--without-trl"
        )
    return parsed


def run_side(name: str, arguments: Sequence[str], records: Path, workload: Workload) -> Run:
    """Run one process of a side and return its measured iterations."""
    records.parent.mkdir(parents=True, exist_ok=True)
    seconds, peak = run_python(arguments, records.with_suffix(".log"))
    run = Run(read(records)[workload.warmup :], peak)
    print(
        f"  {name}: {run.tokens_per_s:.1f} response tokens/s, {peak / 1e9:.2f} GB, "
        f"{seconds:.0f} s in all",
        flush=True,
    )
    return run


def measure_rates(
    workload: Workload, inputs: Inputs, first: Record, seconds: float, log: Path
) -> Rates:
    """Measure the rates of the machine in a fresh process, for the shapes of an iteration like
    `first`."""
    tokens = min(MAX_TOKENS, sum(first.prompt_lengths) + first.response_tokens)
    dtype = "bfloat16" if workload.bfloat16 else "float32"
    shapes = [str(x) for x in (inputs.model, workload.rows, tokens, dtype, seconds)]
    run_python(["-W", "ignore", "-m", "bench.limit", *shapes], log)
    return Rates(**json.loads(log.read_text().splitlines()[-1]))


def measure(
    workload: Workload, inputs: Inputs, options: argparse.Namespace, folder: Path
) -> Comparison:
    """Run both sides in turn, and measure the rates of the machine after each round; the highest
    count."""
    here, trl, rates = list[Run](), list[Run](), list[Rates]()
    for i in range(options.rounds):
        print(f"{workload.name}: round {i + 1} of {options.rounds}", flush=True)
        base = folder / f"{workload.name}-{i}"
        records = base.with_suffix(".here.jsonl")
        here.append(
            run_side("here", ours.arguments(workload, inputs, base, records), records, workload)
        )
        if not options.without_trl:
            files = [
                str(path) for path in (inputs.model, inputs.data, base.with_suffix(".trl.jsonl"))
            ]
            command = ["-m", "bench.trl_side", json.dumps(asdict(workload)), *files, *options.trl]
            trl.append(run_side("TRL", command, base.with_suffix(".trl.jsonl"), workload))
        rates.append(
            measure_rates(
                workload,
                inputs,
                here[0].records[0],
                options.rate_seconds,
                base.with_suffix(".rates.log"),
            )
        )
    sides = Side(here), Side(trl) if trl else None
    check_same_work(sides[0], sides[1] or sides[0], workload.rows)
    return Comparison(workload, *sides, Architecture.load(inputs.model), Rates.highest(rates))


def as_json(c: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison, and every iteration."""
    sides = {"here": c.ours} | ({} if c.trl is None else {"TRL": c.trl})
    ratio = {} if c.trl is None else {"ratio": asdict(speedup(c.ours, c.trl))}
    reached = {
        name: {stage: c.reached(side, stage) for stage in ("rollout", "update")}
        for name, side in sides.items()
    }
    return {
        "workload": asdict(c.workload),
        **ratio,
        "rates": asdict(c.rates),
        "reached": reached,
    } | {"runs": {name: [asdict(run) for run in side.runs] for name, side in sides.items()}}


def main(arguments: Sequence[str]) -> None:
    """Measure the workloads, and write and print the results."""
    options, start, results, sections = parse(arguments), noted(), dict[str, Any](), list[str]()
    folder = ROOT / "runs" / "bench" / time.strftime("%Y%m%d-%H%M%S")
    options.out.mkdir(parents=True, exist_ok=True)
    changes = {
        name: value
        for name in ("iterations", "warmup")
        if (value := getattr(options, name)) is not None
    }
    with tempfile.TemporaryDirectory() as models:
        for name in options.workloads:
            workload = replace(WORKLOADS[name], **changes)
            comparison = measure(workload, prepare(workload, Path(models)), options, folder)
            sections.append(section(comparison))
            results[name] = as_json(comparison)
            print(f"\n{sections[-1]}\n", flush=True)
            command = command_line("bench", arguments)
            (options.out / "RESULTS.md").write_text(
                page("Results of the benchmark", command, start, sections)
            )
            (options.out / "results.json").write_text(
                json.dumps({**start, "workloads": results}, indent=1) + "\n"
            )
    shutil.rmtree(folder)


if __name__ == "__main__":
    exit_on_sigterm()
    main(sys.argv[1:])
