"""A rollout without a model, whose responses depend on the weights it was given, as those of an
engine in another process."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rlmods.needs import RolloutNeeds
from rlmods.rollout.base import Context, Continuation, TokenRollout
from rlmods.types import Prompt, Response


@dataclass
class Calls:
    """What the engine was asked, by all copies of the rollout."""

    prompts: list[list[str]] = field(default_factory=list)
    """Ids of the prompts of every call of `generate`."""
    threads: list[str] = field(default_factory=list)
    """Name of the thread of each."""
    num_running: int = 0
    num_compared: int = 0
    """Prompts by whose responses sampler and policy are compared; they are not in `prompts`."""


@dataclass
class FakeEngine(TokenRollout):
    """Samples tokens from a generator that is a function of weights, seed, prompt, pass,
    occurrence, sample and iteration.

    Raises: AssertionError if the weights change while it samples, or two threads use it at once.
    """

    max_tokens: int = 8
    ahead: int = 0
    duration_s: float = 0.0
    """Time of a call of `generate`."""
    before: Callable[[FakeEngine], None] | None = None
    """Called with this copy of the rollout in `generate`, before it samples."""
    _weights: str = field(default="", init=False, repr=False, compare=False)
    calls: Calls = field(default_factory=Calls)

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(ahead=self.ahead == 1)

    def sync(self, policy: Any, *, iteration: int) -> None:
        assert self.calls.num_running == 0, "the weights change while the engine samples"
        self.synced = policy
        self._weights = hashlib.sha256(
            b"".join(x.detach().numpy().tobytes() for x in policy.parameters())
        ).hexdigest()
        self._occurrences.clear()

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        assert self.calls.num_running == 0, "two threads use the engine"
        self.calls.num_running += 1
        try:
            if prompts[0].time < 0:
                self.calls.num_compared += len(prompts)
            else:
                self.calls.prompts.append([prompt.id for prompt in prompts])
                self.calls.threads.append(threading.current_thread().name)
            if self.before is not None:
                self.before(self)
            end = time.monotonic() + self.duration_s
            while time.monotonic() < end:
                time.sleep(0.01)
                self._report(0, len(prompts) * samples)
            responses = [
                response
                for prompt in prompts
                for response in self._responses(prompt, samples, iteration)
            ]
            self._report(len(responses), len(responses))
            return responses
        finally:
            self.calls.num_running -= 1

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        assert self.calls.num_running == 0, "two threads use the engine"
        self.calls.threads.append(threading.current_thread().name)
        return [
            [self._continuation(context, sample, iteration) for sample in context.samples]
            for context in contexts
        ]

    def _continuation(self, context: Context, sample: int, iteration: int) -> Continuation:
        prompt = context.prompt
        random = Random(
            repr(
                (
                    self._weights,
                    self.seed,
                    prompt.prompt.id,
                    prompt.occurrence,
                    sample,
                    iteration,
                    context.position,
                )
            )
        )
        tokens = [random.randrange(25, 100) for _ in range(random.randint(1, context.limit))]
        return Continuation(
            tokens, [-random.uniform(3.5, 5.5) for _ in tokens], len(tokens) < context.limit
        )

    def _report(self, done: int, total: int) -> None:
        if self.on_tokens is not None:
            self.on_tokens(done, total, done)

    def _responses(self, prompt: Prompt, samples: int, iteration: int) -> list[Response]:
        occurrence = self._occurrences[prompt.id, prompt.time]
        self._occurrences[prompt.id, prompt.time] += 1
        key = (
            self._weights,
            self.seed,
            self.temperature,
            prompt.id,
            prompt.time,
            occurrence,
            iteration,
        )
        return [
            self._response(prompt, Random(repr((*key, i))), i, iteration) for i in range(samples)
        ]

    def _response(self, prompt: Prompt, random: Random, sample: int, iteration: int) -> Response:
        tokens = [random.randrange(25, 100) for _ in range(random.randint(1, self.max_tokens))]
        logprobs = [-random.uniform(3.5, 5.5) for _ in tokens]
        finish: Any = "length" if len(tokens) == self.max_tokens else "stop"
        meta = {"sample": sample, "iteration": iteration}
        return Response(
            prompt,
            self.synced.encode(prompt),
            tokens,
            logprobs,
            self.synced.decode(tokens),
            finish,
            meta,
        )
