"""An optimizer step that is the same however its rows are cut: into microbatches, and over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rlmods.distributed.sharding import full_tensor, is_sharded
from rlmods.ops import pack
from rlmods.policy.base import Policy
from rlmods.schedule import Schedule
from rlmods.training.batch import Batch
from rlmods.training.metrics import Meter
from rlmods.training.nonfinite import Nonfinite
from rlmods.training.reference import Reference
from rlmods.types import Experience, PreferenceBatch, Totals

Table = TypeVar("Table", Experience, PreferenceBatch)
"""What an optimizer step consumes: rows that can be cut into microbatches."""
Loss = Callable[[Any, Totals], Tensor]
"""Share of some rows in the loss of the optimizer step: summed over microbatches and ranks it is the loss."""


class OptimizerSteps(L.LightningModule):
    """The half of a learner that turns rows into gradients and steps. A subclass says what the loss is and which networks it trains."""

    policy: Policy
    reference: Reference
    optimizer: Callable[..., torch.optim.Optimizer]
    schedule: Schedule
    batch: Batch
    meter: Meter
    nonfinite: Nonfinite
    seed: int
    iteration: int
    """Completed iterations."""
    place: int
    """Stages and microbatches so far: every rank takes the same course."""
    optimizer_steps: int
    """Optimizer steps since the run began."""

    # What a subclass says

    def loss(self, micro: Any, totals: Totals) -> Tensor:
        """Share of these rows in the loss of the optimizer step: summed over microbatches and ranks it is the loss."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is")

    @property
    def networks(self) -> dict[str, nn.Module]:
        """What is trained, the main one first."""
        return {"policy": self.policy}

    def notify(self, hook: str, *args: Any) -> None:
        """Call a hook of ours on every callback that has it."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if method := getattr(callback, hook, None):
                method(self.trainer, self, *args)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One a network, with settings of its own where it has any."""
        return [{"params": [p for p in network.parameters() if p.requires_grad]} for network in self.networks.values()]

    # The optimizer step

    def update(self, batch: Experience | PreferenceBatch, *more: tuple[Experience | PreferenceBatch, Loss]) -> None:
        """One optimizer step on these rows (of this rank), in microbatches of `token_budget` tokens; `more` rows add their losses."""
        shares: list[tuple[Any, Loss]] = [(rows, loss) for rows, loss in ((batch, self.loss), *more)]
        counts = [self.across_ranks(rows.counts) for rows, _ in shares]
        empty = not any(count[0] for count in counts)
        self.meter.mean("train/skipped_steps", float(empty))
        if empty:
            return
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.nonfinite.begin()
        parts = [
            (share, micro, indices, loss, Totals(tokens.clamp(min=1), sequences.clamp(min=1)))
            for share, ((rows, loss), (tokens, sequences)) in enumerate(zip(shares, counts, strict=True))
            for micro, indices in self.microbatches(rows)
        ]
        for i, (share, micro, indices, loss, totals) in enumerate(parts):
            self.notify("on_safe_point")
            with self.summed_over_ranks(i == len(parts) - 1):
                # DDP and FSDP average gradients over ranks; the totals are global already.
                self.manual_backward(self.nonfinite.see(share, indices, loss(micro, totals)) * self.trainer.world_size)
        norms = {name: full_tensor(clip_grad_norm_(net.parameters(), self.batch.max_norm)) for name, net in self.networks.items()}
        for i, (name, norm) in enumerate(norms.items()):
            self.meter.mean("train/grad_norm" if i == 0 else f"train/{name}_grad_norm", norm, norm.isfinite())
        if self.nonfinite.found(self, norms, [rows for rows, _ in shares]):
            optimizer.zero_grad()
            return
        optimizer.step()
        self.optimizer_steps += 1

    def summed_over_ranks(self, last: bool) -> AbstractContextManager[Any]:
        """DDP sends gradients once, with the last microbatch; FSDP, which has no room for whole ones, with each."""
        block = getattr(self.trainer.strategy, "block_backward_sync", None)
        return nullcontext() if last or block is None else block()

    def minibatches(self, num_rows: int) -> list[Tensor]:
        """Row indices of every optimizer step, shuffled by (seed, iteration, epoch)."""
        orders = (torch.randperm(num_rows, generator=self.generator(epoch)) for epoch in range(self.batch.epochs))
        return [rows for order in orders for rows in order.tensor_split(self.batch.minibatches)]

    def generator(self, purpose: int) -> torch.Generator:
        """Random numbers that depend on seed, iteration and `purpose` alone."""
        return torch.Generator().manual_seed(hash((self.seed, self.iteration, purpose)))

    def microbatches(self, batch: Table) -> Iterator[tuple[Table, Tensor]]:
        """Rows cut by token budget, longest first, and their indices in the batch.

        Every rank yields equally many, as sharded forwards wait for each other; those that fill up have no loss and no indices.
        """
        chunks = pack(batch.sizes, self.batch.token_budget)
        for i in range(int(self.across_ranks(torch.tensor(len(chunks)), "max"))):
            self.place += 1
            self.notify("on_safe_point")
            if i < len(chunks):
                yield batch.select(chunks[i]).trim(), chunks[i]
            else:
                yield batch.select(chunks[-1]).trim().without_loss(), chunks[-1][:0]

    def across_ranks(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduced over ranks, in float64 so that counts stay exact."""
        x = x.to(self.device, torch.float64)
        if self.trainer.world_size == 1:
            return x
        return self.trainer.strategy.reduce(x, reduce_op=op)

    @property
    def max_iterations(self) -> int:
        return int(self.trainer.max_iterations)  # type: ignore[attr-defined]

    def configure_model(self) -> None:
        """Cut the networks where the strategy shards, the reference among them. Lightning calls it before it makes the optimizer."""
        strategy: Any = self.trainer.strategy
        if hasattr(strategy, "shard"):
            for network in (*self.networks.values(), *self.reference.networks):
                if not is_sharded(network):
                    strategy.shard(network)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameter_groups())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: self.schedule(i, self.max_iterations))
        return [optimizer], [schedule]
