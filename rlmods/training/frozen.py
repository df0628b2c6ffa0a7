"""Frozen models of a run: the reference policy, and the teacher, whose prompt may differ from the
policy's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import Any

import torch
from torch import Tensor

from rlmods import protocols
from rlmods.distributed.sharding import is_sharded, to_full
from rlmods.errors import UserError
from rlmods.needs import FrozenModelNeeds, needs_of
from rlmods.policy.base import Policy
from rlmods.policy.files import fingerprint
from rlmods.training.collate import collate_unscored
from rlmods.training.lengths import length_above, row_length
from rlmods.training.meter import Meter
from rlmods.training.metrics import correctness_or_reward
from rlmods.training.scorer import LogprobScorer
from rlmods.types import Experience, Graded, Prompt, Response, Scores


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
        """True if the weights change during training (`MovingModel`)."""

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
        """Prepare for `step_towards(policy)`: the weights are part of the state from now on.

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

    @torch.no_grad()
    def step_towards(self, policy: Policy, rate: float) -> None:
        """Set the weights to `(1 - rate) w + rate w_policy`."""
        target = policy.trainable_tensors()
        for name, x in self.policy.trainable_tensors().items():
            x.lerp_(target[name].to(x.dtype), rate)  # in place: a copy of all may not fit

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the model as it was loaded and, if it moves, its weights."""
        state: dict[str, Any] = {"origin": self.fingerprint}
        if self.moves:
            weights = self.policy.trainable_tensors()
            state["weights"] = to_full({name: x.detach() for name, x in weights.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the weights of a moving model, or verify that the model is the one that the run
        began with. The state has no weights if the model did not move when it was saved.

        Raises:
            UserError: it is another one.
        """
        if self.moves and "weights" in state:
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
        self.rate = needs_of(part, FrozenModelNeeds).rate
        """Step of its weights towards the policy's after each iteration; 0: they stay."""
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

    @property
    def context_length(self) -> int:
        """Largest number of tokens of a teacher's prompt and a response."""
        return self.student.context_length if self.is_server else self.network.context_length

    def check_context(
        self, prompts: Sequence[Prompt], max_tokens: int, columns: Sequence[str] = ()
    ) -> None:
        """Check that the teacher's prompts leave room for a response: a sampled one of `max_tokens`
        tokens, or the longest of the row in these columns.

        Raises:
            UserError: a prompt is too long for the teacher's context.
        """
        limit = self.context_length
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

    def after_prompts(
        self, responses: Sequence[Response], prompts: Sequence[Prompt | None]
    ) -> Sequence[Response]:
        """Return the responses after the teacher's prompts; after their own where that is None."""
        if not self.part.shows_more:
            return responses
        seen = list(responses)
        for i, prompt in enumerate(prompts):
            if prompt is not None:
                seen[i] = replace(seen[i], prompt_tokens=self.student.encode(prompt))
        return seen

    def as_seen(
        self,
        responses: Sequence[Response],
        scores: Scores,
        group: Tensor,
        has_loss: Tensor,
        meter: Meter,
    ) -> tuple[Sequence[Response], Tensor]:
        """Return the responses as the teacher sees them, and a mask [N] that is True on those with
        loss which it scores. The others are as the policy sees them, which fits its context.

        It does not score a response to which its prompt has nothing to show, which exceeds its
        context after its prompt, or whose context begins anew (`Response.cuts`), where it would not
        be shown anything.

        Args:
            scores: of the responses. A teacher that does not read responses does not need them.
            group: id of the group of each response [N].
            has_loss: True on the responses that would have a loss [N].
        """
        correct = correctness_or_reward(scores).tolist()
        graded = Graded(responses, group.tolist(), correct, scores.columns)
        prompts = self.part.prompts(graded)
        seen = self.after_prompts(responses, prompts)
        is_scored = []
        is_long = []
        for response, prompt in zip(seen, prompts, strict=True):
            length = len(response.prompt_tokens) + len(response.tokens)
            is_long.append(length > self.context_length and not response.cuts)
            loses_prompt = response.cuts and (self.part.shows_more or self.is_server)
            is_scored.append(prompt is not None and not is_long[-1] and not loses_prompt)
        scored = torch.tensor(is_scored, device=has_loss.device) & has_loss
        too_long = torch.tensor(is_long, device=has_loss.device)
        meter.mean("train/teacher_scored_fraction", scored.double(), has_loss)
        meter.mean("train/teacher_too_long_fraction", too_long.double(), has_loss)
        kept = [s if use else r for r, s, use in zip(responses, seen, is_scored, strict=True)]
        return kept, scored

    @torch.no_grad()
    def logprobs(
        self,
        responses: Sequence[Response],
        scores: Scores,
        batch: Experience,
        scorer: LogprobScorer,
        meter: Meter,
    ) -> Tensor:
        """Return the teacher's log-probabilities [N, T] of the tokens with loss in `batch`, the
        collated responses; NaN elsewhere, and in responses that it does not score. A response has
        loss on all of its sampled tokens, or on none."""
        has_loss = batch.mask.any(1)
        kept, scored = self.as_seen(responses, scores, batch.group, has_loss, meter)
        if self.is_server:
            used = list(compress(kept, scored.tolist()))
            values = self._of_server(used)
        else:
            rows = collate_unscored(kept, self.student.pad_id).to(scored.device)
            rows = replace(rows, mask=rows.mask & scored[:, None])
            values = scorer.score(rows, self.network).logprobs[rows.mask]
        out = torch.full_like(batch.rewards, torch.nan)
        return out.masked_scatter(batch.mask & scored[:, None], values.to(out))

    def _of_server(self, responses: Sequence[Response]) -> Tensor:
        """Return the log-probabilities of the sampled tokens of these responses, in a row."""
        assert isinstance(self.part, protocols.ReturnsLogprobs)
        sampled: list[bool] = []
        for response in responses:
            sampled += response.mask or [True] * len(response.tokens)
        texts = [(response.prompt_tokens, response.tokens) for response in responses]
        values = torch.tensor(list(chain.from_iterable(self.part.logprobs(texts))))
        return values[torch.tensor(sampled, dtype=torch.bool)]
