"""Time and size of a report of many runs: `python -m tests.support.many_runs [FOLDER]`.

Writes 50 runs of 1,000 iterations (10 members of 5 seeds, 40 metrics, responses of 4 iterations),
builds their report, and opens it in headless Chromium. Prints CPU seconds of building, seconds
until the page is ready, and megabytes."""

from __future__ import annotations

import json
import math
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.browser import CHROMIUM, drive
from tests.support.saved_runs import write_run

NUM_MEMBERS, NUM_SEEDS, NUM_ITERATIONS, NUM_METRICS, NUM_PROMPTS, NUM_SAMPLES = (
    10,
    5,
    1000,
    40,
    32,
    8,
)


def write(folder: Path) -> None:
    """Write the runs."""
    for member in range(NUM_MEMBERS):
        for seed in range(NUM_SEEDS):
            generator = random.Random(f"{member} {seed}")
            run = write_run(
                folder / f"{member}_{seed}", [0.5], seed=seed, parts={"ratio": f"ratio_{member}"}
            )
            rows = []
            for i in range(1, NUM_ITERATIONS + 1):
                trend = 1 - math.exp(-i * (1 + member) / 2000)
                values = {
                    f"train/metric_{n}": trend + generator.gauss(0, 0.1)
                    for n in range(NUM_METRICS - 1)
                }
                rows.append({"iteration": i, "wall_s": 2.0 * i, **values})
                if i % 10 == 0:
                    rows.append({"iteration": i, "val/accuracy": trend + generator.gauss(0, 0.02)})
            (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            for i in (1, 300, 600, NUM_ITERATIONS):
                path = run / f"samples/iteration_{i:06d}.jsonl"
                path.write_text("".join(f"{json.dumps(row)}\n" for row in responses(generator)))


def responses(generator: random.Random) -> list[dict[str, object]]:
    """Return rows of the sample log."""
    rows = []
    for prompt in range(NUM_PROMPTS):
        for _ in range(NUM_SAMPLES):
            text, reward = (
                " ".join(
                    generator.choices(["so", "then", "12", "+", "is", "the", "answer"], k=100)
                ),
                float(generator.random() > 0.5),
            )
            row = {
                "id": f"p{prompt}",
                "prompt": "What is 12 + 30?",
                "answer": "42",
                "response": text,
                "tokens": list(range(100)),
            }
            rows.append(
                row
                | {
                    "finish": "stop",
                    "reward": reward,
                    "reward/accuracy": reward,
                    "advantage": reward - 0.5,
                    "kept": True,
                }
            )
    return rows


def main(folder: Path) -> None:
    if not (folder / "runs").exists():
        write(folder / "runs")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "rlmods.lab.report",
            str(folder / "runs"),
            "--out",
            str(folder / "report.html"),
        ],
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"built in {after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.1f} "
        "s of CPU"
    )
    html = (folder / "report.html").read_text()
    print(f"{len(html.encode()) / 1e6:.1f} MB")
    if CHROMIUM:
        found = drive(
            html, "result.ready = performance.now();", folder / "driven.html", virtual_time=False
        )
        print(f"open after {found['ready'] / 1000:.2f} s, {len(found['problems'])} problems")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
