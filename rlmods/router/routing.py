"""How the routers of a mixture of experts are treated while the rest of it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from rlmods.policy import Policy
from rlmods.types import UserError


@dataclass(frozen=True)
class Routing:
    """A token's ratio pi / pi_old compares two networks where its experts have changed in between: noise that no clip tells from learning.

    Routing replay (arXiv:2507.18071, section 5.3; arXiv:2510.11370): the update uses the experts that were chosen when the old
    log-probabilities were computed, for every token of a row, its prompt included. Gating weights come from live logits, so that the router
    learns all the same. A sequence's mean ratio (ratio=sequence) is steady without any of this.

    What is recorded are the choices of the trainer's own forward. R3 (arXiv:2510.11370) also takes those of the engine that sampled, which
    would close the gap between sampler and trainer (`train/sampler_logprob_gap`) as well; no rollout here reports them.

    `train/router_changed_fraction` is the share of choices that live routers make otherwise than recorded, `train/router_load_max` the
    load of the busiest expert of any layer (1: all are even, E / k: every token goes there). Reference and critic route by themselves."""

    replay: bool = False
    """Optimizer steps replay the recorded choices; False: routers choose afresh in every forward."""
    every: int | None = 1
    """Routers make optimizer steps in every so many-th iteration alone, and have no gradient in the others. null: never, they are frozen.
    That holds their weights; what they read still changes, and with it what they choose, unless `replay` is True."""
    aux_coefficient: float = 0.0
    """Weight of the load-balancing loss (`rlmods.router.balance`) beside the RL loss; 0: none. The loads in it are those of the recorded
    choices, over a whole optimizer step, for which the rows of an iteration's first step are scored too."""

    def __post_init__(self) -> None:
        if not isinstance(self.replay, bool):
            raise ValueError(f"router.replay={self.replay}: must be true or false")
        if self.every is not None and (not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1):
            raise ValueError(f"router.every={self.every}: must be a whole number of at least 1, or null")
        if not self.aux_coefficient >= 0:
            raise ValueError(f"router.aux_coefficient={self.aux_coefficient}: must be 0 or more")

    def __call__(self, policy: Policy) -> None:
        """Put it into effect on the policy that is trained.

        Raises:
            UserError: the policy has no routers, and this is about them.
        """
        if not policy.routers and self != Routing():
            name = type(policy.model).__name__
            about = f"router= is about mixtures of experts, and {name} has no routers that can be told anything"
            raise UserError(f"{about}: type router=free, and nothing of router.NAME=")
        if self.every is None:
            for parameter in policy.routers.parameters():
                parameter.requires_grad_(False)

    def rests(self, iteration: int) -> bool:
        """Whether routers make no step in the iteration that follows so many completed ones."""
        return self.every is None or (iteration + 1) % self.every != 0
