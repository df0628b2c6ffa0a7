"""Overflow of one shard on as many ranks as there are: `python -m tests.support.overflow_ranks`."""

from typing import Any

import lightning as L
import torch
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor

from rlmods.algo import SFT, Batch
from rlmods.cli.console import silence_libraries
from rlmods.distributed import sharding
from rlmods.distributed.collectives import all_gather
from rlmods.distributed.loss_scale import ScaledFloat16
from rlmods.distributed.strategy import DDP, FSDP2
from tests.support.tiny_setup import fit, learner

SCALE = 2.0**10
"""Scale at which no other step overflows."""
STEP = 1
"""The optimizer step of four that overflows."""


class Begins(L.Callback):
    """Begin with another scale."""

    def __init__(self, init_scale: float, growth_interval: int = 2000) -> None:
        self.options = {"init_scale": init_scale, "growth_interval": growth_interval}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if isinstance(trainer.precision_plugin, ScaledFloat16):
            trainer.precision_plugin.scaler = GradScaler("cpu", **self.options)


def overflowing(made: Any) -> Any:
    """Let an element of the gradient overflow: under FSDP in the shard of the first rank."""
    accumulate = made.step.accumulate
    position = -1

    def accumulated(*args: Any, **options: Any) -> Any:
        nonlocal position
        losses = accumulate(*args, **options)
        position += 1
        gradient = next(made.policy.parameters()).grad
        is_sharded = isinstance(gradient, DTensor)
        if position == STEP and not (is_sharded and made.ranks.rank):
            local = gradient.to_local() if is_sharded else gradient
            local.view(-1)[0] = torch.inf
        return losses

    made.step.accumulate = accumulated
    return made


def trained(made: Any, strategy: Any, precision: str) -> list[dict[str, Any]]:
    callbacks = (Begins(SCALE),)
    return fit(made, 2, callbacks=callbacks, devices=2, strategy=strategy(), precision=precision)


def check(strategy: Any) -> None:
    """Gradients are those of float32, and all ranks drop the step and halve the scale."""
    batch = Batch(prompts=4, minibatches=2)
    exact = trained(learner(SFT, batch=batch), strategy, "32-true")
    made = learner(SFT, batch=batch)
    gathered: set[torch.dtype] = set()
    layer = made.policy.model.model.layers[0].mlp.down_proj
    layer.register_forward_pre_hook(lambda module, _: gathered.add(module.weight.dtype))
    half = trained(made, strategy, "16-mixed")
    assert gathered == {torch.float16 if strategy is FSDP2 else torch.float32}
    for mine, theirs in zip(half, exact, strict=True):
        assert mine["train/overflow_steps"] == 0, mine
        assert abs(mine["train/grad_norm"] / theirs["train/grad_norm"] - 1) < 1e-2, (mine, theirs)
    made = overflowing(learner(SFT, batch=batch))
    rows = trained(made, strategy, "16-mixed")
    assert [row["train/overflow_steps"] for row in rows] == [1, 0], rows
    assert [row["train/nonfinite_steps"] for row in rows] == [0, 0], rows
    assert (
        all_gather((made.trainer.precision_plugin.scale, made.optimizer_steps))
        == [(SCALE / 2, 3)] * 2
    )
    weights = {name: sharding.full_tensor(x.detach()) for name, x in made.policy.named_parameters()}
    [first, second] = all_gather(weights)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(x.isfinite().all() for x in first.values())


if __name__ == "__main__":
    silence_libraries()
    for strategy in (DDP, FSDP2):
        check(strategy)
        print(strategy.__name__, flush=True)
