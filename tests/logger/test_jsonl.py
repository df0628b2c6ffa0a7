import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.logger import JsonlLogger


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_writes_one_line_per_call(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    log = JsonlLogger(path)
    log.log_metrics({"val/accuracy": 0.5}, step=0)
    log.log_metrics(
        {
            "train/b": torch.tensor(2.0),
            "optimizer_step": 4,
            "train/a": math.nan,
            "wall_s": 7.5,
            "train/c": -math.inf,
        },
        step=1,
    )
    first, second = rows(path)
    assert first["wall_s"] >= 0
    assert first == {
        "iteration": 0,
        "optimizer_step": None,
        "wall_s": first["wall_s"],
        "val/accuracy": 0.5,
    }
    assert list(second.items()) == [
        ("iteration", 1),
        ("optimizer_step", 4),
        ("wall_s", 7.5),
        ("train/a", None),
        ("train/b", 2.0),
        ("train/c", None),
    ]


def test_resuming_deletes_later_rows_and_continues_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = JsonlLogger(path)
    for step in (0, 1, 2, 2, 3):
        log.log_metrics({"wall_s": 10.0 * step}, step=step)
    with path.open("a") as file:
        file.write('{"iteration": 4, "wall')  # the process was killed
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    resumed = JsonlLogger(path, after=2)
    assert [row["iteration"] for row in rows(path)] == [0, 1, 2, 2]
    monkeypatch.setattr(time, "monotonic", lambda: now + 1.5)
    resumed.log_metrics({}, step=3)
    assert rows(path)[-1]["wall_s"] == 21.5


def test_starting_from_scratch_deletes_all_rows(tmp_path: Path) -> None:
    JsonlLogger(tmp_path / "metrics.jsonl").log_metrics({}, step=0)
    JsonlLogger(tmp_path / "metrics.jsonl", after=-1)
    assert rows(tmp_path / "metrics.jsonl") == []


def test_broken_lines_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = '{"iteration": 1, "wall_s": 1}\n{"iteration": 2, "wall_s": 2}'
    path.write_text(f'{whole}\n{{broken\n{{"iteration": 3}}\n{{"itera')
    JsonlLogger(path, after=2)
    assert path.read_text() == f"{whole}\n"
    path.write_text(whole)
    JsonlLogger(path, after=2)
    assert path.read_text() == f"{whole}\n", "adds a missing newline"
