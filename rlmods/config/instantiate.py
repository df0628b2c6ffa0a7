"""Instantiation of configuration nodes, with one-line error messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from hydra.errors import HydraException
from hydra.utils import get_class
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config.plugins import explain_plugin_error
from rlmods.errors import UserError

TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "null",
}

REMOVED_SETTINGS = dict.fromkeys(
    ("algo.packing", "algo.pack_length"),
    "no such setting any more: forwards compute no padding where the model's attention "
    "allows it (the start table says it); drop it",
)
"""What to tell who types a setting of earlier versions."""

AS_TERM = (
    "; to give a reward a time limit, make it a term: type reward=weighted_sum "
    "+reward@reward.terms.NAME.reward=OPTION "
    "+reward.terms.NAME.timeout_s=5"
)


def instantiate(config: DictConfig, group: str, *, partial: bool = False) -> Any:
    """Return the object that the `_target_` of a configuration node names, or with `partial` a
    function that creates it.

    Raises:
        UserError: unknown or invalid settings, or an import that fails; with file and line if a
        plugin caused it.
    """
    try:
        if partial:
            function = hydra_instantiate(config, _partial_=True, _convert_="all")
            _reject_unknown_keys(function.func, function.keywords, group)
            return function
        part = hydra_instantiate(config, _convert_="all")
        for key in judge_keys(config):
            if isinstance(judge := _at(part, key), HasKey):
                judge.set_key(f"{group}.{key}")
        return part
    except (
        HydraException,
        OmegaConfBaseException,
        TypeError,
        ValueError,
        ImportError,
        UserError,
    ) as error:
        if isinstance(cause := _root_cause(error), UserError):
            raise _with_key(cause, [f"{group}.{key}" for key in judge_keys(config)]) from error
        if (plugin := explain_plugin_error(error)) is not None:
            raise plugin from error
        raise UserError(_explain_settings(cause, config, group)) from error


@runtime_checkable
class HasKey(Protocol):
    """Part whose error messages name its settings by their key."""

    def set_key(self, key: str) -> None:
        """Set the key with dots at which the settings of the part stand."""


def judge_keys(config: Any, key: str = "") -> Iterator[str]:
    """Yield the keys with dots of the judges that a part has or needs, such as
    `terms.preference.reward.judge`."""
    for name, node in config.items_ex(resolve=False) if isinstance(config, DictConfig) else ():
        if name == "judge":
            yield f"{key}judge"
        yield from judge_keys(node, f"{key}{name!s}.")


def _at(part: Any, key: str) -> Any:
    """Return the part of a part at a key with dots; None if it is kept elsewhere."""
    for name in key.split("."):
        part = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
    return part


def _with_key(error: UserError, keys: Sequence[str]) -> UserError:
    """Return an error that calls the settings of a judge `judge.KEY`, with the key at which that
    judge stands; unchanged if it is one of several."""
    return (
        UserError(re.sub(r"(?<![/\w.-])judge(?=\.\w)", keys[0], str(error)))
        if len(keys) == 1
        else error
    )


def parse_settings(
    config: DictConfig, name: str, kind: type[Any], ignore: Iterable[str] = ()
) -> Any:
    """Return the dataclass `kind` with the values of a configuration node, except the keys to
    `ignore`. Keys, types and bounds are checked.

    Raises:
        UserError: an unknown key, or a value of the wrong type or out of range.
    """
    if not isinstance(config, DictConfig):
        raise UserError(
            f"{name}={config}: this is a group of settings: type {name}.{fields(kind)[0].name}=..."
        )
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
    """Return the allowed values in words if `value` is not one of them, else None. A whole number
    is also allowed for a float."""
    if get_origin(annotation) is Literal:
        return (
            None
            if value in get_args(annotation)
            else f"one of {', '.join(map(str, get_args(annotation)))}"
        )
    if get_origin(annotation) in (Union, UnionType):
        mismatches = [_mismatch(value, member) for member in get_args(annotation)]
        return None if None in mismatches else " or ".join(text for text in mismatches if text)
    if annotation not in TYPE_NAMES:  # left to the dataclass
        return None
    allowed = (float, int) if annotation is float else annotation
    is_valid = isinstance(value, allowed) and (annotation is bool or not isinstance(value, bool))
    return None if is_valid else TYPE_NAMES[annotation]


def _reject_unknown_keys(target: Any, keys: Iterable[str], group: str) -> None:
    """Raise UserError for keys that `target` does not take. A target with `**options` checks them
    itself."""
    parameters = inspect.signature(target).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in keys:
        if (name := f"{group}.{key}") in REMOVED_SETTINGS:
            raise UserError(f"{name}: {REMOVED_SETTINGS[name]}")
        if key not in parameters:
            known = ", ".join(parameters) or f"none, drop {name}"
            raise UserError(f"unknown key {name}: known keys are {known}")


def _explain_settings(error: BaseException, config: DictConfig, group: str) -> str:
    text = one_line(error)
    target = config.get("_target_", group)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        try:
            kind = get_class(target)
            known = (
                [f.name for f in fields(kind) if f.init]
                if is_dataclass(kind)
                else list(inspect.signature(kind).parameters)
            )
            message = (
                f"{group}: unknown key{text.split('argument')[-1]}; known keys are "
                f"{', '.join(known)}"
            )
            return (
                f"{message}{AS_TERM}"
                if group == "reward" and {"timeout_s", "terms"} & set(config)
                else message
            )
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
