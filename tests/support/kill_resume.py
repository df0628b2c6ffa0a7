"""Kills training at random moments and lets it go on: `python -m tests.support.kill_resume [-n
KILLS] [-s SEED] [-f FOLDER] OVERRIDE...`.

Each run is killed once, with all its processes and without warning: every other one at a random
moment, the rest while they write a checkpoint. What it then ends in must be what a run ends in that
nobody killed, bit by bit."""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from tests.support.processes import Process
from tests.support.tiny_setup import untimed

QUICK = (
    "logger=none",
    "callbacks.checkpoint.every=1",
    "validation.max_prompts=8",
    "validation.every=3",
)


@contextmanager
def training(folder: Path, typed: Sequence[str]) -> Iterator[Process]:
    """The command, in a session of its own, so that it can be killed with all that it starts."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = ["train.py", *QUICK, *typed, f"run_dir={folder}", "resume=auto"]
    process = Process(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, merge=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(folder: Path, typed: Sequence[str]) -> float:
    """Train to the end. Seconds from the first sign of life of the run directory."""
    with training(folder, typed) as process:
        began = _appears(folder / "config.yaml", process)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output[-3000:]
        return time.monotonic() - began


def interrupt(folder: Path, typed: Sequence[str], delay_s: float, saving: bool) -> str:
    """Train for so long, or from then to the next checkpoint that is under way, and kill. What was
    there to see."""
    with training(folder, typed) as process:
        began = _appears(folder / "config.yaml", process)
        while time.monotonic() - began < delay_s and process.poll() is None:
            time.sleep(0.001)
        while (
            saving and process.poll() is None and not list((folder / "checkpoints").glob(".*.tmp"))
        ):
            pass
        half = [path.name for path in (folder / "checkpoints").glob(".*.tmp")]
        kill(process)
    whole = sorted(path.name for path in (folder / "checkpoints").glob("*.ckpt"))
    return (
        f"{delay_s:5.2f} s: newest "
        f"{whole[-1] if whole else 'none'}{', half a checkpoint' if half else ''}"
    )


def _appears(path: Path, process: Process) -> float:
    before = path.stat().st_mtime if path.exists() else 0.0
    deadline = time.monotonic() + 120
    while (not path.exists() or path.stat().st_mtime == before) and not before:
        assert process.poll() is None, "training ended before it began"
        assert time.monotonic() < deadline, "training does not begin"
        time.sleep(0.001)
    return time.monotonic()


def result(folder: Path) -> dict[str, Any]:
    """All that a run leaves, less its clock."""
    newest = sorted((folder / "checkpoints").glob("iteration_*.ckpt"))[-1]
    content = torch.load(newest, weights_only=True)
    kept = {
        name: content[name]
        for name in ("state_dict", "optimizer_states", "lr_schedulers", "rlmods", "iteration")
    }
    kept["scaler"] = content.get("ScaledFloat16")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = {path.name: path.read_text() for path in (folder / "samples").glob("*.jsonl")}
    weights = (folder / "export" / "model.safetensors").read_bytes()
    return {
        "checkpoint": newest.name,
        **kept,
        "metrics": untimed(rows),
        "samples": samples,
        "export": weights,
    }


def differing(a: Any, b: Any, where: str = "") -> list[str]:
    """Places at which two results are not the same to the last bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = (
            a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        )
        return [] if same else [where]
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            w
            for key in {*a, *b}
            for w in differing(a.get(key, "-"), b.get(key, "-"), f"{where}/{key}")
        ]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [
            w
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for w in differing(x, y, f"{where}/{i}")
        ]
    return [] if type(a) is type(b) and bool(a == b) else [where]


def survive(folder: Path, typed: Sequence[str], num_kills: int, seed: int = 0) -> list[str]:
    """One line a kill.

    Raises:
        AssertionError: a run that went on has ended elsewhere.
    """
    duration_s = finish(folder / "straight", typed)
    straight, random_ = result(folder / "straight"), random.Random(seed)
    lines = [f"uninterrupted: {duration_s:.2f} s"]
    for i in range(num_kills):
        run = folder / f"killed_{i:02d}"
        seen = interrupt(
            run, typed, random_.uniform(0, duration_s * (0.7 if i % 2 else 1.0)), saving=i % 2 == 1
        )
        finish(run, typed)
        wrong = differing(straight, result(run))
        assert not wrong, f"kill {i} ({seen}): {wrong[:5]}"
        lines.append(f"kill {i:2d} after {seen}: equal")
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("-s", type=int, default=0)
    parser.add_argument("-f", type=Path, default=Path(tempfile.gettempdir()) / "kills")
    arguments, overrides = parser.parse_known_args()
    print("\n".join(survive(arguments.f, overrides, arguments.n, arguments.s)[:1]))
