"""What does not fit what: each rule returns None, or the one line to print, with the override to type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlmods.compose import Plan



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
