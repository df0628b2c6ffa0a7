"""Worker extension of a vLLM server without GPUs: its weight transfer engine for NCCL, with gloo.

vLLM imports this module in each of its workers (`--worker-extension-cls`). All of vLLM's engine
runs, except what needs a GPU: its communicator and streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from tests.rollout.gloo import GlooCommunicator


class Stream:
    def synchronize(self) -> None: ...


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    yield


def join(group_id: bytes, rank: int, size: int, device: int) -> GlooCommunicator:
    return GlooCommunicator(group_id, rank, size)


def streams(device: int, count: int) -> tuple[Any, ...]:
    return tuple(Stream() for _ in range(count))


nccl_common.uid_init_process_group = join
packed_tensor._get_streams = streams
torch.cuda.stream = on_stream
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = lambda *device: None


class Extension:
    """What vLLM asks for: nothing is added to its workers."""
