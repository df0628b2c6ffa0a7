"""Reward model losses on the scores of ranked responses."""

from rlmods.ranking.bradley_terry import BradleyTerry
from rlmods.ranking.plackett_luce import PlackettLuce

__all__ = ["BradleyTerry", "PlackettLuce"]
