"""Instantiate and check the parts of a composed configuration."""

from __future__ import annotations

import inspect
import re
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import lightning as L
import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from rlmods.algo import Learner
from rlmods.config.instantiate import instantiate, judge_keys, one_line, parse_settings
from rlmods.config.overrides import at_key
from rlmods.config.plan import Plan
from rlmods.config.plugins import explain_plugin_error
from rlmods.config.recipe import label
from rlmods.config.rules import RULES, Rule
from rlmods.config.schema import SETTINGS as SETTINGS  # registers them with Hydra
from rlmods.config.validation import load_splits, read_validation
from rlmods.data.schema import import_extra
from rlmods.distributed import strategy
from rlmods.errors import UserError
from rlmods.logger.trackers import PACKAGES
from rlmods.reward import BySource, WeightedSum
from rlmods.rollout.turns import over_turns
from rlmods.training.batch import Batch
from rlmods.types import Prompt

PARTS = (
    "reference",
    "teacher",
    "router",
    "rollout",
    "environment",
    "branching",
    "reward",
    "judge",
    "preference",
    "ranking",
    "sampling",
    "advantage",
    "critic",
    "kl",
    "ratio",
    "correction",
    "aggregation",
)
"""Groups whose options are instantiated and passed to the algorithms that use them."""
TOP_LEVEL_KEYS = (
    "data",
    "policy",
    "adapter",
    *PARTS,
    "optimizer",
    "schedule",
    "trainer",
    "callbacks",
    "logger",
    "algo",
    "ptx",
    "batch",
    "validation",
    "seed",
    "run_dir",
    "resume",
    "fork",
)

REPLACED_TRAINER_SETTINGS = {
    "gradient_clip_val": "type batch.max_norm=1.0",
    "gradient_clip_algorithm": "type batch.max_norm=1.0, a bound of the norm",
    "accumulate_grad_batches": "type batch.minibatches=1; microbatches are packed by batch.token_budget",
    **dict.fromkeys(
        ("max_epochs", "max_steps", "min_epochs", "min_steps"), "type trainer.max_iterations=100"
    ),
    **dict.fromkeys(
        ("limit_val_batches", "val_check_interval", "check_val_every_n_epoch"),
        "type validation.every=10",
    ),
    "num_sanity_val_steps": "type validation.every=10",
    **dict.fromkeys(
        ("callbacks", "logger"),
        "type +callbacks.NAME._target_=CLASS or +logger.NAME._target_=CLASS",
    ),
    "use_distributed_sampler": "leave it to the prompt loader",
    "log_every_n_steps": "leave it to the learner, which logs every iteration",
    "enable_checkpointing": "type callbacks.checkpoint.every=10",
    **dict.fromkeys(("enable_progress_bar", "enable_model_summary"), "use callbacks.progress"),
}
"""Arguments of `lightning.Trainer` that this loop sets itself or that manual optimization refuses:
what to type instead."""


def plan(
    config: DictConfig,
    choices: Mapping[str, str],
    overrides: Iterable[str] = (),
    rules: Sequence[Rule] = RULES,
) -> Plan:
    """Instantiate and check all parts of a configuration.

    Args:
        choices: option of each group, from Hydra's runtime.
        overrides: command-line overrides, `group=option` and `key=value`.
        rules: what the plan must satisfy; all rules for a run that is trained.

    Raises:
        UserError: something is unknown, missing or out of range, or two parts are incompatible.
    """
    overrides = [override.lstrip("+~") for override in overrides]
    unknown = [str(key) for key in config if key not in TOP_LEVEL_KEYS]
    if unknown:
        raise UserError(f"unknown key {unknown[0]!r}: known keys are {', '.join(TOP_LEVEL_KEYS)}")
    algorithm = _algorithm(config)
    used_groups = {
        "optimizer",
        "schedule",
        "trainer",
        "callbacks",
        "logger",
        "algo",
        *algorithm.groups,
    }
    for override in overrides:
        # an option of one group may be set in a part of another
        group = override.split("=")[0].split("@")[-1].split(".")[0]
        if group in (*PARTS, "adapter") and group not in used_groups:
            if group == "judge" and (keys := list(judge_keys(config.get("reward")))):
                of_reward = shlex.join(
                    at_key(x, "judge", f"reward.{keys[0]}")
                    for x in overrides
                    if re.match(r"judge[.=]", x)
                )
                raise UserError(
                    f"algo={config.algo.name} does not use judge, but "
                    f"reward={choices.get('reward')} has one of its own: type {of_reward}"
                )
            raise UserError(
                f"algo={config.algo.name} does not use {group}: drop {override}, or choose "
                "another algo="
            )
    batch = parse_settings(config.batch, "batch", Batch)
    validation = read_validation(config.validation, choices.get("reward@validation.reward"))
    settings = parse_settings(
        config.algo, "algo", algorithm.settings_type, ignore=("_target_", "name")
    )
    parts = {name: instantiate(config[name], name) for name in PARTS if name in used_groups}
    if "rollout" in parts:
        parts["rollout"] = over_turns(
            parts["rollout"], parts["environment"], parts.get("branching")
        )
    adapter = instantiate(config.adapter, "adapter")
    # so that its counts are logged under its name
    if "reward" in parts and not isinstance(parts["reward"], WeightedSum | BySource):
        parts["reward"] = WeightedSum(
            {str(choices.get("reward", "reward")): {"reward": parts["reward"]}}
        )
    _check_optimizer(config)
    _check_trainer(config)
    _check_loggers(config)
    splits = load_splits(config.data, "data")
    uses_ptx = bool(getattr(settings, "ptx_coefficient", 0))
    ptx_config = config.get("ptx")
    if ptx_config is not None and not uses_ptx:
        raise UserError(
            "data@ptx has no effect without a weight of the supervised loss: type "
            "algo.ptx_coefficient=0.1, or drop data@ptx"
        )
    if uses_ptx:
        ptx = (
            splits
            if ptx_config is None
            else load_splits(without_validation(ptx_config, "ptx", overrides), "ptx")
        )
        splits = replace(
            splits, ptx=_without_held_out(ptx.train, splits.val), ptx_weights=ptx.weights
        )
    # what the run pays is among its parts
    of_terms = [group for group in choices if group.startswith("reward@reward.")]
    shown = (
        *used_groups,
        *(of_terms if "reward" in used_groups else ()),
        "data",
        "policy",
        "variant",
        "reward@validation.reward",
    )
    used_choices = {
        group: option for group, option in choices.items() if group in shown and option is not None
    }
    plan = Plan(
        config=config,
        algorithm=algorithm,
        label=label(config, used_choices, algorithm),
        choices=used_choices,
        splits=splits,
        adapter=adapter,
        parts=parts,
        settings=settings,
        batch=batch,
        validation=validation,
    )
    check(plan, rules)
    return plan


def without_validation(config: DictConfig, name: str, overrides: Iterable[str]) -> DictConfig:
    """Let a data set, and those in a mixture, hold out no rows for validation unless told to."""
    if "num_val" in config and not any(
        override.startswith(f"{name}.num_val=") for override in overrides
    ):
        config.num_val = 0
    for source, options in config.get("sources", {}).items():
        if isinstance(options, DictConfig):
            without_validation(options, f"{name}.sources.{source}", overrides)
    return config


def _without_held_out(rows: Sequence[Prompt], held_out: Sequence[Prompt]) -> Sequence[Prompt]:
    """Return the rows whose prompts are not among the held-out ones."""
    excluded = {(prompt.text, str(prompt.messages)) for prompt in held_out}
    kept = [row for row in rows if (row.text, str(row.messages)) not in excluded]
    if len(kept) < len(rows):
        warnings.warn(
            f"ptx: {len(rows) - len(kept)} of its {len(rows)} rows are held out by data= and "
            "left out of the supervised loss",
            stacklevel=2,
        )
    return kept


def _check_optimizer(config: DictConfig) -> None:
    for key in ("lr", "weight_decay", "eps", "momentum"):
        if isinstance(value := config.optimizer.get(key, 0.0), bool | str):
            raise UserError(f"optimizer.{key}={value}: must be a number, such as 1e-5")
        if value is not None and value < 0:
            raise UserError(f"optimizer.{key}={value}: must be 0 or more, such as 1e-5")
    try:
        instantiate(config.optimizer, "optimizer", partial=True)(
            [torch.nn.Parameter(torch.zeros(1))]
        )
    except (TypeError, ValueError) as error:
        raise UserError(
            f"optimizer: {one_line(error)}; a setting has the wrong type or is out of range"
        ) from error


def _check_trainer(config: DictConfig) -> None:
    if not isinstance(config.seed, int) or not 0 <= config.seed < 2**32:
        raise UserError(f"seed={config.seed}: must be a whole number from 0 to {2**32 - 1}")
    length = config.trainer.max_iterations
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UserError(f"trainer.max_iterations={length}: must be a whole number of at least 1")
    known = {"_target_", "max_iterations", *inspect.signature(L.Trainer).parameters}
    for key in config.trainer:
        if key in REPLACED_TRAINER_SETTINGS and config.trainer[key] is not None:
            raise UserError(
                f"trainer.{key}: this loop steps by itself: drop it, and "
                f"{REPLACED_TRAINER_SETTINGS[key]}"
            )
        if key not in known:
            raise UserError(
                f"unknown key trainer.{key}: known keys are max_iterations and the arguments "
                "of lightning.Trainer"
            )
    strategy.check_settings(config.trainer.get("strategy"))


def _check_loggers(config: DictConfig) -> None:
    for name, node in config.logger.items():
        try:
            kind = get_class(node._target_)
        except (ValueError, ImportError, OmegaConfBaseException) as error:
            raise explain_plugin_error(error) or UserError(
                f"logger.{name}: {one_line(error)}"
            ) from error
        package = PACKAGES.get(kind.__name__)
        if package is not None:
            import_extra(package, package, f"logger={name}")


def check(plan: Plan, rules: Sequence[Rule] = RULES) -> None:
    """Check that parts, algorithm and data are compatible (`rlmods.config.rules`).

    Raises:
        UserError: the first rule that is violated, with the override to type.
    """
    for rule in rules:
        if message := rule(plan):
            raise UserError(message)


def _algorithm(config: DictConfig) -> type[Learner]:
    try:
        return get_class(config.algo._target_)
    except (ValueError, ImportError) as error:
        raise explain_plugin_error(error) or UserError(f"algo: {one_line(error)}") from error
