"""Plant one-line changes, each in a run of two iterations, and count in how many `rlmods.diff`
names the change.

    python -m tests.support.planted

The changes are settings, and lines of source files in a copy of the repository. Prints one line per
change, and exits with status 1 if one is not named."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rlmods.cli import job
from rlmods.cli.command import configuration
from rlmods.lab.diff import diff
from rlmods.run.directory import RUN_DIR_VARIABLE, release

ROOT = Path(__file__).parents[2]
BASE = (
    "algo=grpo",
    "sampling=fixed",
    "data.num_train=16",
    "data.num_val=4",
    "batch.prompts=4",
    "batch.samples=4",
    "batch.minibatches=2",
    "rollout.max_tokens=8",
    "optimizer.lr=0.0003",
    "trainer.accelerator=cpu",
    "trainer.max_iterations=2",
    "callbacks.checkpoint.every=1",
    "callbacks.checkpoint.keep=0",
    "callbacks.samples.print_every=0",
    "~logger.tensorboard",
    "~logger.csv",
)
SETTINGS = {
    "seed=2": "seed",
    "data.level=1": "data.level",
    "data.seed=1": "data.seed",
    "rollout.temperature=0.9": "rollout.temperature",
    "rollout.top_p=0.9 correction=truncated": "rollout.top_p",
    "rollout.max_tokens=5": "rollout.max_tokens",
    "batch.samples=8": "batch.samples",
    "reward.terms.accuracy.weight=0.5": "reward.terms.accuracy.weight",
    "reward.terms.accuracy.reward.wrong=-0.5": "reward.terms.accuracy.reward.wrong",
    "advantage=group_mean": "advantage",
    "advantage.unbiased=false": "advantage.unbiased",
    "ratio=none": "ratio",
    "aggregation=token_mean": "aggregation",
    "optimizer.lr=0.0002": "optimizer.lr",
    "optimizer.betas=[0.9,0.95]": "optimizer.betas.1",
    "schedule.warmup=5": "schedule.warmup",
    "validation.max_prompts=2": "validation.max_prompts",
}
"""Overrides, and the setting to name."""
SOURCES = {
    "rlmods/advantage/group_norm.py": ("self.eps", "(2 * self.eps + 0.1)"),
    "rlmods/aggregation/sequence_mean.py": ("totals.sequences", "(totals.sequences + 1)"),
    "rlmods/reward/format.py": ("float(has_format(", "0.9 * float(has_format("),
}
"""Source files, and a line of each before and after."""


def train(folder: Path, *overrides: str) -> Path:
    """Train in this process, and return the run directory."""
    os.environ[RUN_DIR_VARIABLE] = ""
    words = [*BASE, *overrides, f"run_dir={folder}"]
    job.train(configuration(words), {}, words)
    release(folder)
    return folder


def train_copy(folder: Path, file: str, old: str, new: str) -> Path:
    """Train in a copy of the repository in which a line is changed."""
    copy = folder.with_name(f"{folder.name}_code")
    for name in ("rlmods", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", copy)
    content = (copy / file).read_text()
    assert old in content, f"{file} has no {old}"
    head, _, tail = content.rpartition(old)
    (copy / file).write_text(head + new + tail)
    environment = os.environ | {"PYTHONPATH": str(copy), RUN_DIR_VARIABLE: ""}
    subprocess.run(
        [sys.executable, "train.py", *BASE, f"run_dir={folder}"],
        cwd=copy,
        env=environment,
        check=True,
        capture_output=True,
    )
    return folder


def named(base: Path, changed: Path, name: str) -> bool:
    """Return whether the most likely cause is `name`, and print it."""
    parting, causes = diff(base, changed)
    is_named = parting is not None and bool(causes) and causes[0].name == name
    where = (
        "nowhere"
        if parting is None
        else f"iteration {parting.iteration}, {parting.stage}: {parting.where}"
    )
    print(
        f"{'named' if is_named else 'MISSED':7} {name:42} {where}; "
        f"{causes[0] if causes else 'no cause'}",
        flush=True,
    )
    return is_named


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        base, found = train(folder / "base"), []
        for i, (overrides, name) in enumerate(SETTINGS.items()):
            found.append(named(base, train(folder / f"setting_{i}", *overrides.split()), name))
        for i, (file, change) in enumerate(SOURCES.items()):
            found.append(named(base, train_copy(folder / f"source_{i}", file, *change), file))
    print(f"{sum(found)} of {len(found)} changes are named")
    sys.exit(sum(found) < len(found))
