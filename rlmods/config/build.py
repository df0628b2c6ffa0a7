"""What a run is built of: its model and learner, its data module and its Trainer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn
from omegaconf import DictConfig

from rlmods.algo import Learner
from rlmods.config.instantiate import instantiate, one_line
from rlmods.config.run_spec import RunSpec
from rlmods.data import PromptModule, Splits
from rlmods.distributed import strategy
from rlmods.distributed.deferred import defer_checks, defer_loading
from rlmods.distributed.trainer import Precision, choose, device_type, select_device
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.turns import MultiTurn, num_added_tokens
from rlmods.training.evaluation import Validation
from rlmods.types import Prompt

OF_ROLLOUT = ("environment", "branching")
"""Groups whose parts are parts of the rollout."""


@dataclass(frozen=True)
class LoadedRun:
    """A run whose model is loaded: everything but its Trainer and its directory."""

    spec: RunSpec
    learner: Learner
    splits: Splits
    """The prompts without those that are longer than `data.max_prompt_tokens`."""
    config: DictConfig
    """The configuration, with the chosen precision in place of `trainer.precision=auto`."""
    precision: Precision | None
    """The choice for this machine if `trainer.precision` is `auto`, else None."""

    @property
    def num_long_prompts(self) -> int:
        """Number of the prompts that are left out."""
        complete = self.spec.splits
        before = len(complete.train) + len(complete.val)
        return before - len(self.splits.train) - len(self.splits.val)

    def data(self) -> PromptModule:
        """Return the data module that serves the training prompts."""
        return PromptModule(self.splits, self.spec.batch.prompts, self.config.seed)


def load(spec: RunSpec) -> LoadedRun:
    """Load the policy, construct the algorithm, and choose the precision if it is `auto`.

    Raises:
        UserError: the policy does not load, a prompt does not fit its context, or all prompts are
        left out.
    """
    config = copy.deepcopy(spec.config)
    select_device(config.trainer.get("accelerator", "auto"), config.trainer.get("devices", 1))
    device = device_type(config.trainer.get("accelerator", "auto"))
    shards = strategy.shards(config.trainer.get("strategy"))
    with defer_loading(shards), defer_checks(device == "cuda"):
        L.seed_everything(config.seed, verbose=False)
        policy: Policy = spec.adapter(instantiate(config.policy, "policy")())
        splits = _without_long_prompts(spec, policy)
        validation = without_long_prompts(spec.validation, policy, config.validation)
        _check_lengths(spec, policy, splits, validation)
        _check_responses(spec, policy, splits)
        learner: Learner = spec.algorithm(
            policy=policy,
            settings=spec.settings,
            **{name: part for name, part in spec.parts.items() if name not in OF_ROLLOUT},
            optimizer=instantiate(config.optimizer, "optimizer", partial=True),
            schedule=instantiate(config.schedule, "schedule"),
            batch=spec.batch,
            validation=validation,
            splits=splits,
            seed=config.seed,
        )
    precision = None
    if config.trainer.get("precision") == "auto":
        network = next(iter(learner.networks.values()))
        precision = choose(network, device)
        config.trainer.precision = precision.name
    return LoadedRun(spec, learner, splits, config, precision)


def _without_long_prompts(spec: RunSpec, policy: Policy) -> Splits:
    """Return the prompts and the rows of the supervised loss that have at most `max_prompt_tokens`
    tokens."""
    splits = spec.splits
    limit = spec.config.data.get("max_prompt_tokens")
    train = short_prompts(policy, splits.train, limit)
    val = short_prompts(policy, splits.val, limit)
    if len(train) < len(splits.train) and spec.batch.prompts > len(train):
        raise UserError(
            f"batch.prompts={spec.batch.prompts}, but {len(train)} prompts have at most {limit} "
            f"tokens: type batch.prompts={len(train)}, or a larger data.max_prompt_tokens"
        )
    if not splits.ptx:
        return replace(splits, train=train, val=val)
    key = "data" if spec.config.get("ptx") is None else "ptx"
    ptx = short_prompts(policy, splits.ptx, spec.config[key].get("max_prompt_tokens"), key)
    if len(ptx) < len(splits.ptx) and key == "ptx":
        rank_zero_warn(
            f"ptx: {len(splits.ptx) - len(ptx)} of its {len(splits.ptx)} rows have longer "
            "prompts and are left out"
        )
    return replace(splits, train=train, val=val, ptx=ptx)


def _check_lengths(spec: RunSpec, policy: Policy, splits: Splits, validation: Validation) -> None:
    """Check that prompts and responses fit into the context, in training and in validation."""
    rollout = spec.parts.get("rollout")
    has_turns = isinstance(rollout, MultiTurn)
    setting = "environment.max_tokens" if has_turns else "rollout.max_tokens"
    max_tokens = getattr(rollout, "max_tokens", 0)
    prompts = (*splits.train, *splits.val)
    added = num_added_tokens(policy, rollout, prompts)
    filters = "max_prompt_tokens" in spec.config.data
    check_context(policy, prompts, max_tokens, setting, added, filters)
    if validation.max_tokens is not None and not has_turns:
        max_tokens = validation.max_tokens
        setting = "validation.max_tokens"
    named = chain.from_iterable((validation.data or {}).values())
    check_context(policy, (*splits.val, *named), max_tokens, setting, added, filters)


def _check_responses(spec: RunSpec, policy: Policy, splits: Splits) -> None:
    """Check that each prompt, with each of its responses in the data, fits into the context, and
    warn of responses that hold special tokens as text.

    Raises:
        UserError: a row that is too long.
    """
    columns = spec.algorithm.columns(spec.settings)
    held_out = [row for row in splits.val if row.meta.keys() >= set(columns)]
    rows = [(row, columns) for row in (*splits.train, *held_out)]
    rows += [(row, ("response",)) for row in splits.ptx]
    said: list[str] = []
    for row, names in rows:
        responses: list[str] = []
        for name in names:
            value = row.meta[name]
            responses += value if name == "candidates" else ["".join(value)]
        lengths = [len(policy.encode_response(text, row)) for text in responses]
        length = len(policy.encode(row)) + max(lengths) if lengths else 0
        if length > policy.context_length:
            raise UserError(
                f"prompt {row.id} and its response have {length} tokens, and the model's context "
                f"is {policy.context_length}: shorten the row, or choose another model with "
                "policy=hf policy.name=..."
            )
        replies = [turn["content"] for turn in row.messages or () if turn["role"] == "assistant"]
        said += responses + replies
    prompts = (*splits.train, *splits.val, *splits.ptx)
    policy.warn_of_control_tokens(said, prompts)
    policy.warn_of_unknown_characters(said, prompts)


def num_ranks(spec: RunSpec, config: DictConfig) -> int:
    """Return the number of processes that share an iteration. `config`: that of the loaded run.

    Raises:
        UserError: the device or strategy does not exist on this machine, a launcher started another
        number of processes, or the ranks cannot share the prompts evenly.
    """
    trainer: Any = _trainer(config, [], [])
    ranks: int = trainer.num_devices * trainer.num_nodes
    strategy.check_launch(ranks)
    spec.batch.check_ranks(ranks, spec.algorithm.rows_per_prompt(spec.batch))
    return ranks


def trainer(
    config: DictConfig,
    extra_callbacks: Sequence[L.Callback] = (),
    extra_loggers: Sequence[Any] = (),
) -> L.Trainer:
    """Return a Trainer with the configured callbacks and loggers and the extra ones. `config`: that
    of a loaded run, where the precision is chosen.

    Raises:
        UserError: a setting of the Trainer, a callback or a logger is invalid.
    """
    callbacks = [instantiate(node, f"callbacks.{name}") for name, node in config.callbacks.items()]
    loggers = [instantiate(node, f"logger.{name}") for name, node in config.logger.items()]
    return _trainer(config, [*callbacks, *extra_callbacks], [*loggers, *extra_loggers])


def _trainer(config: DictConfig, callbacks: list[L.Callback], loggers: list[Any]) -> L.Trainer:
    create = instantiate(config.trainer, "trainer", partial=True)
    try:
        made: L.Trainer = create(callbacks=callbacks, loggers=loggers)
    except (
        TypeError,
        ValueError,
        L.fabric.utilities.exceptions.MisconfigurationException,
    ) as error:
        raise UserError(
            f"trainer: {one_line(error)} On any machine: type trainer.accelerator=auto "
            "trainer.devices=1"
        ) from error
    strategy.check(made.strategy)
    return made


# Prompts and responses have to fit into the model's context


class Encoder(Protocol):
    """A policy, as far as lengths are concerned."""

    @property
    def context_length(self) -> int: ...

    def encode(self, prompt: Prompt) -> Sequence[int]: ...


def short_prompts(
    policy: Encoder, prompts: Sequence[Prompt], limit: int | None, key: str = "data"
) -> list[Prompt]:
    """Return the prompts with at most `limit` tokens; None: all.

    Raises:
        UserError: every prompt is longer.
    """
    if limit is None:
        return list(prompts)
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    if prompts and min(lengths) > limit:
        raise UserError(
            f"{key}.max_prompt_tokens={limit}: all {len(prompts)} prompts of a split are longer: "
            f"type {key}.max_prompt_tokens={max(lengths)}, which keeps all"
        )
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) if length <= limit]


def without_long_prompts(validation: Validation, policy: Encoder, config: DictConfig) -> Validation:
    """Return the settings of validation without the prompts of its named sets that are longer than
    the `max_prompt_tokens` of their set. `config`: settings of validation.

    Raises:
        UserError: all prompts of a set are longer.
    """
    if validation.data is None:
        return validation
    sets = {}
    for name, prompts in validation.data.items():
        limit = config.data[name].get("max_prompt_tokens")
        sets[name] = short_prompts(policy, prompts, limit, f"validation.data.{name}")
    return replace(validation, data=sets)


def check_context(
    policy: Encoder,
    prompts: Sequence[Prompt],
    max_tokens: int,
    setting: str = "rollout.max_tokens",
    num_added: int = 0,
    filters: bool = False,
) -> None:
    """Check that each prompt and `max_tokens` response tokens fit into the model's context.

    Args:
        setting: limits the response tokens.
        num_added: number of tokens that an environment adds to a prompt.
        filters: the data set has `max_prompt_tokens`.

    Raises:
        UserError: a prompt that is empty or too long.
    """
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    if 0 in lengths:
        raise UserError(f"prompt {prompts[lengths.index(0)].id} is empty: remove it from the data")
    limit = policy.context_length - max_tokens - num_added
    too_long = [i for i, length in enumerate(lengths) if length > limit]
    if not too_long:
        return
    advice = f"shorten the prompt or type a smaller {setting}"
    if filters and limit > 0 and len(too_long) < len(prompts):
        advice = (
            f"type data.max_prompt_tokens={limit} to leave out {len(too_long)} of "
            f"{len(prompts)} prompts, or a smaller {setting}"
        )
    first = too_long[0]
    raise UserError(
        f"prompt {prompts[first].id} has {lengths[first] + num_added} tokens; with "
        f"{setting}={max_tokens} that exceeds the model's context of {policy.context_length}: "
        f"{advice}"
    )
