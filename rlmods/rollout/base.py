"""Fields and methods that all rollout engines have which continue token ids."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.cache import num_common
from rlmods.settings.bounds import (
    Count,
    NonNegative,
    NonNegativeInt,
    PositiveFraction,
    bounded,
    check_bounds,
)
from rlmods.types import Prompt, Response

OnTokens = Callable[[int, int, int], None]
"""Called with the finished rows, all rows and the sampled tokens of a call of `generate`."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as given to the model."""

    prompt: Prompt
    tokens: list[int]
    occurrence: int
    """How often the prompt's id occurred before since `sync`, so that a repeated prompt gets
    different responses."""
    limit: int
    """Maximum number of response tokens, including EOS."""


@dataclass(slots=True)
class Context:
    """Token ids that are continued, once for each of `samples`."""

    prompt: EncodedPrompt
    """Prompt at which the ids begin; with the samples it determines the random numbers."""
    tokens: Sequence[int]
    """Ids of the prompt and, in a later turn, of the response so far."""
    samples: Sequence[int]
    """Indices among the prompt's G responses. All contexts of a call have the same number of
    them."""
    limit: int
    """Maximum number of sampled tokens, including EOS."""
    position: int = 0
    """Number of response tokens so far. Token t of a response has its own random number, in
    whatever turn it is sampled."""
    num_entropies: int = 0
    """Number of sampled tokens, from the first on, whose entropies are wanted."""
    past: Any = field(default=None, repr=False, compare=False)
    """What the engine kept of an earlier turn (`Continuation.past`). It takes it out, so that the
    memory is free once it is used."""
    keep: bool = False
    """True if the engine should keep what it processes for the next turn."""
    stop: Sequence[str] = ()
    """Texts that end the continuation, in addition to `rollout.stop`."""

    @property
    def num_shared(self) -> int:
        """Number of ids at the beginning, below the number of all ids, that contexts of other
        responses to the prompt have too."""
        return min(num_common(self.prompt.tokens, self.tokens), len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Continuation:
    """Sampled tokens that follow a context."""

    tokens: list[int]
    """Sampled ids, with the one that ended the turn."""
    logprobs: list[float]
    """Natural log-probability of each in the distribution it was sampled from."""
    stopped: bool
    """True if EOS or a stop string ended it, False if the limit did."""
    entropies: Sequence[float] = ()
    """Entropy of the distribution at each of the first tokens, nats, without truncation
    (`Context.num_entropies`)."""
    past: Any = field(default=None, repr=False, compare=False)
    """What the engine keeps of the ids that it has processed, for a context that begins with them;
    None if it keeps nothing."""


@dataclass
class Progress:
    """Rows and tokens that one call of `generate` has sampled."""

    on_tokens: OnTokens | None
    total: int
    """Number of rows."""
    done: int = 0
    tokens: int = 0

    def __call__(self, ended: int, sampled: int) -> None:
        """Count further rows that ended and tokens, and report the sums."""
        self.done += ended
        self.tokens += sampled
        if self.on_tokens is not None:
            self.on_tokens(self.done, self.total, self.tokens)


def encode_prompt(
    policy: Policy,
    prompt: Prompt,
    occurrence: int,
    max_tokens: int,
    max_length: int | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> EncodedPrompt:
    """Encode one prompt, of this occurrence. `max_length`: maximum number of tokens of a prompt and
    its response, if that is less than the policy's context. `tools`: JSON schemas that the chat
    template shows.

    Raises:
        UserError: the prompt is empty or leaves no room for a response.
    """
    context = min(policy.context_length, max_length or policy.context_length)
    tokens = policy.encode(prompt, tools)
    if not tokens:
        raise UserError(f"prompt {prompt.id}: empty: remove it from the data")
    if len(tokens) >= context:
        longer = "a larger rollout.max_length"
        if context == policy.context_length:
            longer = "policy=... for a model with a longer context"
        raise UserError(
            f"prompt {prompt.id}: {len(tokens)} tokens leave no room for a response in the model's "
            f"context of {context}; shorten it, or type {longer}"
        )
    return EncodedPrompt(prompt, tokens, occurrence, min(max_tokens, context - len(tokens)))


def without_eos(policy: Policy, tokens: list[int]) -> list[int]:
    """Return the ids without the one that ended the turn."""
    return tokens[:-1] if tokens[-1] in policy.eos_ids else tokens


def diverged(iteration: int) -> UserError:
    """Return the error for sampled tokens whose log-probabilities are NaN or infinite."""
    return UserError(
        f"iteration {iteration}: the policy's logits are not finite, training has diverged: "
        "type a lower optimizer.lr"
    )


@dataclass
@bounded("rollout")
class TokenRollout:
    """A rollout that continues token ids. An engine has its own `extend`. If it has its own `sync`,
    it sets `synced` there."""

    max_tokens: Count = 16
    """Maximum number of tokens of a response, including EOS."""
    temperature: NonNegative = 1.0
    """Divides the logits. 0 is greedy; `behavior_logprobs` are then those of temperature 1 without
    truncation."""
    top_p: PositiveFraction = 1.0
    """Sample among the fewest tokens whose probability reaches this. 1: among all."""
    top_k: NonNegativeInt = 0
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
    synced: Policy = field(init=False, repr=False, compare=False)
    """The policy, which `sync` sets."""
    _occurrences: Counter[tuple[str, int]] = field(
        default_factory=Counter, init=False, repr=False, compare=False
    )
    """How often each prompt, by id and time, was sampled since `sync`."""

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        are_texts = all(isinstance(text, str) and text for text in self.stop)
        check_bounds(self, "rollout", {"stop": (are_texts, "a list of non-empty strings")})

    @property
    def rows_at_once(self) -> int:
        """Maximum number of rows in one call of `extend`."""
        return 1 << 30

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Sample from this policy from now on."""
        self.synced = policy
        self._occurrences.clear()

    def next_occurrence(self, prompt: Prompt) -> int:
        """Return how often the prompt occurred before since `sync`, different in each pass over the
        data, and count it."""
        occurrence = self._occurrences[prompt.id, prompt.time] + (prompt.time << 20)
        self._occurrences[prompt.id, prompt.time] += 1
        return occurrence

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, or as `extend`.
        """
        policy = self.synced
        contexts = []
        for prompt in prompts:
            occurrence = self.next_occurrence(prompt)
            encoded = encode_prompt(policy, prompt, occurrence, self.max_tokens, self.max_length)
            contexts.append(Context(encoded, encoded.tokens, range(samples), encoded.limit))
        with self.sampling():
            sampled = self.extend(contexts, iteration=iteration)
        responses = []
        for context, continuations in zip(contexts, sampled, strict=True):
            for sample, continuation in enumerate(continuations):
                response = Response(
                    prompt=context.prompt.prompt,
                    prompt_tokens=context.prompt.tokens,
                    tokens=continuation.tokens,
                    behavior_logprobs=continuation.logprobs,
                    text=policy.decode(without_eos(policy, continuation.tokens)),
                    finish="stop" if continuation.stopped else "length",
                    meta={"sample": sample, "iteration": iteration},
                )
                responses.append(response)
        return responses

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples. Call it in a block of
        `sampling`.

        Raises:
            UserError: the policy's logits are not finite.
        """
        raise NotImplementedError

    def sampling(self) -> AbstractContextManager[None]:
        """Prepare for calls of `extend` in the block. With sharded weights, every rank enters it,
        and then extends as often as it needs."""
        return nullcontext()
