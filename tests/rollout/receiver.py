"""Stand-in of a vLLM server's workers for `rollout.transfer=nccl`: the states, errors and order of
collective calls of `vllm/v1/worker/gpu_worker.py` and `NCCLWeightTransferEngine`, and groups within
this process in place of NCCL."""

import base64
import json
import math
import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.rollout.nccl import ID_BYTES, NCCLError

WAIT_S = 30.0
"""Time in which the other side must come."""


class Link:
    """What the two sides of a group share."""

    def __init__(self) -> None:
        self.size = 0
        self.broadcasts: Queue[Tensor] = Queue()
        self.is_joined = threading.Event()
        self.aborted = threading.Event()

    def receive(self, size: int) -> Tensor:
        """Return the next broadcast, at the worker."""
        try:
            x = self.broadcasts.get(timeout=WAIT_S)
        except Empty:
            raise RuntimeError("nothing was sent") from None
        assert x.numel() == size
        return x


class Network:
    """Groups of this process, by id. `Group` stands for `nccl.NCCLGroup`."""

    links: ClassVar[dict[bytes, Link]] = {}

    @classmethod
    def unique_id(cls) -> bytes:
        name = len(cls.links).to_bytes(ID_BYTES, "little")
        cls.links[name] = Link()
        return name

    @classmethod
    def connect(cls, name: bytes, rank: int, size: int) -> Link:
        """Join a group as a worker."""
        link = cls.links[name]
        link.is_joined.set()
        return link

    class Group:
        """The trainer's side."""

        def __init__(self, group_id: bytes, size: int, device: torch.device) -> None:
            self.link = Network.links[group_id]
            self.link.size = size
            if not self.link.is_joined.wait(WAIT_S):
                raise NCCLError("nobody joined")

        def broadcast(self, x: Tensor) -> None:
            assert not self.link.aborted.is_set()
            assert x.dtype == torch.uint8
            assert x.ndim == 1
            self.link.broadcasts.put(x.clone())

        def is_done(self) -> bool:
            return self.link.broadcasts.empty()

        def abort(self) -> None:
            self.link.aborted.set()


class Receiver:
    """The workers of one server."""

    paths = (
        "/get_world_size",
        "/pause",
        "/resume",
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    )

    def __init__(self) -> None:
        self.num_workers = 1
        self.is_configured = True
        self.joins = True
        """False: the server answers, and its workers do not join."""
        self.dies_at: int | None = None
        """Number of an update, from 0, at which the server stops."""
        self.fails_at: int | None = None
        """Number of an update that the server receives and cannot load."""
        self.hangs_at: int | None = None
        """Number of an update at which the server waits for `release`."""
        self.release = threading.Event()
        self.has_died = self.is_active = self.is_paused = False
        self.num_stale = 0
        """Number of starts and ends of updates that succeed, and are answered by an error."""
        self.num_updates = self.num_joins = 0
        self.init: dict[str, Any] = {}
        self.updates: list[dict[str, Any]] = []
        self.connect: Callable[[bytes, int, int], Any] = Network.connect
        self.link: Any = None
        self.counts: dict[str, int] = {}
        """Times that each weight was loaded since the last finished update."""
        self.received: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}
        """Weights of the last finished update."""
        self.is_corrupt = False
        """True if a layer counted weights of two updates."""

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path == "/get_world_size":
            return 200, json.dumps({"world_size": self.num_workers}).encode()
        try:
            getattr(self, path[1:])(**body)
            if path in ("/start_weight_update", "/finish_weight_update") and self.num_stale:
                self.num_stale -= 1
                raise RuntimeError("stale")
        except RuntimeError as error:
            return 500, json.dumps({"error": {"message": str(error)}}).encode()
        return 200, b'{"message": "done"}'

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._check_configured()
        if not self.joins:
            return
        name = base64.b64decode(init_info["nccl_unique_id_b64"], validate=True)
        assert len(name) == ID_BYTES
        self.init = init_info
        self.link = self.connect(name, init_info["rank_offset"], init_info["world_size"])
        self.num_joins += 1

    def shutdown_weight_transfer_engine(self) -> None:
        if self.is_active:
            raise RuntimeError("Cannot release a trainer connection during a weight update")
        self.link = None

    def start_weight_update(self) -> None:
        self._check_configured()
        if self.is_active:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        if not self.is_paused:
            raise RuntimeError("not paused")
        self.is_active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if not self.is_active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        try:
            self._receive(**update_info)
        except RuntimeError:
            self.is_active = False
            raise

    def finish_weight_update(self) -> None:
        if not self.is_active:
            raise RuntimeError("finish_weight_update called without a start_weight_update.")
        self.is_active = False
        self.is_corrupt = any(count > 1 for count in self.counts.values())
        self.weights = dict(self.received)
        self.counts.clear()
        self.received.clear()

    def _check_configured(self) -> None:
        if not self.is_configured:
            raise RuntimeError("Weight transfer not configured.")

    def _receive(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        """`packed_nccl_broadcast_consumer`, of one broadcast."""
        number = self.num_updates
        self.num_updates += 1
        if self.link is None:
            raise RuntimeError("NCCL weight transfer not initialized.")
        if number == self.dies_at:
            self.has_died = True
            raise RuntimeError("died")
        if number == self.hangs_at:
            self.release.wait(WAIT_S)
            raise RuntimeError("released")
        self.updates.append({"names": names, "dtype_names": dtype_names, "shapes": shapes})
        dtypes = [getattr(torch, name) for name in dtype_names]
        sizes = [math.prod(x) * dtype.itemsize for x, dtype in zip(shapes, dtypes, strict=True)]
        parts = self.link.receive(sum(sizes)).split(sizes)
        for name, dtype, shape, x in zip(names, dtypes, shapes, parts, strict=True):
            self.received[name] = x.contiguous().view(dtype).view(shape)
            self.counts[name] = self.counts.get(name, 0) + 1
        if number == self.fails_at:
            raise RuntimeError("cannot load")
