"""Value functions: what a state is worth, to those advantages that ask."""

from rlmods.critic.no_critic import NoCritic
from rlmods.critic.separate import Separate
from rlmods.critic.shared import Shared

__all__ = ["NoCritic", "Separate", "Shared"]
