"""How much memory a computation holds, found by going through it on tensors without numbers: every block is counted and none is filled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlmods.types import UserError

SMALL = 32 * 2**20
"""Bytes up to which glibc takes a block from its heap, which it seldom gives back; larger ones are mapped, and unmapped when freed
(DEFAULT_MMAP_THRESHOLD_MAX of a 64-bit machine, to which the threshold rises as blocks are freed)."""


@dataclass(frozen=True)
class Peak:
    """Most bytes held at once, and the most held in blocks of at most `SMALL` bytes and in larger ones, each for itself."""

    total: int = 0
    small: int = 0
    large: int = 0

    @classmethod
    def of(cls, *blocks: int) -> Peak:
        """Blocks that are held at the same time."""
        small = sum(size for size in blocks if size <= SMALL)
        return cls(sum(blocks), small, sum(blocks) - small)

    def __add__(self, other: Peak) -> Peak:
        return Peak(self.total + other.total, self.small + other.small, self.large + other.large)

    def __sub__(self, other: Peak) -> Peak:
        """At least nothing."""
        return Peak(max(0, self.total - other.total), max(0, self.small - other.small), max(0, self.large - other.large))

    def __or__(self, other: Peak) -> Peak:
        """Of two computations, one after the other."""
        return Peak(max(self.total, other.total), max(self.small, other.small), max(self.large, other.large))


def measure(computation: Callable[[], Any], *networks: nn.Module, picked: int = 0) -> Peak:
    """What a computation with these networks holds, their weights aside. They may be on the meta device, and have no numbers after.

    Args:
        picked: elements that every boolean index finds.

    Raises:
        UserError: what is to be done next depends on numbers.
    """
    with _nowhere():
        for network in networks:
            _materialize(network)
        known = [x for network in networks for x in (*network.parameters(), *network.buffers())]
        with (counted := _Counted(known, picked)), _followed():
            try:
                computation()
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise UserError(
                    f"policy: what {type(networks[0]).__name__} does next depends on numbers ({error.func}): no prediction"
                ) from error
    return Peak(*counted.most)


@cache
def _nowhere() -> FakeTensorMode:
    """Where all tensors without numbers are: those of two such places do not mix."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def retype(network: nn.Module, dtype: torch.dtype) -> None:
    """Give the weights of a network without numbers another type."""
    _replace(network, lambda x: x.is_floating_point() and isinstance(x, nn.Parameter), dtype)


def _materialize(network: nn.Module) -> None:
    """Weights on the meta device to ones that claim to be on the CPU, where autocast and attention do what they do there."""
    _replace(network, lambda x: x.is_meta)


def _replace(network: nn.Module, which: Callable[[Tensor], bool], dtype: torch.dtype | None = None) -> None:
    """Shared weights stay shared."""
    made: dict[int, Tensor] = {}
    for module in network.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, x in table.items():
                if x is None or not which(x):
                    continue
                if id(x) not in made:
                    with _nowhere():
                        empty = torch.empty(x.shape, dtype=dtype or x.dtype)
                        made[id(x)] = nn.Parameter(empty, x.requires_grad) if isinstance(x, nn.Parameter) else empty
                table[name] = made[id(x)]


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations make, while they live. What an operation needs inside is not seen."""

    def __init__(self, known: list[Tensor], picked: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = known
        self.seen = {x.untyped_storage()._cdata for x in known}
        self.picked = picked
        self.live = [0, 0, 0]
        self.most = [0, 0, 0]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.index.Tensor and (found := self._pick(*args)) is not None:
            out: Any = found
        else:
            out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._note(x)
        return out

    def _pick(self, x: Tensor, indices: list[Tensor | None]) -> Tensor | None:
        """`x[mask]`, whose size depends on numbers that are not there."""
        if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool:
            return None
        return x.new_empty(self.picked, *x.shape[indices[0].ndim :])

    def _note(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self._add(size, size)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self._add(size, -size)

    def _add(self, block: int, change: int) -> None:
        for i in (0, 1 if block <= SMALL else 2):
            self.live[i] += change
            self.most[i] = max(self.most[i], self.live[i])


@contextmanager
def _followed() -> Iterator[None]:
    """In this block what transformers decides by numbers is decided as it would be.

    Attention over whole rows has no mask (where it cannot read positions, it takes every row for a packed one), and experts multiply by a
    form that is known for every type of weights."""
    from transformers.integrations import moe

    grouped = moe._can_use_grouped_mm
    usual = nn.functional.scaled_dot_product_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if query.shape[-2] == key.shape[-2] > 1:
            options |= {"attn_mask": None, "is_causal": True}
        return usual(query, key, value, **options)

    nn.functional.scaled_dot_product_attention = attend  # type: ignore[assignment]
    moe._can_use_grouped_mm = lambda *_: False
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention, moe._can_use_grouped_mm = usual, grouped
