"""What a program asks of the device, by operation and by place in the source."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
OWN = (str(ROOT / "rlmods"), str(ROOT / "bench"))
INNER = tuple(
    str(Path(__file__).with_name(f"{name}.py")) for name in ("counts", "tensor", "attention")
)


class Attention(NamedTuple):
    """One kind of call of `scaled_dot_product_attention`."""

    kernel: str
    """Kernel that torch takes on an H100 without cuDNN: "flash", "efficient" or "math"."""
    dtype: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_dtype: str
    """Data type of the keys as given, before autocast."""
    value_dtype: str


@dataclass(eq=False)
class Counts:
    """Counts of a part of a program."""

    launches: Counter[str] = field(default_factory=Counter)
    """Kernels by operation. An operation counts as one kernel."""
    waits: Counter[str] = field(default_factory=Counter)
    """Reads of a value on the device, for which the host waits, by operation and place."""
    copies: Counter[str] = field(default_factory=Counter)
    """Copies from the host to the device, by place."""
    attention: Counter[Attention] = field(default_factory=Counter)

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    @property
    def num_copies(self) -> int:
        return self.copies.total()

    @property
    def kernels(self) -> Counter[str]:
        """Calls of attention by data type and kernel, as `bfloat16 flash`."""
        found: Counter[str] = Counter()
        for call, number in self.attention.items():
            found[f"{call.dtype} {call.kernel}"] += number
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, the most frequent first."""
        parts = {"launches": self.launches, "waits": self.waits, "copies": self.copies}
        plain: dict[str, Any] = {name: dict(part.most_common()) for name, part in parts.items()}
        return plain | {"attention": dict(self.kernels)}


_active: list[Counts] = []


@contextmanager
def counted() -> Iterator[Counts]:
    """Count within the block, also what blocks inside of it count."""
    counts = Counts()
    _active.append(counts)
    try:
        yield counts
    finally:
        _active.remove(counts)


@contextmanager
def paused() -> Iterator[None]:
    """Count nothing within the block."""
    outer = [*_active]
    _active.clear()
    try:
        yield
    finally:
        _active[:] = outer


def launch(operation: str) -> None:
    """Count a kernel."""
    for counts in _active:
        counts.launches[operation] += 1


def wait(operation: str) -> None:
    """Count a wait of the host for the device."""
    if _active:
        where = f"{operation} {place()}"
        for counts in _active:
            counts.waits[where] += 1


def copy() -> None:
    """Count a copy to the device."""
    if _active:
        where = place()
        for counts in _active:
            counts.copies[where] += 1


def attend(call: Attention) -> None:
    """Count a call of attention."""
    for counts in _active:
        counts.attention[call] += 1


def place() -> str:
    """Return file and line of the innermost frame of this repository that is not the simulation,
    else of the innermost outside of torch."""
    frame = sys._getframe(1)
    outside = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OWN):
            return f"{Path(file).relative_to(ROOT)}:{frame.f_lineno}"
        if not outside and "/torch/" not in file and file not in INNER:
            outside = f"{file.rpartition('site-packages/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return outside
