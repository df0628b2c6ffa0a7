"""What a run is built of: its model and learner, its data module and its Trainer."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn
from omegaconf import DictConfig

from rlmods.algo import Learner
from rlmods.config.instantiate import instantiate
from rlmods.config.run_spec import RunSpec
from rlmods.data import PromptModule, Splits
from rlmods.data.file_rows import examples
from rlmods.distributed import strategy
from rlmods.distributed.deferred import defer_checks, defer_loading
from rlmods.distributed.trainer import Precision, choose, device_type, select_device
from rlmods.errors import UserError, in_one_line
from rlmods.policy.base import Policy
from rlmods.run.resume import grading_identities
from rlmods.training.evaluation import Validation
from rlmods.training.lengths import (
    Encoder,
    check_room,
    lengths_above,
    responses_of,
    short_prompts,
)
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
    is_on_gpu = device == "cuda"
    # a GPU reads one weight at a time: whole networks of every rank may not fit beside each other
    # in the processor's memory
    with defer_loading(shards or is_on_gpu, shards=shards), defer_checks(is_on_gpu):
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
    learner.checkpoint.grading = grading_identities(config)
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
    filters = "max_prompt_tokens" in spec.config.data
    known = spec.config.data.get("max_prompt_tokens")
    for prompts in (splits.train, splits.val):
        check_room(policy, rollout, prompts, filters=filters, known=known)
    max_tokens = validation.max_tokens
    for prompts in (splits.val, *(validation.data or {}).values()):
        check_room(policy, rollout, prompts, filters=filters, validation_tokens=max_tokens)


def _check_responses(spec: RunSpec, policy: Policy, splits: Splits) -> None:
    """Check that each prompt, with each of its responses in the data, fits into the context, and
    warn of responses that hold special tokens as text.

    Raises:
        UserError: a row that is too long.
    """
    columns = spec.algorithm.columns(spec.settings)
    held_out = [row for row in splits.val if row.meta.keys() >= set(columns)]
    checked = ((splits.train, columns), (held_out, columns), (splits.ptx, ("response",)))
    said: list[str] = []
    for rows, names in checked:
        too_long = lengths_above(policy, rows, policy.context_length, names) if names else ()
        for i, length in too_long:
            raise UserError(
                f"prompt {rows[i].id} and its response have {length} tokens, and the model's "
                f"context is {policy.context_length}: shorten the row, or choose another model "
                "with policy=hf policy.name=..."
            )
        said += _responses(examples(rows), names)
    prompts: list[Prompt] = []
    for rows in (splits.train, splits.val, splits.ptx):
        prompts += examples(rows)
    policy.warn_of_control_tokens(said, prompts)
    policy.warn_of_unknown_characters(said, prompts)


def _responses(rows: Iterable[Prompt], columns: Sequence[str]) -> Iterator[str]:
    """Yield the responses in these columns of the data, and the assistant messages."""
    for row in rows:
        yield from responses_of(row, columns)
        for turn in row.messages or ():
            if turn["role"] == "assistant":
                yield turn["content"]


def num_ranks(spec: RunSpec, config: DictConfig) -> int:
    """Return the number of processes that share an iteration. `config`: of the loaded run.

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
            f"trainer: {in_one_line(error)} On any machine: type trainer.accelerator=auto "
            "trainer.devices=1"
        ) from error
    strategy.check(made.strategy)
    return made


# Prompts of named sets


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
