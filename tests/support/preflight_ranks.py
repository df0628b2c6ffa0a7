"""Runs with and without the largest microbatches before training, bit for bit: `python -m
tests.support.preflight_ranks ddp|fsdp`."""

import sys

import torch

from rlmods.cli.console import silence_libraries
from rlmods.distributed.sharding import full_tensor
from rlmods.distributed.strategy import DDP, FSDP2
from tests.training.test_preflight import run

if __name__ == "__main__":
    silence_libraries()
    strategy = {"ddp": DDP, "fsdp": FSDP2}[sys.argv[1]]
    for case in ("critic", "DPO", "reward model", "experts"):
        results = []
        for preflight in (True, False):
            trained, rows, _, lines = run(case, preflight, devices=2, strategy=strategy())
            weights = [full_tensor(p.detach()).flatten() for p in trained.parameters()]
            results.append((rows, torch.cat(weights), len(lines)))
        (rows, weights, num_lines), (expected_rows, expected, num_none) = results
        assert rows == expected_rows, case
        assert torch.equal(weights, expected), case
        assert (num_lines, num_none) == (1, 0), case
