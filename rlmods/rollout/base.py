"""Fields and methods that all rollout engines have which continue token ids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from rlmods.errors import check_bounds
from rlmods.policy.base import Policy
from rlmods.rollout.encoding import (
    Context,
    Continuation,
    Occurrences,
    OnTokens,
    as_responses,
    encode,
    whole,
)
from rlmods.types import Prompt, Response


@dataclass
class TokenRollout:
    """A rollout that continues token ids. An engine has its own `extend`, and sets `_policy` in
    `sync`."""

    max_tokens: int = 16
    """Maximum number of tokens of a response, including EOS."""
    temperature: float = 1.0
    """Divides the logits. 0 is greedy; `behavior_logprobs` are then those of temperature 1 without
    truncation."""
    top_p: float = 1.0
    """Sample among the fewest tokens whose probability reaches this. 1: among all."""
    top_k: int = 0
    """Sample among this many most probable tokens. 0: among all."""
    stop: Sequence[str] = ()
    """A response ends with the token that completes one of these strings; the string is part of
    `tokens` and `text`."""
    seed: int = 0
    """Seed of the samples."""
    max_length: int | None = field(default=None, init=False, repr=False, compare=False)
    """Maximum number of tokens of a prompt and its response; None: the policy's context."""
    on_tokens: OnTokens | None = field(default=None, init=False, repr=False, compare=False)
    """Called while sampling."""
    _policy: Policy | None = field(default=None, init=False, repr=False, compare=False)
    _occurrences: Occurrences = field(
        default_factory=Counter, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        are_texts = all(isinstance(text, str) and text for text in self.stop)
        rules = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "stop": (are_texts, "a list of non-empty strings"),
        }
        check_bounds(self, "rollout", rules)

    @property
    def synced(self) -> Policy:
        """The policy, which `sync` sets."""
        if self._policy is None:
            raise RuntimeError("sampling before sync(): there is no policy to sample from")
        return self._policy

    @property
    def rows_at_once(self) -> int:
        """Maximum number of rows in one call of `extend`."""
        return 1 << 30

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Sample from this policy from now on."""
        self._policy = policy
        self._occurrences.clear()

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, or as `extend`.
        """
        policy = self.synced
        encoded = encode(policy, prompts, self._occurrences, self.max_tokens, self.max_length)
        sampled = self.extend(whole(encoded, samples), iteration=iteration)
        return as_responses(policy, encoded, sampled, iteration)

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite.
        """
        raise NotImplementedError

    def sampling(self) -> AbstractContextManager[None]:
        """Prepare for several calls of `extend` in the block. With sharded weights, every rank
        enters it, and then extends as often as it needs."""
        return nullcontext()
