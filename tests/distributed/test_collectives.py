"""Ranks before a process group exists, and reductions of counts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.distributed.collectives import Ranks, is_first_rank

VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "1", "LOCAL_RANK": "0"}, False),
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "3"}, False),
    ],
)
def test_one_rank_writes_files(
    environment: dict[str, str], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_rank() is first


def test_counts_stay_exact() -> None:
    def reduce(x: torch.Tensor, reduce_op: str) -> torch.Tensor:
        return {"sum": x + x, "max": x}[reduce_op]

    strategy = SimpleNamespace(reduce=reduce)
    trainer = SimpleNamespace(world_size=2, strategy=strategy)
    module: Any = SimpleNamespace(
        _trainer=trainer, trainer=trainer, device=torch.device("cpu"), global_rank=1
    )
    ranks = Ranks(module)
    assert int(ranks.reduce(torch.tensor(2**24 + 1))) == 2 * (2**24 + 1)
    assert int(ranks.reduce(torch.tensor(2**24 + 1), "max")) == 2**24 + 1
    trainer.world_size = 1
    assert int(ranks.reduce(torch.tensor(2**24 + 1))) == 2**24 + 1
