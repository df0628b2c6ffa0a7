"""A CUDA graph without a GPU: operations that are recorded once, and computed again by `replay` on
the same tensors. What the host computes in between is not."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.simulated_cuda import counts


class RecordedGraph:
    """`torch.cuda.CUDAGraph`. In contrast to it, operations also run while they are recorded, so
    the first replay does nothing."""

    made: int = 0
    """Number of graphs."""

    def __init__(self) -> None:
        type(self).made += 1
        self.operations: list[Callable[[], None]] = []
        self.num_replays = 0

    def replay(self) -> None:
        """Compute all recorded operations again. Counts as one launch."""
        self.num_replays += 1
        counts.launch("graph")
        if self.num_replays > 1:
            # casts of autocast are recorded too
            with counts.paused(), torch.autocast("cpu", enabled=False):
                for operation in self.operations:
                    operation()


FORBIDDEN = ("_local_scalar_dense", "nonzero", "equal")
"""Operations whose result the host reads."""


class Recorder(TorchDispatchMode):
    """Records operations. What CUDA cannot record is an error: reads by the host, and copies from
    it."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func.overloadpacket.__name__ in FORBIDDEN:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **options)
        self.graph.operations.append(lambda: write(result, func(*args, **options)))
        return result


def write(target: Any, value: Any) -> None:
    """Copy results into the tensors of the recording, unless they share their memory."""
    if isinstance(target, list | tuple):
        for one, other in zip(target, value, strict=True):
            write(one, other)
    elif isinstance(target, Tensor) and memory(target) != memory(value):
        target.copy_(value)


def memory(x: Any) -> int:
    return int(getattr(x, "held", x).data_ptr())


@contextmanager
def record(graph: RecordedGraph, capture_error_mode: str) -> Iterator[None]:
    """`torch.cuda.graph`."""
    with counts.paused(), counts.counted() as inside, Recorder(graph):
        yield
    assert not inside.waits, inside.waits
    assert not inside.copies, inside.copies


def install(monkeypatch: pytest.MonkeyPatch) -> type[RecordedGraph]:
    """Let `torch.cuda` have these graphs, and return their class, which counts them."""
    made = type("Graph", (RecordedGraph,), {"made": 0})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return made
