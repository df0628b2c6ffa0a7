"""Treatment of the routers of mixture-of-experts models in training."""

from rlmods.router.routing import Routing

__all__ = ["Routing"]
