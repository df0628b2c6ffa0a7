"""A configuration to objects that fit together, or one line that says which override to type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import lightning as L
from hydra.errors import HydraException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.algo import Batch, Learner
from rlmods.data import PromptModule, Splits
from rlmods.evaluation import Validation
from rlmods.plugins import explain
from rlmods.policy.base import Policy
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
            raise UserError(f"trainer: {_one_line(error)}") from error
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
    blocks = {name: _block(config[name], name, kind) for name, kind in BLOCKS.items()}
    parts = {name: make(config[name], name) for name in PARTS if name in used}
    try:
        splits: Splits = make(config.data, "data")()
    except (TypeError, ValueError) as error:
        raise UserError(f"data: {_one_line(error)}") from error
    chosen = {group: choice for group, choice in choices.items() if group in (*used, "data", "policy") and choice is not None}
    made = Plan(config, algorithm, label(algorithm, config.algo.name, chosen, overrides), chosen, splits, parts, **blocks)
    check(made)
    return made


def label(algorithm: type[Learner], name: str, choices: Mapping[str, str], overrides: Iterable[str] = ()) -> str:
    """`dapo`, or `dapo[ratio=symmetric,ratio.low=0.1]` where the run departs from the paper's recipe."""
    swapped = [f"{group}={choices[group]}" for group, paper in algorithm.recipe.items() if choices.get(group, paper) != paper]
    tuned = [typed for typed in overrides if typed.split(".")[0] in algorithm.recipe and "." in typed.split("=")[0]]
    return f"{name}[{','.join([*swapped, *tuned])}]" if swapped or tuned else name


def check(plan: Plan) -> None:
    """Refuse parts that do not fit, with the override to type.

    Raises:
        UserError: the first thing that is wrong.
    """
    for rule in RULES:
        if message := rule(plan):
            raise UserError(message)


def make(config: DictConfig, group: str, *, partial: bool = False) -> Any:
    """The object that a configuration's `_target_` names.

    Raises:
        UserError: unknown or invalid settings, an import that fails; with the plugin's file and line where a plugin is at fault.
    """
    try:
        if partial:
            built = instantiate(config, _partial_=True, _convert_="all")
            _refuse_unknown(built.func, built.keywords, group)
            return built
        return instantiate(config, _convert_="all")
    except (HydraException, OmegaConfBaseException, TypeError, ValueError, ImportError) as error:
        if isinstance(cause := _root(error), UserError):
            raise cause from error
        if (plugin := explain(error)) is not None:
            raise plugin from error
        raise UserError(_explain_settings(cause, config, group)) from error


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
    return None


def _protocols(plan: Plan) -> str | None:
    for name, part in plan.parts.items():
        missing = [m for m in (("generate", "sync") if name == "rollout" else ("__call__",)) if not hasattr(part, m)]
        if missing:
            return f"{name}={plan.choices.get(name)}: {type(part).__name__} has no {' and no '.join(missing)}; see rlmods/protocols.py"
        for attribute in ("coefficient", "where") if name == "kl" else ():
            if not hasattr(part, attribute):
                return f"kl={plan.choices.get('kl')}: {type(part).__name__} has no {attribute}; see rlmods/protocols.py"
    return None


RULES: tuple[Callable[[Plan], str | None], ...] = (
    _protocols, _values, _group_size, _critic, _minibatches, _prompts, _answers, _responses, _temperature, _truncation,
)  # fmt: skip


# Plain errors


def _algorithm(config: DictConfig) -> type[Learner]:
    try:
        return get_class(config.algo._target_)
    except (ValueError, ImportError) as error:
        raise explain(error) or UserError(f"algo: {_one_line(error)}") from error


def _block(config: DictConfig, name: str, kind: type[Any]) -> Any:
    values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    _refuse_unknown(kind, values, name)
    wanted = {"int": (int,), "int | None": (int, type(None)), "float": (int, float)}
    for field in fields(kind):
        value = values.get(field.name, field.default)
        if isinstance(value, bool) or not isinstance(value, wanted[str(field.type)]):
            raise UserError(f"{name}.{field.name}={value}: must be {'a whole number' if 'int' in str(field.type) else 'a number'}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UserError(_one_line(error)) from error


def _refuse_unknown(target: Any, keys: Iterable[str], group: str) -> None:
    """Keys that the target does not take, where it can be told; `**options` hands them on to something that checks for itself."""
    known = dict(inspect.signature(target).parameters)
    if issubclass(target, Learner) if isinstance(target, type) else False:
        known = {n: p for c in target.__mro__ if issubclass(c, Learner) for n, p in inspect.signature(c.__init__).parameters.items()}
    elif any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for key in keys:
        if key not in known:
            raise UserError(f"unknown key {group}.{key}: known are {', '.join(n for n in known if n not in ('self', 'shared'))}")


def _explain_settings(error: BaseException, config: DictConfig, group: str) -> str:
    text = _one_line(error)
    target = config.get("_target_", group)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        try:
            kind = get_class(target)
            known = [f.name for f in fields(kind)] if is_dataclass(kind) else list(inspect.signature(kind).parameters)
            return f"{group}: unknown key{text.split('argument')[-1]}; known are {', '.join(known)}"
        except (ValueError, ImportError):
            pass
    return text if text.startswith(f"{group}.") else f"{group}: {text}"


def _root(error: BaseException) -> BaseException:
    """What was raised first: Hydra wraps it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
