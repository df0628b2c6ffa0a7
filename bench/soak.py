"""Watches a long run from outside: `python -m bench.soak [-n ITERATIONS] [-f FOLDER]
OVERRIDE...`.

Memory, descriptors, threads and processes must not grow, and an iteration must not get slower: the
last quarter is held against the second one, as the first still fills caches. Ends with status 1
where something does."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = {
    "memory_mb": 1.03,
    "descriptors": 1.0,
    "threads": 1.0,
    "processes": 1.0,
    "iteration_s": 1.1,
}
"""How much of the earlier median the later one may be."""


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        tasks = [
            Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")
        ]
        children = [int(child) for path in tasks for child in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(below for child in children for below in family(child))]


def reading(pid: int) -> dict[str, float] | None:
    """What the family holds at this moment; None where a member has just ended."""
    members = family(pid)
    try:
        status = [Path(f"/proc/{member}/status").read_text() for member in members]
        descriptors = sum(len(os.listdir(f"/proc/{member}/fd")) for member in members)
    except (FileNotFoundError, ProcessLookupError):
        return None
    facts = [dict(line.split(":", 1) for line in text.splitlines()) for text in status]
    if not facts or any("VmRSS" not in fact for fact in facts):
        return None
    return {
        "memory_mb": sum(int(fact["VmRSS"].split()[0]) for fact in facts) / 1024,
        "descriptors": descriptors,
        "threads": sum(int(fact["Threads"]) for fact in facts),
        "processes": len(members),
    }


def soak(
    folder: Path, typed: Sequence[str], num_iterations: int, pause_s: float = 1.0
) -> dict[str, tuple[float, float]]:
    """Medians of the second quarter and of the last, by what was watched."""
    command = [
        sys.executable,
        "train.py",
        *typed,
        f"trainer.max_iterations={num_iterations}",
        f"run_dir={folder}",
    ]
    readings: list[tuple[int, dict[str, float]]] = []
    """With the iterations completed by then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
        )
        while process.poll() is None:
            if found := reading(process.pid):
                readings.append((len(iterations(folder)), found))
            time.sleep(pause_s)
    assert process.returncode == 0, (folder.parent / f"{folder.name}.log").read_text()[-2000:]
    spans = [(i * num_iterations // 4, (i + 1) * num_iterations // 4 - 1) for i in (1, 3)]
    seconds = iterations(folder)
    medians = {"iteration_s": [statistics.median(seconds[low:high]) for low, high in spans]}
    for name in readings[0][1]:
        medians[name] = [
            statistics.median(held[name] for at, held in readings if low <= at <= high)
            for low, high in spans
        ]
    return {name: (early, late) for name, (early, late) in medians.items()}


def iterations(folder: Path) -> list[float]:
    """Seconds that each has taken."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row["time/iteration_s"] for row in rows if "time/iteration_s" in row]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("-f", type=Path, default=Path(tempfile.gettempdir()) / "soak" / "run")
    arguments, overrides = parser.parse_known_args()
    grown = []
    for name, (early, late) in soak(arguments.f, overrides, arguments.n).items():
        print(f"{name:12} {early:10.3f} {late:10.3f}  x {late / early:.3f}")
        if late > BOUNDS[name] * early:
            grown.append(name)
    sys.exit(f"grown: {', '.join(grown)}" if grown else None)
