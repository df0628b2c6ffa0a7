"""What befalls one rank is decided or survived by all: none waits for another for ever."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ranks
from tests.faults.rows import ROWS

pytestmark = pytest.mark.slow


def test_ranks_agree(tmp_path: Path) -> None:
    ranks.run("tests.faults.two_ranks", [str(tmp_path)], timeout_s=120)
    first, second = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    why = "iteration 1 was not saved (No space left on device): the run goes on, there is no checkpoint"
    assert first == {"iteration": 3, "status": 75, "failures": 1, "said": [why]}
    assert second == {**first, "said": []}
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["iteration_000002.ckpt", "iteration_000003.ckpt"]


class TestLostRank:
    """The other one ends within a minute, whatever it was waiting for, and says who was lost, and where."""

    @pytest.fixture
    def lose(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, int], str]:
        """Comes to grief in some way, on some rank; what that rank says."""

        def lose(how: str, lost: int) -> str:
            row = ROWS[request.node.name.removeprefix("test_")]
            processes = ranks.start("tests.faults.lost_ranks", [how, str(tmp_path), str(lost)])
            said: list[Any] = ["", ""]
            try:
                said[1 - lost], _ = processes[1 - lost].communicate(timeout=60)
                if how == "stands_still":
                    processes[lost].kill()
                said[lost], _ = processes[lost].communicate(timeout=60)
            finally:
                for process in processes:
                    process.kill()
                    process.communicate()
            assert processes[1 - lost].returncode == row.status
            assert re.search(row.pattern(), said[1 - lost], re.MULTILINE), said[1 - lost]
            assert "Traceback" not in said[1 - lost]
            if lost == 1:
                assert json.loads((tmp_path / "summary.json").read_text())["exit"].startswith("failed: ")
            return str(said[lost])

        return lose

    def test_rank_dies(self, lose: Any) -> None:
        lose("dies", 1)

    def test_rank_fails(self, lose: Any) -> None:
        assert "error: the reward cannot go on: type reward=format" in lose("fails", 1)

    def test_rank_hangs(self, lose: Any) -> None:
        stacks = lose("hangs", 1)
        assert "stacks of rank 1:" in stacks
        assert "in hangs" in stacks

    def test_rank_stands_still(self, lose: Any) -> None:
        lose("stands_still", 1)

    def test_first_rank_dies(self, lose: Any) -> None:
        lose("dies", 0)
