"""Group relative policy optimisation in rounds."""

from pathlib import Path
from typing import Any

from rlmods.algo.policy_gradient import PolicyGradient
from rlmods.policy.scalar import ScalarModel
from rlmods.protocols import Judge
from rlmods.reward.neural import Neural
from rlmods.reward.weighted_sum import Term, leaves
from rlmods.training.extensions import RewardModelRefresh
from rlmods.training.settings import IterativeGRPOSettings


class IterativeGRPO(PolicyGradient):
    """GRPO in rounds of `reference_every` iterations. After each, the reference is set to the
    policy, and the reward model is trained on a judge's rankings of the round's responses and a
    fraction of older rankings (DeepSeekMath, arXiv:2402.03300, algorithm 1). The KL penalty
    measures the distance from the start of the round, and the reward model stays reliable on the
    policy's current responses."""

    config_groups = (*PolicyGradient.config_groups, "judge", "ranking")
    settings_type = IterativeGRPOSettings
    settings: IterativeGRPOSettings

    def __init__(self, *, judge: Judge, ranking: Any, **policy_gradient: Any) -> None:
        """
        Args:
            judge: ranks responses to a prompt.
            ranking: loss of the reward model.
            policy_gradient: arguments of `PolicyGradient`.
        """
        super().__init__(**policy_gradient)
        self.refresh = RewardModelRefresh(self.reward_models, judge, ranking, self.settings)
        self.add_extension(self.refresh)

    def reward_models(self) -> list[ScalarModel]:
        """Return the networks of the neural terms of the reward, loaded on the first call."""
        networks: list[ScalarModel] = []
        for term in leaves(Term("reward", self.reward)):
            if isinstance(term.reward, Neural) and term.weight:
                networks += term.reward.networks
        return networks

    def export(self, folder: Path) -> None:
        """Write the policy, and the reward model in `reward_model/` (further ones in
        `reward_model_1/`, ...)."""
        super().export(folder)
        if self.refresh.trained:
            for i, network in enumerate(self.reward_models()):
                network.export(folder / ("reward_model" if i == 0 else f"reward_model_{i}"))
