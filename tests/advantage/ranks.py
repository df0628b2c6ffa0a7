"""Several ranks in one process: threads that share an `sum_over_ranks` which sums over them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor


def on_ranks(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *work: Callable[[], Any]
) -> list[Any]:
    """Run one callable per rank concurrently and return their results."""
    barrier, inputs = Barrier(len(work), timeout=30), {}

    def sum_over_ranks(x: Tensor) -> Tensor:
        inputs[get_ident()] = x
        barrier.wait()
        total = sum(inputs.values())
        barrier.wait()
        return total

    monkeypatch.setattr(module, "sum_over_ranks", sum_over_ranks)
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(rank) for rank in work]]
