"""Calls of NCCL's library, on one that records them: their order and arguments."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from rlmods.rollout import nccl

CPU = torch.device("cpu")
ID = bytes(range(nccl.ID_BYTES))
COMM, STREAM = 77, 99


class Library:
    """In place of `libnccl.so.2`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        """Also what is asked of torch."""
        self.results: dict[str, int] = {}
        self.state = nccl.SUCCESS
        self.is_idle = False
        self.aborted = threading.Event()
        self.sends = threading.Event()
        self.returns = threading.Event()
        """Set if a broadcast need not wait."""
        self.returns.set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            values = tuple(getattr(x, "value", x) for x in arguments)
            self.calls.append((name, *values))
            if name == "ncclBroadcast":
                self.sends.set()
                assert self.returns.wait(60)
            return self.results.get(name, nccl.SUCCESS)

        return call

    def ncclGetErrorString(self, result: int) -> bytes:  # noqa: N802
        return f"error {result}".encode()

    def ncclGetUniqueId(self, found: Any) -> int:  # noqa: N802
        found._obj.internal[:] = [x - 256 if x > 127 else x for x in ID]
        return self.results.get("ncclGetUniqueId", nccl.SUCCESS)

    def ncclCommInitRank(self, comm: Any, size: int, name: Any, rank: int) -> int:  # noqa: N802
        self.calls.append(("ncclCommInitRank", size, bytes(name), rank))
        comm._obj.value = COMM
        return self.results.get("ncclCommInitRank", nccl.SUCCESS)

    def ncclCommGetAsyncError(self, comm: Any, state: Any) -> int:  # noqa: N802
        assert comm.value == COMM
        state._obj.value = self.state
        return nccl.SUCCESS

    def ncclCommAbort(self, comm: Any) -> int:  # noqa: N802
        self.calls.append(("ncclCommAbort", comm.value))
        self.aborted.set()
        return nccl.SUCCESS


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    stream = SimpleNamespace(
        cuda_stream=STREAM,
        synchronize=lambda: found.calls.append(("synchronize",)),
        query=lambda: found.is_idle,
    )

    @contextmanager
    def entered(entry: Any) -> Iterator[None]:
        found.calls.append(("enter", entry))
        yield
        found.calls.append(("leave", entry))

    monkeypatch.setattr(nccl, "library", lambda: found)
    cuda = SimpleNamespace(device=entered, stream=entered, Stream=lambda: stream)
    monkeypatch.setattr(nccl.torch, "cuda", cuda)
    return found


@pytest.fixture
def group(library: Library) -> nccl.NCCLGroup:
    return nccl.NCCLGroup(ID, 4, CPU)


def test_an_id_is_what_nccl_writes(library: Library) -> None:
    assert nccl.unique_id() == ID


def test_a_group_is_joined_as_workers_of_vllm_join_it(
    group: nccl.NCCLGroup, library: Library
) -> None:
    stream = group._stream
    assert library.calls[:4] == [
        ("enter", CPU),
        ("ncclCommInitRank", 4, ID, 0),
        ("enter", stream),
        ("leave", stream),
    ]
    name, source, target, *more = library.calls[4]
    assert name == "ncclAllReduce"
    assert source == target != 0
    assert more == [1, nccl.FLOAT32, nccl.SUM, COMM, STREAM]
    assert library.calls[5:] == [("synchronize",), ("leave", CPU)]


def test_bytes_are_sent_from_the_first_rank(group: nccl.NCCLGroup, library: Library) -> None:
    x = torch.zeros(10, dtype=torch.uint8)
    group.broadcast(x)
    pointer = x.data_ptr()
    sent = ("ncclBroadcast", pointer, pointer, 10, nccl.UINT8, 0, COMM, STREAM)
    assert library.calls[-3:] == [("enter", CPU), sent, ("leave", CPU)]


def test_a_broadcast_is_done_when_its_stream_is_idle(
    group: nccl.NCCLGroup, library: Library
) -> None:
    assert not group.is_done()
    library.is_idle = True
    assert group.is_done()


def test_a_lost_worker_is_an_error(group: nccl.NCCLGroup, library: Library) -> None:
    library.state = 6
    with pytest.raises(nccl.NCCLError, match=r"^ncclBroadcast: error 6$"):
        group.is_done()


@pytest.mark.parametrize(
    "call", ["ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclBroadcast"]
)
def test_a_failed_call_is_an_error(call: str, library: Library) -> None:
    library.results[call] = 5
    with pytest.raises(nccl.NCCLError, match=rf"^{call}: error 5$"):
        nccl.NCCLGroup(nccl.unique_id(), 4, CPU).broadcast(torch.zeros(1, dtype=torch.uint8))
    if call == "ncclAllReduce":
        assert library.aborted.wait(60)


def test_abort_waits_for_a_call_in_another_thread(group: nccl.NCCLGroup, library: Library) -> None:
    x = torch.zeros(1, dtype=torch.uint8)
    library.returns.clear()
    begun = threading.Thread(target=group.broadcast, args=(x,))
    begun.start()
    assert library.sends.wait(60)
    group.abort()
    assert not library.aborted.wait(0.5)
    library.returns.set()
    assert library.aborted.wait(60)
    begun.join()
    aborted = library.calls.index(("ncclCommAbort", COMM))
    assert library.calls[aborted - 1] == ("enter", CPU)
    group.broadcast(x)
    sent = [call[-2] for call in library.calls if call[0] == "ncclBroadcast"]
    assert sent == [COMM, None]


def test_pointers_and_sizes_have_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = MagicMock()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    nccl.library.__wrapped__()
    for function in (found.ncclAllReduce, found.ncclBroadcast):
        assert list(map(ctypes.sizeof, function.argtypes)) == [8, 8, 8, 4, 4, 8, 8]
