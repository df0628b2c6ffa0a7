"""Sampling with an inference engine that has its own copy of the weights: requests, versions of the
weights, and checks of the replies."""

import hashlib
import math
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar, cast

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rlmods.distributed.sharding import FullState
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout, diverged
from rlmods.settings.bounds import Bound

MIN_TEMPERATURE = 0.01
"""Smallest temperature above 0; vLLM replaces smaller ones by it."""
Temperature = Annotated[
    float,
    Bound(
        f"0 (greedy), or at least {MIN_TEMPERATURE} with vLLM",
        lambda x: x == 0 or x >= MIN_TEMPERATURE,
    ),
]
"""Type of the temperature of an engine."""
MAX_CHARACTERS = 160
"""Characters of an engine's text that an error message keeps."""
Request = tuple[list[int], dict[str, Any]]
"""Token ids of a context, and the fields of `vllm.SamplingParams` for all its continuations."""
E = TypeVar("E")


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

    @property
    def version(self) -> str:
        """Name of the weights that were loaded last."""
        ...

    def complete(self, requests: Sequence[Request], progress: Progress) -> list[list[Completion]]:
        """Return the responses to each request, in the order of the requests."""
        ...


_engines: dict[Hashable, object] = {}


def shared(key: Hashable, start: Callable[[], E]) -> E:
    """Return this process's engine with these settings, started if there is none. Validation
    samples with a copy of the rollout that has other sampling settings (`dataclasses.replace`), and
    uses the same engine."""
    if key not in _engines:
        _engines[key] = start()
    return cast(E, _engines[key])


class Versions:
    """Names of weights, different for each change of them and for each process."""

    def __init__(self) -> None:
        self.name = ""
        """Name of the current weights."""
        self._policy: Callable[[], Policy | None] = lambda: None
        self._state: tuple[int, ...] = ()

    def update(self, policy: Policy, iteration: int) -> bool:
        """Name the policy's weights. Returns False if they have not changed: same
        policy, iteration and counters of in-place operations."""
        state = (iteration, *(x._version for x in policy.parameters()))
        if self._policy() is policy and self._state == state:
            return False
        self._policy = weakref.ref(policy)
        self._state = state
        self.name = f"{uuid.uuid4().hex[:16]}-iteration-{iteration}"
        return True

    def forget(self) -> None:
        """Make the next `update` return True."""
        self._state = ()


def full_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield the policy's weights as in a checkpoint, of one full tensor at a time: adapters merged,
    each expert under its own name, tied weights under each of their names. Every rank iterates."""
    for name, x in policy.weights(FullState(policy.model)):
        yield from revert_weight_conversion(policy.model, {name: x.detach()}).items()


def sampling_settings(rollout: TokenRollout, context: Context, iteration: int) -> dict[str, Any]:
    """Return the fields of `vllm.SamplingParams` for the continuations of a context, every one that
    changes sampling among them: neither the checkpoint's generation config nor the engine's own
    end-of-text token is used.

    vLLM samples continuation i of n with seed + i."""
    prompt = context.prompt
    key: tuple[Any, ...] = (rollout.seed, prompt.prompt.id, prompt.occurrence, iteration)
    if list(context.samples) != list(range(len(context.samples))) or context.position:
        key = (*key, *context.samples, context.position)
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    stop = [*rollout.stop, *context.stop]
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
        "stop_token_ids": sorted(rollout.synced.eos_ids),
        "stop": stop,
        "skip_special_tokens": True,
        "detokenize": bool(stop),
        "logprobs": 0,  # of the sampled token alone
    }


def extend(
    rollout: TokenRollout, engine: Engine, contexts: Sequence[Context], *, iteration: int
) -> list[list[Continuation]]:
    """Return a continuation of each context for each of its samples, with the sampling settings of
    `rollout`.

    Raises:
        UserError: the policy's logits are not finite, or the engine has other weights than it was
        given.
    """
    requests = []
    for context in contexts:
        settings = sampling_settings(rollout, context, iteration)
        requests.append((list(context.tokens), settings))
    num_rows = sum(len(context.samples) for context in contexts)
    completions = engine.complete(requests, Progress(rollout.on_tokens, num_rows))
    continuations = []
    for context, row in zip(contexts, completions, strict=True):
        check = partial(_checked, rollout.synced, context, engine.version, iteration)
        continuations.append(list(map(check, row)))
    return continuations


def _checked(
    policy: Policy, context: Context, version: str, iteration: int, completion: Completion
) -> Continuation:
    versions = set(completion.versions)
    if versions != {version}:
        names = ", ".join(sorted(versions))[:MAX_CHARACTERS] or "of no version"
        raise UserError(
            f"rollout: a response was sampled with the weights {names} instead of {version}, so "
            "another process changed the engine's weights: give each training run its own engine"
        )
    tokens = completion.tokens
    logprobs = completion.logprobs
    size = policy.model.get_input_embeddings().weight.shape[0]
    is_whole = completion.finish in ("stop", "length") and len(tokens) == len(logprobs)
    if not is_whole or not 0 < len(tokens) <= context.limit or max(tokens) >= size:
        raise UserError(
            f"rollout: the engine returned a response to prompt {context.prompt.prompt.id} with "
            f"{len(tokens)} tokens up to {max(tokens, default=0)}, {len(logprobs)} "
            f"log-probabilities and finish reason {str(completion.finish)[:MAX_CHARACTERS]}: start "
            "it with this policy, or see its log"
        )
    if not all(map(math.isfinite, logprobs)):
        raise diverged(iteration)
    return Continuation(tokens, logprobs, stopped=completion.finish == "stop")
