"""What the scores of ranked responses should be: the losses of reward models."""

from rlmods.ranking.bradley_terry import BradleyTerry
from rlmods.ranking.plackett_luce import PlackettLuce

__all__ = ["BradleyTerry", "PlackettLuce"]
