"""Where responses come from."""

from rlmods.rollout.local import Local

__all__ = ["Local"]
