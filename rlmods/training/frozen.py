"""Frozen models of a run: the reference policy, and the teacher, whose prompt may differ from the
policy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlmods import protocols
from rlmods.distributed.sharding import is_sharded, to_full
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.files import fingerprint
from rlmods.training.collate import collate_unscored
from rlmods.training.lengths import length_above, row_length
from rlmods.training.scorer import LogprobScorer
from rlmods.types import Experience, Prompt, Response


class FrozenPolicy:
    """A model that is not trained, by default a frozen copy of the policy as it is when training
    starts.

    It is not a submodule of the LightningModule, so its weights are not in the optimizer, nor
    (unless `moves`) in the checkpoint: loading the same model restores them, and a fingerprint
    verifies that it is the same. If `moves` is set, the weights follow the policy during training
    and are part of `state_dict`."""

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


class Teacher:
    """A part of the group `teacher` with the network that it loaded."""

    def __init__(self, part: protocols.Teacher, policy: Policy) -> None:
        """
        Args:
            part: part of the group `teacher`.
            policy: the student.
        """
        self.part = part
        self.student = policy
        network = part(policy)
        self.model = (
            None if network is None or network is policy else FrozenPolicy(network, "teacher")
        )
        """The frozen model; None if the teacher is the current policy or on a server."""
        self.is_server = network is None

    @property
    def frozen(self) -> dict[str, FrozenPolicy]:
        """The frozen model by name, if there is one."""
        return {} if self.model is None else {"teacher": self.model}

    @property
    def network(self) -> Policy:
        """The teacher's network in this process."""
        assert not self.is_server, "the teacher is on a server"
        return self.student if self.model is None else self.model.policy

    def check_context(
        self, prompts: Sequence[Prompt], max_tokens: int, columns: Sequence[str] = ()
    ) -> None:
        """Check that the teacher's prompts leave room for a response: a sampled one of `max_tokens`
        tokens, or the longest of the row in these columns.

        Raises:
            UserError: a prompt is too long for the teacher's context.
        """
        limit = self.student.context_length if self.is_server else self.network.context_length
        for prompt in prompts:
            seen = self.part.prompt(prompt)
            length = length_above(self.student, seen, limit - max_tokens)
            room = max_tokens
            if not length and length_above(self.student, seen, limit, columns):
                length = row_length(self.student, seen)
                room = row_length(self.student, seen, columns) - length
            if length:
                raise UserError(
                    f"prompt {prompt.id} has {length} tokens as the teacher sees it; with "
                    f"{room} tokens of a response that exceeds its context of {limit}: "
                    "shorten the demonstration, or type a smaller rollout.max_tokens"
                )

    def seen(self, responses: Sequence[Response]) -> Sequence[Response]:
        """Return the responses with the teacher's prompts."""
        if self.part.demonstration is None:
            return responses
        return [
            replace(r, prompt_tokens=self.student.encode(self.part.prompt(r.prompt)))
            for r in responses
        ]

    def rows(self, responses: Sequence[Response]) -> Experience:
        """Collate the responses after the teacher's prompts. The mask is True on all of their
        tokens."""
        return collate_unscored(self.seen(responses), self.student.pad_id)

    @torch.no_grad()
    def logprobs(
        self, responses: Sequence[Response], batch: Experience, scorer: LogprobScorer
    ) -> Tensor:
        """Return the teacher's log-probabilities [N, T] of the tokens with loss in `batch`, the
        collated responses; 0 elsewhere.

        A response has loss on all of its tokens, or on none.
        """
        out = torch.zeros_like(batch.rewards)
        has_loss = batch.mask.any(1)
        if not self.is_server:
            rows = self.rows(responses).to(batch.mask.device)
            rows = replace(rows, mask=rows.mask & has_loss[:, None])
            return out.masked_scatter(
                batch.mask, scorer.score(rows, self.network).logprobs[rows.mask]
            )
        texts: list[tuple[Sequence[int], Sequence[int]]] = []
        for response, is_used in zip(self.seen(responses), has_loss.tolist(), strict=True):
            if is_used:
                texts.append((response.prompt_tokens, response.tokens))
        assert isinstance(self.part, protocols.ReturnsLogprobs)
        values = [x for logprobs in self.part.logprobs(texts) for x in logprobs]
        return out.masked_scatter(
            batch.mask, torch.tensor(values, dtype=out.dtype, device=out.device)
        )
