"""Group relative policy optimisation in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlmods.algo.grpo import GRPO
from rlmods.distributed.collectives import all_gather
from rlmods.protocols import Judge
from rlmods.reward.neural import Neural
from rlmods.training.judging import by_prompt
from rlmods.training.refresh import Refresh
from rlmods.types import Response, UserError

REFRESH = 1_000_001
"""Purpose of a generator that no epoch has."""


class IterativeGRPO(GRPO):
    """GRPO whose reference becomes the policy every `reference_every` iterations, and whose reward model is then trained on a judge's
    rankings of the round's samples, a tenth of older ones among them (DeepSeekMath, arXiv 2402.03300, algorithm 1): the distance that the
    penalty measures starts anew, and the reward model knows what the policy says today."""

    groups: ClassVar[tuple[str, ...]] = (*GRPO.groups, "judge", "ranking")
    trains_reward_model: ClassVar[bool] = True

    def __init__(
        self,
        *,
        judge: Judge,
        ranking: Any,
        refresh_prompts: int = 256,
        refresh_lr: float = 1e-4,
        refresh_epochs: int = 1,
        refresh_rows: int = 32,
        refresh_replay: float = 0.1,
        **shared: Any,
    ) -> None:
        """
        Args:
            judge: ranks responses to a prompt.
            ranking: loss of the reward model.
            refresh_prompts: prompts judged in a round, the same number in each of its iterations.
            refresh_lr: learning rate of the reward model.
            refresh_epochs: passes over the rankings of a round.
            refresh_rows: prompts of one optimizer step of the reward model.
            refresh_replay: share of earlier rounds' rankings.

        Raises:
            UserError: a share out of range.
        """
        super().__init__(**shared)
        if not 0 <= refresh_replay < 1:
            raise UserError(f"algo.refresh_replay={refresh_replay}: must be 0 or more and below 1")
        assert self.reference.every is not None  # a rule sees to it
        self.judged = -(-refresh_prompts // self.reference.every)
        """Prompts in each iteration."""
        models = [reward for name, reward in self.reward.rewards.items() if isinstance(reward, Neural) and self.reward.weights[name]]
        self.refresh = Refresh(
            lambda: [network for model in models for network in model.networks],
            judge, ranking, refresh_lr, refresh_epochs, refresh_rows, refresh_replay, self.batch.token_budget,
        )  # fmt: skip

    @property
    def controllers(self) -> dict[str, Any]:
        return super().controllers | {"refresh": self.refresh}

    def export(self, folder: Path) -> None:
        """The policy, and in `reward_model/` the one that has kept up with it (in `reward_model_1/` another of several)."""
        super().export(folder)
        if self.refresh.trained:
            for i, network in enumerate(self.refresh.networks()):
                network.export(folder / ("reward_model" if i == 0 else f"reward_model_{i}"))

    def observe(self, responses: Sequence[Response]) -> None:
        super().observe(responses)
        groups = by_prompt(responses, self.batch.samples)
        with self.timed("judge"):
            self.refresh.observe(groups[: -(-self.judged // self.trainer.world_size)], self.meter)

    def finish_iteration(self) -> None:
        if (self.iteration + 1) % (self.reference.every or 1) == 0:
            with self.timed("refresh"):
                found = self.refresh.end_round(self.generator(REFRESH), all_gather)
            for name, value in found.items():
                self.meter.mean(f"train/reward_model/{name}", value)
        super().finish_iteration()
