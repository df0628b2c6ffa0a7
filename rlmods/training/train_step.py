"""One optimizer step, whose result does not depend on the microbatches and ranks over which its
rows are split."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from rlmods.distributed.collectives import Ranks
from rlmods.distributed.loss_scale import ScaledFloat16
from rlmods.errors import UserError
from rlmods.ops import pack
from rlmods.training.meter import Meter, PhaseTimer
from rlmods.training.settings import PADDED_BUDGET, Batch
from rlmods.training.views import LearnerView
from rlmods.types import Totals

Loss = Callable[[Any, Totals], Tensor]
"""Maps a microbatch and the totals of the optimizer step to the loss of the microbatch, a sum that
is divided by these totals. The losses of microbatches and ranks are added, not averaged."""


R = TypeVar("R", bound="StepRows")


class StepRows(Protocol):
    """Rows that an optimizer step is made on, such as `Experience`."""

    @property
    def group(self) -> Tensor | None: ...
    @property
    def forward_tokens(self) -> Tensor: ...
    @property
    def loss_counts(self) -> Tensor: ...
    def to(self: R, device: torch.device | str) -> R: ...
    def select(self: R, rows: Tensor) -> R: ...
    def split(self: R, chunks: Sequence[Tensor]) -> Iterator[R]: ...
    def computed_tokens(self, order: Tensor) -> tuple[Tensor, Tensor]: ...
    def without_loss(self: R) -> R: ...
    def tensors(self) -> dict[str, Tensor | None]: ...


class Microbatches:
    """Split rows into microbatches of at most `token_budget` tokens, longest rows first: tokens
    that are computed if the policy packs rows, else padding included. Rows that are packed follow
    each other by group, because the prompt of a group is computed once.

    Without a budget they have at most `PADDED_BUDGET` tokens, padding included. Every rank gets the
    same number of microbatches, because sharded forwards are collective; the added ones have no
    loss."""

    def __init__(
        self,
        ranks: Ranks,
        timer: PhaseTimer,
        token_budget: int | None,
        packs: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            packs: returns True if the policy packs rows.
        """
        self.ranks = ranks
        self.timer = timer
        self.token_budget = token_budget
        self.packs = packs

    @property
    def budget(self) -> int:
        """The budget, of tokens that are computed or of all."""
        return PADDED_BUDGET if self.token_budget is None else self.token_budget

    def __call__(self, rows: R) -> Iterator[tuple[R, Tensor]]:
        """Yield microbatches and the indices of their rows; an added microbatch has no indices."""
        for micro, indices, _ in self.with_end(rows):
            yield micro, indices

    def with_end(self, rows: R) -> Iterator[tuple[R, Tensor, bool]]:
        """Yield microbatches, the indices of their rows, and True with the last one."""
        chunks = self.chunks(rows)
        num_parts = self.ranks.reduce_count(len(chunks), "max")
        num_added = num_parts - len(chunks)
        parts = rows.split([*chunks, *chunks[-1:] * num_added])
        for i, micro in enumerate(parts, 1):
            self.timer.advance()
            if i <= len(chunks):
                yield micro, chunks[i - 1], i == num_parts
            else:
                yield micro.without_loss(), chunks[-1][:0], i == num_parts

    def chunks(self, rows: StepRows) -> list[Tensor]:
        """Return the indices of the rows of each microbatch of this rank."""
        packs = self.packs()
        group = rows.group if packs else None
        counts_computed = packs and self.token_budget is not None
        computed = rows.computed_tokens if counts_computed else None
        return pack(rows.forward_tokens, self.budget, group, computed)


@dataclass(frozen=True)
class Source:
    """Rows of this rank in an optimizer step, with their loss."""

    rows: StepRows
    loss: Loss
    totals: Totals
    has_loss: bool
    """True if a token of any rank has a loss."""


@dataclass(frozen=True)
class MicroLoss:
    """Loss of a microbatch."""

    source: int
    """Index of its `Source`."""
    indices: Tensor
    """Indices of its rows in the source."""
    value: Tensor


class TrainStep:
    """Accumulate gradients over microbatches, clip them, and step the optimizer.

    Each loss is divided by the `Totals` of its own rows in the step, over all ranks. A step with
    a NaN or infinite loss or gradient is dropped and counted in `train/nonfinite_steps`;
    `batch.max_nonfinite` of them in a row end the run. A step in which no token has a loss counts
    in `train/skipped_steps`. With scaled losses, a step whose gradients overflow is dropped and
    counted in `train/overflow_steps`. All ranks decide alike."""

    def __init__(
        self,
        learner: LearnerView,
        ranks: Ranks,
        microbatches: Microbatches,
        meter: Meter,
        timer: PhaseTimer,
        batch: Batch,
    ) -> None:
        self.learner = learner
        self.ranks = ranks
        self.microbatches = microbatches
        self.meter = meter
        self.timer = timer
        self.max_norm = batch.max_norm
        self.max_nonfinite = batch.max_nonfinite
        self.num_steps = 0
        """Optimizer steps since the run began."""
        self.num_nonfinite = 0
        """Skipped steps in a row."""

    def __call__(self, rows: StepRows, loss: Loss, *more: tuple[StepRows, Loss]) -> None:
        """Make one optimizer step on these rows of this rank. `more` rows add their own losses to
        it.

        Raises:
            UserError: too many non-finite steps in a row.
        """
        sources = self.sources((rows, loss), *more)
        is_empty = not any(source.has_loss for source in sources)
        self.meter.mean("train/skipped_steps", float(is_empty))
        if is_empty:
            return
        optimizer = self.learner.optimizers()
        optimizer.zero_grad()
        losses = self.accumulate(sources)
        if self.scaling is not None:
            self.scaling.scaler.unscale_(optimizer)
        norms = self.clip()
        if self._drops(losses, norms):
            optimizer.zero_grad()
            if self.num_nonfinite >= self.max_nonfinite:
                exact = "" if self.scaling is None else "trainer.precision=32-true, "
                reason = (
                    f"{self.num_nonfinite} optimizer steps in a row were not finite: iteration "
                    f"{self.learner.iteration + 1} ends the run, try {exact}a smaller "
                    "optimizer.lr=... or batch.max_nonfinite=N"
                )
                self.learner.notify("on_nonfinite_batch", reason, sources, losses, norms)
                raise UserError(reason)
            return
        # before the step: an unchanged count says that the weights are unchanged, also after an
        # exception in it
        self.num_steps += 1
        optimizer.step()
        optimizer.zero_grad()  # gradients take no memory while responses are sampled

    def sources(self, *losses: tuple[StepRows, Loss]) -> list[Source]:
        """Return rows and their losses with the totals over all ranks."""
        sources: list[Source] = []
        for rows, loss in losses:
            tokens, sequences = self.ranks.reduce(rows.loss_counts)
            totals = Totals(tokens.clamp(min=1), sequences.clamp(min=1))
            sources.append(Source(rows, loss, totals, bool(tokens)))
        return sources

    @property
    def scaling(self) -> ScaledFloat16 | None:
        """What scales the losses in float16; None in other precisions."""
        plugin = self.learner.trainer.precision_plugin
        return plugin if isinstance(plugin, ScaledFloat16) else None

    def accumulate(self, sources: Sequence[Source], *, reduces: bool = True) -> list[MicroLoss]:
        """Add the gradients of all microbatches, scaled by `scaling`, and return their losses.
        `reduces=False`: DDP does not add the gradients of other ranks."""
        losses: list[MicroLoss] = []
        for i, source in enumerate(sources):
            for micro, indices, ends_source in self.microbatches.with_end(source.rows):
                is_last = ends_source and i == len(sources) - 1
                # the next source (PTX) may leave a network without gradients: reduce after each one
                self.set_all_reduce(ends_source)
                with self.gradient_sync(is_last=is_last and reduces):
                    value = source.loss(micro, source.totals)
                    losses.append(MicroLoss(i, indices, value.detach()))
                    # DDP and FSDP average gradients over ranks; the totals are global already.
                    self.learner.manual_backward(value * self.ranks.world_size)
        return losses

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[Any]:
        """Delay the gradient reduction of DDP to the last microbatch. FSDP, which holds no full
        gradients, reduces with each within a replica (`set_all_reduce`)."""
        strategy = self.learner.trainer.strategy
        if is_last or not isinstance(strategy, DDPStrategy):
            return nullcontext()
        return strategy.block_backward_sync()

    def set_all_reduce(self, enabled: bool) -> None:
        """Let backward of networks with hybrid sharding add the gradients of other replicas, which
        are on other nodes, or let it keep its sums until then."""
        for network in self.learner.networks.values():
            if isinstance(network, FSDPModule):
                network.set_requires_all_reduce(enabled)

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradients of each network, and return their norms before."""
        norms: dict[str, Tensor] = {}
        for name, network in self.learner.networks.items():
            norm = clip_grad_norm_(network.parameters(), self.max_norm)
            if isinstance(norm, DTensor):
                norm = norm.full_tensor()
            label = "train/grad_norm" if not norms else f"train/{name}_grad_norm"
            self.meter.mean(label, norm, norm.isfinite())
            norms[name] = norm
        return norms

    def _drops(self, losses: Sequence[MicroLoss], norms: Mapping[str, Tensor]) -> bool:
        """Return True on all ranks if a loss or a gradient norm of any rank is NaN or infinite, and
        count the step."""
        found = [self._any_nonfinite(x.value for x in losses), self._any_nonfinite(norms.values())]
        of_losses, of_norms = map(bool, self.ranks.reduce(torch.stack(found), "max").tolist())
        overflows = self._overflows(of_losses)
        nonfinite = (of_losses or of_norms) and not overflows
        self.meter.sum("train/nonfinite_steps", int(nonfinite and self.ranks.rank == 0))
        if not overflows:
            self.num_nonfinite = self.num_nonfinite + 1 if nonfinite else 0
        return overflows or nonfinite

    def _any_nonfinite(self, numbers: Iterable[Tensor]) -> Tensor:
        values = torch.stack([x.to(self.ranks.device, torch.float64) for x in numbers])
        return ~values.isfinite().all()

    def _overflows(self, of_losses: bool) -> bool:
        """Adapt the scale of the losses, and return True if the gradients of this step have
        overflowed. `of_losses`: a loss is NaN or infinite, whatever the scale."""
        if self.scaling is None:
            return False
        self.meter.mean("train/loss_scale", self.scaling.scale)
        overflows = self.scaling.update(keep=of_losses)
        self.meter.sum("train/overflow_steps", int(overflows and self.ranks.rank == 0))
        return overflows
