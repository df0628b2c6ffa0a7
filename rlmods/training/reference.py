"""The policy that distances are measured from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlmods.distributed.sharding import is_sharded, to_full
from rlmods.policy.base import Policy
from rlmods.policy.fingerprint import fingerprint
from rlmods.types import UserError


class Reference:
    """A frozen copy of the policy as it is where training starts; with `every`, as it is after each so many iterations.

    It is no module, so that its weights stay out of optimizer and checkpoint: loading the policy that training started from makes them
    again, and their fingerprint tells whether it did. Those that follow the policy go into `state_dict`. False where there is none.
    """

    def __init__(self, policy: Policy | None = None, every: int | None = None) -> None:
        self.policy = None if policy is None else policy.frozen_copy()
        self.every = every
        self.origin = None if policy is None else fingerprint(policy)

    def __bool__(self) -> bool:
        return self.policy is not None

    def __call__(self) -> Policy:
        assert self.policy is not None  # whoever asks has made one
        return self.policy

    def to(self, device: torch.device) -> None:
        for network in self.networks:
            if not is_sharded(network):  # its shards are where they belong
                network.to(device)

    def release(self) -> None:
        """Free its memory: what it would say is known."""
        self.policy = None

    @property
    def networks(self) -> list[Policy]:
        """What it takes to ask it beside the policy, for those who shard it: nothing where it is an adapter in the policy's network."""
        return [] if self.policy is None or self.policy.shares_network else [self.policy]

    @property
    def moves(self) -> bool:
        """Whether it follows the policy."""
        return self.policy is not None and self.every is not None

    def follow(self, learner: Any) -> None:
        """Become the learner's policy where a round of `every` iterations has ended: before the first batch of the next one, so that what
        is measured at the end of a round is still measured from where the round began."""
        if self.moves and learner.iteration > 0 and learner.iteration % self.every == 0:
            self().load_tensors(learner.policy.trainable_tensors())

    def state_dict(self) -> dict[str, Any]:
        return {"origin": self.origin} | (
            {"weights": to_full({n: x.detach() for n, x in self().trainable_tensors().items()})} if self.moves else {}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: the policy that training starts from is another one than it was.
        """
        if self.moves:
            self().load_tensors(state["weights"])
        elif self.origin is not None and state.get("origin", self.origin) != self.origin:
            raise UserError("the reference is where training began, and policy= is not that any more: give the policy as it was then")
