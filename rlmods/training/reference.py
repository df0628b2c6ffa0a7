"""Frozen models of a run: the reference policy and a local teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlmods.distributed.sharding import is_sharded, to_full
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.files import fingerprint


class Reference:
    """A model that is not trained, by default a frozen copy of the policy as it is when training
    starts.

    It is not a submodule of the LightningModule, so its weights are in neither the optimizer nor
    the checkpoint: loading the same model restores them, and a fingerprint verifies that it is the
    same. If `moves` is set, the weights follow the policy during training and are part of
    `state_dict`."""

    def __init__(self, network: Policy, group: str = "reference") -> None:
        """
        Args:
            network: the frozen model.
            group: configuration group that chose it, for error messages.
        """
        self._policy: Policy | None = network
        self.group = group
        self.fingerprint = fingerprint(network)
        self.moves = False
        """True if the weights change during training (`MovingReference`)."""

    @property
    def policy(self) -> Policy:
        """The frozen model."""
        assert self._policy is not None, f"the {self.group} was released"
        return self._policy

    @property
    def is_released(self) -> bool:
        """True after `release`."""
        return self._policy is None

    @property
    def networks(self) -> list[Policy]:
        """Modules to shard; empty after `release`, or if the model is a second adapter in the
        policy's network."""
        return [] if self._policy is None or self._policy.shares_network else [self._policy]

    def to(self, device: torch.device) -> None:
        """Move the model to a device; a sharded one stays where its shards are."""
        for network in self.networks:
            if not is_sharded(network):
                network.to(device)

    def release(self) -> None:
        """Free the memory of the model, once all its log-probabilities are computed."""
        self._policy = None

    def follow(self, policy: Policy) -> None:
        """Prepare for `copy_from(policy)`, from now on part of the state.

        Raises:
            UserError: the model and the policy have different weights, so that one cannot be copied
            to the other.
        """

        def shapes(model: Policy) -> dict[str, torch.Size]:
            return {name: x.shape for name, x in model.trainable_tensors().items()}

        if shapes(self.policy) != shapes(policy):
            raise UserError(
                "algo.reference_every copies the policy to the reference, which is another "
                "kind of model: type reference=policy"
            )
        self.moves = True

    def copy_from(self, policy: Policy) -> None:
        """Copy the weights of `policy`."""
        self.policy.load_tensors(policy.trainable_tensors())

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the model as it was loaded and, if it moves, its weights."""
        state: dict[str, Any] = {"origin": self.fingerprint}
        if self.moves:
            weights = self.policy.trainable_tensors()
            state["weights"] = to_full({name: x.detach() for name, x in weights.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the weights of a moving reference, or verify that the model is the one that the run
        began with.

        Raises:
            UserError: it is another one.
        """
        if self.moves:
            self.policy.load_tensors(state["weights"])
        elif state.get("origin", self.fingerprint) != self.fingerprint:
            raise UserError(
                f"the {self.group} is not the model that the run began with: restore policy= "
                f"and {self.group}= to resume"
            )
