"""Every algorithm on the embedded default, three seeds each: `python docs/algorithms.py FOLDER [JOBS]`; about an hour on two CPU cores.

Each run is the command in its row of the table, with `seed=` and `run_dir=` added; `JOBS` of them at a time, on one core each. Runs that
have finished are not run again. Writes `docs/algorithms.md` anew once none is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3)
HEADER = """# Every algorithm on the embedded default

`policy=tiny data=arithmetic`, 200 held-out sums; mean and standard deviation over seeds 1, 2 and 3, each run on one CPU core. The policy
starts at the same weights whatever the seed. One untuned run each, short enough for a laptop: they show that everything learns, not which
algorithm is best. A default iteration is a single optimizer step, in which the ratio is 1: gspo, sapo and gmpo, which differ in the ratio
alone, then take the same steps (`batch.minibatches=4` tells them apart). Made by `python docs/algorithms.py FOLDER 2`; minutes are wall
time, pauses included.

| `python train.py` | measured | before | after | best | minutes |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    command: str
    metric: str = "val/accuracy"

    @property
    def name(self) -> str:
        return self.command.split()[0].split("=")[1]


ONLINE = (
    "reinforce",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "sapo",
    "cispo",
    "gmpo",
    "rft",
)
ROWS = [
    *(Row(f"algo={name} trainer.max_iterations=40") for name in ("ppo", "ppo_kl", *ONLINE)),
    Row("algo=online_dpo optimizer.lr=1e-4 trainer.max_iterations=40"),
    Row("algo=dpo batch.prompts=64 optimizer.lr=5e-5 trainer.max_iterations=120"),
    Row("algo=sft optimizer.lr=1e-4 trainer.max_iterations=40"),
    Row("experiment=tiny_reward_model", "val/pair_accuracy"),
    Row("experiment=tiny_process_reward_model", "val/step_accuracy"),
]


def run(row: Row, seed: int, folder: Path, threads: int) -> None:
    """One command; a run that has finished stays as it is, one that was interrupted goes on."""
    where = folder / f"{row.name}-{seed}"
    if finished(where):
        return
    where.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "train.py"), *row.command.split(), f"seed={seed}", f"run_dir={where}/run", "resume=auto"]
    with (where / "out.log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
    print(f"{row.command} seed={seed}: " + ("done" if done.returncode == 0 else f"failed, see {where}/out.log"), flush=True)


def finished(where: Path) -> bool:
    summary = where / "run" / "summary.json"
    return summary.is_file() and json.loads(summary.read_text())["exit"] == "finished"


def line(row: Row, folder: Path) -> str:
    """The row of the table."""
    runs = [[json.loads(x) for x in (folder / f"{row.name}-{seed}/run/metrics.jsonl").read_text().splitlines()] for seed in SEEDS]
    curves = [[entry[row.metric] for entry in entries if row.metric in entry] for entries in runs]
    before, after, best = (numbers([pick(curve) for curve in curves]) for pick in (lambda c: c[0], lambda c: c[-1], max))
    minutes = fmean(entries[-1]["wall_s"] for entries in runs) / 60
    return f"| `{row.command}` | {row.metric} | {before} | {after} | {best} | {minutes:.1f} |\n"


def numbers(values: list[Any]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def main(folder: Path, jobs: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda job: run(*job, folder, threads), [(row, seed) for row in ROWS for seed in SEEDS]))
    missing = [f"{row.name}-{seed}" for row in ROWS for seed in SEEDS if not finished(folder / f"{row.name}-{seed}")]
    if missing:
        sys.exit(f"no table yet, as these have not finished: {', '.join(missing)}")
    (ROOT / "docs/algorithms.md").write_text(HEADER + "".join(line(row, folder) for row in ROWS))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
