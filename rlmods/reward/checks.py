"""Checks of settings that several rewards have."""

from rlmods.errors import UserError
from rlmods.grading.sandbox.confinement import missing_support


def check_positive(reward: object, *names: str) -> None:
    """Raise UserError for a field that is not above 0."""
    for name in names:
        value = getattr(reward, name)
        if not value > 0:
            raise UserError(
                f"{type(reward).__name__}: {name}={value} is not positive: type a positive one"
            )


def check_walls(reward: object, walls: str, confined: str) -> None:
    """Raise UserError if this machine cannot confine what is named `confined`."""
    reason = missing_support() if walls != "limits" else None
    if reason is not None:
        raise UserError(
            f"{type(reward).__name__}: {reason}, so {confined} cannot be confined: run in a "
            "container of your own and type walls=limits"
        )
