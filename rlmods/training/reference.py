"""The reference policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlmods.distributed.sharding import is_sharded, to_full
from rlmods.policy.base import Policy
from rlmods.policy.fingerprint import fingerprint
from rlmods.types import UserError


class Reference:
    """A frozen copy of the policy as it is when training starts.

    It is not a submodule of the LightningModule, so its weights are in neither the optimizer nor the checkpoint: loading the initial policy
    restores them, and a fingerprint verifies that it is the same policy. If `moves` is set, the weights follow the policy during training
    and are part of `state_dict`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy: Policy | None = policy.frozen_copy()
        self.fingerprint = fingerprint(policy)
        self.moves = False
        """True if the weights change during training (`MovingReference`)."""

    @property
    def policy(self) -> Policy:
        """The frozen policy."""
        assert self._policy is not None, "the reference was released"
        return self._policy

    @property
    def is_released(self) -> bool:
        """True after `release`."""
        return self._policy is None

    @property
    def networks(self) -> list[Policy]:
        """Modules to shard; empty after `release`, or if the reference is a second adapter in the policy's network."""
        return [] if self._policy is None or self._policy.shares_network else [self._policy]

    def to(self, device: torch.device) -> None:
        """Move the reference to a device; a sharded one stays where its shards are."""
        for network in self.networks:
            if not is_sharded(network):
                network.to(device)

    def release(self) -> None:
        """Free the memory of the reference, once all its log-probabilities are computed."""
        self._policy = None

    def copy_from(self, policy: Policy) -> None:
        """Copy the weights of `policy`."""
        self.policy.load_tensors(policy.trainable_tensors())

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the initial policy and, if the reference moves, its weights."""
        weights = {name: x.detach() for name, x in self.policy.trainable_tensors().items()} if self.moves else {}
        return {"origin": self.fingerprint} | ({"weights": to_full(weights)} if self.moves else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the weights of a moving reference, or verify that the initial policy is the same.

        Raises:
            UserError: training started from another policy.
        """
        if self.moves:
            self.policy.load_tensors(state["weights"])
        elif state.get("origin", self.fingerprint) != self.fingerprint:
            raise UserError("the reference is the policy that training started from, and policy= is another one now: restore it to resume")
