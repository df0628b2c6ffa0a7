"""Mixtures of experts: what becomes of routers between the forward that is remembered and the one that is trained."""

from rlmods.router.routing import Routing

__all__ = ["Routing"]
