"""Sampling with the policy itself, for any Hugging Face causal language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from rlmods.distributed.sharding import unsharded
from rlmods.needs import RolloutNeeds
from rlmods.ops import keyed_uniforms
from rlmods.policy.base import Policy
from rlmods.policy.cpu_linear import packed_weights
from rlmods.rollout.agreement import check_agreement
from rlmods.rollout.decode import OnStep, decode, sampling_mode
from rlmods.rollout.encoding import (
    Context,
    Continuation,
    check_settings,
    diverged,
    encode,
    response,
    whole,
)
from rlmods.types import Prompt, Response


@dataclass
class Local:
    """Samples with the policy's own weights, without reading the checkpoint's generation_config. On
    x86-64 processors with a copy of them, which is made for each call and laid out for products
    with few rows (`packed_weights`), elsewhere without a copy.

    A prompt is processed once for all its samples, and finished rows leave the batch. Later turns
    go on from the keys and values of earlier ones, of as many responses as are sampled at once. A
    response depends on the weights and on (seed, prompt id, how often that id occurred before,
    sample, iteration), not on other rows or a global generator."""

    needs: ClassVar[RolloutNeeds] = RolloutNeeds(gives_entropies=True)

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
    batch_size: int = 256
    """Number of rows decoded at once. All samples of a prompt are in one batch, even if they are
    more."""
    seed: int = 0
    """Seed of the samples."""
    on_tokens: Callable[[int, int, int], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Called after every step with the finished rows, all rows and the tokens sampled so far in
    this call of `generate`."""
    _policy: Policy | None = field(default=None, init=False, repr=False, compare=False)
    _occurrences: Counter[tuple[str, int]] = field(
        default_factory=Counter, init=False, repr=False, compare=False
    )
    _is_sampling: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        check_settings(self)
        if self.batch_size < 1:
            raise ValueError(f"rollout.batch_size={self.batch_size!r}: must be at least 1")

    def check_policy(self, policy: Policy) -> None:
        """Check that sampling and training give the same log-probabilities (`check_agreement`).

        Raises:
            UserError: they do not.
        """
        check_agreement(policy, padded=self.batch_size > 1)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Sample from this policy, with the weights it has when `generate` is called."""
        self._policy = policy
        self._occurrences.clear()

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major. Restores the train or eval mode
        of every module.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, or the policy's logits
            are not finite.
        """
        if self._policy is None:
            raise RuntimeError("generate() before sync(): there is no policy to sample from")
        encoded = encode(self._policy, prompts, self._occurrences, self.max_tokens)
        sampled = self.extend(whole(encoded, samples), iteration=iteration)
        return [
            response(self._policy, prompt, continuation, sample=sample, iteration=iteration)
            for prompt, row in zip(encoded, sampled, strict=True)
            for sample, continuation in enumerate(row)
        ]

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples. Restores the train or eval
        mode of every module.

        Raises:
            UserError: the policy's logits are not finite.
        """
        if self._policy is None:
            raise RuntimeError("extend() before sync(): there is no policy to sample from")
        samples = len(contexts[0].samples) if contexts else 1
        # Contexts of similar length together, for little padding; the longest first, so that a lack
        # of memory shows at once.
        order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i].tokens))
        contexts_per_batch = max(1, self.batch_size // samples)
        continuations: dict[int, list[Continuation]] = {}
        on_step = self._progress(len(contexts) * samples)
        with self.sampling():
            for start in range(0, len(order), contexts_per_batch):
                batch = order[start : start + contexts_per_batch]
                decoded = self._decode_batch(
                    self._policy, [contexts[i] for i in batch], iteration, on_step
                )
                continuations.update(zip(batch, decoded, strict=True))
        return [continuations[i] for i in range(len(contexts))]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Prepare the policy for sampling: eval mode, weights gathered and laid out once for all
        calls of `extend` in the block. To gather sharded weights, ranks wait for each other when
        they enter the block, and not in it: they may make different numbers of calls."""
        if self._policy is None:
            raise RuntimeError("sampling() before sync(): there is no policy to sample from")
        if self._is_sampling:
            yield
            return
        output_layer = self._policy.model.get_output_embeddings()
        with (
            sampling_mode(self._policy),
            unsharded(self._policy),
            packed_weights(self._policy, output_layer),
        ):
            self._is_sampling = True
            try:
                yield
            finally:
                self._is_sampling = False

    def _decode_batch(
        self, policy: Policy, batch: list[Context], iteration: int, on_step: OnStep | None
    ) -> list[list[Continuation]]:
        limits = [context.limit for context in batch]
        rows = [(context, sample) for context in batch for sample in context.samples]
        pasts = [context.past for context in batch]
        for context in batch:
            context.past = None
        decoded = decode(
            policy,
            [context.tokens for context in batch],
            limits,
            torch.from_numpy(
                np.stack(
                    [
                        self._uniforms(context, sample, iteration, max(limits))
                        for context, sample in rows
                    ]
                )
            ),
            beginnings=[context.num_shared for context in batch],
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=(lambda tokens: any(text in policy.decode(tokens) for text in self.stop))
            if self.stop
            else None,
            # An ordinary token decodes to at least one byte; the extra tokens allow for special
            # ones, which decode to none.
            window=max((len(text.encode()) for text in self.stop), default=0) + 8,
            on_step=on_step,
            num_entropies=max(context.num_entropies for context in batch),
            pasts=pasts,
            keep=[context.keep for context in batch],
        )
        if not bool(decoded.logprobs.isfinite().all()):
            raise diverged(iteration)
        columns = (
            x.tolist()
            for x in (
                decoded.tokens,
                decoded.logprobs,
                decoded.lengths,
                decoded.stopped,
                decoded.entropies,
            )
        )
        sampled = iter(
            [
                Continuation(ids[:length], logprobs[:length], stopped, entropies[:length], past)
                for ids, logprobs, length, stopped, entropies, past in zip(
                    *columns, decoded.pasts, strict=True
                )
            ]
        )
        return [[next(sampled) for _ in context.samples] for context in batch]

    def _uniforms(
        self, context: Context, sample: int, iteration: int, count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the random numbers of the next `count` tokens of a response."""
        prompt = context.prompt
        key = (self.seed, prompt.prompt.id, prompt.occurrence, sample, iteration)
        return keyed_uniforms(context.position + count, *key)[context.position :]

    def _progress(self, total: int) -> OnStep | None:
        """Return a function that adds up the steps of one call of `generate` for `on_tokens`."""
        hook, done, tokens = self.on_tokens, 0, 0
        if hook is None:
            return None

        def on_step(ended: int, sampled: int) -> None:
            nonlocal done, tokens
            done, tokens = done + ended, tokens + sampled
            hook(done, total, tokens)

        return on_step
