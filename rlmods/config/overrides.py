"""What Hydra says of a mistyped override, in one line that names what to type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from rlmods.config.options import CONF, options
from rlmods.types import UserError

OPEN = ("optimizer", "trainer", "callbacks", "logger", "reward", "judge")
"""Groups whose parts may take settings that are not in their file."""


def explain_override(error: Exception) -> UserError | None:
    """The mistake in an override that Hydra refused; None if the error is none of Hydra's."""
    if "Config group override must be" in str(error):
        return UserError("a group takes the name of an option, not null: drop it, or type GROUP=OPTION")
    if not isinstance(error, HydraException):
        return None
    said = " ".join(str(error).split("\nSee https://")[0].split())
    if isinstance(error, OverrideParseException):
        return UserError(f"{error.override}: {said}; an override is key=value or group=option, in quotes where the shell would read it")
    missing = getattr(error, "missing_cfg_file", None)
    if isinstance(error, MissingConfigException) and missing is not None:
        group, _, option = str(missing).rpartition("/")
        return UserError(f"{group}={option}: no such option; {nearest(option, error.options or options(group))}")
    siblings = getattr(error.__cause__, "parent_node", None)
    if said.startswith("Could not override") and isinstance(siblings, DictConfig):
        return _unknown(str(getattr(error.__cause__, "full_key", "")), siblings)
    return UserError(said)


def nearest(typed: str, known: Iterable[object]) -> str:
    """The names that are like what was typed, or all of them."""
    names = [str(name) for name in known]
    near = get_close_matches(typed, names, 3)
    near = [name for name in near if likeness(typed, name) > likeness(typed, near[0]) - 0.15]
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(names)}"


def likeness(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def _unknown(full_key: str, siblings: DictConfig) -> UserError:
    """
    Args:
        siblings: the settings among which it is not.
    """
    parent, _, key = full_key.rpartition(".")
    usual = OmegaConf.load(CONF / "train.yaml")
    empty = [group for entry in usual.defaults if isinstance(entry, DictConfig) for group, option in entry.items() if option is None]
    for group in map(str, empty):
        if group.split("@")[-1] == full_key:
            return UserError(f"nothing is chosen for {key}: type {group}=OPTION beside its settings")
    elsewhere = [] if parent else [name for name in _names(siblings) if name.endswith(f".{key}")]
    if elsewhere:
        return UserError(f"{key}: no such setting; did you mean {' or '.join(elsewhere[:3])}?")
    names = [f"{parent}.{name}" if parent else name for name in map(str, siblings) if name not in ("_target_", "hydra")]
    if owners := [option for option in options(parent) if key in OmegaConf.load(CONF / parent / f"{option}.yaml")] if parent else []:
        return UserError(f"{full_key}: a setting of {' or '.join(f'{parent}={option}' for option in owners)}, which is not chosen")
    if not names:
        return UserError(f"{full_key}: no such setting; {parent} is a single value")
    more = f" (+{full_key}=... adds one that the part takes)" if parent.split(".")[0] in OPEN else ""
    return UserError(f"{full_key}: no such setting{more}; {nearest(full_key, names)}")


def _names(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings."""
    for name in map(str, node if isinstance(node, DictConfig) else ()):
        yield prefix + name
        if name != "hydra":
            yield from _names(node._get_node(name), f"{prefix}{name}.")
