"""A configuration to objects that fit together, or one line that says which override to type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import lightning as L
import torch
from hydra.utils import get_class
from omegaconf import DictConfig

from rlmods.algo import Batch, Learner
from rlmods.data import PromptModule, Splits
from rlmods.evaluation import Validation
from rlmods.make import block, make, one_line
from rlmods.plugins import explain
from rlmods.policy.base import Policy
from rlmods.reward import WeightedSum
from rlmods.types import Prompt, UserError

PARTS = ("rollout", "reward", "sampling", "advantage", "kl", "ratio", "aggregation")
"""Groups whose options are made into parts and given to the algorithm that names them."""
BLOCKS = {"batch": Batch, "validation": Validation}
"""Settings that are not swapped, only set."""
TOP = ("data", "policy", *PARTS, "optimizer", "schedule", "trainer", "callbacks", "logger", "algo", *BLOCKS, "seed", "run_dir", "resume")


@dataclass(frozen=True)
class Plan:
    """What was asked for, made and checked, before a model is loaded and before anything is written."""

    config: DictConfig
    algorithm: type[Learner]
    label: str
    choices: Mapping[str, str]
    """Option by group, of the groups that the algorithm uses."""
    splits: Splits
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
        policy: Policy = make(config.policy, "policy")()
        fit(policy, (*self.splits.train, *self.splits.val), getattr(self.parts["rollout"], "max_tokens", 0))
        if getattr(self.algorithm, "needs_response", False):
            fit_responses(policy, self.splits.train)
        build = make(config.algo, "algo", partial=True)
        learner: Learner = build(
            policy=policy,
            **self.parts,
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

    def trainer(self, extra_callbacks: Sequence[L.Callback], extra_loggers: Sequence[Any]) -> L.Trainer:
        callbacks = [make(c, f"callbacks.{name}") for name, c in self.config.callbacks.items()]
        loggers = [make(c, f"logger.{name}") for name, c in self.config.logger.items()]
        build = make(self.config.trainer, "trainer", partial=True)
        try:
            made: L.Trainer = build(callbacks=[*callbacks, *extra_callbacks], loggers=[*loggers, *extra_loggers])
        except (TypeError, ValueError, L.fabric.utilities.exceptions.MisconfigurationException) as error:
            raise UserError(f"trainer: {one_line(error)}") from error
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
        group = typed.split("=")[0].split(".")[0].split("@")[0]
        if group in PARTS and group not in used:
            raise UserError(f"algo={config.algo.name} does not use {group}: drop {typed}, or choose another algo=")
    blocks = {name: block(config[name], name, kind) for name, kind in BLOCKS.items()}
    parts = {name: make(config[name], name) for name in PARTS if name in used}
    if not isinstance(parts["reward"], WeightedSum):  # so that what it counts is logged under its name
        parts["reward"] = WeightedSum({str(choices.get("reward", "reward")): {"reward": parts["reward"]}})
    _check_optimizer(config)
    _check_trainer(config)
    try:
        splits: Splits = make(config.data, "data")()
    except (TypeError, ValueError) as error:
        raise UserError(f"data: {one_line(error)}") from error
    chosen = {group: choice for group, choice in choices.items() if group in (*used, "data", "policy") and choice is not None}
    made = Plan(config, algorithm, label(algorithm, config.algo.name, chosen, overrides), chosen, splits, parts, **blocks)
    check(made)
    return made


def _check_optimizer(config: DictConfig) -> None:
    try:
        make(config.optimizer, "optimizer", partial=True)([torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer: {one_line(error)}") from error


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


def label(algorithm: type[Learner], name: str, choices: Mapping[str, str], overrides: Iterable[str] = ()) -> str:
    """`dapo`, or `dapo[ratio=symmetric,ratio.low=0.1]` where the run departs from the paper's recipe."""
    swapped = [f"{group}={choices[group]}" for group, paper in algorithm.recipe.items() if choices.get(group, paper) != paper]
    tuned = [typed for typed in overrides if typed.split(".")[0] in algorithm.recipe and "." in typed.split("=")[0]]
    tuned += [typed for typed in overrides if typed.split("=")[0] in ("algo.entropy_coefficient", "algo.overlong_filter")]
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


def fit_responses(policy: Policy, prompts: Iterable[Prompt]) -> None:
    """Refuse responses to imitate that do not fit the model's context."""
    for prompt in prompts:
        length = len(policy.encode(prompt)) + len(policy.encode_response(prompt.meta["response"]))
        if length > policy.context_length:
            raise UserError(
                f"prompt {prompt.id} and its response have {length} tokens, and the model's context is {policy.context_length}: "
                "shorten the row, or choose another model with policy=hf policy.name=..."
            )


# The rules. Each returns None or the one line to print.


def _group_size(plan: Plan) -> str | None:
    samples = plan.batch.samples
    for group in ("advantage", "sampling"):
        if group in plan.parts and samples < 2 and (getattr(plan.parts[group], "needs_group", False)):
            return f"{group}={plan.choices.get(group)} compares answers to one prompt, and batch.samples={samples}: type batch.samples=8"
    return None


def _critic(plan: Plan) -> str | None:
    advantage = plan.parts.get("advantage")
    if getattr(advantage, "needs_values", False) and not getattr(plan.algorithm, "has_critic", False):
        chosen, algo = plan.choices.get("advantage"), plan.config.algo.name
        return f"advantage={chosen} needs a critic, which algo={algo} has not: type advantage=group_norm"
    return None


def _minibatches(plan: Plan) -> str | None:
    rows = plan.batch.prompts * (plan.batch.samples if "sampling" in plan.parts else 1)
    if rows % plan.batch.minibatches == 0:
        return None
    fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
    return f"batch.minibatches={plan.batch.minibatches} does not divide the {rows} rows of an iteration: type one of {fits}"


def _prompts(plan: Plan) -> str | None:
    count = len(plan.splits.train)
    if plan.batch.prompts <= count:
        return None
    return f"batch.prompts={plan.batch.prompts}, but the data has {count} prompts: type batch.prompts={count}"


def _answers(plan: Plan) -> str | None:
    if not getattr(plan.parts["reward"], "needs_answer", False):
        return None
    for prompt in (*plan.splits.train, *plan.splits.val):
        if prompt.answer is None:
            chosen = plan.choices.get("reward")
            return f"reward={chosen} compares with a gold answer, and prompt {prompt.id} has none: type data.answer=COLUMN"
    return None


def _responses(plan: Plan) -> str | None:
    if not getattr(plan.algorithm, "needs_response", False):
        return None
    for prompt in plan.splits.train:
        if not isinstance(prompt.meta.get("response"), str):
            return f"algo={plan.config.algo.name} imitates responses, and prompt {prompt.id} has none: type data.response=COLUMN"
    return None


def _temperature(plan: Plan) -> str | None:
    temperature = getattr(plan.parts["rollout"], "temperature", 1.0)
    if "ratio" in plan.parts and temperature == 0:
        return "rollout.temperature=0 samples the same answer every time, so there is nothing to learn: type rollout.temperature=1"
    return None


def _truncation(plan: Plan) -> str | None:
    rollout = plan.parts["rollout"]
    if "ratio" in plan.parts and (getattr(rollout, "top_p", 1.0) < 1 or getattr(rollout, "top_k", 0) > 0):
        return (
            "rollout.top_p and rollout.top_k draw from another distribution than the one that is trained: "
            "type rollout.top_p=1 rollout.top_k=0 (validation has its own settings)"
        )
    return None


def _values(plan: Plan) -> str | None:
    allowed = {"fallback": ("train", "skip", "error"), "surplus": ("keep", "drop")}
    for key, values in allowed.items():
        if key in plan.config.algo and plan.config.algo[key] not in values:
            return f"algo.{key}={plan.config.algo[key]}: one of {', '.join(values)}"
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "entropy_coefficient": ((int, float), "a number"),
        "overlong_filter": ((bool,), "true or false"),
        "max_draws": ((int,), "a whole number of at least 1"),
    }
    for key, (types, wanted) in kinds.items():
        value = plan.config.algo.get(key, None)
        fits = isinstance(value, types) and (not isinstance(value, bool) or bool in types)
        if key in plan.config.algo and not (fits and (key != "max_draws" or int(str(value)) >= 1)):
            return f"algo.{key}={value}: must be {wanted}"
    return None


def _protocols(plan: Plan) -> str | None:
    for name, part in plan.parts.items():
        missing = [m for m in (("generate", "sync") if name == "rollout" else ("__call__",)) if not hasattr(part, m)]
        if missing:
            return f"{name}={plan.choices.get(name)}: {type(part).__name__} has no {' and no '.join(missing)}; see rlmods/protocols.py"
        if name == "rollout" and not (is_dataclass(part) and hasattr(part, "temperature")):
            return f"rollout={plan.choices.get(name)}: must be a dataclass with a temperature, as validation samples with its own settings"
        for attribute in ("coefficient", "where") if name == "kl" else ():
            if not hasattr(part, attribute):
                return f"kl={plan.choices.get('kl')}: {type(part).__name__} has no {attribute}; see rlmods/protocols.py"
    return None


def _precision(plan: Plan) -> str | None:
    precision = str(plan.config.trainer.get("precision", "32-true"))
    if precision in ("32", "32-true", "bf16-mixed"):
        return None
    return f"trainer.precision={precision}: type trainer.precision=32-true or trainer.precision=bf16-mixed"


RULES: tuple[Callable[[Plan], str | None], ...] = (
    _protocols, _values, _group_size, _critic, _minibatches, _prompts, _answers, _responses, _temperature, _truncation, _precision,
)  # fmt: skip


def _algorithm(config: DictConfig) -> type[Learner]:
    try:
        return get_class(config.algo._target_)
    except (ValueError, ImportError) as error:
        raise explain(error) or UserError(f"algo: {one_line(error)}") from error
