"""A configuration to objects that fit together, or one line that says which override to type."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from hydra.utils import get_class
from omegaconf import DictConfig

from rlmods.algo import Batch, Learner, PolicyGradient
from rlmods.config.instantiate import block, make, one_line
from rlmods.config.plugins import explain
from rlmods.config.rules import RULES
from rlmods.data import PromptModule, Splits
from rlmods.distributed import strategy
from rlmods.policy.base import Policy
from rlmods.reward import WeightedSum
from rlmods.training.evaluation import Validation
from rlmods.types import Prompt, UserError

PARTS = ("router", "rollout", "reward", "judge", "preference", "ranking", "sampling", "advantage", "critic", "kl", "ratio", "aggregation")
"""Groups whose options are made into parts and given to the algorithm that names them."""
BLOCKS = {"batch": Batch, "validation": Validation}
"""Settings that are not swapped, only set."""
OBJECTIVE = (
    "entropy_coefficient", "target_entropy", "overlong_filter", "normalize_reward", "clip_reward", "reference_every", "replay_fraction",
    "ptx_coefficient", "target_kl", "sft_coefficient", "centre",
)  # fmt: skip
"""Settings of `algo` that change what is optimised: a run that sets one departs from the recipe."""
TOP = (
    "data", "policy", "adapter", *PARTS, "optimizer", "schedule", "trainer", "callbacks", "logger", "algo", "ptx", *BLOCKS,
    "seed", "run_dir", "resume",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What was asked for, made and checked, before a model is loaded and before anything is written."""

    config: DictConfig
    algorithm: type[Learner]
    label: str
    choices: Mapping[str, str]
    """Option by group, of the groups that the algorithm uses."""
    splits: Splits
    ptx: Sequence[Prompt]
    """Rows to imitate beside the reward; empty where nobody asks for them."""
    adapter: Any
    """Puts an adapter on the policy, or leaves it as it is."""
    parts: Mapping[str, Any]
    batch: Batch
    validation: Validation

    def learner(self) -> Learner:
        """Load the policy and put the algorithm together.

        Raises:
            UserError: the policy does not load, or a prompt does not fit its context.
        """
        config = self.config
        L.seed_everything(config.seed, verbose=False)
        policy: Policy = self.adapter(make(config.policy, "policy")())
        fit(policy, (*self.splits.train, *self.splits.val), getattr(self.parts.get("rollout"), "max_tokens", 0))
        columns = self.algorithm.needs_columns
        held_out = [prompt for prompt in self.splits.val if all(column in prompt.meta for column in columns)]
        fit_responses(policy, (*self.splits.train, *held_out), columns)
        fit_responses(policy, self.ptx, ("response",))
        build = make(config.algo, "algo", partial=True)
        learner: Learner = build(
            policy=policy,
            **self.parts,
            **({"ptx_prompts": self.ptx} if issubclass(self.algorithm, PolicyGradient) else {}),
            optimizer=make(config.optimizer, "optimizer", partial=True),
            schedule=make(config.schedule, "schedule"),
            batch=self.batch,
            validation=self.validation,
            validation_prompts=list(self.splits.val),
            seed=config.seed,
        )
        return learner

    def data(self) -> PromptModule:
        return PromptModule(self.splits, self.batch.prompts, self.config.seed)

    def num_ranks(self) -> int:
        """Processes that share an iteration.

        Raises:
            UserError: no such device or strategy here, not what a launcher has started, or prompts that ranks cannot share evenly.
        """
        made: Any = self._trainer([], [])
        ranks: int = made.num_devices * made.num_nodes
        strategy.check_launch(ranks)
        self.batch.check_ranks(ranks, self.algorithm.rows_per_prompt(self.batch))
        return ranks

    def trainer(self, extra_callbacks: Sequence[L.Callback], extra_loggers: Sequence[Any]) -> L.Trainer:
        callbacks, loggers = ([make(node, f"{x}.{name}") for name, node in self.config[x].items()] for x in ("callbacks", "logger"))
        return self._trainer([*callbacks, *extra_callbacks], [*loggers, *extra_loggers])

    def _trainer(self, callbacks: list[L.Callback], loggers: list[Any]) -> L.Trainer:
        build = make(self.config.trainer, "trainer", partial=True)
        try:
            made: L.Trainer = build(callbacks=callbacks, loggers=loggers)
        except (TypeError, ValueError, L.fabric.utilities.exceptions.MisconfigurationException) as error:
            raise UserError(f"trainer: {one_line(error)}") from error
        strategy.check(made.strategy)
        return made


def plan(config: DictConfig, choices: Mapping[str, str], overrides: Iterable[str] = ()) -> Plan:
    """Make and check every part.

    Args:
        choices: option by group, as Hydra chose them.
        overrides: what was typed, `group=option` and `key=value`.

    Raises:
        UserError: something unknown, missing, out of range, or two parts that do not fit.
    """
    overrides = [o.lstrip("+~") for o in overrides]
    unknown = [str(key) for key in config if key not in TOP]
    if unknown:
        raise UserError(f"unknown key {unknown[0]!r}: known are {', '.join(TOP)}")
    algorithm = _algorithm(config)
    used = {"optimizer", "schedule", "trainer", "callbacks", "logger", "algo", *algorithm.groups}
    for typed in overrides:
        group = typed.split("=")[0].split("@")[-1].split(".")[0]  # an option of one group may go into a part of another
        if group in (*PARTS, "adapter") and group not in used:
            raise UserError(f"algo={config.algo.name} does not use {group}: drop {typed}, or choose another algo=")
    blocks = {name: block(config[name], name, kind) for name, kind in BLOCKS.items()}
    parts = {name: make(config[name], name) for name in PARTS if name in used}
    adapter = make(config.adapter, "adapter")
    if "reward" in parts and not isinstance(parts["reward"], WeightedSum):  # so that what it counts is logged under its name
        parts["reward"] = WeightedSum({str(choices.get("reward", "reward")): {"reward": parts["reward"]}})
    _check_optimizer(config)
    _check_trainer(config)
    splits = _splits(config.data, "data")
    imitates = bool(config.algo.get("ptx_coefficient", 0))
    stream = config.get("ptx")
    if stream is not None and not imitates:
        raise UserError("data@ptx names rows to imitate, and nothing asks for them: type algo.ptx_coefficient=0.1, or drop data@ptx")
    if stream is not None and "num_val" in stream and not any(typed.startswith("ptx.num_val=") for typed in overrides):
        stream.num_val = 0  # nothing validates on it
    ptx = _unseen((splits if stream is None else _splits(stream, "ptx")).train, splits.val) if imitates else ()
    chosen = {group: choice for group, choice in choices.items() if group in (*used, "data", "policy") and choice is not None}
    made = Plan(config, algorithm, label(algorithm, config.algo.name, chosen, overrides), chosen, splits, ptx, adapter, parts, **blocks)
    check(made)
    return made


def _splits(config: DictConfig, name: str) -> Splits:
    try:
        found: Splits = make(config, name)()
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {one_line(error)}") from error
    except UserError as error:  # it speaks of `data`, and the rows may have another name
        keys = "|".join(map(str, config))
        raise UserError(re.sub(rf"(?<![/\w.-])data(?=\.(?:{keys})\b)", name, str(error))) from error
    return found


def _unseen(rows: Sequence[Prompt], held_out: Sequence[Prompt]) -> Sequence[Prompt]:
    """Without those that ask what a held-out prompt asks."""
    asked = {(prompt.text, str(prompt.messages)) for prompt in held_out}
    kept = [row for row in rows if (row.text, str(row.messages)) not in asked]
    if len(kept) < len(rows):
        warnings.warn(f"ptx: {len(rows) - len(kept)} of its {len(rows)} rows are held out by data=, and not imitated", stacklevel=2)
    return kept


def _check_optimizer(config: DictConfig) -> None:
    try:
        make(config.optimizer, "optimizer", partial=True)([torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer: {one_line(error)}; a setting has the wrong type or is out of range") from error


def _check_trainer(config: DictConfig) -> None:
    if not isinstance(config.seed, int) or not 0 <= config.seed < 2**32:
        raise UserError(f"seed={config.seed}: must be a whole number from 0 to {2**32 - 1}")
    length = config.trainer.max_iterations
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UserError(f"trainer.max_iterations={length}: must be a whole number of at least 1")
    known = {"_target_", "max_iterations", *inspect.signature(L.Trainer).parameters}
    for key in config.trainer:
        if key not in known:
            raise UserError(f"unknown key trainer.{key}: known are max_iterations and what lightning.Trainer takes")
    strategy.check_settings(config.trainer.get("strategy"))


def label(algorithm: type[Learner], name: str, choices: Mapping[str, str], overrides: Iterable[str] = ()) -> str:
    """`dapo`, or `dapo[ratio=symmetric,ratio.low=0.1]` where the run departs from the paper's recipe."""
    recipe = {**algorithm.recipe, "router": "free"}  # papers leave routers alone
    swapped = [f"{group}={choices[group]}" for group, paper in recipe.items() if choices.get(group, paper) != paper]
    tuned = [typed for typed in overrides if typed.split(".")[0] in recipe and "." in typed.split("=")[0]]
    tuned += [typed for typed in overrides if typed.split("=")[0].removeprefix("algo.") in OBJECTIVE and typed.startswith("algo.")]
    return f"{name}[{','.join([*swapped, *tuned])}]" if swapped or tuned else name


def check(plan: Plan) -> None:
    """Refuse parts that do not fit, with the override to type.

    Raises:
        UserError: the first thing that is wrong.
    """
    for rule in RULES:
        if message := rule(plan):
            raise UserError(message)


def fit(policy: Policy, prompts: Iterable[Prompt], max_tokens: int) -> None:
    """Refuse prompts that leave too little room in the model's context."""
    for prompt in prompts:
        length = len(policy.encode(prompt))
        if length == 0:
            raise UserError(f"prompt {prompt.id} is empty: remove it from the data")
        if length + max_tokens > policy.context_length:
            raise UserError(
                f"prompt {prompt.id} has {length} tokens; with rollout.max_tokens={max_tokens} that exceeds the model's context of "
                f"{policy.context_length}: shorten the prompt or type a smaller rollout.max_tokens"
            )


def fit_responses(policy: Policy, prompts: Iterable[Prompt], columns: Sequence[str]) -> None:
    """Refuse responses to learn from that do not fit the model's context."""
    for prompt in prompts if columns else ():
        longest = max((len(policy.encode_response(text)) for text in texts(prompt, columns)), default=0)
        length = len(policy.encode(prompt)) + longest
        if length > policy.context_length:
            raise UserError(
                f"prompt {prompt.id} and its response have {length} tokens, and the model's context is {policy.context_length}: "
                "shorten the row, or choose another model with policy=hf policy.name=..."
            )


def texts(prompt: Prompt, columns: Iterable[str]) -> list[str]:
    """Every response that these columns of a row bring."""
    found: list[str] = []
    for column in columns:
        value = prompt.meta[column]
        found += value if column == "candidates" else ["".join(value)]
    return found


def _algorithm(config: DictConfig) -> type[Learner]:
    try:
        return get_class(config.algo._target_)
    except (ValueError, ImportError) as error:
        raise explain(error) or UserError(f"algo: {one_line(error)}") from error
