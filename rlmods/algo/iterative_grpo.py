"""Group relative policy optimisation in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.errors import check_bounds
from rlmods.policy.scalar import ScalarModel
from rlmods.protocols import Judge
from rlmods.reward.neural import Neural
from rlmods.training.extensions import RewardModelRefresh
from rlmods.training.settings import PolicyGradientSettings
from rlmods.types import objective


@dataclass(frozen=True)
class IterativeGRPOSettings(PolicyGradientSettings):
    """Settings of iterative GRPO, `algo.*` in the configuration."""

    reference_every: int | None = objective(20)
    """Number of iterations of a round."""
    refresh_prompts: int = 256
    """Prompts judged in a round, the same number in each of its iterations."""
    refresh_lr: float = 1e-4
    """Learning rate of the reward model."""
    refresh_epochs: int = 1
    """Passes over the rankings of a round."""
    refresh_rows: int = 32
    """Prompts of one optimizer step of the reward model."""
    refresh_replay: float = 0.1
    """Fraction of rankings from earlier rounds among those trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("refresh_prompts", "refresh_epochs", "refresh_rows")
        rules = {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        rules["refresh_lr"] = (self.refresh_lr > 0, "above 0")
        rules["refresh_replay"] = (0 <= self.refresh_replay < 1, "0 or more and below 1")
        check_bounds(self, "algo", rules)


class IterativeGRPO(PolicyGradient):
    """GRPO in rounds of `reference_every` iterations. After each, the reference is set to the
    policy, and the reward model is trained on a judge's rankings of the round's responses and a
    fraction of older rankings (DeepSeekMath, arXiv:2402.03300, algorithm 1). The KL penalty
    measures the distance from the start of the round, and the reward model stays reliable on the
    policy's current responses."""

    groups: ClassVar[tuple[str, ...]] = (*PolicyGradient.groups, "judge", "ranking")
    settings_type: ClassVar[type[Any]] = IterativeGRPOSettings
    settings: IterativeGRPOSettings
    trains_reward_model: ClassVar[bool] = True

    def __init__(self, *, judge: Judge, ranking: Any, **policy_gradient: Any) -> None:
        """
        Args:
            judge: ranks responses to a prompt.
            ranking: loss of the reward model.
            policy_gradient: arguments of `PolicyGradient`.
        """
        super().__init__(**policy_gradient)
        settings = self.settings
        assert settings.reference_every is not None  # checked by a rule
        self.refresh = RewardModelRefresh(
            self.reward_models,
            judge,
            ranking,
            every=settings.reference_every,
            prompts=settings.refresh_prompts,
            lr=settings.refresh_lr,
            epochs=settings.refresh_epochs,
            rows=settings.refresh_rows,
            replay=settings.refresh_replay,
        )
        self.add_extension(self.refresh)

    def reward_models(self) -> list[ScalarModel]:
        """Return the networks of the neural terms of the reward, loaded on the first call."""
        networks: list[ScalarModel] = []
        for name, reward in self.reward.rewards.items():
            if isinstance(reward, Neural) and self.reward.weights[name]:
                networks += reward.networks
        return networks

    def export(self, folder: Path) -> None:
        """Write the policy, and the reward model in `reward_model/` (further ones in
        `reward_model_1/`, ...)."""
        super().export(folder)
        if self.refresh.trained:
            for i, network in enumerate(self.reward_models()):
                network.export(folder / ("reward_model" if i == 0 else f"reward_model_{i}"))
