"""Settings out of range, and parts that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlmods.config.compose import Plan


def values(plan: Plan) -> str | None:
    allowed = {"fallback": ("train", "skip", "error"), "surplus": ("keep", "drop")}
    for key, values in allowed.items():
        if key in plan.config.algo and plan.config.algo[key] not in values:
            return f"algo.{key}={plan.config.algo[key]}: one of {', '.join(values)}"
    number, positive = (lambda x: x >= 0, "0 or more"), (lambda x: x > 0, "above 0")
    some = (lambda x: x >= 1, "at least 1")
    rules: dict[str, tuple[tuple[type, ...], tuple[Callable[[Any], bool], str]]] = {
        "entropy_coefficient": ((int, float), number),
        "target_entropy": ((int, float, type(None)), positive),
        "entropy_rate": ((int, float), positive),
        "target_kl": ((int, float, type(None)), positive),
        "overlong_filter": ((bool,), (lambda x: True, "")),
        "normalize_reward": ((bool,), (lambda x: True, "")),
        "clip_reward": ((int, float, type(None)), positive),
        "max_draws": ((int,), some),
        "replay_fraction": ((int, float), number),
        "replay_staleness": ((int,), some),
        "reference_every": ((int, type(None)), some),
        "ptx_coefficient": ((int, float), number),
        "ptx_rows": ((int,), some),
        "refresh_prompts": ((int,), some),
        "refresh_lr": ((int, float), positive),
        "refresh_epochs": ((int,), some),
        "refresh_rows": ((int,), some),
    }
    words = {bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
    for key, (types, (holds, bound)) in rules.items():
        value = plan.config.algo.get(key, None)
        if key not in plan.config.algo or (value is None and type(None) in types):
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or not holds(value):
            kinds = [words[kind] for kind in types if not (kind is int and float in types)]
            return f"algo.{key}={value}: must be {' or '.join(kinds)}{', ' if bound else ''}{bound}"
    return None


def protocols(plan: Plan) -> str | None:
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


def precision(plan: Plan) -> str | None:
    precision = str(plan.config.trainer.get("precision", "32-true"))
    if precision in ("32", "32-true", "bf16-mixed"):
        return None
    return f"trainer.precision={precision}: type trainer.precision=32-true or trainer.precision=bf16-mixed"
