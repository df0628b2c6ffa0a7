"""Processes that train together, as torchrun would start them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from tests.support.processes import Process


def start(module: str, arguments: Sequence[str], num_ranks: int = 2, more: Mapping[str, str] | None = None) -> list[Process]:
    """`python -m module arguments` on every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    shared |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"} | dict(more or {})
    environments = [os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    return [Process(["-m", module, *arguments], env=environment, merge=True) for environment in environments]


def run(module: str, arguments: Sequence[str], num_ranks: int = 2, timeout_s: float = 300.0) -> None:
    """Until all are done; what the one that failed said is the message."""
    processes = start(module, arguments, num_ranks)
    try:
        for process in processes:
            said, _ = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, said[-4000:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
