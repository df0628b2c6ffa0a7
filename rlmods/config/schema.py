"""Registration of settings dataclasses with Hydra's config store.

`conf/train.yaml` and `conf/algo/*.yaml` include them by `/NAME@PACKAGE` in their defaults list."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hydra.core.config_store import ConfigStore

from rlmods import algo
from rlmods.training.evaluation import Validation
from rlmods.training.settings import Batch

SETTINGS: dict[str, type[Any]] = {
    "batch_settings": Batch,
    "validation_settings": Validation,
    "policy_gradient_settings": algo.PolicyGradient.settings_type,
    "iterative_grpo_settings": algo.IterativeGRPO.settings_type,
    "distill_settings": algo.Distill.settings_type,
    "gkd_settings": algo.GKD.settings_type,
    "dpo_settings": algo.DPO.settings_type,
    "online_dpo_settings": algo.OnlineDPO.settings_type,
    "reward_model_settings": algo.RewardModel.settings_type,
    "process_reward_model_settings": algo.ProcessRewardModel.settings_type,
}
"""Dataclass of each entry of the config store."""


def defaults(settings: type[Any]) -> dict[str, Any]:
    """Return the default value of each field."""
    return {field.name: field.default for field in fields(settings)}


for _name, _settings in SETTINGS.items():
    ConfigStore.instance().store(name=_name, node=defaults(_settings))
