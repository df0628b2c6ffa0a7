"""Sampling with an inference engine that has its own copy of the weights: requests, versions of the
weights, and checks of the replies."""

from __future__ import annotations

import hashlib
import math
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rlmods.distributed.sharding import FullState
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.encoding import Context, Continuation, diverged, encode, response, whole
from rlmods.types import Prompt, Response

MIN_TEMPERATURE = 0.01
"""Smallest temperature above 0; vLLM replaces smaller ones by it."""
MAX_LOGPROB = 1e-3
"""Largest log-probability that is rounding."""
MAX_CHARACTERS = 160
"""Characters of an engine's text that an error message keeps."""
E = TypeVar("E")
Progress = Callable[[int, int], None]
"""Called with the number of further rows that ended, and the number of their tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """All continuations of one context."""

    tokens: Sequence[int]
    """Token ids of the context."""
    settings: dict[str, Any]
    """Fields of `vllm.SamplingParams`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One response of an engine."""

    tokens: list[int]
    """Sampled ids, with the one that ended the response."""
    logprobs: list[float]
    """Natural log-probability of each in the distribution it was sampled from."""
    finish: str | None
    """"stop" or "length"; anything else is an error."""
    versions: tuple[str, ...]
    """Names of the weights that sampled it."""


class Engine(Protocol):
    """An inference engine, or several of them."""

    def load(self, policy: Policy, iteration: int) -> None:
        """Give the engine the policy's weights, unless it has them."""
        ...

    @property
    def version(self) -> str:
        """Name of the weights that were loaded last."""
        ...

    def complete(self, requests: Sequence[Request], progress: Progress) -> list[list[Completion]]:
        """Return the responses to each request, in the order of the requests."""
        ...


_engines: dict[Hashable, Any] = {}


def shared(key: Hashable, start: Callable[[], E]) -> E:
    """Return this process's engine with these settings, started if there is none. Validation
    samples with a copy of the rollout that has other sampling settings (`dataclasses.replace`), and
    uses the same engine."""
    if key not in _engines:
        _engines[key] = start()
    return _engines[key]  # type: ignore[no-any-return]


class Versions:
    """Names of weights, different for each change of them and for each process."""

    def __init__(self) -> None:
        self.name = ""
        """Name of the current weights."""
        self._process, self._count = uuid.uuid4().hex[:8], 0
        self._policy: Callable[[], Policy | None] = lambda: None
        self._state: tuple[int, ...] = ()

    def update(self, policy: Policy, iteration: int) -> bool:
        """Set `name` to that of the policy's weights. Returns False if they have not changed: same
        policy, iteration and counters of in-place operations."""
        state = (iteration, *(x._version for x in policy.parameters()))
        if self._policy() is policy and self._state == state:
            return False
        self._policy, self._state, self._count = weakref.ref(policy), state, self._count + 1
        self.name = f"{self._process}-{self._count}-iteration-{iteration}"
        return True

    def forget(self) -> None:
        """Make the next `update` return True."""
        self._state = ()


def full_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield the policy's weights as in a checkpoint, of one full tensor at a time: adapters merged,
    each expert under its own name, tied weights under each of their names. Every rank iterates."""
    for name, x in policy.weights(FullState(policy.model)):
        yield from revert_weight_conversion(policy.model, {name: x.detach()}).items()


def check_temperature(temperature: float) -> None:
    """
    Raises:
        ValueError: the engine would sample at another temperature.
    """
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"rollout.temperature={temperature!r}: must be 0 (greedy), or at least "
            f"{MIN_TEMPERATURE} with vLLM"
        )


def sampling_settings(
    rollout: Any, policy: Policy, context: Context, iteration: int
) -> dict[str, Any]:
    """Return the fields of `vllm.SamplingParams` for the continuations of a context, every one that
    changes sampling among them: neither the checkpoint's generation config nor the engine's own
    end-of-text token is used.

    vLLM samples continuation i of n with seed + i."""
    prompt = context.prompt
    key: tuple[Any, ...] = (rollout.seed, prompt.prompt.id, prompt.occurrence, iteration)
    if list(context.samples) != list(range(len(context.samples))) or context.position:
        key = (*key, *context.samples, context.position)
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return {
        "n": len(context.samples),
        "max_tokens": context.limit,
        "temperature": float(rollout.temperature),
        "top_p": float(rollout.top_p),
        "top_k": rollout.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": int.from_bytes(digest, "little") >> 2,  # room for + i in 63 bits
        "ignore_eos": True,
        "stop_token_ids": sorted(policy.eos_ids),
        "stop": list(rollout.stop),
        "skip_special_tokens": True,
        "detokenize": bool(rollout.stop),
        "logprobs": 0,  # of the sampled token alone
    }


def generate(
    rollout: Any,
    engine: Engine,
    policy: Policy,
    prompts: Sequence[Prompt],
    occurrences: Counter[tuple[str, int]],
    *,
    samples: int,
    iteration: int,
    max_length: int | None = None,
) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major, with the sampling settings of
    `rollout`.

    Raises:
        UserError: a prompt is empty or too long, the policy's logits are not finite, or the engine
        has other weights than it was given.
    """
    encoded = encode(policy, prompts, occurrences, rollout.max_tokens, max_length)
    sampled = extend(rollout, engine, policy, whole(encoded, samples), iteration=iteration)
    return [
        response(policy, prompt, continuation, sample=sample, iteration=iteration)
        for prompt, row in zip(encoded, sampled, strict=True)
        for sample, continuation in enumerate(row)
    ]


def extend(
    rollout: Any, engine: Engine, policy: Policy, contexts: Sequence[Context], *, iteration: int
) -> list[list[Continuation]]:
    """Return a continuation of each context for each of its samples, with the sampling settings of
    `rollout`.

    Raises:
        UserError: the policy's logits are not finite, or the engine has other weights than it was
        given.
    """
    requests = [
        Request(context.tokens, sampling_settings(rollout, policy, context, iteration))
        for context in contexts
    ]
    completions = engine.complete(
        requests, _progress(rollout.on_tokens, sum(len(context.samples) for context in contexts))
    )
    for context, row in zip(contexts, completions, strict=True):
        if len(row) != len(context.samples):
            problem = (
                f"the engine returned {len(row)} responses to prompt {context.prompt.prompt.id} "
                f"instead of {len(context.samples)}"
            )
            raise UserError(f"rollout: {problem}: see its log")
    return [
        [_checked(policy, context, completion, engine.version, iteration) for completion in row]
        for context, row in zip(contexts, completions, strict=True)
    ]


def _checked(
    policy: Policy, context: Context, completion: Completion, version: str, iteration: int
) -> Continuation:
    found, prompt = set(completion.versions), context.prompt.prompt
    if found != {version}:
        names = ", ".join(sorted(found))[:MAX_CHARACTERS] or "of no version"
        problem = (
            f"a response was sampled with the weights {names} instead of {version}, so another "
            "process changed the engine's weights"
        )
        raise UserError(f"rollout: {problem}: give each training run its own engine")
    tokens, logprobs = completion.tokens, completion.logprobs
    if (
        completion.finish not in ("stop", "length")
        or not 0 < len(tokens) == len(logprobs)
        or len(tokens) > context.limit
    ):
        problem = (
            f"{len(tokens)} tokens, {len(logprobs)} log-probabilities and finish reason "
            f"{str(completion.finish)[:MAX_CHARACTERS]}"
        )
        raise UserError(
            f"rollout: the engine returned a response to prompt {prompt.id} with {problem}: "
            "see its log"
        )
    if not all(map(math.isfinite, logprobs)):
        raise diverged(iteration)
    size = policy.model.get_input_embeddings().weight.shape[0]
    if not all(0 <= token < size for token in tokens) or max(logprobs) > MAX_LOGPROB:
        problem = (
            f"tokens from {min(tokens)} to {max(tokens)} of a vocabulary of {size}, and "
            f"log-probabilities up to {max(logprobs):.3g}"
        )
        raise UserError(
            f"rollout: the engine returned a response to prompt {prompt.id} with {problem}: "
            "start it with this policy"
        )
    return Continuation(tokens, logprobs, stopped=completion.finish == "stop")


def _progress(hook: Callable[[int, int, int], None] | None, total: int) -> Progress:
    """Return a function that adds up the rows and tokens of one call of `generate` for
    `on_tokens`."""
    done, tokens = 0, 0

    def progress(ended: int, sampled: int) -> None:
        nonlocal done, tokens
        done, tokens = done + ended, tokens + sampled
        if hook is not None:
            hook(done, total, tokens)

    return progress
