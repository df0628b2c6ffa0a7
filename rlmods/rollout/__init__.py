"""Rollout engines: sampling of responses."""

from rlmods.rollout.local import Local

__all__ = ["Local"]
