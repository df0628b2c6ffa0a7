"""Values of options against the defaults of their classes."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[2] / "conf"


def blocks(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the mappings whose `_target_` is a class of ours."""
    if isinstance(node, dict):
        if str(node.get("_target_")).startswith("rlmods."):
            yield node
        for value in node.values():
            yield from blocks(value)
    elif isinstance(node, list):
        for value in node:
            yield from blocks(value)


def differences(block: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, value and default where they differ."""
    module, _, name = block["_target_"].rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    for key, value in block.items():
        if key not in parameters or isinstance(value, dict) or "${" in str(value):
            continue
        default = parameters[key].default
        if default is inspect.Parameter.empty:
            continue
        if isinstance(default, tuple):
            default = list(default)
        if value != default:
            yield key, value, default


# what the option is: a variant of its class
VARIANTS = {
    "advantage/anchor_state.yaml": {"compare", "gamma"},
    "advantage/branch_soft.yaml": {"attribution"},
    "advantage/gae_whitened.yaml": {"whiten"},
    "advantage/process_outcome.yaml": {"outcome_weight"},
    "advantage/reinforce_pp_baseline.yaml": {"baseline"},
    "kl/exact.yaml": {"gradient"},
    "preference/cdpo.yaml": {"label_smoothing"},
    "ratio/clip_higher.yaml": {"high"},
    "ratio/dual.yaml": {"dual"},
    "ratio/sequence.yaml": {"low", "high", "level"},
    "ratio/sequence_token.yaml": {"low", "high", "level"},
    "router/frozen.yaml": {"every"},
    "router/replay.yaml": {"replay"},
    "router/two_stage.yaml": {"every"},
    "schedule/cosine.yaml": {"decay"},
    "schedule/linear.yaml": {"decay"},
}
REASONS = {
    "critic/shared.yaml": {"coefficient": "its gradient also moves the policy's trunk"},
    "kl/ramp.yaml": {"final": "a ramp to the default would end without a KL"},
    "reward/math.yaml": {"wrong": "DAPO's reward, arXiv:2503.14476"},
    "sampling/best_of.yaml": {"k": "keeping one response of a group leaves no group"},
}


def test_values_are_the_defaults_of_the_classes() -> None:
    """An option says what its class says, unless it is a variant or there is a reason."""
    found: dict[str, set[str]] = {}
    for path in sorted(CONF.rglob("*.yaml")):
        for block in blocks(yaml.safe_load(path.read_text())):
            keys = {key for key, _, _ in differences(block)}
            if keys:
                found.setdefault(str(path.relative_to(CONF)), set()).update(keys)
    assert found == VARIANTS | {option: set(keys) for option, keys in REASONS.items()}
