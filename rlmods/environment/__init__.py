"""Environments: what the policy converses with in a response of several turns.

The classes are imported on first use, because the worker processes of tools import modules of this
package and must start without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlmods.environment.guess_number import GuessNumber
    from rlmods.environment.single_turn import SingleTurn
    from rlmods.environment.tools import Tools

__all__ = [
    "GuessNumber",
    "SingleTurn",
    "Tools",
]

_MODULES = {
    "GuessNumber": "guess_number",
    "SingleTurn": "single_turn",
    "Tools": "tools",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
