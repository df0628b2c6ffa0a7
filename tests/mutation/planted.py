"""Bugs that no operator makes, each planted by replacing a function of a class or module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """A bug, planted in a fresh process before the tests import the package."""

    plant: Callable[[], None]
    tests: Sequence[str]


BUGS: dict[str, Bug] = {}
