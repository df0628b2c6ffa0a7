"""Critics: value functions, for advantages that declare `AdvantageNeeds.values`."""

from rlmods.critic.networks import NoCritic, Separate, Shared

__all__ = ["NoCritic", "Separate", "Shared"]
