"""Faults of one of two ranks: both handle them alike, and neither waits forever."""

import json
import re
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.support import ranks

pytestmark = pytest.mark.slow


def test_faults_of_one_rank_are_handled_by_both(tmp_path: Path) -> None:
    ranks.run("tests.faults.two_ranks", [str(tmp_path)], timeout_s=120)
    first, second = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    message = (
        "iteration 1 was not saved (No space left on device): training continues, there is "
        "no checkpoint"
    )
    assert first == {"iteration": 3, "status": 75, "failures": 1, "warnings": [message]}
    assert second == {**first, "warnings": []}
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "iteration_000002.ckpt",
        "iteration_000003.ckpt",
    ]


@pytest.mark.parametrize(
    ("row", "fault", "lost", "output"),
    [
        ("rank_dies", "die", 0, ""),
        ("rank_dies", "die", 1, ""),
        ("rank_fails", "fail", 1, "error: the reward cannot go on: type reward=format"),
        ("rank_hangs", "hang", 1, "in hang"),
    ],
)
def test_the_other_rank_ends_within_a_minute_and_says_so(
    row: str, fault: str, lost: int, output: str, tmp_path: Path
) -> None:
    processes = ranks.start("tests.faults.lost_ranks", [fault, str(tmp_path), str(lost)])
    outputs = ["", ""]
    try:
        for rank in (1 - lost, lost):
            outputs[rank], _ = processes[rank].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[1 - lost].returncode == ROWS[row].status
    # of two ranks that wait, either one's time may be up first
    said = "".join(outputs) if fault == "hang" else outputs[1 - lost]
    assert re.search(ROWS[row].pattern(), said, re.MULTILINE), said
    assert output in outputs[lost]
    if fault == "die" and lost == 1:
        exit = json.loads((tmp_path / "summary.json").read_text())["exit"]
        assert exit.startswith("failed: ")
