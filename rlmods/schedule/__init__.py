"""Learning rate schedules, by iteration."""

from rlmods.schedule.schedule import Schedule

__all__ = ["Schedule"]
