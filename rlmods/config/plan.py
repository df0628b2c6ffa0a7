"""The checked plan of a run, which creates its learner, data module and Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn
from omegaconf import DictConfig

from rlmods.algo import Learner
from rlmods.config.instantiate import instantiate, one_line
from rlmods.data import PromptModule, Splits
from rlmods.distributed import strategy
from rlmods.distributed.deferred import defer_loading
from rlmods.distributed.precision import Precision, choose, device_type
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.turns import MultiTurn, num_added_tokens
from rlmods.training.batch import Batch
from rlmods.training.evaluation import Validation
from rlmods.types import Prompt

OF_ROLLOUT = ("environment", "branching")
"""Groups whose parts are parts of the rollout."""


@dataclass(frozen=True)
class Plan:
    """Validated configuration of a run: its parts, settings and data. Creating it loads no model
    and writes no file."""

    config: DictConfig
    algorithm: type[Learner]
    label: str
    choices: Mapping[str, str]
    """Option of each group that the algorithm uses."""
    splits: Splits
    adapter: Any
    """Adds an adapter to the policy, or returns it unchanged."""
    parts: Mapping[str, Any]
    """Instantiated parts by group."""
    settings: Any
    """Settings of the algorithm."""
    batch: Batch
    validation: Validation
    long_prompts: set[str] = field(default_factory=set)
    """Ids of the prompts that `learner` has left out, because they have more than
    `data.max_prompt_tokens` tokens."""
    automatic: dict[str, Precision] = field(default_factory=dict)
    """`trainer.precision`, if it is `auto`: the choice for this machine, which `learner` makes and
    writes into `config`."""

    @property
    def kept(self) -> Splits:
        """The prompts that are not left out."""
        train, val = (
            [p for p in split if p.id not in self.long_prompts]
            for split in (self.splits.train, self.splits.val)
        )
        return replace(self.splits, train=train, val=val)

    def learner(self) -> Learner:
        """Load the policy, construct the algorithm, and choose the precision if it is `auto`.

        Raises:
            UserError: the policy does not load, a prompt does not fit its context, or all prompts
            are left out.
        """
        with defer_loading(strategy.shards(self.config.trainer.get("strategy"))):
            return self._learner()

    def _learner(self) -> Learner:
        config = self.config
        L.seed_everything(config.seed, verbose=False)
        policy: Policy = self.adapter(instantiate(config.policy, "policy")())
        splits = self._leave_out_long_prompts(policy)
        validation = without_long_prompts(self.validation, policy, config.validation)
        rollout = self.parts.get("rollout")
        limit = "environment.max_tokens" if isinstance(rollout, MultiTurn) else "rollout.max_tokens"
        prompts = (*splits.train, *splits.val)
        added = num_added_tokens(policy, rollout, prompts)
        filters = "max_prompt_tokens" in config.data
        check_context(policy, prompts, getattr(rollout, "max_tokens", 0), limit, added, filters)
        named = [prompt for prompts in (validation.data or {}).values() for prompt in prompts]
        check_context(
            policy,
            (*splits.val, *named),
            *_validation_length(validation, rollout, limit),
            added,
            filters,
        )
        columns = self.algorithm.columns(self.settings)
        held_out = [
            prompt for prompt in splits.val if all(column in prompt.meta for column in columns)
        ]
        check_response_lengths(policy, (*splits.train, *held_out), columns)
        check_response_lengths(policy, splits.ptx, ("response",))
        rows = [(splits.ptx, ("response",)), ((*splits.train, *held_out), columns)]
        policy.warn_of_control_tokens(
            (
                text
                for prompts, names in rows
                for prompt in prompts
                for text in replies(prompt, names)
            ),
            (*splits.train, *splits.val, *splits.ptx),
        )
        learner: Learner = self.algorithm(
            policy=policy,
            settings=self.settings,
            **{name: part for name, part in self.parts.items() if name not in OF_ROLLOUT},
            optimizer=instantiate(config.optimizer, "optimizer", partial=True),
            schedule=instantiate(config.schedule, "schedule"),
            batch=self.batch,
            validation=validation,
            splits=splits,
            seed=config.seed,
        )
        trainer = config.trainer
        if trainer.get("precision") == "auto":
            chosen = choose(
                next(iter(learner.networks.values())),
                device_type(trainer.get("accelerator", "auto")),
            )
            self.automatic["trainer.precision"], trainer.precision = chosen, chosen.name
        return learner

    def _leave_out_long_prompts(self, policy: Policy) -> Splits:
        """Fill `long_prompts`, and return the prompts and the rows of the supervised loss that are
        kept."""
        limit, ptx = max_prompt_tokens(self.config, "data"), self.splits.ptx
        self.long_prompts.clear()
        for prompts in (self.splits.train, self.splits.val):
            short = short_prompts(policy, prompts, limit, "data")
            self.long_prompts.update(
                {prompt.id for prompt in prompts} - {prompt.id for prompt in short}
            )
        kept = self.kept
        if self.long_prompts and self.batch.prompts > len(kept.train):
            advice = f"type batch.prompts={len(kept.train)}, or a larger data.max_prompt_tokens"
            raise UserError(
                f"batch.prompts={self.batch.prompts}, but {len(kept.train)} prompts have at "
                f"most {limit} tokens: {advice}"
            )
        if ptx:
            source = "data" if self.config.get("ptx") is None else "ptx"
            short = short_prompts(policy, ptx, max_prompt_tokens(self.config, source), source)
            if len(short) < len(ptx) and source == "ptx":
                rank_zero_warn(
                    f"ptx: {len(ptx) - len(short)} of its {len(ptx)} rows have longer prompts "
                    "and are left out"
                )
            kept = replace(kept, ptx=short)
        return kept

    def data(self) -> PromptModule:
        """Return the data module that serves the training prompts."""
        return PromptModule(self.kept, self.batch.prompts, self.config.seed)

    def num_ranks(self) -> int:
        """Return the number of processes that share an iteration.

        Raises:
            UserError: the device or strategy does not exist on this machine, a launcher started
            another number of processes, or the ranks
                cannot share the prompts evenly.
        """
        # before `learner`; the number of ranks does not depend on the choice
        is_open = self.config.trainer.get("precision") == "auto"
        trainer: Any = self._trainer([], [], **({"precision": "32-true"} if is_open else {}))
        ranks: int = trainer.num_devices * trainer.num_nodes
        strategy.check_launch(ranks)
        self.batch.check_ranks(ranks, self.algorithm.rows_per_prompt(self.batch))
        return ranks

    def trainer(
        self, extra_callbacks: Sequence[L.Callback], extra_loggers: Sequence[Any]
    ) -> L.Trainer:
        """Return a Trainer with the configured callbacks and loggers and the extra ones. Call
        `learner` first: it chooses the precision."""
        callbacks, loggers = (
            [instantiate(node, f"{x}.{name}") for name, node in self.config[x].items()]
            for x in ("callbacks", "logger")
        )
        return self._trainer([*callbacks, *extra_callbacks], [*loggers, *extra_loggers])

    def _trainer(
        self, callbacks: list[L.Callback], loggers: list[Any], **options: Any
    ) -> L.Trainer:
        create_trainer = instantiate(self.config.trainer, "trainer", partial=True)
        try:
            trainer: L.Trainer = create_trainer(callbacks=callbacks, loggers=loggers, **options)
        except (
            TypeError,
            ValueError,
            L.fabric.utilities.exceptions.MisconfigurationException,
        ) as error:
            raise UserError(f"trainer: {one_line(error)}") from error
        strategy.check(trainer.strategy)
        return trainer


def max_prompt_tokens(config: DictConfig, group: str) -> int | None:
    """Return `max_prompt_tokens` of a data set's settings; None for a data set without this
    setting."""
    limit: int | None = config[group].get("max_prompt_tokens", None)
    return limit


def short_prompts(
    policy: Any, prompts: Sequence[Prompt], limit: int | None, group: str = "data"
) -> list[Prompt]:
    """Return the prompts with at most `limit` tokens; None: all.

    Raises:
        UserError: every prompt is longer.
    """
    if limit is None:
        return list(prompts)
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    if prompts and min(lengths) > limit:
        advice = f"type {group}.max_prompt_tokens={max(lengths)}, which keeps all"
        raise UserError(
            f"{group}.max_prompt_tokens={limit}: all {len(prompts)} prompts of a split are "
            f"longer: {advice}"
        )
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) if length <= limit]


def without_long_prompts(validation: Validation, policy: Any, config: DictConfig) -> Validation:
    """Return the settings of validation without the prompts of its named sets that are longer than
    the `max_prompt_tokens` of their set.

    Raises:
        UserError: all prompts of a set are longer.
    """
    if validation.data is None:
        return validation
    limits = {name: config.data[name].get("max_prompt_tokens") for name in validation.data}
    sets = {
        name: short_prompts(policy, x, limits[name], f"validation.data.{name}")
        for name, x in validation.data.items()
    }
    return replace(validation, data=sets)


def _validation_length(validation: Validation, rollout: Any, limit: str) -> tuple[int, str]:
    """Return the longest response of validation, and the setting that limits it."""
    length = getattr(rollout, "max_tokens", 0)
    if validation.max_tokens is None or isinstance(rollout, MultiTurn):
        return length, limit
    return validation.max_tokens, "validation.max_tokens"


def check_context(
    policy: Policy,
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
    too_long = [
        (prompt, length) for prompt, length in zip(prompts, lengths, strict=True) if length > limit
    ]
    if too_long:
        prompt, length = too_long[0]
        advice = f"shorten the prompt or type a smaller {setting}"
        if filters and limit > 0 and len(too_long) < len(prompts):
            advice = (
                f"type data.max_prompt_tokens={limit} to leave out {len(too_long)} of "
                f"{len(prompts)} prompts, or a smaller {setting}"
            )
        raise UserError(
            f"prompt {prompt.id} has {length + num_added} tokens; with {setting}={max_tokens} "
            "that exceeds the model's context of "
            f"{policy.context_length}: {advice}"
        )


def check_response_lengths(
    policy: Policy, prompts: Iterable[Prompt], columns: Sequence[str]
) -> None:
    """Check that each prompt, with each of its responses in the data, fits into the model's
    context.

    Raises:
        UserError: a row that is too long.
    """
    for prompt in prompts if columns else ():
        longest = max(
            (len(policy.encode_response(text, prompt)) for text in texts(prompt, columns)),
            default=0,
        )
        length = len(policy.encode(prompt)) + longest
        if length > policy.context_length:
            raise UserError(
                f"prompt {prompt.id} and its response have {length} tokens, and the model's "
                f"context is {policy.context_length}: "
                "shorten the row, or choose another model with policy=hf policy.name=..."
            )


def replies(prompt: Prompt, columns: Iterable[str]) -> list[str]:
    """Return the responses in these columns of a row, and the assistant messages of its prompt."""
    return [
        *texts(prompt, columns),
        *(
            message["content"]
            for message in prompt.messages or ()
            if message["role"] == "assistant"
        ),
    ]


def texts(prompt: Prompt, columns: Iterable[str]) -> list[str]:
    """Return the responses in these columns of a row."""
    responses: list[str] = []
    for column in columns:
        value = prompt.meta[column]
        responses += value if column == "candidates" else ["".join(value)]
    return responses
