"""Run directories with made-up results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PARTS = {"algo": "dapo", "ratio": "clip_higher", "data": "arithmetic"}


def write_run(
    folder: Path,
    accuracies: Sequence[float | None],
    *,
    seed: int = 1,
    parts: Mapping[str, str] = {},
    settings: Mapping[str, Any] = {},
    correct: Mapping[str, bool | None] = {},
    exit: str | None = "finished",
    overrides: Sequence[str] | None = (),
    metrics: Mapping[str, float] = {},
) -> Path:
    """Write a run with these validations, one after each iteration."""
    (folder / "samples").mkdir(parents=True)
    parts = PARTS | parts
    config = {
        "seed": seed,
        "run_dir": str(folder),
        "algo": {"name": parts["algo"]},
        "ratio": {"_target_": parts["ratio"]},
        "trainer": {"precision": "32-true", "max_iterations": len(accuracies) - 1},
        "callbacks": {"samples": {"path": f"{folder}/samples"}},
        **settings,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        {"iteration": i, "wall_s": float(i), "val/accuracy": x, **metrics}
        for i, x in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    samples = [{"id": name, "correct": x, "temperature": 0.0} for name, x in correct.items()]
    (folder / f"samples/validation_{len(accuracies) - 1:06d}.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in samples)
    )
    known = [x for x in accuracies if x is not None]
    accuracy = (
        {"first": known[0], "best": max(known), "last": known[-1]}
        if known
        else dict.fromkeys(("first", "best", "last"))
    )
    summary = {
        "label": parts["algo"],
        "algo": parts["algo"],
        "parts": parts,
        "iterations": len(rows) - 1,
        "val/accuracy": accuracy,
    }
    if exit is not None:
        extra = {
            "wall_s": 1.0,
            "response_tokens": 10,
            "peak_memory_mb": 1.0,
            "exit": exit,
            "seed": seed,
        }
        recorded = {} if overrides is None else {"overrides": list(overrides)}
        (folder / "summary.json").write_text(json.dumps(summary | extra | recorded))
    return folder
