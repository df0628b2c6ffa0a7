"""Environments: what the policy converses with in a response of several turns."""

from rlmods.environment.agent import Agent
from rlmods.environment.guess_number import GuessNumber
from rlmods.environment.single_turn import SingleTurn
from rlmods.environment.tools import Tools

__all__ = ["Agent", "GuessNumber", "SingleTurn", "Tools"]
