"""Environments: what the policy converses with in a response of several turns."""

from rlmods.environment.guess_number import GuessNumber
from rlmods.environment.single_turn import SingleTurn
from rlmods.environment.tools import Tools

__all__ = ["GuessNumber", "SingleTurn", "Tools"]
