"""Networks whose weights are read by shards equal those that are loaded in full: `python -m
tests.support.deferred_ranks FOLDER`."""

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rlmods.adapter import LoRA
from rlmods.cli.console import silence_libraries
from rlmods.distributed import deferred, sharding
from rlmods.distributed.strategy import FSDP2
from rlmods.policy import Policy, ScalarModel
from rlmods.policy.hf import load
from tests.support import composition
from tests.support.two_ranks import trained

NETWORKS: dict[str, Callable[[Policy], nn.Module]] = {
    "policy": lambda policy: policy,
    "reference": copy.deepcopy,
    "critic": ScalarModel.from_policy,
    "adapter": LoRA(rank=4),
}
MESHES = {"all ranks": (2, 1, False), "replicas": (1, 2, False), "offload": (2, 1, True)}
"""Ranks of one copy of the network, copies, and offload."""
RUNS = ("ppo", "ppo lora", "reward_model", "experts replayed")
LARGE = 2**24
"""Parameters of the model of which the memory is measured."""


def network(folder: Path, kind: str, mesh: str, defer: bool) -> nn.Module:
    """A sharded network from the model in `folder`."""
    torch.manual_seed(0)
    shards, replicas, offload = MESHES[mesh]
    shape, names = (
        ((shards,), ("shard",)) if replicas == 1 else ((replicas, shards), ("replicate", "shard"))
    )
    with deferred.defer_loading(defer):
        made = NETWORKS[kind](load(folder))
    assert deferred.is_deferred(made) == defer
    sharding.shard(made, init_device_mesh("cpu", shape, mesh_dim_names=names), offload=offload)
    deferred.read(made)
    return made


def check_network(folder: Path, kind: str, mesh: str) -> None:
    """Weights, buffers, ties and gradients are the same, and a rank reads its own rows only."""
    loaded, num_read, read = network(folder, kind, mesh, defer=False), [], deferred.Stored.read

    def count(self: deferred.Stored, file: Any, rows: slice | None = None) -> torch.Tensor:
        values = read(self, file, rows)
        num_read.append(values.numel())
        return values

    deferred.Stored.read = count  # type: ignore[method-assign]
    made = network(folder, kind, mesh, defer=True)
    deferred.Stored.read = read  # type: ignore[method-assign]
    expected, actual = loaded.state_dict(), made.state_dict()
    assert list(actual) == list(expected)
    size = 0
    for (name, x), y in zip(actual.items(), expected.values(), strict=True):
        assert isinstance(x, DTensor)
        assert isinstance(y, DTensor)
        assert (x.placements, x.dtype, x.shape) == (y.placements, y.dtype, y.shape), name
        assert torch.equal(x.to_local(), y.to_local()), name
    for (name, x), (_, y) in zip(made.named_buffers(), loaded.named_buffers(), strict=True):
        assert torch.equal(x, y), name
    assert [(n, p.requires_grad) for n, p in made.named_parameters()] == [
        (n, p.requires_grad) for n, p in loaded.named_parameters()
    ]
    # tied weights once
    size = sum(p.to_local().numel() for p in made.parameters() if isinstance(p, DTensor))
    if kind == "policy":
        assert sum(num_read) == size
        gradients = []
        for policy in (made, loaded):
            mask = torch.tensor([[False, True, True]] * 2)
            policy(torch.tensor([[3, 4, 5], [6, 7, 8]]), mask).logprobs.sum().backward()
            gradients.append(
                [sharding.full_tensor(p.grad) for p in policy.parameters() if p.grad is not None]
            )
        assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))
        assert max(float(x.abs().max()) for x in gradients[0]) > 0


def check_run(case: str, folder: Path) -> None:
    """A run trains the same weights, with the same metrics."""
    results = []
    for defer in (False, True):
        with deferred.defer_loading(defer):
            results.append(trained(case, folder / f"{case}{defer}", devices=2, strategy=FSDP2()))
    loaded, made = results
    assert [loaded["deferred"], made["deferred"]] == [False, True]
    assert made["said"] == loaded["said"]
    assert made["rows"] == loaded["rows"]
    if dist.get_rank() == 0:
        assert all(torch.equal(x, loaded["weights"][name]) for name, x in made["weights"].items())


def peak_bytes(folder: Path, defer: bool) -> int:
    """Peak of memory of this process while the model is loaded and sharded, beyond what it has
    before."""

    def status(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    network(folder, "policy", "all ranks", defer)
    return status("VmHWM") - before


def main(folder: Path) -> None:
    silence_libraries()
    composition.speed_up()
    dist.init_process_group("gloo")
    if os.access("/proc/self/clear_refs", os.W_OK):
        # what the first use of libraries takes
        network(folder / "bfloat16", "policy", "all ranks", defer=False)
        for model in ("large", "large experts"):
            peaks = {}
            for defer in (True, False):
                peaks[defer] = peak_bytes(folder / model, defer) / (4 * LARGE)
            print(f"peak of {model}, in copies of the model:", peaks)
            assert peaks[True] < 0.8 < 1 < peaks[False], peaks
    for model in ("bfloat16", "files", "experts", "one expert"):
        for kind in NETWORKS:
            check_network(folder / model, kind, "all ranks")
    for mesh in ("replicas", "offload"):
        check_network(folder / "files", "policy", mesh)
    for case in RUNS:
        check_run(case, folder)
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
