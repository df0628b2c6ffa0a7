"""Rules on single parts and values: methods of a part's protocol, supported precisions."""

from __future__ import annotations

from dataclasses import is_dataclass

from rlmods.branching import NoBranching
from rlmods.config.instantiate import instantiate
from rlmods.config.plan import Plan
from rlmods.distributed.precision import PRECISIONS
from rlmods.environment import SingleTurn
from rlmods.needs import AdapterNeeds, ScheduleNeeds, needs_of


def protocols(plan: Plan) -> str | None:
    for name, part in plan.parts.items():
        required = {
            "rollout": ("generate", "sync"),
            "environment": ("start", "max_turns", "max_tokens"),
        }.get(name, ("__call__",))
        missing = (
            []
            if isinstance(part, SingleTurn | NoBranching)
            else [m for m in required if not hasattr(part, m)]
        )
        if missing:
            return (
                f"{name}={plan.choices.get(name)}: {type(part).__name__} has no "
                f"{' and no '.join(missing)}; see rlmods/protocols.py"
            )
        if name == "rollout" and not (is_dataclass(part) and hasattr(part, "temperature")):
            return (
                f"rollout={plan.choices.get(name)}: must be a dataclass with a temperature, as "
                "validation samples with its own settings"
            )
        if hasattr(part, "adapt") and not hasattr(part, "on_iteration_end"):
            return (
                f"{name}={plan.choices.get(name)}: rename adapt of {type(part).__name__} to "
                "on_iteration_end; see rlmods/protocols.py"
            )
        for attribute in ("coefficient", "where") if name == "kl" else ():
            if not hasattr(part, attribute):
                return (
                    f"kl={plan.choices.get('kl')}: {type(part).__name__} has no {attribute}; see "
                    "rlmods/protocols.py"
                )
    return None


def master_weights(plan: Plan) -> str | None:
    dtype = plan.config.policy.get("dtype", None) or "float32"
    adapted = "adapter" in plan.algorithm.groups and needs_of(plan.adapter, AdapterNeeds).freezes
    if dtype not in ("bfloat16", "float16") or adapted:
        return None
    other = ", or adapter=lora" if "adapter" in plan.algorithm.groups else ""
    advice = f"type policy.dtype=float32 trainer.precision=bf16-mixed{other}"
    return (
        f"policy.dtype={dtype} would train {dtype} weights, and rounding loses most updates "
        f"at the usual learning rates: {advice}"
    )


def precision(plan: Plan) -> str | None:
    precision = str(plan.config.trainer.get("precision", "32-true"))
    if precision in ("auto", *PRECISIONS):
        return None
    return (
        f"trainer.precision={precision}: type trainer.precision=auto, "
        "trainer.precision=32-true or trainer.precision=bf16-mixed"
    )


def schedule(plan: Plan) -> str | None:
    option = f"schedule={plan.choices.get('schedule')}"
    if not needs_of(instantiate(plan.config.schedule, "schedule"), ScheduleNeeds).kl:
        return None
    if "ratio" not in plan.parts:
        return (
            f"{option} reads the KL from the old policy, which algo={plan.config.algo.name} does "
            "not have: type schedule=constant"
        )
    if plan.batch.epochs * plan.batch.minibatches == 1:
        return (
            f"{option} reads the KL from the old policy, which is 0 with one optimizer step an "
            "iteration: type batch.minibatches=4"
        )
    return None
