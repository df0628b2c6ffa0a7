"""Tables of a comparison, in Markdown."""

import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean

import psutil
import torch

from bench.limit import Architecture, Need, Rates, rollout_need, update_need
from bench.process import ROOT
from bench.records import STAGES, Record, Side, speedup
from bench.workloads import Workload

PACKAGES = ("torch", "transformers", "lightning", "trl")
MATRIX_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "bf16", "sve")
"""Instruction sets that decide the rate of matrix products."""


@dataclass(frozen=True)
class Comparison:
    """Everything measured on one workload."""

    workload: Workload
    ours: Side
    trl: Side | None
    """None if TRL did not run."""
    arch: Architecture
    rates: Rates

    def needs(self, side: Side) -> Mapping[str, list[Need]]:
        """Return the needs of each iteration of a side, by stage, for the lengths that it
        sampled."""

        def of(record: Record) -> tuple[Need, Need]:
            lengths = (record.prompt_lengths, record.response_lengths)
            size = 2 if self.workload.bfloat16 else 4
            return rollout_need(self.arch, self.rates, *lengths, size), update_need(
                self.arch, self.rates, *lengths
            )

        rollout, update = zip(*map(of, side.records), strict=True)
        return {"rollout": list(rollout), "update": list(update)}

    def reached(self, side: Side, stage: str) -> float:
        """Return the limit over the measured seconds of a stage, both summed over the
        iterations."""
        measured = sum(record.stages[stage] for record in side.records)
        return sum(need.seconds for need in self.needs(side)[stage]) / measured


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, with numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(x: float) -> str:
    """Return a number with three significant digits."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def comparison_table(c: Comparison) -> str:
    """Return speed, time by stage, memory and tokens of both sides."""
    sides = [c.ours] if c.trl is None else [c.ours, c.trl]

    def row(name: str, values: Sequence[float], ratio: str = "") -> list[str]:
        if not ratio and len(values) == 2 and values[0] and values[1]:
            ratio = number(values[0] / values[1])
        return [name, *map(number, values), *([ratio] if c.trl is not None else [])]

    spread = ""
    if c.trl is not None:
        quotient = speedup(c.ours, c.trl)
        spread = (
            f"**{number(quotient.median)}** ({number(quotient.low)} to {number(quotient.high)})"
        )
    rows = [row("response tokens per second", [side.tokens_per_s for side in sides], spread)]
    rows.append(row("iteration, s", [side.seconds for side in sides]))
    rows += [row(f"{stage}, s", [side.stage(stage) for side in sides]) for stage in STAGES]
    rows.append(row("peak memory, GB", [side.peak_bytes / 1e9 for side in sides]))
    if any(side.device_bytes for side in sides):
        rows.append(row("peak memory of the GPU, GB", [side.device_bytes / 1e9 for side in sides]))
    rows.append(
        row(
            "response tokens of an iteration",
            [mean(r.response_tokens for r in side.records) for side in sides],
        )
    )
    rows.append(
        row(
            "prompt tokens of an iteration",
            [mean(sum(r.prompt_lengths) for r in side.records) for side in sides],
        )
    )
    return table(
        ["median over iterations", "here", *(["TRL", "here / TRL"] if c.trl is not None else [])],
        rows,
    )


def limit_table(c: Comparison) -> str:
    """Return work, limit and the fraction of the limit that each side reaches, by stage."""
    sides = [c.ours] if c.trl is None else [c.ours, c.trl]
    rows = []
    for stage, needs in c.needs(c.ours).items():
        work = [
            mean(need.flops for need in needs) / 1e9,
            mean(need.bytes for need in needs) / 1e9,
            mean(need.seconds for need in needs),
        ]
        rows.append(
            [stage, *map(number, work), *(f"{c.reached(side, stage):.0%}" for side in sides)]
        )
    text = table(
        [
            "stage",
            "GFLOP",
            "GB",
            "limit, s",
            *(f"reached {name}" for name in ("here", "by TRL")[: len(sides)]),
        ],
        rows,
    )
    if any(c.reached(side, stage) > 1 for side in sides for stage in ("rollout", "update")):
        reason = (
            "equal beginnings of rows, which count in each row, were computed once, or the rates "
            "were measured on a busy machine"
        )
        text += f"\n\n**More than 100 %: {reason}.**"
    return text


def section(c: Comparison) -> str:
    """Return the section of one workload."""
    dtype = "bfloat16" if c.workload.bfloat16 else "float32"
    products = (
        f"{c.rates.update_flops / 1e9:,.0f} GFLOP/s in the update's, "
        f"{c.rates.decode_flops / 1e9:,.0f} in those of a decode step"
    )
    rates = (
        f"Measured in this run: products of {dtype} matrices {products}; copies "
        f"{c.rates.copy_bytes / 1e9:.3g} GB/s."
    )
    runs = (
        f"{len(c.ours.runs)} processes of each side, {len(c.ours.runs[0].records)} iterations "
        f"each after {c.workload.warmup} for warm-up."
    )
    return "\n\n".join(
        [
            f"## {c.workload.name}: {c.workload.title}",
            runs,
            comparison_table(c),
            rates,
            limit_table(c),
        ]
    )


def describe_machine() -> str:
    """Return processor, memory, threads and accelerator."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = re.search(r"model name\s*: (.*)", text)
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*: (.*)", text, re.M)).split())
    parts = [
        name[1].strip() if name else platform.processor() or platform.machine(),
        f"{os.cpu_count()} cores",
        f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        f"{torch.get_num_threads()} threads of torch",
        *([" ".join(flag for flag in MATRIX_FLAGS if flag in flags)] if flags else []),
        *([torch.cuda.get_device_name()] if torch.cuda.is_available() else []),
    ]
    return ", ".join(parts)


def describe_versions() -> str:
    """Return the versions of Python and of the libraries, and the commit."""
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return ", ".join(
        versions + ([f"commit {commit.stdout.strip()}"] if commit.returncode == 0 else [])
    )


def warn_of_load(load: float, cores: int) -> str:
    """Return a warning if the machine was busy before the run, else an empty text. `load`:
    processes that ran, over the last minute."""
    return (
        "**The machine was busy before the run: its figures are not to be trusted.**"
        if load > cores / 4
        else ""
    )


def noted() -> Mapping[str, str]:
    """Return what is noted before a run: date, machine, its load, and versions."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return {
        "Date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "Machine": describe_machine(),
        "Load average before": f"{load} {warn_of_load(os.getloadavg()[0], os.cpu_count() or 1)}".strip(),
        "Versions": describe_versions(),
    }


PLACES = ("--out", "--vllm")
"""Options that name a place on the machine: they change no result."""


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command for a page, without the options of `PLACES`."""
    kept = [
        text
        for before, text in zip(("", *arguments), arguments, strict=False)
        if before not in PLACES and text.partition("=")[0] not in PLACES
    ]
    return shlex.join(["python", "-m", module, *kept])


def page(title: str, command: str, start: Mapping[str, str], sections: Sequence[str]) -> str:
    """Return a page of results. `start`: what was noted before the run, by name."""
    lines = [f"- {name}: {value}" for name, value in {"Command": f"`{command}`", **start}.items()]
    return (
        "\n\n".join(
            [f"# {title}", "\n".join(lines), *sections, "How to read it: docs/performance.md."]
        )
        + "\n"
    )
