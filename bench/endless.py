"""A policy whose responses have the length of the limit."""

from dataclasses import dataclass

from rlmods.policy import Policy, Tiny


@dataclass(frozen=True)
class Endless(Tiny):
    """`policy=tiny` without an end-of-text token: every response is `rollout.max_tokens` long."""

    def __call__(self) -> Policy:
        policy = super().__call__()
        policy.eos_ids = frozenset({-1})
        return policy
