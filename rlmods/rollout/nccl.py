"""Broadcasts by NCCL from this process to the workers of a vLLM server.

`torch.distributed` joins processes that exchange its own keys. Workers of vLLM join by an id of
NCCL instead (`vllm/distributed/weight_transfer/nccl_common.py`). This module therefore calls the
library of torch as vLLM does (`vllm/distributed/device_communicators/pynccl_wrapper.py`), so that
the trainer does not need vLLM.
"""

import ctypes
import threading
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlmods.errors import UserError

LIBRARY = "libnccl.so.2"
ID_BYTES = 128
"""Size of `ncclUniqueId`."""
SUCCESS = 0
UINT8 = 1
FLOAT32 = 7
SUM = 0
"""Values of `ncclResult_t`, of `ncclDataType_t` (two), and of `ncclRedOp_t`."""
POINTER = ctypes.c_void_p
SIZE = ctypes.c_size_t
INT = ctypes.c_int
COLLECTIVE = (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER)
"""Types of the arguments of `ncclAllReduce` and `ncclBroadcast`. ctypes passes a number without a
type as 32 bits."""


class UniqueId(ctypes.Structure):
    """`ncclUniqueId`."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


class NCCLError(Exception):
    """A call of NCCL failed."""


@cache
def library() -> Any:
    """Return the NCCL library that torch has loaded. Raises UserError if there is none."""
    try:
        nccl = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UserError(
            f"rollout.transfer=nccl needs {LIBRARY}, which this build of torch does not have: "
            "type rollout.transfer=files"
        ) from error
    nccl.ncclAllReduce.argtypes = nccl.ncclBroadcast.argtypes = COLLECTIVE
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    return nccl


def call(name: str, *arguments: Any) -> None:
    """Call a function, and check its result."""
    check(name, getattr(library(), name)(*arguments))


def check(name: str, result: int) -> None:
    """Raise NCCLError if the result of a function is an error."""
    if result != SUCCESS:
        text = library().ncclGetErrorString(result).decode()
        raise NCCLError(f"{name}: {text}")


def unique_id() -> bytes:
    """Return the id of a new group."""
    name = UniqueId()
    call("ncclGetUniqueId", ctypes.byref(name))
    return bytes(name)


class NCCLGroup:
    """This process as rank 0 of a group of `size` ranks, and the workers that receive from it.

    Construction returns when all ranks have joined. It cannot be interrupted. No other rank may use
    this device.

    Raises: NCCLError if the ranks cannot be connected, or have other versions of NCCL."""

    def __init__(self, group_id: bytes, size: int, device: torch.device) -> None:
        self._comm = ctypes.c_void_p()
        self._device = device
        self._lock = threading.Lock()
        """Held during a call that uses the communicator."""
        name = UniqueId.from_buffer_copy(group_id)
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            call("ncclCommInitRank", ctypes.byref(self._comm), size, name, 0)
            try:
                with torch.cuda.stream(self._stream):
                    x = torch.zeros(1, device=device)
                # `PyNcclCommunicator._init_comm` of each worker begins with this sum.
                self._begin("ncclAllReduce", x, FLOAT32, SUM)
                self._stream.synchronize()
            except BaseException:
                self.abort()
                raise

    def broadcast(self, x: Tensor) -> None:
        """Begin to send bytes [N]. They must be complete, and be kept until `is_done`."""
        with torch.cuda.device(self._device):
            self._begin("ncclBroadcast", x, UINT8, 0)

    def is_done(self) -> bool:
        """Return True if everything has been sent. Raises NCCLError if a worker is lost."""
        state = ctypes.c_int()
        with self._lock:
            call("ncclCommGetAsyncError", self._comm, ctypes.byref(state))
        check("ncclBroadcast", state.value)
        return self._stream.query()

    def abort(self) -> None:
        """Leave the group. What has not been sent is dropped."""
        # In a thread, as in `PyNcclCommunicator.destroy`: the call can block.
        threading.Thread(target=self._abort, daemon=True).start()

    def _abort(self) -> None:
        # Not during a call of another thread, which may use what is freed. If that call never
        # returns, the communicator stays. Later calls get none, and fail.
        with self._lock, torch.cuda.device(self._device):
            comm = self._comm
            self._comm = ctypes.c_void_p()
            call("ncclCommAbort", comm)

    def _begin(self, name: str, x: Tensor, dtype: int, how: int) -> None:
        """Call a collective operation in place. `how` is the reduction, or the rank that sends."""
        pointer = x.data_ptr()
        stream = self._stream.cuda_stream
        with self._lock:
            call(name, pointer, pointer, x.numel(), dtype, how, self._comm, stream)
