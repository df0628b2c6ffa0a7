"""Several ranks in one process: threads that share an `sum_over_ranks` which sums over them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor


def on_ranks(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType | Sequence[ModuleType],
    *work: Callable[[], Any],
) -> list[Any]:
    """Run one callable per rank concurrently and return their results. `module`: what calls
    `sum_over_ranks`."""
    barrier, inputs = Barrier(len(work), timeout=30), {}

    def sum_over_ranks(x: Tensor) -> Tensor:
        inputs[get_ident()] = x
        barrier.wait()
        total = sum(inputs.values())
        barrier.wait()
        return total

    for caller in [module] if isinstance(module, ModuleType) else module:
        monkeypatch.setattr(caller, "sum_over_ranks", sum_over_ranks)
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(rank) for rank in work]]
