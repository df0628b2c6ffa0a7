"""Faults of one of two ranks: both handle them alike, and neither waits forever."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


class TestLostRank:
    """The other rank ends within a minute, and says so in one line."""

    @pytest.fixture
    def lose(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, int], str]:
        """Return a function that injects a fault on one rank and returns the output of that
        rank."""

        def lose(fault: str, lost: int) -> str:
            row = ROWS[request.node.originalname.removeprefix("test_")]
            processes = ranks.start("tests.faults.lost_ranks", [fault, str(tmp_path), str(lost)])
            outputs: list[Any] = ["", ""]
            try:
                for rank in (1 - lost, lost):
                    outputs[rank], _ = processes[rank].communicate(timeout=60)
            finally:
                for process in processes:
                    process.kill()
                    process.communicate()
            assert processes[1 - lost].returncode == row.status
            assert re.search(row.pattern(), outputs[1 - lost], re.MULTILINE), outputs[1 - lost]
            return str(outputs[lost])

        return lose

    @pytest.mark.parametrize("lost", [0, 1])
    def test_rank_dies(self, lose: Any, lost: int, tmp_path: Path) -> None:
        lose("die", lost)
        if lost == 1:
            exit = json.loads((tmp_path / "summary.json").read_text())["exit"]
            assert exit.startswith("failed: ")

    def test_rank_fails(self, lose: Any) -> None:
        assert "error: the reward cannot go on: type reward=format" in lose("fail", 1)

    def test_rank_hangs(self, lose: Any) -> None:
        stacks = lose("hang", 1)
        assert "Timeout (0:00:03)!" in stacks
        assert "in hang" in stacks
