"""Settings of validation, with its reward and its named sets of prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from rlmods.config.instantiate import at_key, instantiate, one_line, parse_settings
from rlmods.data import Splits
from rlmods.errors import UserError
from rlmods.reward import BySource, WeightedSum
from rlmods.training.evaluation import Validation
from rlmods.types import Prompt

TAKEN = ("accuracy", "reward")
"""Names that a set cannot have: `val/reward/NAME` is the metric of a term or a source."""


def read_validation(config: DictConfig, option: str | None = None) -> Validation:
    """Return the settings of validation with its reward and its named sets. `option`: the option of
    its reward.

    Raises:
        UserError: a setting is invalid, a set has no held-out prompts, or its name is not valid.
    """
    settings = parse_settings(config, "validation", Validation, ignore=("reward", "data"))
    reward = None
    if config.get("reward") is not None:
        if not isinstance(config.reward, DictConfig):
            raise UserError(
                f"validation.reward={config.reward}: is not a reward: type "
                "reward@validation.reward=OPTION"
            )
        reward = instantiate(config.reward, "validation.reward", group="reward")
    if option is not None and reward is not None and not isinstance(reward, WeightedSum | BySource):
        # so that its counts are logged under its name
        reward = WeightedSum({option: {"reward": reward}})
    sets = config.get("data") or {}
    if not isinstance(sets, DictConfig | dict) or "_target_" in sets:
        raise UserError(
            "validation.data must be named sets: type +data@validation.data.NAME=OPTION"
        )
    data = {str(name): _load(str(name), node) for name, node in sets.items()}
    return replace(settings, reward=reward, data=data or None)


def _load(name: str, config: Any) -> Sequence[Prompt]:
    key = f"validation.data.{name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in TAKEN:
        raise UserError(
            f"{key}: type another name, of letters, digits, - and _, other than {', '.join(TAKEN)}"
        )
    if not isinstance(config, DictConfig) or "_target_" not in config:
        raise UserError(f"{key}: is not a data set: type +data@{key}=OPTION")
    prompts = load_splits(config, key).val
    if not prompts:
        raise UserError(f"{key}: no held-out prompts: type {key}.num_val=200")
    return [replace(prompt, id=f"{name}/{prompt.id}") for prompt in prompts]


def load_splits(config: DictConfig, key: str) -> Splits:
    """Return the splits of the data set at a key.

    Raises:
        UserError: a setting is invalid, or the data cannot be read; the message names
        settings by the key.
    """
    read = instantiate(config, key, group="data")
    try:
        splits: Splits = read()
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: {one_line(error)}") from error
    except UserError as error:
        raise UserError(at_key(str(error), "data", key)) from error
    return splits
