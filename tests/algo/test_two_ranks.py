"""Two ranks take the step that one takes: denominators are global, and no rank waits for a gradient that never comes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .two_ranks import made
from .worlds import fit


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_one_step_is_the_same(critic: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    ranks = []
    for rank in ("0", "1"):
        own = {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.algo.two_ranks", str(tmp_path / "out.pt"), critic]
        ranks.append(subprocess.Popen(command, env=os.environ | shared | own, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
    try:
        for process in ranks:
            _, said = process.communicate(timeout=180)
            assert process.returncode == 0, said.decode()[-3000:]
    finally:
        for process in ranks:
            process.kill()
    two = torch.load(tmp_path / "out.pt", weights_only=True)
    alone, before = made(critic), made(critic).state_dict()
    [row] = fit(alone, 1)
    moved = 0.0
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        moved = max(moved, float((weight - before[name]).abs().max()))
    assert moved > 1e-3
    for name in ("train/reward", "train/kl_ref", "train/ptx_loss", "train/value_loss", "train/grad_norm", "train/response_tokens"):
        assert two["row"][name] == pytest.approx(row[name], rel=1e-4, abs=1e-6), name
