"""One optimizer step, whose result does not depend on the microbatches and ranks over which its
rows are split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rlmods.distributed.collectives import Ranks
from rlmods.distributed.sharding import full_tensor
from rlmods.errors import UserError
from rlmods.ops import pack
from rlmods.training.batch import Batch
from rlmods.training.distill_batch import DistillBatch
from rlmods.training.metrics import Meter, PhaseTimer
from rlmods.types import Experience, PreferenceBatch, Totals

Rows = TypeVar("Rows", Experience, PreferenceBatch, DistillBatch)
Batches = Experience | PreferenceBatch | DistillBatch
Loss = Callable[[Any, Totals], Tensor]
"""Maps a microbatch and the totals of the optimizer step to a part of the loss, which is the sum
over microbatches and ranks."""


class Module(Protocol):
    """The LightningModule that owns the networks and the optimizer."""

    iteration: int

    @property
    def networks(self) -> dict[str, nn.Module]: ...
    @property
    def trainer(self) -> Any: ...
    def optimizers(self) -> Any: ...
    def manual_backward(self, loss: Tensor) -> None: ...
    def notify(self, hook: str, *args: Any) -> None: ...


class Microbatches:
    """Split rows into microbatches of at most `token_budget` tokens, longest rows first. With
    `by_group`, for a policy that computes the prompt of a group once, the rows of a group follow
    each other.

    Every rank gets the same number of microbatches, because sharded forwards are collective; the
    added ones have no loss."""

    def __init__(
        self, ranks: Ranks, timer: PhaseTimer, token_budget: int, by_group: bool = False
    ) -> None:
        self.ranks, self.timer, self.token_budget, self.by_group = (
            ranks,
            timer,
            token_budget,
            by_group,
        )

    def __call__(self, rows: Rows) -> Iterator[tuple[Rows, Tensor]]:
        """Yield microbatches and the indices of their rows; an added microbatch has no indices."""
        chunks = pack(
            rows.forward_tokens,
            self.token_budget,
            getattr(rows, "group", None) if self.by_group else None,
        )
        for i in range(int(self.ranks.reduce(torch.tensor(len(chunks)), "max"))):
            self.timer.advance()
            if i < len(chunks):
                yield rows.select(chunks[i]).trim(), chunks[i]
            else:
                yield rows.select(chunks[-1]).trim().without_loss(), chunks[-1][:0]


class TrainStep:
    """Accumulate gradients over microbatches, clip them, and step the optimizer.

    The loss is a sum over tokens divided by `Totals` of the whole step over all ranks. A step with
    a NaN or infinite loss or gradient is skipped and counted (`train/nonfinite_steps`);
    `batch.max_nonfinite` of them in a row end the run. All ranks decide alike."""

    def __init__(
        self,
        module: Module,
        ranks: Ranks,
        microbatches: Microbatches,
        meter: Meter,
        timer: PhaseTimer,
        batch: Batch,
    ) -> None:
        self.module, self.ranks, self.microbatches, self.meter, self.timer = (
            module,
            ranks,
            microbatches,
            meter,
            timer,
        )
        self.max_norm, self.max_nonfinite = batch.max_norm, batch.max_nonfinite
        self.num_steps = 0
        """Optimizer steps since the run began."""
        self.num_nonfinite = 0
        """Skipped steps in a row."""

    def __call__(self, rows: Batches, loss: Loss, *more: tuple[Batches, Loss]) -> None:
        """Make one optimizer step on these rows of this rank. `more` rows add their own losses to
        it.

        Raises:
            UserError: too many non-finite steps in a row.
        """
        sources: list[tuple[Any, Loss]] = [(rows, loss), *more]
        counts = [self.ranks.reduce(source.loss_counts) for source, _ in sources]
        empty = not any(count[0] for count in counts)
        self.meter.mean("train/skipped_steps", float(empty))
        if empty:
            return
        optimizer = self.module.optimizers()
        optimizer.zero_grad()
        work = [
            (
                source,
                micro,
                indices,
                source_loss,
                Totals(tokens.clamp(min=1), sequences.clamp(min=1)),
            )
            for source, ((source_rows, source_loss), (tokens, sequences)) in enumerate(
                zip(sources, counts, strict=True)
            )
            for micro, indices in self.microbatches(source_rows)
        ]
        losses: list[tuple[int, Tensor, Tensor]] = []
        for i, (source, micro, indices, source_loss, totals) in enumerate(work):
            self.timer.on_safe_point()
            with self.gradient_sync(is_last=i == len(work) - 1):
                value = source_loss(micro, totals)
                losses.append((source, indices, value.detach()))
                # DDP and FSDP average gradients over ranks; the totals are global already.
                self.module.manual_backward(value * self.ranks.world_size)
        norms = {
            name: full_tensor(clip_grad_norm_(x.parameters(), self.max_norm))
            for name, x in self.module.networks.items()
        }
        for i, (name, norm) in enumerate(norms.items()):
            self.meter.mean(
                "train/grad_norm" if i == 0 else f"train/{name}_grad_norm", norm, norm.isfinite()
            )
        if self._is_nonfinite(losses, norms, [source_rows for source_rows, _ in sources]):
            optimizer.zero_grad()
            return
        # before the step: an unchanged count says that the weights are unchanged, also after an
        # exception in it
        self.num_steps += 1
        optimizer.step()
        optimizer.zero_grad()  # gradients take no memory while responses are sampled

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[Any]:
        """Delay the gradient reduction of DDP to the last microbatch. FSDP, which holds no full
        gradients, reduces with each."""
        block = getattr(self.module.trainer.strategy, "block_backward_sync", None)
        return nullcontext() if is_last or block is None else block()

    def _is_nonfinite(
        self,
        losses: Sequence[tuple[int, Tensor, Tensor]],
        norms: Mapping[str, Tensor],
        sources: Sequence[Any],
    ) -> bool:
        """Return True on all ranks if a loss or a gradient norm of any rank is NaN or infinite."""
        values = torch.stack(
            [
                x.to(self.ranks.device, torch.float64)
                for x in (*(loss for _, _, loss in losses), *norms.values())
            ]
        )
        nonfinite = bool(self.ranks.reduce(~values.isfinite().all(), "max"))
        self.meter.sum("train/nonfinite_steps", int(nonfinite and self.ranks.rank == 0))
        self.num_nonfinite = self.num_nonfinite + 1 if nonfinite else 0
        if nonfinite and self.num_nonfinite >= self.max_nonfinite:
            iteration = self.module.iteration + 1
            advice = (
                f"iteration {iteration} ends the run, try a smaller optimizer.lr=... or "
                "batch.max_nonfinite=N"
            )
            reason = f"{self.num_nonfinite} optimizer steps in a row were not finite: {advice}"
            report = {
                "why": reason,
                "iteration": iteration,
                "optimizer_steps": self.num_steps,
                "rank": self.ranks.rank,
                "norms": {name: float(norm) for name, norm in norms.items()},
                "losses": [
                    {"share": source, "rows": rows.cpu(), "loss": float(loss)}
                    for source, rows, loss in losses
                ],
                "shares": [
                    {name: None if x is None else x.cpu() for name, x in source.tensors().items()}
                    for source in sources
                ],
            }
            self.module.notify("on_nonfinite_batch", report)
            raise UserError(reason)
        return nonfinite
