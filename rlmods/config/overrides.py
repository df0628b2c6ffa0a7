"""One-line error messages, with suggestions, for overrides that Hydra rejects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from rlmods.config.options import CONF, options
from rlmods.errors import UserError, suggest

ALIASES = {
    **dict.fromkeys(("num_gpus", "gpus", "devices", "num_devices"), "trainer.devices=2"),
    **dict.fromkeys(
        ("epochs", "num_train_epochs", "max_steps", "steps", "iterations"),
        "trainer.max_iterations=100",
    ),
    **dict.fromkeys(("model", "model_name", "model_name_or_path"), "policy=hf policy.name=MODEL"),
    **dict.fromkeys(("beta", "kl_coef"), "kl=loss kl.coefficient=0.01"),
    **dict.fromkeys(("learning_rate", "lr"), "optimizer.lr=1e-5"),
    **dict.fromkeys(("epsilon", "clip_range", "clip_eps"), "ratio.low=0.2 ratio.high=0.2"),
    **dict.fromkeys(("gamma", "lam"), "advantage=gae advantage.gamma=1.0 advantage.lam=0.95"),
    **dict.fromkeys(
        ("max_completion_length", "max_new_tokens", "max_tokens"), "rollout.max_tokens=512"
    ),
    "epsilon_high": "ratio=clip_higher ratio.high=0.28",
    "num_iterations": "batch.epochs=2",
    "importance_sampling_level": "ratio=sequence",
    "loss_type": "aggregation=token_mean, sequence_mean or fixed_length",
    "scale_rewards": "advantage=group_mean, which does not divide by the standard deviation",
    "mask_truncated_completions": "algo.overlong_filter=true",
    **dict.fromkeys(("warmup_steps", "warmup_ratio"), "schedule.warmup=10"),
    **dict.fromkeys(("lr_scheduler_type", "scheduler"), "schedule=cosine"),
    **dict.fromkeys(("use_peft", "lora"), "adapter=lora"),
    **dict.fromkeys(("lora_r", "lora_rank"), "adapter=lora adapter.rank=16"),
    "report_to": "logger=wandb",
    "resume_from_checkpoint": "resume=auto",
    "max_prompt_length": "data.max_prompt_tokens=512",
    "temperature": "rollout.temperature=1.0",
    **dict.fromkeys(("eval_steps", "eval_every"), "validation.every=10"),
    **dict.fromkeys(("save_steps", "save_every"), "callbacks.checkpoint.every=10"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "gradient_accumulation_steps"),
        "batch.prompts=32 batch.token_budget=8192",
    ),
    **dict.fromkeys(("dataset", "dataset_name"), "data=jsonl data.train=NAME:SPLIT"),
    **dict.fromkeys(("reward_funcs", "reward_fn"), "reward=OPTION"),
    "use_vllm": "rollout=vllm",
    "num_generations": "batch.samples=8",
    "output_dir": "run_dir=FOLDER",
    "batch_size": "batch.prompts=32 batch.samples=8",
    "fp16": "trainer.precision=16-mixed",
    "bf16": "trainer.precision=bf16-mixed",
}
"""Names of settings in other libraries, with what to type here."""
OPEN_GROUPS = ("optimizer", "trainer", "callbacks", "logger", "reward", "judge")
"""Groups whose parts may accept settings that are not listed in their option's file."""
EXTRAS = {
    "hydra/launcher=joblib": "sweep",
    "hydra/launcher=submitit_slurm": "slurm",
    "hydra/launcher=submitit_local": "slurm",
    "hydra/sweeper=optuna": "optuna",
}
"""Options that packages of an extra add to Hydra."""


def explain_override(error: Exception) -> UserError | None:
    """Return a one-line error for an override that Hydra rejected; None if Hydra did not raise
    `error`."""
    if "Config group override must be" in str(error):
        if str(error).endswith("NoneType"):
            return UserError(
                "a group takes the name of an option, not null: drop it, or type GROUP=OPTION"
            )
        return UserError(
            "a group takes the name of an option, not a number: type GROUP=OPTION, or "
            "GROUP.SETTING=NUMBER for a setting of it"
        )
    if not isinstance(error, HydraException):
        return None
    text = " ".join(str(error).split("\nSee https://")[0].split())
    if isinstance(error, OverrideParseException):
        key, has_value, value = error.override.partition("=")
        quoted = (
            f"; a value with special characters needs quotes: '{key}=\"{value}\"'"
            if has_value
            else ""
        )
        return UserError(
            f"{error.override}: {text}; an override is key=value or group=option{quoted}"
        )
    if match := re.match(
        r"Multiple values for (\S+)\. To override a value use 'override \S+: (\S+)'", text
    ):
        return UserError(
            f"+{match[1]}={match[2]}: the group has an option already, which "
            f"{match[1]}={match[2]} replaces: type it without +"
        )
    missing = getattr(error, "missing_cfg_file", None)
    if isinstance(error, MissingConfigException) and missing is not None:
        group, _, option = str(missing).rpartition("/")
        if extra := EXTRAS.get(f"{group}={option}"):
            return UserError(f"{group}={option}: not installed: type pip install -e '.[{extra}]'")
        return UserError(
            f"{group}={option}: no such option; {suggest(option, error.options or options(group))}"
        )
    if text.startswith("Could not delete from config"):
        return UserError(
            f"{text} Type the whole key of a setting to remove, such as ~callbacks.samples or "
            "~reward.terms.overlong"
        )
    siblings = getattr(error.__cause__, "parent_node", None)
    if text.startswith("Could not override") and isinstance(siblings, DictConfig):
        return _unknown_key(str(getattr(error.__cause__, "full_key", "")), siblings)
    return UserError(text)


def _unknown_key(full_key: str, siblings: DictConfig) -> UserError:
    """Return the error for a key that is not among `siblings`, the settings of its parent."""
    if full_key in ALIASES:
        return UserError(f"{full_key}: no such setting; type {ALIASES[full_key]}")
    parent, _, key = full_key.rpartition(".")
    primary = OmegaConf.load(CONF / "train.yaml")
    empty = [
        group
        for entry in primary.defaults
        if isinstance(entry, DictConfig)
        for group, option in entry.items()
        if option is None
    ]
    for group in map(str, empty):
        if group.split("@")[-1] == full_key:
            return UserError(f"no option of {key} is selected: type {group}=OPTION too")
    candidates = [] if parent else [name for name in _names(siblings) if name.endswith(f".{key}")]
    if candidates:
        return UserError(f"{key}: no such setting; did you mean {' or '.join(candidates[:3])}?")
    names = [
        f"{parent}.{name}" if parent else name
        for name in map(str, siblings)
        if name not in ("_target_", "hydra")
    ]
    if (
        owners := [
            option
            for option in options(parent)
            if key in OmegaConf.load(CONF / parent / f"{option}.yaml")
        ]
        if parent
        else []
    ):
        return UserError(
            f"{full_key}: a setting of "
            f"{' or '.join(f'{parent}={option}' for option in owners)}, which is not selected"
        )
    if not names:
        return UserError(f"{full_key}: no such setting; {parent} is a single value")
    hint = (
        f" (+{full_key}=... passes one that is not listed)"
        if parent.split(".")[0] in OPEN_GROUPS
        else ""
    )
    return UserError(f"{full_key}: no such setting{hint}; {suggest(full_key, names)}")


def _names(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings."""
    for name in map(str, node if isinstance(node, DictConfig) else ()):
        yield prefix + name
        if name != "hydra":
            yield from _names(node._get_node(name), f"{prefix}{name}.")
