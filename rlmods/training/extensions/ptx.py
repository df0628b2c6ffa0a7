"""Supervised loss in addition to the RL loss (PTX)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.data import PromptLoader
from rlmods.distributed.sharding import is_sharded
from rlmods.errors import UserError
from rlmods.training.collate import sft_batch
from rlmods.training.extensions.base import Extension
from rlmods.training.lengths import longest_rows
from rlmods.training.train_step import Loss
from rlmods.types import Experience, Prompt, Totals


class PTX(Extension):
    """Add `-coefficient * mean over response tokens of log pi` on rows of a data set to each
    optimizer step (PTX of InstructGPT, arXiv:2203.02155, equation 2).

    The rows depend on the number of the optimizer step alone, so resuming needs no state."""

    def __init__(
        self,
        coefficient: float,
        prompts: Sequence[Prompt],
        num_rows: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """
        Args:
            prompts: rows with the target text in `meta["response"]`.
            num_rows: rows of an optimizer step, over all ranks.
            weights: weight of each source of the rows; None: every row once in each pass.
        """
        self.coefficient = coefficient
        self.prompts = prompts
        self.num_rows = num_rows
        self.weights = weights

    def on_fit_start(self) -> None:
        """
        Raises:
            UserError: fewer rows than ranks.
        """
        num_ranks = self.loop.ranks.world_size
        if self.num_rows < num_ranks:
            raise UserError(
                f"algo.ptx_rows={self.num_rows} leaves ranks without rows: type "
                f"algo.ptx_rows={num_ranks}"
            )

    def before_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        ranks = self.loop.ranks
        rows = self.rows(self.loop.optimizer_steps, ranks.rank, ranks.world_size)
        return [(rows.to(self.loop.device), self.loss)]

    def largest_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        policy = self.loop.policy
        max_rows = -(-self.num_rows // self.loop.ranks.world_size)
        longest = longest_rows(policy, self.prompts, max_rows, ("response",))
        return [(sft_batch(longest, policy).to(self.loop.device), self.loss)]

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> Experience:
        """Return the rows of this rank in one optimizer step."""
        positions = range(step * self.num_rows + rank, (step + 1) * self.num_rows, world_size)
        prompts = [self._loader.prompt_at(position) for position in positions]
        return sft_batch(prompts, self.loop.policy)

    @cached_property
    def _loader(self) -> PromptLoader:
        """Permutations of the rows: made once, as the data may be much larger than a step."""
        return PromptLoader(self.prompts, self.num_rows, self.loop.seed, weights=self.weights)

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        """Return the weighted loss of a microbatch."""
        logprobs = self.loop.policy(micro.tokens, micro.mask).logprobs
        self.loop.meter.mean("train/ptx_loss", -logprobs, micro.mask)
        loss: Tensor = -self.coefficient * TokenMean()(logprobs, micro.mask, totals)
        # DDP waits for the gradient of every parameter, and this loss has none of the critic's.
        critic = self.loop.critic
        unused = () if critic is None or is_sharded(critic) else critic.parameters()
        return loss + sum((p.sum() * 0.0 for p in unused), torch.zeros_like(loss))
