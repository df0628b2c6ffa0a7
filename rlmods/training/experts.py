"""What the routers of a mixture of experts do in the optimizer steps of an iteration, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from rlmods.policy.base import Policy, PolicyOutput
from rlmods.protocols import Ratio
from rlmods.router import Routing
from rlmods.router.balance import balance_loss, load
from rlmods.training.metrics import Meter
from rlmods.types import Experience


def real(rows: Experience) -> Tensor:
    """[N, T]: tokens of prompt and response, in rows that carry loss."""
    at = torch.arange(rows.tokens.shape[1], device=rows.tokens.device)
    return (at < rows.lengths[:, None]) & rows.mask.any(1, keepdim=True)


class Experts:
    """Puts `router` into effect on the policy. Sums over microbatches, which are reduced over ranks where a step or an iteration ends."""

    def __init__(self, router: Routing, policy: Policy, across_ranks: Callable[[Tensor], Tensor]) -> None:
        router(policy)
        self.router, self.routers, self.across_ranks = router, policy.routers, across_ranks
        self.loads: Tensor | None = None
        """[L, E]: choices of the live routers in this iteration."""
        self.share = torch.zeros(0)
        """[E]: share of the optimizer step's tokens that goes to each expert, as recorded."""
        self.num_tokens = torch.zeros(())
        """Tokens of the optimizer step."""
        self.aux: list[Tensor] = []
        """Load-balancing loss of every optimizer step of this iteration, on this rank."""

    def warn(self, ratio: Ratio, moves: bool) -> None:
        """Say so where ratios by token are taken of a policy that `moves` between old log-probabilities and some step: routes may too."""
        if self.routers and moves and not self.router.replay and getattr(ratio, "level", "token") == "token":
            rank_zero_warn(
                "the experts of a token may change between its old log-probability and a later optimizer step, and a ratio by token cannot "
                "tell that from learning: type router=replay (router.replay=true beside other options), or ratio=sequence"
            )

    def rest(self, iteration: int) -> None:
        """Take the gradient of routers that make no step in this iteration: the optimizer then leaves them alone, moments and all."""
        if self.router.rests(iteration):
            for parameter in self.routers.parameters():
                parameter.grad = None

    def begin_step(self, batch: Experience) -> None:
        """Take the shares of experts over the whole optimizer step, which no microbatch can see."""
        if not self.router.aux_coefficient:
            return
        assert batch.routes is not None
        where = real(batch)
        counts = self.across_ranks(load(batch.routes, where, self.routers.num_experts).sum(0))
        self.num_tokens = self.across_ranks(where.sum()).clamp(min=1)
        self.share = counts / (self.num_tokens * batch.routes.shape[2])
        self.aux.append(torch.zeros_like(self.num_tokens))

    def loss(self, micro: Experience, scored: PolicyOutput) -> Tensor:
        """These rows' part of the step's load-balancing loss, weighted."""
        assert scored.router_logits is not None
        found = balance_loss(scored.router_logits, real(micro).flatten(), self.share, self.num_tokens)
        self.aux[-1] += found.detach()
        return self.router.aux_coefficient * found

    def watch(self, meter: Meter, micro: Experience, live: Tensor) -> None:
        """Count the `live` choices [N, T, L, k], and compare them with the recorded ones."""
        where = real(micro)
        counts = load(live, where, self.routers.num_experts)
        self.loads = counts if self.loads is None else self.loads + counts
        if micro.routes is not None:
            changed = (live.sort(-1).values != micro.routes.sort(-1).values).any(-1)
            meter.mean("train/router_changed_fraction", changed.double(), where[..., None] & (micro.routes >= 0).all(-1))

    def finish(self, meter: Meter) -> None:
        """End the iteration: load of the busiest expert of any layer (1: all are even, E / k: all tokens go there), and the mean loss."""
        if self.loads is not None:
            loads = self.across_ranks(self.loads)
            meter.mean("train/router_load_max", (loads / loads.mean(1, keepdim=True).clamp(min=1)).max())
        if self.aux:
            meter.mean("train/router_aux_loss", self.across_ranks(torch.stack(self.aux)))
        self.loads, self.aux = None, []
