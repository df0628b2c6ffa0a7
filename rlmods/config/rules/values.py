"""Rules on single parts and values: methods of a part's protocol, supported precisions."""

from __future__ import annotations

from dataclasses import is_dataclass

from rlmods.branching import NoBranching
from rlmods.config.instantiate import instantiate
from rlmods.config.run_spec import RunSpec
from rlmods.distributed.precision import PRECISIONS
from rlmods.environment import SingleTurn
from rlmods.needs import AdapterNeeds, ScheduleNeeds, needs_of


def protocols(spec: RunSpec) -> str | None:
    for name, part in spec.parts.items():
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
                f"{name}={spec.choices.get(name)}: {type(part).__name__} has no "
                f"{' and no '.join(missing)}; see rlmods/protocols.py"
            )
        if name == "rollout" and not (is_dataclass(part) and hasattr(part, "temperature")):
            return (
                f"rollout={spec.choices.get(name)}: must be a dataclass with a temperature, as "
                "validation samples with its own settings"
            )
        if hasattr(part, "adapt") and not hasattr(part, "on_iteration_end"):
            return (
                f"{name}={spec.choices.get(name)}: rename adapt of {type(part).__name__} to "
                "on_iteration_end; see rlmods/protocols.py"
            )
        for attribute in ("coefficient", "where") if name == "kl" else ():
            if not hasattr(part, attribute):
                return (
                    f"kl={spec.choices.get('kl')}: {type(part).__name__} has no {attribute}; see "
                    "rlmods/protocols.py"
                )
    return None


def master_weights(spec: RunSpec) -> str | None:
    dtype = spec.config.policy.get("dtype", None) or "float32"
    adapted = "adapter" in spec.algorithm.groups and needs_of(spec.adapter, AdapterNeeds).freezes
    if dtype not in ("bfloat16", "float16") or adapted:
        return None
    other = ", or adapter=lora" if "adapter" in spec.algorithm.groups else ""
    advice = f"type policy.dtype=float32 trainer.precision=bf16-mixed{other}"
    return (
        f"policy.dtype={dtype} would train {dtype} weights, and rounding loses most updates "
        f"at the usual learning rates: {advice}"
    )


def precision(spec: RunSpec) -> str | None:
    precision = str(spec.config.trainer.get("precision", "32-true"))
    if precision in ("auto", *PRECISIONS):
        return None
    return (
        f"trainer.precision={precision}: type trainer.precision=auto, "
        "trainer.precision=32-true or trainer.precision=bf16-mixed"
    )


def schedule(spec: RunSpec) -> str | None:
    option = f"schedule={spec.choices.get('schedule')}"
    if not needs_of(instantiate(spec.config.schedule, "schedule"), ScheduleNeeds).kl:
        return None
    if "ratio" not in spec.parts:
        return (
            f"{option} reads the KL from the old policy, which algo={spec.config.algo.name} does "
            "not have: type schedule=constant"
        )
    if spec.batch.epochs * spec.batch.minibatches == 1:
        return (
            f"{option} reads the KL from the old policy, which is 0 with one optimizer step an "
            "iteration: type batch.minibatches=4"
        )
    return None
