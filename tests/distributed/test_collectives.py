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


def test_a_strategy_that_writes_into_its_argument_changes_no_tensor_of_the_caller() -> None:
    strategy = SimpleNamespace(reduce=lambda x, reduce_op: x.mul_(2))
    trainer = SimpleNamespace(world_size=2, strategy=strategy)
    module: Any = SimpleNamespace(_trainer=trainer, trainer=trainer, device=torch.device("cpu"))
    own = torch.tensor([1.0], dtype=torch.float64)
    assert Ranks(module).reduce(own).tolist() == [2.0]
    assert own.tolist() == [1.0]
