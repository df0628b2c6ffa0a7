"""A stream of responses to imitate beside the reward (InstructGPT's PTX, arXiv 2203.02155, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.data import PromptLoader
from rlmods.policy.base import Policy
from rlmods.training.metrics import Meter
from rlmods.types import Experience, Prompt, Totals


class Stream:
    """`num_rows` rows for every optimizer step, by its number alone: resuming needs no state."""

    def __init__(self, prompts: Sequence[Prompt], num_rows: int, seed: int) -> None:
        self.prompts, self.num_rows, self.seed = prompts, num_rows, seed

    def rows(self, step: int, policy: Policy, rank: int = 0, world_size: int = 1) -> Experience:
        """This rank's share of the rows of one optimizer step."""
        loader = PromptLoader(self.prompts, self.num_rows, self.seed)
        mine = range(step * self.num_rows + rank, (step + 1) * self.num_rows, world_size)
        from rlmods.algo.sft import imitation

        return imitation([loader.at(position) for position in mine], policy, version=0)

    @staticmethod
    def loss(policy: Any, meter: Meter, micro: Experience, totals: Totals) -> Tensor:
        """`-mean over response tokens of log pi`."""
        logprobs = policy(micro.tokens, micro.mask).logprobs
        meter.mean("train/ptx_loss", -logprobs, micro.mask)
        loss: Tensor = -TokenMean()(logprobs, micro.mask, totals)
        return torch.as_tensor(loss)
