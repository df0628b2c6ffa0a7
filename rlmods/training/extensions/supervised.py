"""Supervised losses in addition to the RL loss: on rows of a data set (PTX), and on some tokens of
the sampled responses."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.data import PromptLoader
from rlmods.distributed.sharding import is_sharded
from rlmods.errors import UserError
from rlmods.ops import masked_sum
from rlmods.policy.base import PolicyOutput
from rlmods.training.collate import sft_batch
from rlmods.training.extensions.base import Extension
from rlmods.training.lengths import longest_rows
from rlmods.training.train_step import Loss
from rlmods.types import Experience, Prompt, TokenMask, Totals

CORRECT = 0.5
"""Lowest score of a correct response."""


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


class Likelihood(Extension):
    """Add `-coefficient * mean of log pi` over some tokens of the rows of an optimizer step.

    The denominator is the number of these tokens in the step over all ranks, so that the other
    tokens do not dilute the term, nor it the objective."""

    def __init__(
        self, name: str, coefficient: float, choose: Callable[[Experience], TokenMask]
    ) -> None:
        """
        Args:
            name: name of the term in metrics, `train/<name>_loss`.
            choose: returns a mask of the tokens of rows.
        """
        self.name = name
        self.coefficient = coefficient
        self.choose = choose
        self.num_tokens = torch.ones(())

    def scored_tokens(self, micro: Experience) -> TokenMask:
        return self.choose(micro)

    def before_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        self.num_tokens = self.loop.ranks.reduce(self.choose(minibatch).sum()).clamp(min=1)
        return []

    def loss_term(self, micro: Experience, output: PolicyOutput, totals: Totals) -> Tensor | None:
        chosen = self.choose(micro)
        self.loop.meter.mean(f"train/{self.name}_loss", -output.logprobs, chosen)
        total = masked_sum(output.logprobs, chosen).sum()
        return -self.coefficient * (total / self.num_tokens.to(total))


def correct_tokens(rows: Experience) -> TokenMask:
    """Return the sampled tokens of correct responses: positive examples of VAPO, arXiv:2504.05118,
    equation 13. Rows without a score, as in trial steps, count as correct."""
    if rows.score is None:
        return rows.mask
    return rows.mask & (rows.score >= CORRECT)[:, None]


def observed_tokens(rows: Experience) -> TokenMask:
    """Return the tokens that the policy observed after a turn of its own in the same segment, in
    rows with loss: those of ECHO, arXiv:2605.24517, with the chat template around them. The prompt,
    and what a cut repeats of the conversation, are not among them."""
    columns = torch.arange(rows.mask.shape[1], device=rows.mask.device).expand_as(rows.mask)
    begin = torch.zeros_like(columns)
    if rows.cuts is not None:
        begin = torch.where(rows.cuts, columns, 0).cummax(1).values
    last_sampled = torch.where(rows.mask, columns, -1).cummax(1).values
    in_response = columns < rows.lengths[:, None]
    return in_response & ~rows.mask & (last_sampled >= begin)
