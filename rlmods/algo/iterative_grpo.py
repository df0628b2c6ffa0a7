"""Group relative policy optimisation in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlmods.algo.grpo import GRPO
from rlmods.algo.policy_gradient import PolicyGradientSettings
from rlmods.errors import check_bounds
from rlmods.protocols import Judge
from rlmods.reward.neural import Neural
from rlmods.training.extensions import RewardModelRefresh
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
    refresh_offenders: float = 0.0
    """Fraction of pairs that put an offender of the hacking monitor below a response to the same
    prompt with a higher gold score, among the rankings trained on; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("refresh_prompts", "refresh_epochs", "refresh_rows")
        check_bounds(
            self, "algo", {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        )
        check_bounds(self, "algo", {"refresh_lr": (self.refresh_lr > 0, "above 0")})
        check_bounds(
            self,
            "algo",
            {"refresh_replay": (0 <= self.refresh_replay < 1, "0 or more and below 1")},
        )
        rest = 1 - self.refresh_replay
        check_bounds(
            self,
            "algo",
            {
                "refresh_offenders": (
                    0 <= self.refresh_offenders < rest,
                    f"0 or more and below {rest:g}",
                )
            },
        )


class IterativeGRPO(GRPO):
    """GRPO whose reference is set to the policy every `reference_every` iterations, and whose
    reward model is then trained on a judge's rankings of the round's responses and a share of older
    rankings (DeepSeekMath, arXiv:2402.03300, algorithm 1). The KL penalty measures the distance
    from the start of the round, and the reward model stays reliable on the policy's current
    responses."""

    groups: ClassVar[tuple[str, ...]] = (*GRPO.groups, "judge", "ranking")
    settings_type: ClassVar[type[Any]] = IterativeGRPOSettings
    trains_reward_model: ClassVar[bool] = True

    def __init__(self, *, judge: Judge, ranking: Any, **policy_gradient: Any) -> None:
        """
        Args:
            judge: ranks responses to a prompt.
            ranking: loss of the reward model.
            policy_gradient: arguments of `PolicyGradient`.
        """
        super().__init__(**policy_gradient)
        rewards = [
            reward
            for name, reward in self.reward.rewards.items()
            if isinstance(reward, Neural) and self.reward.weights[name]
        ]
        settings: IterativeGRPOSettings = self.settings
        assert settings.reference_every is not None  # checked by a rule
        self.refresh = RewardModelRefresh(
            lambda: [network for reward in rewards for network in reward.networks],
            judge,
            ranking,
            every=settings.reference_every,
            prompts=settings.refresh_prompts,
            lr=settings.refresh_lr,
            epochs=settings.refresh_epochs,
            rows=settings.refresh_rows,
            replay=settings.refresh_replay,
            offenders=settings.refresh_offenders,
        )
        self.add_extension(self.refresh)

    def export(self, folder: Path) -> None:
        """Write the policy, and the reward model in `reward_model/` (further ones in
        `reward_model_1/`, ...)."""
        super().export(folder)
        if self.refresh.trained:
            for i, network in enumerate(self.refresh.networks()):
                network.export(folder / ("reward_model" if i == 0 else f"reward_model_{i}"))
