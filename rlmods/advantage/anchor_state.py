"""The step-level advantage of GiGPO."""

from dataclasses import dataclass
from typing import ClassVar

from rlmods.advantage.turn_norm import normalize_turns, turn_returns, turns_to_tokens
from rlmods.errors import check_bounds
from rlmods.needs import AdvantageNeeds
from rlmods.types import Credit, RowInts, TokenFloats, TokenInts, TokenMask


@dataclass(frozen=True)
class AnchorState:
    """Normalisation by state: A_k = (G_k - mean(G)) / (std(G) + eps) on every token of turn k, with
    the discounted return G_k = r_k + gamma r_{k+1} + gamma^2 r_{k+2} + ... of the rewards r of the
    turns, mean and std over all turns, of all responses to one prompt, that follow an equal
    observation (an anchor state).

    GiGPO, arXiv:2505.10978, equations 6 to 9: turns that start from the same state are compared
    with each other, without a critic and without further samples. The first turns of all responses
    follow the prompt, and are one state. The paper adds it to the normalised outcome:

        advantage=sum
        +advantage@advantage.terms.outcome.estimator=group_norm
        +advantage@advantage.terms.state.estimator=anchor_state

    A turn whose state no other turn of the group shares gets exactly 0, as do turns of one state
    with equal returns."""

    eps: float = 1e-6
    """Added to the standard deviation; above 0."""
    unbiased: bool = True
    """Divide the squared deviations by the number of turns minus 1."""
    gamma: float = 0.95
    """Discount per turn, 0 to 1. Below 1, a turn on a shorter way to the same reward is better."""

    needs: ClassVar[AdvantageNeeds] = AdvantageNeeds(
        group=True, turns=True, normalizes_rewards=True, credit="token"
    )

    def __post_init__(self) -> None:
        rules = {
            "eps": (self.eps > 0, "above 0"),
            "gamma": (0 <= self.gamma <= 1, "between 0 and 1"),
        }
        check_bounds(self, "advantage", rules)

    def __call__(
        self,
        rewards: TokenFloats,
        mask: TokenMask,
        group: RowInts,
        values: TokenFloats | None = None,
        turn: TokenInts | None = None,
        state: TokenInts | None = None,
    ) -> Credit:
        if turn is None or state is None:
            raise ValueError("AnchorState needs turn and state: the turn and state of each token")
        returns, sampled = turn_returns(rewards, mask, turn, self.gamma)
        key = state.new_zeros(returns.shape)
        # all tokens of a turn have its state
        key.scatter_(1, turn.clamp(min=0), state)
        advantages = normalize_turns(returns, sampled, group, key, self.eps, self.unbiased)
        return Credit(turns_to_tokens(advantages, mask, turn))
