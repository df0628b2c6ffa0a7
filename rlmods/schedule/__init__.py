"""Learning rate schedules, by iteration."""

from rlmods.schedule.kl_adaptive import KLAdaptive
from rlmods.schedule.schedule import Schedule

__all__ = ["KLAdaptive", "Schedule"]
