"""Configuration nodes to objects, with one plain line where that fails."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.algo import Learner
from rlmods.config.plugins import explain
from rlmods.types import UserError


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


def block(config: DictConfig, name: str, kind: type[Any]) -> Any:
    """A dataclass of plain settings, its keys and types checked.

    Raises:
        UserError: an unknown key, a value of the wrong type or out of range.
    """
    if not isinstance(config, DictConfig):
        raise UserError(f"{name}={config}: these are several settings, one each: type {name}.{fields(kind)[0].name}=...")
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
        raise UserError(one_line(error)) from error


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
    text = one_line(error)
    target = config.get("_target_", group)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        try:
            kind = get_class(target)
            known = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else list(inspect.signature(kind).parameters)
            return f"{group}: unknown key{text.split('argument')[-1]}; known are {', '.join(known)}"
        except (ValueError, ImportError):
            pass
    return text if text.startswith(f"{group}.") else f"{group}: {text}"


def _root(error: BaseException) -> BaseException:
    """What was raised first: Hydra wraps it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
