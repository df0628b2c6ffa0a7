"""Critics: value functions, for advantages that declare `AdvantageNeeds.values`."""

from rlmods.critic.no_critic import NoCritic
from rlmods.critic.separate import Separate
from rlmods.critic.shared import Shared

__all__ = ["NoCritic", "Separate", "Shared"]
