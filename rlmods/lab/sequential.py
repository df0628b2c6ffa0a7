"""Train runs in processes of their own: more seeds of two groups until their difference is decided
(`rlmods.compare --sequential`)."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rlmods.errors import UserError
from rlmods.lab.groups import Group
from rlmods.lab.statistics import Interval, SequentialTest
from rlmods.run import settings
from rlmods.run.name import member_name
from rlmods.run.saved import SavedRun

TRAIN = (sys.executable, "-m", "rlmods.cli.train")
REACHING = re.compile(
    r"^-|_target_|\$\{|\bhydra\b|\bcallbacks\.\w+\.path\b|"
    rf"\b({'|'.join(settings.REACHING)}|tools)\s*[.=:]"
)
"""Overrides that reach beyond the process: they may execute code, write files elsewhere or send
data. They are repeated with `--trust` only."""


def decide(
    a: Group,
    b: Group,
    test: SequentialTest,
    metric: str,
    last: int,
    train: Callable[[SavedRun, int], SavedRun],
) -> tuple[Interval, list[int]]:
    """Add seeds to two groups until the test decides. Return the interval of `b - a`, and the seeds
    that were used.

    Args:
        train: trains a run of the settings of another with a seed, or returns it if it is finished.

    Raises:
        UserError: a run fails or lacks the metric.
    """
    differences: list[float] = []
    seeds = seeds_of(a, b, test.last)
    for n, seed in enumerate(seeds, 1):
        results = [_result(group, seed, metric, last, train) for group in (a, b)]
        differences.append(results[1] - results[0])
        interval = test(differences)
        bounds = ""
        if interval.is_bounded:
            bounds = f", from {interval.low:+.4f} to {interval.high:+.4f}"
        print(f"{n} of at most {test.last} seeds: {interval.mean:+.4f}{bounds}", flush=True)
        if n >= test.first and test.decides(differences):
            break
    return interval, seeds[:n]


def seeds_of(a: Group, b: Group, count: int) -> list[int]:
    """Return the seeds in the order of the tests: the seeds of the runs that are not in 1, ...,
    `count`, then these. Added runs do not change it, so that the same command goes on with the same
    tests."""
    added = range(1, count + 1)
    own = {run.seed for run in (*a.runs, *b.runs) if isinstance(run.seed, int)}
    return [*sorted(own - set(added)), *added][:count]


def _result(
    group: Group,
    seed: int,
    metric: str,
    last: int,
    train: Callable[[SavedRun, int], SavedRun],
) -> float:
    run = group.by_seed.get(seed)
    if run is None or run.exit != "finished":
        recorded = [run for run in group.runs if run.overrides is not None]
        run = train((recorded or group.runs)[0], seed)
    value = run.result(metric, last)
    if value is None:
        raise UserError(f"--metric {metric}: {run.path} has no value of it")
    return value


def train(like: SavedRun, seed: int, *, trust: bool = False) -> SavedRun:
    """Train the command of a run with another seed, in a folder beside it; continue it if it was
    interrupted. `trust`: also if it has overrides that reach beyond the process (`REACHING`).

    Raises:
        UserError: the run has not recorded its command, or training fails.
        KeyboardInterrupt: training was interrupted.
    """
    if like.overrides is None:
        raise UserError(
            f"{like.path}: its summary.json has no overrides, as of a run that has not ended; "
            "train more seeds by hand: seed=1,2,3"
        )
    reaching = [override for override in like.overrides if REACHING.search(override)]
    if reaching and not trust:
        raise UserError(
            f"{like.path}: its command has {reaching[0]}, which may reach beyond the process: if "
            "you trust it, type --trust"
        )
    replaced = ("seed", "run_dir", "resume")
    kept = [x for x in like.overrides if x.lstrip("+~").split("=")[0] not in replaced]
    overrides = [*kept, f"seed={seed}"]
    name, had_seed = re.subn(rf"(?<![^,])seed={like.seed}(?![^,])", f"seed={seed}", like.path.name)
    folder = like.path.parent / (name if had_seed else member_name(overrides))
    run = SavedRun(folder)
    if run.exit == "finished":
        return run
    print(f"training {shlex.join(['train.py', *overrides])}", flush=True)
    reason = train_run(overrides, folder)
    if reason:
        log = log_file(folder)
        raise UserError(f"training failed: {reason} (all of it is in {log})")
    return SavedRun(folder)


def train_run(overrides: Sequence[str], folder: Path, **environment: str) -> str:
    """Train a run in a process of its own, or continue it, with variables added to the environment.
    Return "" if it finished, else the last line that it printed.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = log_file(folder)
    words = [*TRAIN, *overrides, f"run_dir='{folder.absolute()}'", "resume=auto"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C has reached it too: it saves and ends
        raise
    if status == 0:
        return ""
    if status in (75, 130):
        raise KeyboardInterrupt
    lines = log.read_text(errors="replace").split("\n")
    last = [line for line in lines if line.strip()][-1:] or [f"status {status}"]
    return last[0].removeprefix("error: ")


def log_file(folder: Path) -> Path:
    """Return the file with the output of `train_run`."""
    return folder.with_name(f".{folder.name}.log")
