"""Log-probabilities of given rows: by the policy, and by the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlmods.algo.learner import Learner
from rlmods.critic.shared import ValueHead
from rlmods.policy.base import Policy, PolicyOutput
from rlmods.router import Routing
from rlmods.types import Experience


class Scoring(Learner):
    """A learner whose rows remember what policy, critic and routers said of them."""

    router: Routing
    critic: Any

    @property
    def temperature(self) -> float:
        return float(getattr(self.rollout, "temperature", 1.0))

    def scored(self, experience: Experience, needed: Tensor) -> Experience:
        """The same rows with old log-probabilities, and the routes behind them, in the rows `needed` [N] that have none yet (NaN)."""
        rows = (needed & experience.old_logprobs.isnan().any(1) & experience.mask.any(1)).nonzero().squeeze(1)
        old, routes = experience.old_logprobs.clone(), experience.routes
        # Ranks may miss different numbers of rows: every one takes part in the forwards.
        if self.across_ranks(torch.tensor(len(rows))) > 0:
            part = experience.select(rows) if len(rows) else experience.select(torch.tensor([0], device=self.device)).without_loss()
            found = self.score(part, self.policy)
            old[rows] = found.logprobs[: len(rows)]
            if routes is not None and found.routes is not None:
                routes = routes.index_copy(0, rows, found.routes[: len(rows)])
        return replace(experience, old_logprobs=old, routes=routes)

    @torch.no_grad()
    def score(self, experience: Experience, policy: Policy, *, critic: bool = False) -> PolicyOutput:
        """Teacher-forced log-probabilities [N, T] of the sampled tokens, the critic's values, and the routes that were taken."""
        out = {name: torch.zeros_like(experience.advantages) for name in ("logprobs", "entropy", "values")}
        if experience.routes is not None:
            out["routes"] = torch.full_like(experience.routes, -1)
        for micro, rows in self.microbatches(experience):
            found = self.forwarded(micro, policy, critic=critic)._asdict()
            for name in out:
                if (x := found[name]) is not None:
                    out[name][rows, : x.shape[1]] = x[: len(rows)]
        return PolicyOutput(out["logprobs"], out["entropy"], out["values"], out.get("routes"))

    def referenced(self, experience: Experience) -> Experience:
        """The same rows with the reference's log-probabilities."""
        return replace(experience, ref_logprobs=self.score(experience, self.reference()).logprobs)

    def forwarded(self, micro: Experience, policy: Policy, *, critic: bool = True, **asked: bool) -> PolicyOutput:
        """What policy and critic say of these rows, and what else the policy is `asked`. A critic that is a head on its trunk is read in
        the same forward. Recorded routes are replayed in the policy that recorded them, where `router` says so."""
        head = self.critic if critic and isinstance(self.critic, ValueHead) else None
        routes = micro.routes if self.router.replay and policy is self.policy else None
        scored: PolicyOutput = policy(micro.tokens, micro.mask, temperature=self.temperature, value_head=head, routes=routes, **asked)
        apart = critic and self.critic is not None and head is None
        return scored._replace(values=self.critic(micro.tokens, micro.mask)) if apart else scored
