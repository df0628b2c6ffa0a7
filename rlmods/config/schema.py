"""Registration of settings dataclasses with Hydra's config store.

`conf/train.yaml` and `conf/algo/*.yaml` include them by `/NAME@PACKAGE` in their defaults list."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hydra.core.config_store import ConfigStore

from rlmods.training import settings

SETTINGS: dict[str, type[Any]] = {
    "batch_settings": settings.Batch,
    "validation_settings": settings.ValidationSettings,
    "policy_gradient_settings": settings.PolicyGradientSettings,
    "iterative_grpo_settings": settings.IterativeGRPOSettings,
    "distill_settings": settings.DistillSettings,
    "gkd_settings": settings.GKDSettings,
    "dpo_settings": settings.DPOSettings,
    "online_dpo_settings": settings.OnlineDPOSettings,
    "reward_model_settings": settings.RewardModelSettings,
    "process_reward_model_settings": settings.ProcessRewardModelSettings,
}
"""Dataclass of each entry of the config store."""


def defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the default value of each field."""
    return {field.name: field.default for field in fields(kind)}


for _name, _settings in SETTINGS.items():
    ConfigStore.instance().store(name=_name, node=defaults(_settings))
