"""Reward that the environment gave."""

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
    """

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
        if any(not response.turns and response.session is None for response in responses):
            raise UserError(
                "reward=environment grades responses of an environment of several turns: "
                "type environment=OPTION"
            )
        values: list[float | None] = []
        correct: list[bool | None] = []
        tokens: list[list[float | None]] = []
        for response in responses:
            by_token: list[float | None] = [None] * len(response.tokens)
            crashed = False
            for turn in response.turns:
                by_token[turn.stop - 1] = turn.reward
                crashed |= any(call.error == "crash" for call in turn.calls)
            tokens.append(by_token)
            rewards = [turn.reward for turn in response.turns if turn.reward is not None]
            values.append(sum(rewards) if rewards and not crashed else None)
            solved = rewards[-1] >= (self.success or 0.0) if rewards else None
            correct.append(False if crashed else solved)
        return Scores(
            values,
            correct=None if self.success is None else correct,
            tokens=tokens if self.by_turn else None,
        )
