"""Train every algorithm on the embedded model with three seeds: `python bench/algorithms.py FOLDER
[JOBS]`. About an hour on two CPU cores.

A run is the command in its row of the table with `seed=`, `run_dir=` and `resume=auto`; JOBS runs
at a time share the cores. Finished runs are not repeated. Writes `docs/algorithms.md` when all runs
have finished."""

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
HEADER = """# Algorithms on the embedded model

`policy=tiny data=arithmetic`, 200 held-out questions: mean and standard deviation over seeds 1, 2 and 3, each run on one CPU core. All runs
start from the same weights. They are short and not tuned: they show that each algorithm learns, not which one is best. Recipes make as many
optimizer steps from an iteration as their papers do, but at most one for every 64 responses: DAPO and CISPO make 4 here and 16 in their
papers, GSPO, SAPO and GMPO 4 in both. Minutes are wall time, including pauses. `python bench/algorithms.py FOLDER 2` writes this page.

| `python train.py` | measured | before | after | best | minutes |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A row of the table: the command and the metric that is reported."""

    command: str
    metric: str = "val/accuracy"

    @property
    def name(self) -> str:
        """Option of the first override, which names the run's folder."""
        return self.command.split()[0].split("=")[1]


OTHERS = (
    Row("algo=online_dpo optimizer.lr=1e-4 trainer.max_iterations=40"),
    Row("algo=dpo batch.prompts=64 optimizer.lr=5e-5 trainer.max_iterations=120"),
    Row("algo=sft optimizer.lr=1e-4 trainer.max_iterations=40"),
    Row("experiment=tiny_reward_model", "val/pair_accuracy"),
    Row("experiment=tiny_process_reward_model", "val/step_accuracy"),
)
"""Algorithms with a command of their own."""
NOT_MEASURED = ("policy_gradient", "iterative_grpo", "distill", "gkd", "sdpo", "arpo")
"""No recipe, or one that needs a reward model, a teacher or an environment."""


def online() -> list[str]:
    """Return the names of the other algorithms."""
    excluded = {*NOT_MEASURED, *(row.name.removeprefix("tiny_") for row in OTHERS)}
    names = {path.stem for path in (ROOT / "conf/algo").glob("*.yaml")}
    return sorted(names - excluded)


ROWS = (*(Row(f"algo={name} trainer.max_iterations=40") for name in online()), *OTHERS)


def run(row: Row, seed: int, folder: Path, threads: int) -> None:
    """Run one command, or resume it if it was interrupted. Skips a finished run."""
    job_folder = folder / f"{row.name}-{seed}"
    if is_finished(job_folder):
        return
    job_folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        *row.command.split(),
        f"seed={seed}",
        f"run_dir={job_folder}/run",
        "resume=auto",
    ]
    with (job_folder / "out.log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        process = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
        )
    print(
        f"{row.command} seed={seed}: "
        + ("done" if process.returncode == 0 else f"failed, see {job_folder}/out.log"),
        flush=True,
    )


def is_finished(job_folder: Path) -> bool:
    """Return True if the run in this folder ended normally."""
    summary = job_folder / "run" / "summary.json"
    return summary.is_file() and json.loads(summary.read_text())["exit"] == "finished"


def table_line(row: Row, folder: Path) -> str:
    """Return a row of the table in Markdown: first, last and best value of the metric, and
    minutes."""
    runs = [
        [
            json.loads(x)
            for x in (folder / f"{row.name}-{seed}/run/metrics.jsonl").read_text().splitlines()
        ]
        for seed in SEEDS
    ]
    curves = [[entry[row.metric] for entry in entries if row.metric in entry] for entries in runs]
    before, after, best = (
        mean_and_std([pick(curve) for curve in curves])
        for pick in (lambda c: c[0], lambda c: c[-1], max)
    )
    minutes = fmean(entries[-1]["wall_s"] for entries in runs) / 60
    return f"| `{row.command}` | {row.metric} | {before} | {after} | {best} | {minutes:.1f} |\n"


def mean_and_std(values: list[Any]) -> str:
    """Return `mean ± standard deviation`."""
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def main(folder: Path, jobs: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        jobs_left = [pool.submit(run, row, s, folder, threads) for row in ROWS for s in SEEDS]
        for job in jobs_left:
            job.result()
    missing = [
        f"{row.name}-{seed}"
        for row in ROWS
        for seed in SEEDS
        if not is_finished(folder / f"{row.name}-{seed}")
    ]
    if missing:
        sys.exit(
            f"the table is not written because these runs have not finished: {', '.join(missing)}"
        )
    (ROOT / "docs/algorithms.md").write_text(
        HEADER + "".join(table_line(row, folder) for row in ROWS)
    )


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
