"""gloo in place of NCCL, between processes of one machine: the same calls, in the same order."""

from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from torch.distributed.distributed_c10d import Work

from rlmods.rollout import broadcast
from rlmods.rollout.nccl import ID_BYTES

HOST = "127.0.0.1"
LIMIT = timedelta(seconds=60)

_stores: dict[bytes, TCPStore] = {}


def unique_id() -> bytes:
    """Return the id of a new group: the port at which its ranks meet."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    name = store.port.to_bytes(ID_BYTES, "little")
    _stores[name] = store
    return name


def _begin_broadcast(group: ProcessGroupGloo, x: Tensor) -> Work:
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return group.broadcast([x], options)


class GlooGroup:
    """`nccl.NCCLGroup`"""

    def __init__(self, group_id: bytes, size: int, device: torch.device) -> None:
        self._group = ProcessGroupGloo(_stores[group_id], 0, size, LIMIT)
        self._group.allreduce([torch.zeros(1)]).wait()
        self._work: Work | None = None

    def broadcast(self, x: Tensor) -> None:
        self._work = _begin_broadcast(self._group, x)

    def is_done(self) -> bool:
        assert self._work is not None
        return self._work.is_completed()

    def abort(self) -> None:
        self._work = None


class GlooCommunicator:
    """`PyNcclCommunicator` of vLLM, after `from_unique_id_bytes`."""

    def __init__(self, group_id: bytes, rank: int, size: int) -> None:
        port = int.from_bytes(group_id, "little")
        self._store = TCPStore(HOST, port, is_master=False, timeout=LIMIT)
        self._group = ProcessGroupGloo(self._store, rank, size, LIMIT)
        self._group.allreduce([torch.zeros(1)]).wait()

    def broadcast(self, x: Tensor, src: int) -> None:
        assert src == 0
        _begin_broadcast(self._group, x).wait()

    def receive(self, size: int) -> Tensor:
        x = torch.empty(size, dtype=torch.uint8)
        self.broadcast(x, src=0)
        return x

    def destroy(self) -> None:
        pass


def replace_nccl() -> None:
    """Let the trainer of this process use gloo."""
    vars(broadcast).update(unique_id=unique_id, NCCLGroup=GlooGroup, DEVICE="cpu")
