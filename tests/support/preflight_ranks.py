"""Runs with and without the largest microbatches before training, bit for bit: `python -m
tests.support.preflight_ranks ddp|fsdp`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch

from rlmods.cli.console import silence_libraries
from rlmods.distributed.sharding import full_tensor
from rlmods.distributed.strategy import DDP, FSDP2
from tests.support.tiny_setup import fit
from tests.training.test_preflight import CASES, Lines, setup

STRATEGIES: dict[str, Any] = {"ddp": DDP, "fsdp": FSDP2}
NAMES = ("critic", "DPO", "reward model", "experts")


def trained(case: str, strategy: str, preflight: bool) -> tuple[str, torch.Tensor, list[str]]:
    """Metrics without times, weights, and the lines of the preflight."""
    torch.manual_seed(0)
    made, lines = setup(case), Lines()
    made.batch = replace(made.batch, preflight=preflight)
    rows = fit(made, 2, callbacks=(lines,), devices=2, strategy=STRATEGIES[strategy]())
    untimed = [
        {k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows
    ]
    weights = [
        full_tensor(p.detach()).flatten()
        for network in made.networks.values()
        for p in network.parameters()
    ]
    return repr(untimed), torch.cat(weights), lines.lines


if __name__ == "__main__":
    silence_libraries()
    assert CASES.keys() >= set(NAMES)
    for case in NAMES:
        (rows, weights, lines), (expected_rows, expected, none) = (
            trained(case, sys.argv[1], preflight) for preflight in (True, False)
        )
        assert rows == expected_rows, case
        assert torch.equal(weights, expected), case
        assert (len(lines), len(none)) == (1, 0), case
        print(lines[0])
