"""Instantiation of configuration nodes, with one-line error messages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.errors import HydraException
from hydra.utils import get_class
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config.plugins import explain_plugin_error
from rlmods.types import UserError

TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}


def instantiate(config: DictConfig, group: str, *, partial: bool = False) -> Any:
    """Return the object that the `_target_` of a configuration node names, or with `partial` a function that creates it.

    Raises:
        UserError: unknown or invalid settings, or an import that fails; with file and line if a plugin caused it.
    """
    try:
        if partial:
            function = hydra_instantiate(config, _partial_=True, _convert_="all")
            _reject_unknown_keys(function.func, function.keywords, group)
            return function
        return hydra_instantiate(config, _convert_="all")
    except (HydraException, OmegaConfBaseException, TypeError, ValueError, ImportError) as error:
        if isinstance(cause := _root_cause(error), UserError):
            raise cause from error
        if (plugin := explain_plugin_error(error)) is not None:
            raise plugin from error
        raise UserError(_explain_settings(cause, config, group)) from error


def parse_settings(config: DictConfig, name: str, kind: type[Any], ignore: Iterable[str] = ()) -> Any:
    """Return the dataclass `kind` with the values of a configuration node, except the keys to `ignore`. Keys, types and bounds are checked.

    Raises:
        UserError: an unknown key, or a value of the wrong type or out of range.
    """
    if not isinstance(config, DictConfig):
        raise UserError(f"{name}={config}: this is a group of settings: type {name}.{fields(kind)[0].name}=...")
    try:
        values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise UserError(f"{name}: {one_line(error)}") from error
    values = {key: value for key, value in values.items() if key not in ignore}
    _reject_unknown_keys(kind, values, name)
    types = get_type_hints(kind)
    for field in fields(kind):
        if field.name in values and (allowed := _mismatch(values[field.name], types[field.name])):
            raise UserError(f"{name}.{field.name}={values[field.name]}: must be {allowed}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UserError(one_line(error)) from error


def _mismatch(value: Any, annotation: Any) -> str | None:
    """Return the allowed values in words if `value` is not one of them, else None. A whole number is also allowed for a float."""
    if get_origin(annotation) is Literal:
        return None if value in get_args(annotation) else f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) in (Union, UnionType):
        mismatches = [_mismatch(value, member) for member in get_args(annotation)]
        return None if None in mismatches else " or ".join(text for text in mismatches if text)
    if annotation not in TYPE_NAMES:  # left to the dataclass
        return None
    allowed = (float, int) if annotation is float else annotation
    is_valid = isinstance(value, allowed) and (annotation is bool or not isinstance(value, bool))
    return None if is_valid else TYPE_NAMES[annotation]


def _reject_unknown_keys(target: Any, keys: Iterable[str], group: str) -> None:
    """Raise UserError for keys that `target` does not take. A target with `**options` checks them itself."""
    parameters = inspect.signature(target).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in keys:
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            raise UserError(f"unknown key {group}.{key}: known keys are {known}")


def _explain_settings(error: BaseException, config: DictConfig, group: str) -> str:
    text = one_line(error)
    target = config.get("_target_", group)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        try:
            kind = get_class(target)
            known = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else list(inspect.signature(kind).parameters)
            return f"{group}: unknown key{text.split('argument')[-1]}; known keys are {', '.join(known)}"
        except (ValueError, ImportError):
            pass
    return text if text.startswith(f"{group}.") else f"{group}: {text}"


def _root_cause(error: BaseException) -> BaseException:
    """Return the first exception of the chain, which Hydra wraps in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
