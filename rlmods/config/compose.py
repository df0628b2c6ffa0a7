"""Instantiate and check the parts of a composed configuration."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Learner
from rlmods.config import schema as schema  # registers settings with Hydra
from rlmods.config.instantiate import (
    at_key,
    check_values,
    find_class,
    instantiate,
    parse_settings,
)
from rlmods.config.recipe import label
from rlmods.config.rules import RULES, Rule, first_problem
from rlmods.config.run_spec import RunSpec
from rlmods.data import Splits
from rlmods.data.file_rows import select
from rlmods.data.schema import import_extra
from rlmods.distributed import strategy
from rlmods.errors import UserError, in_one_line
from rlmods.logger.trackers import TRACKERS
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.reward import BySource, WeightedSum
from rlmods.rollout.turns import over_turns
from rlmods.run.settings import Override
from rlmods.settings.bounds import Count, NonNegative, between
from rlmods.training.evaluation import Validation
from rlmods.training.settings import Batch
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
    "tokens",
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

TAKEN = ("accuracy", "reward")
"""Names that a set of validation cannot have: `val/reward/NAME` is the metric of a term or a
source."""
USERS = {
    "judge": ", or set the judge of a reward with +judge@reward.judge=OPTION",
    "teacher": ", or type advantage=teacher",
}
"""What else uses a group."""
ALWAYS_USED = ("optimizer", "schedule", "trainer", "callbacks", "logger", "algo")
"""Groups that every algorithm uses."""

REPLACED_TRAINER_SETTINGS = {
    "gradient_clip_val": "type batch.max_norm=1.0",
    "gradient_clip_algorithm": "type batch.max_norm=1.0, a bound of the norm",
    "accumulate_grad_batches": (
        "type batch.minibatches=1; microbatches are packed by batch.token_budget"
    ),
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


def run_spec(
    config: DictConfig,
    choices: Mapping[str, str],
    overrides: Iterable[str] = (),
    rules: Sequence[Rule] = RULES,
) -> RunSpec:
    """Instantiate and check all parts of a configuration, which stays as it is.

    Args:
        choices: option of each group, from Hydra's runtime.
        overrides: command-line overrides, `group=option` and `key=value`.
        rules: what the run must satisfy; all rules for a run that is trained.

    Raises:
        UserError: something is unknown, missing or out of range, or two parts are incompatible.
    """
    config = copy.deepcopy(config)
    typed = list(map(Override.parse, overrides))
    unknown = [str(key) for key in config if key not in TOP_LEVEL_KEYS]
    if unknown:
        raise UserError(f"unknown key {unknown[0]!r}: known keys are {', '.join(TOP_LEVEL_KEYS)}")
    check_values(config.seed, "seed", Annotated[int, between(0, 2**32 - 1)])
    algorithm: type[Learner] = find_class(config.algo._target_, "algo")
    used_groups = [*ALWAYS_USED, *algorithm.config_groups]
    if "advantage" in used_groups:
        advantage = instantiate(config.advantage, "advantage")
        if needs_of(advantage, AdvantageNeeds).teacher:
            used_groups.append("teacher")
    _check_groups_are_used(config.algo.name, typed, used_groups)
    batch = parse_settings(config.batch, "batch", Batch)
    batch.check_ranks(1, algorithm.rows_per_prompt(batch))
    validation = read_validation(config.validation, choices.get("reward@validation.reward"))
    settings: Any = parse_settings(
        config.algo, "algo", algorithm.settings_type, ignore=("_target_", "name")
    )
    parts = _parts(config, used_groups, choices)
    adapter = instantiate(config.adapter, "adapter")
    _check_optimizer(config)
    _check_trainer(config)
    _check_loggers(config)
    splits = load_splits(config.data, "data")
    splits = _with_ptx(config, splits, bool(getattr(settings, "ptx_coefficient", 0)), typed)
    used_choices = _used_choices(choices, used_groups)
    spec = RunSpec(
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
    problem = first_problem(spec, rules)
    if problem is not None:
        raise UserError(problem)
    return spec


def _check_groups_are_used(
    algo: str, typed: Sequence[Override], used_groups: Collection[str]
) -> None:
    """Refuse overrides of groups that the algorithm does not use."""
    for override in typed:
        # an option of one group may be set in a part of another
        group = override.top
        if group in (*PARTS, "adapter") and group not in used_groups:
            raise UserError(
                f"algo={algo} does not use {group}: drop {override.text.lstrip('+~')}, or choose "
                f"another algo={USERS.get(group, '')}"
            )


def _parts(
    config: DictConfig, used_groups: Collection[str], choices: Mapping[str, str]
) -> dict[str, Any]:
    """Return the instantiated parts that the algorithm uses, by group."""
    parts = {name: instantiate(config[name], name) for name in PARTS if name in used_groups}
    if "rollout" in parts:
        environment = parts["environment"]
        parts["rollout"] = over_turns(parts["rollout"], environment, parts.get("branching"))
    if "reward" in parts:
        parts["reward"] = _named(parts["reward"], str(choices.get("reward", "reward")))
    return parts


def _named(reward: Any, option: str) -> Any:
    """Return a single reward as a sum of one term, so that its counts are logged under its name."""
    if isinstance(reward, WeightedSum | BySource):
        return reward
    return WeightedSum({option: {"reward": reward}})


def _used_choices(choices: Mapping[str, str], used_groups: Collection[str]) -> dict[str, str]:
    """Return the options that decide what the run does, and the options of the terms of a
    group."""
    shown = {*used_groups, "data", "policy", "variant", "reward@validation.reward"}
    used = {}
    for group, option in choices.items():
        name, _, key = group.partition("@")
        is_term = name in used_groups and key.startswith(f"{name}.")
        if option is not None and (group in shown or is_term):
            used[group] = option
    return used


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
        reward = reward if option is None else _named(reward, option)
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
    read: Callable[[], Splits] = instantiate(config, key, group="data")
    try:
        return read()
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: {in_one_line(error)}") from error
    except UserError as error:
        raise UserError(at_key(str(error), "data", key)) from error


def _with_ptx(
    config: DictConfig, splits: Splits, uses_ptx: bool, typed: Sequence[Override]
) -> Splits:
    """Return the data with the rows of the supervised loss, if the algorithm has one, without the
    held-out prompts."""
    ptx_config = config.get("ptx")
    if not uses_ptx:
        if ptx_config is not None:
            raise UserError(
                "data@ptx has no effect without a weight of the supervised loss: type "
                "algo.ptx_coefficient=0.1, or drop data@ptx"
            )
        return splits
    ptx = splits
    if ptx_config is not None:
        hold_out_nothing(ptx_config, "ptx", typed)
        ptx = load_splits(ptx_config, "ptx")
    held_out = {(prompt.text, str(prompt.messages)) for prompt in splits.val}
    texts = [(row.text, str(row.messages)) for row in ptx.train]
    rows = select(ptx.train, [i for i, text in enumerate(texts) if text not in held_out])
    if len(rows) < len(ptx.train):
        warnings.warn(
            f"ptx: {len(ptx.train) - len(rows)} of its {len(ptx.train)} rows are held out by data= "
            "and left out of the supervised loss",
            stacklevel=2,
        )
    return replace(splits, ptx=rows, ptx_weights=ptx.weights)


def hold_out_nothing(config: DictConfig, key: str, typed: Iterable[Override]) -> None:
    """Let a data set, and those in a mixture, hold out no rows for validation unless told to, in
    place."""
    if "num_val" in config and f"{key}.num_val" not in [override.key for override in typed]:
        config.num_val = 0
    for source, options in config.get("sources", {}).items():
        if isinstance(options, DictConfig):
            hold_out_nothing(options, f"{key}.sources.{source}", typed)


def _check_optimizer(config: DictConfig) -> None:
    if str(config.optimizer.get("_target_")).startswith("bitsandbytes."):
        import_extra("bitsandbytes", "adamw-8bit", "optimizer=adamw_8bit")
    for key in ("lr", "weight_decay", "eps", "momentum"):
        check_values(config.optimizer.get(key), f"optimizer.{key}", NonNegative | None)
    create = instantiate(config.optimizer, "optimizer", partial=True)
    try:
        create([torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise UserError(
            f"optimizer: {in_one_line(error)}; a setting has the wrong type or is out of range"
        ) from error


def _check_trainer(config: DictConfig) -> None:
    check_values(config.trainer.max_iterations, "trainer.max_iterations", Count)
    check_values(OmegaConf.to_container(config.trainer, resolve=True), "trainer")
    known = {"_target_", "max_iterations", *inspect.signature(L.Trainer).parameters}
    for key, value in config.trainer.items():
        if key in REPLACED_TRAINER_SETTINGS and value is not None:
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
    """Check that the package of each logger is installed."""
    for name, node in config.logger.items():
        if node is None:
            raise UserError(f"logger.{name}=null: type ~logger.{name} to leave it out")
        kind = find_class(node._target_, f"logger.{name}")
        if kind.__name__ in TRACKERS:
            package = TRACKERS[kind.__name__]["package"]
            import_extra(package, package, f"logger={name}")
