"""Processes that train together, as torchrun would start them."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support.processes import Process


def start(
    module: str, arguments: Sequence[str], num_ranks: int = 2, more: Mapping[str, str] | None = None
) -> list[Process]:
    """`python -m module arguments` on every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    shared |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"} | dict(
        more or {}
    )
    environments = [
        os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(num_ranks)
    ]
    return [
        Process(["-m", module, *arguments], env=environment, merge=True)
        for environment in environments
    ]


def spawn(function: Callable[[int], None], num_ranks: int = 2) -> None:
    """Call `function(rank)` in a process group of new processes, forked from the server of
    `tests.support.processes`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = mp.start_processes(
        _on_rank,
        (function, port, num_ranks),
        nprocs=num_ranks,
        join=False,
        start_method="forkserver",
    )
    assert processes is not None
    while not processes.join(timeout=60):
        pass


def _on_rank(rank: int, function: Callable[[int], None], port: int, num_ranks: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks
    )
    function(rank)
    dist.barrier()  # a rank that is done must not take the connection from one that still computes
    dist.destroy_process_group()


def run(
    module: str, arguments: Sequence[str], num_ranks: int = 2, timeout_s: float = 300.0
) -> None:
    """Until all are done; what they said is the message if one fails."""
    processes = start(module, arguments, num_ranks)
    try:
        said = [process.communicate(timeout=timeout_s)[0] for process in processes]
        codes = [process.returncode for process in processes]
        messages = [
            f"rank {i} ended with {code}:\n{text[-4000:]}"
            for i, (code, text) in enumerate(zip(codes, said, strict=True))
        ]
        assert not any(codes), "\n".join(messages)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
