"""Several ranks in one process: threads whose `across_ranks` adds up what each of them brings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor


def on_ranks(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *work: Callable[[], Any]) -> list[Any]:
    """What each rank's work returns, done at the same time."""
    barrier, brought = Barrier(len(work), timeout=30), {}

    def across_ranks(x: Tensor) -> Tensor:
        brought[get_ident()] = x
        barrier.wait()
        total = sum(brought.values())
        barrier.wait()
        return total

    monkeypatch.setattr(module, "across_ranks", across_ranks)
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(rank) for rank in work]]
