"""Checks of settings that several rewards have."""

from rlmods.errors import UserError
from rlmods.grading.sandbox.confinement import missing_support


def check_walls(reward: object, walls: str, confined: str) -> None:
    """Raise UserError if this machine cannot confine what is named `confined`."""
    reason = missing_support() if walls != "limits" else None
    if reason is not None:
        raise UserError(
            f"{type(reward).__name__}: {reason}, so {confined} cannot be confined: run in a "
            "container of your own and type walls=limits"
        )
