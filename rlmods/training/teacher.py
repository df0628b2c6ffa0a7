"""Scoring of responses with a teacher, whose prompt may differ from the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.training.collate import collate_unscored
from rlmods.training.reference import Reference
from rlmods.training.scorer import LogprobScorer
from rlmods.types import Experience, Prompt, Response


class Teacher:
    """A part of the group `teacher` with the network that it loaded."""

    def __init__(self, part: Any, policy: Policy) -> None:
        """
        Args:
            part: part of the group `teacher`.
            policy: the student.
        """
        self.part = part
        self.student = policy
        network = part(policy)
        self.model = None if network is None or network is policy else Reference(network, "teacher")
        """The frozen model; None if the teacher is the current policy or on a server."""
        self.is_server = network is None

    @property
    def frozen(self) -> dict[str, Reference]:
        """The frozen model by name, if there is one."""
        return {} if self.model is None else {"teacher": self.model}

    @property
    def network(self) -> Policy:
        """The teacher's network in this process."""
        assert not self.is_server, "the teacher is on a server"
        return self.student if self.model is None else self.model.policy

    def check_context(self, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """Check that the teacher's prompts leave room for a response.

        Raises:
            UserError: a prompt is too long for the teacher's context.
        """
        limit = self.student.context_length if self.is_server else self.network.context_length
        for prompt in prompts:
            length = len(self.student.encode(self.part.prompt(prompt)))
            if length + max_tokens > limit:
                raise UserError(
                    f"prompt {prompt.id} has {length} tokens as the teacher sees it; with "
                    f"{max_tokens} tokens of a response that exceeds its context of {limit}: "
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
        values = [x for logprobs in self.part.logprobs(texts) for x in logprobs]
        return out.masked_scatter(
            batch.mask, torch.tensor(values, dtype=out.dtype, device=out.device)
        )
