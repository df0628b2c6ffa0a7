"""Muon on shards: `python -m tests.support.muon_ranks FOLDER`."""

import copy
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rlmods.callbacks import IterationCheckpoint
from rlmods.cli.console import silence_libraries
from rlmods.distributed.sharding import full_tensor, shard_like
from rlmods.distributed.strategy import FSDP2
from rlmods.training.muon import Muon
from tests.support.tiny_setup import fit, learner

RANKS = int(os.environ["WORLD_SIZE"])


def check_step() -> None:
    """Steps of shards are those of whole matrices bit for bit, also of fewer rows than ranks, and
    shards keep no whole matrix in memory."""
    sizes = [(48, 33), (33, 97), (97, 1), (1, 64)]
    torch.manual_seed(0)
    whole = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
    for mesh_shape in [(RANKS,), (2, RANKS // 2)]:
        expected = copy.deepcopy(whole)
        sharded = copy.deepcopy(whole)
        mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b")[: len(mesh_shape)])
        fully_shard(sharded, mesh=mesh)
        optimizers = []
        for network in (expected, sharded):
            groups = [{"params": list(network.parameters()), "hidden": True}]
            optimizers.append(Muon(groups, lr=0.1, weight_decay=0.5))
        for _ in range(3):
            for x, shard in zip(expected.parameters(), sharded.parameters(), strict=True):
                x.grad = torch.randn(x.shape)
                shard.grad = shard_like(x.grad, shard)
            for optimizer in optimizers:
                optimizer.step()
        one, other = (optimizer.state for optimizer in optimizers)
        for x, shard in zip(expected.parameters(), sharded.parameters(), strict=True):
            assert torch.equal(full_tensor(shard), x), (mesh_shape, x.shape)
            moment: Any = other[shard]["momentum_buffer"]
            assert torch.equal(full_tensor(moment), one[x]["momentum_buffer"])
            local = moment.to_local()
            assert local.untyped_storage().nbytes() == local.nbytes, (mesh_shape, x.shape)


def weights(folder: Path, iterations: int, resume: Path | None, **strategy: Any) -> torch.Tensor:
    made = learner(optimizer=partial(Muon, lr=0.01))
    checkpoint = IterationCheckpoint(folder, every=1, keep=0)
    fit(
        made,
        iterations,
        callbacks=(checkpoint,),
        resume=resume,
        devices=RANKS,
        strategy=FSDP2(**strategy),
    )
    return torch.cat([full_tensor(x.detach()).flatten() for x in made.parameters()])


def check_resume(folder: Path) -> None:
    """A run goes on bit for bit from a file and from a folder of shards."""
    for name, sharded in (("file", False), ("folder", True)):
        straight = weights(folder / name, 2, None, sharded_checkpoints=sharded)
        saved = folder / name / "iteration_000001.ckpt"
        assert saved.is_dir() is sharded
        resumed = weights(folder / f"{name} resumed", 2, saved, sharded_checkpoints=sharded)
        assert torch.equal(straight, resumed), name


if __name__ == "__main__":
    silence_libraries()
    dist.init_process_group("gloo")
    check_step()
    if RANKS == 2:
        check_resume(Path(sys.argv[1]))
