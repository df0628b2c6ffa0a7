"""Reward that the environment gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.types import Response, Scores


@dataclass(frozen=True)
class EnvironmentReward:
    """Sum of the rewards that the environment gave for the turns of a response (`environment=...`);
    it abstains if it gave none, or ended the response by an exception of its own (the call
    "crash"), which is not correct.

    With `by_turn`, the reward of each turn is on its last token, for estimators with token-level
    credit (advantage=gae, n_step). A response is correct if the last reward that was given is at
    least `success`, whatever the turns before cost.

    Raises: UserError for responses of one turn, to which no environment replied."""

    by_turn: bool = False
    """Place the reward of each turn on its last sampled token, and not their sum on the last token
    of the response."""
    success: float | None = 1.0
    """Smallest value of the last reward that counts as correct; null: correctness is not
    reported."""

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds(turns=True, gives_tokens=self.by_turn)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        if any(not response.turns for response in responses):
            raise UserError(
                "reward=environment grades responses of an environment of several turns: "
                "type environment=OPTION"
            )
        values: list[float | None] = []
        correct: list[bool | None] = []
        for response in responses:
            rewards = [turn.reward for turn in response.turns if turn.reward is not None]
            crashed = any(call.error == "crash" for turn in response.turns for call in turn.calls)
            values.append(sum(rewards) if rewards and not crashed else None)
            correct.append(self._is_correct(rewards, crashed))
        return Scores(
            values,
            correct=None if self.success is None else correct,
            tokens=list(map(_by_token, responses)) if self.by_turn else None,
        )

    def _is_correct(self, rewards: Sequence[float], crashed: bool) -> bool | None:
        if crashed:
            return False
        if not rewards or self.success is None:
            return None
        return rewards[-1] >= self.success


def _by_token(response: Response) -> list[float | None]:
    """Return a reward for each token: that of a turn on its last token, None elsewhere."""
    rewards: list[float | None] = [None] * len(response.tokens)
    for turn in response.turns:
        rewards[turn.stop - 1] = turn.reward
    return rewards
