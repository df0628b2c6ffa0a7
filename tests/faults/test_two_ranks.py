"""What befalls one rank is decided by all: none waits for another for ever."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_ranks_agree(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    ranks = []
    for rank in ("0", "1"):
        own = {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.faults.two_ranks", str(tmp_path)]
        ranks.append(subprocess.Popen(command, env=os.environ | shared | own, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
    try:
        for process in ranks:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said.decode()[-3000:]
    finally:
        for process in ranks:
            process.kill()
    first, second = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    why = "iteration 1 was not saved (No space left on device): the run goes on, there is no checkpoint"
    assert first == {"iteration": 3, "status": 75, "failures": 1, "said": [why]}
    assert second == {**first, "said": []}
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["iteration_000002.ckpt", "iteration_000003.ckpt"]
