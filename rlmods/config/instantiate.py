"""Instantiation of configuration nodes, with one-line error messages."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from hydra.errors import HydraException
from hydra.utils import get_class, get_object, instantiate as hydra_instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config.plugins import explain_plugin_error
from rlmods.errors import UserError, in_one_line
from rlmods.settings.bounds import field_types, mismatch

S = TypeVar("S")
ERRORS = (HydraException, OmegaConfBaseException, TypeError, ValueError, ImportError, UserError)
"""Errors of a part that cannot be created."""


def instantiate(
    config: DictConfig, key: str, *, group: str | None = None, partial: bool = False
) -> Any:
    """Return the object that the `_target_` of a configuration node names, or with `partial` a
    function that creates it.

    Args:
        key: dotted key of the node.
        group: group of the part, if it is not the key. Its error messages name settings by the
            group; they are given the key.

    Raises:
        UserError: unknown or invalid settings, or an import that fails; with file and line if a
        plugin caused it.
    """
    try:
        values = OmegaConf.to_container(config, resolve=True)
        check_values(values, key)
        if isinstance(values, dict) and "_target_" not in values:
            raise UserError(f"{key}: its option has no _target_: write _target_: MODULE.CLASS")
        if not partial:  # the option may say so itself
            return hydra_instantiate(config, _convert_="all")
        return hydra_instantiate(config, _convert_="all", _partial_=True)
    except ERRORS as error:
        nested = re.search(r"full_key: ([\w.]+)$", str(error))
        if nested is not None and nested[1] != key:  # a part of this part
            key = nested[1]
            group = key.rpartition(".")[2]
        cause: BaseException = error  # the first exception, which Hydra wraps in others
        while cause.__cause__ is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        message = at_key(in_one_line(cause), group or key, key)
        if not isinstance(cause, UserError) and not message.startswith(f"{key}."):
            message = f"{key}: {message}"
        plugin_error = None if isinstance(cause, UserError) else explain_plugin_error(error)
        raise plugin_error or UserError(message) from error


def at_key(message: str, group: str, key: str) -> str:
    """Return a message of a part of a group, which names `group.SETTING=` and `group=`, as one of a
    part at another key."""
    name = rf"(?<![\w./@-]){group}"
    message = re.sub(rf"{name}(?=(\.\w+)+=)", key, message)
    return message if key == group else re.sub(rf"{name}(?==)", f"{group}@{key}", message)


def find_class(target: str, key: str) -> Any:
    """Return the class that a `_target_` names.

    Raises:
        UserError: there is no such class, or its module cannot be imported.
    """
    try:
        return get_class(target)
    except (ValueError, ImportError) as error:
        raise explain_plugin_error(error) or UserError(f"{key}: {in_one_line(error)}") from error


def parse_settings(
    config: DictConfig, name: str, kind: Callable[..., S], ignore: Iterable[str] = ()
) -> S:
    """Return the dataclass `kind` with the values of a configuration node, except the keys to
    `ignore`. Keys, types and bounds are checked. `name`: dotted key of the node, "" for the
    settings of a command.

    Raises:
        UserError: an unknown key, or a value of the wrong type or out of range.
    """
    declared = fields(kind)  # type: ignore[arg-type]
    if not isinstance(config, DictConfig):
        raise UserError(
            f"{name}={config}: this is a group of settings: type {name}.{declared[0].name}=..."
        )
    try:
        values: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{name}: {in_one_line(error)}") from error
    values = {key: value for key, value in values.items() if key not in ignore}
    _reject_unknown_keys(kind, values, name)
    types = get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        check_values(value, f"{name}.{key}".removeprefix("."), types[key])
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UserError(in_one_line(error)) from error


def check_values(value: object, key: str, annotation: object = None) -> None:
    """Check a setting, and those in it: of a type that its class takes, and finite unless it is a
    `Limit`.

    Raises:
        UserError: it is not.
    """
    allowed = mismatch(value, annotation)
    if allowed is not None:
        raise UserError(f"{key}={value}: must be {allowed}")
    if isinstance(value, dict):
        types: dict[str, Any] = {}
        if "_target_" in value:
            kind = get_object(value["_target_"])
            types = field_types(kind) if is_dataclass(kind) else {}
            settings = [name for name in value if not name.startswith("_")]
            _reject_unknown_keys(kind, settings, key)
        for name, inner in value.items():
            check_values(inner, f"{key}.{name}", types.get(name))
    elif isinstance(value, list):
        for inner in value:
            check_values(inner, key)


def _reject_unknown_keys(target: Callable[..., object], keys: Iterable[str], group: str) -> None:
    """Raise UserError for keys that `target` does not take. A target with `**options`, or
    without a signature, checks them itself."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a class written in C has none
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in keys:
        if key not in parameters:
            name = f"{group}.{key}"
            known = ", ".join(parameters) or f"none, drop {name}"
            raise UserError(f"unknown key {name}: known keys are {known}")
