"""Loading environments of the verifiers package."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from rlmods.data.schema import import_extra
from rlmods.errors import UserError


def load(name: str | None, options: Mapping[str, Any]) -> Any:
    """Return an environment of the package by name, "module:CLASS" or the name of an installed one,
    the same object for the same arguments.

    Raises:
        UserError: the package is missing, the environment does not load, or it cannot be trained
        on.
    """
    if name is None:
        raise UserError(
            "data.env_id=null: type data.env_id=NAME of an environment of verifiers, or "
            "data.env_id=verifiers:ReasoningGymEnv"
        )
    package = import_extra("verifiers", "verifiers")
    try:
        environment = _load(package, name, json.dumps(dict(options), sort_keys=True))
    except Exception as error:  # of the environment
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"data.env_id={name}: {cause}: install it, or type another data.env_id= or "
            "+data.options.NAME="
        ) from error
    if problem := _problem(package, environment):
        raise UserError(f"data.env_id={name}: {problem}: type another data.env_id=")
    return environment


@cache
def _load(package: Any, name: str, options: str) -> Any:
    """Return the environment. Its constructor replaces the handlers of signals, which are put
    back."""
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    else:
        handlers = {}
    try:
        module, _, kind = name.rpartition(":")
        if module:
            found = getattr(import_module(module), kind)
            if not (isinstance(found, type) and issubclass(found, package.Environment)):
                raise TypeError(f"{kind} is no environment of verifiers")
            return found(**json.loads(options))
        return package.load_environment(name, **json.loads(options))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _problem(package: Any, environment: Any) -> str | None:
    """Return why the policy cannot be trained in an environment."""
    if not isinstance(environment, package.MultiTurnEnv):
        return f"{type(environment).__name__} is no SingleTurnEnv or MultiTurnEnv"
    if environment.tool_defs:
        return "it has tools of its own, which the policy cannot call"
    if environment.requires_group_rollouts:
        return "its rubric has rewards of groups of responses"
    return None
