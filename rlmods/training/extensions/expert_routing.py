"""Routing replay, router freezing and load balancing of a mixture of experts."""

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from rlmods.needs import RatioNeeds, needs_of
from rlmods.policy.base import PolicyOutput
from rlmods.router import Routing
from rlmods.router.routing import balance_loss, count_experts
from rlmods.training.extensions.base import Extension
from rlmods.training.train_step import Loss
from rlmods.types import Experience, Totals


class ExpertRouting(Extension):
    """Apply `router` to a mixture-of-experts policy: replay of the recorded experts, routers that
    are frozen in some iterations, the load-balancing loss, and routing metrics.

    Counts are summed over microbatches and reduced over ranks at the end of an optimizer step or of
    the iteration."""

    def __init__(self, router: Routing) -> None:
        self.router = router
        self.needs_old_logprobs = router.aux_coefficient > 0
        self.needs_router_logits = router.aux_coefficient > 0
        self.expert_counts: Tensor | None = None
        """[L, E]: number of tokens for which the live routers chose each expert in this
        iteration."""
        self.expert_fractions = torch.zeros(0)
        """[E]: fraction of the optimizer step's tokens routed to each expert, by the recorded
        choices."""
        self.num_tokens = torch.zeros(())
        """Number of tokens of the optimizer step."""
        self.aux_losses: list[Tensor] = []
        """Load-balancing loss of each optimizer step of this iteration, on this rank."""

    def on_fit_start(self) -> None:
        """Warn if a token-level ratio compares policies between which a token's experts may have
        changed."""
        batch = self.loop.batch
        off_policy = batch.epochs * batch.minibatches > 1 or self.loop.settings.replay_fraction > 0
        by_token = needs_of(self.loop.ratio, RatioNeeds).level == "token"
        if off_policy and by_token and not self.router.replay:
            rank_zero_warn(
                "the experts of a token may change between its old log-probability and a "
                "later optimizer step, and a token-level "
                "ratio then contains routing noise: type router=replay (router.replay=true "
                "beside other options), or ratio=sequence"
            )

    def before_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        """Count the tokens of the whole optimizer step, and compute the fraction of them routed to
        each expert."""
        tokens = loss_row_tokens(minibatch)
        if self.router.aux_coefficient:
            self.num_tokens = self.loop.ranks.reduce(tokens.sum()).clamp(min=1)
            assert minibatch.routed_experts is not None
            own = count_experts(
                minibatch.routed_experts, tokens, self.loop.policy.routers.num_experts
            ).sum(0)
            counts = self.loop.ranks.reduce(own)
            self.expert_fractions = counts / (self.num_tokens * minibatch.routed_experts.shape[2])
            self.aux_losses.append(torch.zeros_like(self.num_tokens))
        return []

    def loss_term(self, micro: Experience, output: PolicyOutput, totals: Totals) -> Tensor | None:
        """Return this microbatch's part of the weighted load-balancing loss."""
        if output.routed_experts is not None:
            self._log_choices(micro, output.routed_experts)
        if output.router_logits is None:
            return None
        tokens = loss_row_tokens(micro).flatten()
        balance = balance_loss(output.router_logits, tokens, self.expert_fractions, self.num_tokens)
        self.aux_losses[-1] += balance.detach()
        return self.router.aux_coefficient * balance

    def _log_choices(self, micro: Experience, live: Tensor) -> None:
        """Count the `live` choices [N, T, L, k] and compare them with the recorded ones."""
        tokens = loss_row_tokens(micro)
        counts = count_experts(live, tokens, self.loop.policy.routers.num_experts)
        self.expert_counts = counts if self.expert_counts is None else self.expert_counts + counts
        if micro.routed_experts is not None:
            changed = (live.sort(-1).values != micro.routed_experts.sort(-1).values).any(-1)
            recorded = tokens[..., None] & (micro.routed_experts >= 0).all(-1)
            self.loop.meter.mean("train/router_changed_fraction", changed.double(), recorded)

    def on_after_backward(self) -> None:
        """Remove the gradient of routers that are frozen in this iteration, so that the optimizer
        skips them and their moments."""
        if self.router.is_frozen(self.loop.iteration):
            for parameter in self.loop.policy.routers.parameters():
                parameter.grad = None

    def after_update(self, batch: Experience, num_fresh: int) -> None:
        """Log the load of the busiest expert of any layer (1: even, E / k: all tokens go there) and
        the mean load-balancing loss."""
        if self.expert_counts is not None:
            counts = self.loop.ranks.reduce(self.expert_counts)
            loads = counts / counts.mean(1, keepdim=True).clamp(min=1)
            self.loop.meter.mean("train/router_load_max", loads.max())
        if self.aux_losses:
            losses = self.loop.ranks.reduce(torch.stack(self.aux_losses))
            self.loop.meter.mean("train/router_aux_loss", losses)
        self.expert_counts = None
        self.aux_losses = []


def loss_row_tokens(rows: Experience) -> Tensor:
    """Return a mask [N, T] of the prompt and response tokens in rows with loss."""
    column = torch.arange(rows.tokens.shape[1], device=rows.tokens.device)
    return (column < rows.lengths[:, None]) & rows.mask.any(1, keepdim=True)
