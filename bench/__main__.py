"""Compare this project with TRL and with the limit of the machine: `make bench`.

    python -m bench [WORKLOAD ...] [--rounds 3] [--iterations N] [--warmup N] [--rate-seconds S] [--out FOLDER]
                    [--without-trl] [--trl KEY=VALUE ...]

Each round runs both sides in fresh processes, one after the other. Writes RESULTS.md and results.json to FOLDER after every workload, and
logs to runs/bench. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import ours
from bench.limit import Architecture, Rates
from bench.process import ROOT, exit_on_sigterm, run_python
from bench.records import Run, Side, check_same_work, read, speedup
from bench.report import Comparison, describe_machine, describe_versions, page, section, warn_of_load
from bench.workloads import WORKLOADS, Inputs, Workload, prepare

MAX_TOKENS = 2048
"""Tokens of the update's matrix products whose rate is measured, at most: more do not change the rate."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare with TRL and with the limit of the machine.")
    default = [name for name in WORKLOADS if name != "mini"]
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"{', '.join(WORKLOADS)}; default: all but mini")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the two sides")
    parser.add_argument("--iterations", type=int, help="measured iterations of a process; default: those of the workload")
    parser.add_argument("--warmup", type=int, help="iterations before them")
    parser.add_argument("--rate-seconds", type=float, default=0.2, help="time to measure the rate of each matrix product for")
    parser.add_argument("--out", type=Path, default=ROOT / "bench", help="folder of RESULTS.md and results.json")
    parser.add_argument("--without-trl", action="store_true", help="measure this project only")
    parser.add_argument("--trl", nargs="*", default=[], metavar="KEY=VALUE", help="fields of GRPOConfig, to try other settings of TRL")
    parsed = parser.parse_args(arguments)
    parsed.workloads = parsed.workloads or default
    if unknown := [name for name in parsed.workloads if name not in WORKLOADS]:
        parser.error(f"{unknown[0]} is not a workload: type some of {', '.join(WORKLOADS)}")
    if not parsed.without_trl and find_spec("trl") is None:
        parser.error("TRL is not installed: type make bench, which installs it into .venv-bench, or --without-trl")
    return parsed


def run_side(name: str, arguments: Sequence[str], records: Path, workload: Workload) -> Run:
    """Run one process of a side and return its measured iterations."""
    records.parent.mkdir(parents=True, exist_ok=True)
    seconds, peak = run_python(arguments, records.with_suffix(".log"))
    run = Run(read(records)[workload.warmup :], peak)
    print(f"  {name}: {run.tokens_per_s:.1f} response tokens/s, {peak / 1e9:.2f} GB, {seconds:.0f} s in all", flush=True)
    return run


def measure(workload: Workload, inputs: Inputs, options: argparse.Namespace, folder: Path) -> Comparison:
    """Run both sides in turn, then measure the rates of the machine."""
    runs: dict[str, list[Run]] = {"here": [], "TRL": []}
    for i in range(options.rounds):
        print(f"{workload.name}: round {i + 1} of {options.rounds}", flush=True)
        records = folder / f"{workload.name}-{i}-here.jsonl"
        run_dir = folder / f"{workload.name}-{i}"
        runs["here"].append(run_side("here", ours.arguments(workload, inputs, run_dir, records), records, workload))
        if not options.without_trl:
            records = folder / f"{workload.name}-{i}-trl.jsonl"
            command = [
                "-m",
                "bench.trl_side",
                json.dumps(asdict(workload)),
                str(inputs.model),
                str(inputs.data),
                str(records),
                *options.trl,
            ]
            runs["TRL"].append(run_side("TRL", command, records, workload))
    here, trl = Side(runs["here"]), None if options.without_trl else Side(runs["TRL"])
    check_same_work(here, here if trl is None else trl, workload.rows)
    lengths = here.records[0]
    tokens = min(MAX_TOKENS, sum(lengths.prompt_lengths) + lengths.response_tokens)
    dtype = "bfloat16" if workload.bfloat16 else "float32"
    log = folder / f"{workload.name}-rates.log"
    shapes = [str(x) for x in (inputs.model, workload.rows, tokens, dtype, options.rate_seconds)]
    run_python(["-W", "ignore", "-m", "bench.limit", *shapes], log)
    rates = Rates(**json.loads(log.read_text().splitlines()[-1]))
    return Comparison(workload, here, trl, Architecture.load(inputs.model), rates)


def as_json(c: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison, and every iteration."""
    sides = {"here": c.ours} | ({} if c.trl is None else {"TRL": c.trl})
    ratio = {} if c.trl is None else {"ratio": asdict(speedup(c.ours, c.trl))}
    reached = {name: {stage: c.reached(side, stage) for stage in ("rollout", "update")} for name, side in sides.items()}
    return {"workload": asdict(c.workload), **ratio, "rates": asdict(c.rates), "reached": reached} | {
        "runs": {name: [asdict(run) for run in side.runs] for name, side in sides.items()}
    }


def noted() -> Mapping[str, str]:
    """Return what is noted before a run: date, machine, its load, and versions."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    date = time.strftime("%Y-%m-%d %H:%M %Z")
    busy = warn_of_load(os.getloadavg()[0], os.cpu_count() or 1)
    return {"Date": date, "Machine": describe_machine(), "Load average before": f"{load} {busy}".strip(), "Versions": describe_versions()}


def main(arguments: Sequence[str]) -> None:
    """Measure the workloads, and write and print the results."""
    options, start, results, sections = parse(arguments), noted(), dict[str, Any](), list[str]()
    folder = ROOT / "runs" / "bench" / time.strftime("%Y%m%d-%H%M%S")
    options.out.mkdir(parents=True, exist_ok=True)
    changes = {name: value for name in ("iterations", "warmup") if (value := getattr(options, name)) is not None}
    with tempfile.TemporaryDirectory() as models:
        for name in options.workloads:
            workload = replace(WORKLOADS[name], **changes)
            comparison = measure(workload, prepare(workload, Path(models)), options, folder)
            sections.append(section(comparison))
            results[name] = as_json(comparison)
            print(f"\n{sections[-1]}\n", flush=True)
            command = shlex.join(["python", "-m", "bench", *arguments])
            (options.out / "RESULTS.md").write_text(page(command, start, sections))
            (options.out / "results.json").write_text(json.dumps({**start, "workloads": results}, indent=1) + "\n")
    shutil.rmtree(folder)


if __name__ == "__main__":
    exit_on_sigterm()
    main(sys.argv[1:])
