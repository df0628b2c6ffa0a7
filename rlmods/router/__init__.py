"""Routing replay, update frequency and load balancing of mixture-of-experts routers."""

from rlmods.router.routing import Routing

__all__ = ["Routing"]
