"""Cases of `tests.support.two_ranks` on the device: `python -m tests.support.simulated_cuda.cases
PRECISION CASE ...`. The exit status is 1, and the reasons are printed, if a case fails."""

import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.simulated_cuda.device import install

import torch
from torch import Tensor

from rlmods.distributed.trainer import MIXED
from rlmods.policy import output_layer
from tests.support import composition
from tests.support.simulated_cuda.counts import counted
from tests.support.two_ranks import trained

SIZES = ("batch.token_budget=512",)
"""Few microbatches: the device takes 30 us for an operation."""
TOLERANCE = 1e-6
"""Largest difference of a weight, about ten roundings: sums are in another order."""
FAST = ("flash", "efficient")
"""Kernels of attention that need no matrix of all queries and keys."""


def train(case: str, **options: Any) -> dict[str, Any]:
    """Return what a case trains and samples."""
    with tempfile.TemporaryDirectory() as folder:
        return trained(case, Path(folder) / "run", more=SIZES, **options)


def check(case: str, precision: str, expected: Mapping[str, Any] | None) -> None:
    """Train a case on the device, and compare weights and samples with those `expected`, or the
    kernels of attention with the fast ones in 16 bits."""
    factors: set[torch.dtype] = set()
    logits = output_layer._logits

    def recorded(hidden: Tensor, *args: Any) -> Tensor:
        factors.add(hidden.dtype)
        return logits(hidden, *args)

    with counted() as counts, patch.object(output_layer, "_logits", recorded):
        found = train(case, accelerator="cuda", precision=precision)
    moved = largest_difference(found["weights"], found["before"])
    assert moved > 1e-4, f"no weight moves by more than {moved}"
    assert counts.num_launches > 1000, "the device computes nothing"
    if expected is None:
        allowed = {f"{MIXED[precision]} {kernel}" for kernel in FAST}
        assert set(counts.kernels) <= allowed, counts.kernels
        if precision == "16-mixed":
            assert factors == {torch.float16}, factors
        return
    assert found["said"] == expected["said"], "other samples than on the CPU"
    difference = largest_difference(found["weights"], expected["weights"])
    assert difference < TOLERANCE, f"weights differ by {difference} from those on the CPU"


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference of an element."""
    assert one.keys() == other.keys()
    return max(float((x - other[name]).abs().max()) for name, x in one.items())


def main() -> int:
    precision, *cases = sys.argv[1:]
    composition.speed_up()
    expected = {}
    if precision == "32-true":  # before a GPU seems to be there
        expected = {case: train(case) for case in cases}
    failures = 0
    with install():
        for case in cases:
            try:
                check(case, precision, expected.get(case))
            except Exception:
                failures += 1
                print(f"{case} in {precision}:\n{traceback.format_exc(limit=-8)}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
