"""Supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.algo.experience import assemble
from rlmods.algo.learner import Learner
from rlmods.types import Experience, Prompt, Response, Scores, Totals


class SFT(Learner):
    """Imitate the responses in the data: `-mean over response tokens of log pi(token | prompt, earlier tokens)`, EOS among them.

    Reads `prompt.meta["response"]`. The first stage of the classic road (InstructGPT, arXiv 2203.02155, section 3.5).
    """

    needs_response: ClassVar[bool] = True

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Epochs x minibatches of optimizer steps on one batch of rows."""
        rows = self.rows(prompts)
        self.response_tokens += int(self.across_ranks(rows.mask.sum()))
        with self.timed("update"):
            self.policy.train(self.policy.gradient_checkpointing)
            for chosen in self.minibatches(len(rows)):
                self.update(rows.select(chosen))
            self.policy.eval()
        self.finish_iteration()

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        responses = [
            Response(
                prompt=prompt,
                prompt_tokens=self.policy.encode(prompt),
                tokens=(target := self.policy.encode_response(prompt.meta["response"])),
                behavior_logprobs=[0.0] * len(target),
                text=prompt.meta["response"],
            )
            for prompt in prompts
        ]
        group = torch.arange(len(responses))
        scores = Scores([0.0] * len(responses))
        return assemble(responses, scores, group, version=self.iteration, pad_id=self.policy.pad_id).to(self.device)

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        logprobs, entropy = self.policy(micro.tokens, micro.mask)
        self.meter.mean("train/loss", -logprobs, micro.mask)
        self.meter.mean("train/entropy", entropy, micro.mask)
        return -TokenMean()(logprobs, micro.mask, totals)
