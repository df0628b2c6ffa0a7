"""Advantages of turns, compared across the responses to a prompt."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.advantage.group_norm import normalize_by_group
from rlmods.needs import AdvantageNeeds
from rlmods.settings.bounds import Fraction, Positive, bounded
from rlmods.types import Credit, RowInts, TokenFloats, TokenInts, TokenMask


@dataclass(frozen=True)
@bounded("advantage")
class TurnNorm:
    """Normalisation by turn: A_k = (G_k - mean(G)) / (std(G) + eps) on every token of turn k, with
    the discounted return G_k = r_k + gamma r_{k+1} + gamma^2 r_{k+2} + ... of the rewards r of the
    turns, mean and std over the turns that turn k is compared with.

    - compare=turn: the k-th turns of the responses to one prompt. MT-GRPO, arXiv:2505.11821,
      section 4.2, where gamma is 0: a turn is credited with its own reward. Set reward=environment
      reward.by_turn=true; with a reward on the last token alone and gamma 0, only the last turn has
      an advantage.
    - compare=state (advantage=anchor_state): all turns of the responses to one prompt that follow
      an equal observation, an anchor state. GiGPO, arXiv:2505.10978, equations 6 to 9. The first
      turns of all responses follow the prompt, and are one state. With gamma below 1, a turn on a
      shorter way to the same reward is better.

    Both papers add the normalised outcome on every turn, as advantage=sum does with
    advantage=group_norm as its second term. Turns with equal returns, and a turn without another
    one to compare with, get exactly 0."""

    eps: Positive = 1e-6
    """Added to the standard deviation."""
    unbiased: bool = True
    """Divide the squared deviations by the number of turns minus 1."""
    gamma: Fraction = 0.0
    """Discount per turn, 0 to 1."""
    compare: Literal["turn", "state"] = "turn"
    """turn: the same turn of other responses. state: turns that follow an equal observation."""

    needs = AdvantageNeeds(group=True, turns=True, normalizes_rewards=True, credit="token")

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None,
        turn: TokenInts,
        state: TokenInts,
    ) -> Credit:
        returns, sampled = turn_returns(rewards, mask, turn, self.gamma)
        if self.compare == "turn":
            key = torch.arange(returns.shape[1], device=turn.device).expand_as(returns)
        else:
            key = state.new_zeros(returns.shape)
            # all tokens of a turn have its state
            key.scatter_(1, turn.clamp(min=0), state)
        advantages = normalize_turns(returns, sampled, group, key, self.eps, self.unbiased)
        # each token has the advantage of its turn
        by_token = advantages.gather(1, turn.clamp(min=0))
        return Credit(torch.where(mask, by_token, 0.0))


def turn_returns(
    rewards: TokenFloats, mask: TokenMask, turn: TokenInts, gamma: float
) -> tuple[Float[Tensor, "N K"], Bool[Tensor, "N K"]]:
    """Return G_k = r_k + gamma G_{k+1} for each of at most K turns, where r_k is the sum of the
    turn's rewards, and True for the turns with a true slot."""
    num_turns = max(1, int(turn.max()) + 1) if turn.numel() else 1
    index = turn.clamp(min=0)
    shape = (len(turn), num_turns)
    of_turn = rewards.new_zeros(shape)
    of_turn.scatter_add_(1, index, torch.where(mask, rewards, 0.0))
    num_tokens = torch.zeros(shape, dtype=torch.long, device=turn.device)
    num_tokens.scatter_add_(1, index, mask.long())
    returns = torch.zeros_like(of_turn)
    later = torch.zeros_like(of_turn[:, 0])
    for k in reversed(range(num_turns)):
        later = of_turn[:, k] + gamma * later
        returns[:, k] = later
    return returns, num_tokens > 0


def normalize_turns(
    returns: Float[Tensor, "N K"],
    sampled: Bool[Tensor, "N K"],
    group: RowInts,
    key: Int[Tensor, "N K"],
    eps: float,
    unbiased: bool,
) -> Float[Tensor, "N K"]:
    """Return (G - mean(G)) / (std(G) + eps) over the sampled turns of equal group and key; exactly
    0 where they are equal, for a turn without another one, and where `sampled` is False."""
    pairs = torch.stack([group[:, None].expand_as(key)[sampled], key[sampled]], 1)
    _, cell = torch.unique(pairs, dim=0, return_inverse=True)
    scores = returns[sampled][:, None]
    all_true = torch.ones_like(scores, dtype=torch.bool)
    advantages = torch.zeros_like(returns)
    advantages[sampled] = normalize_by_group(scores, all_true, cell, eps, unbiased)
    return advantages
