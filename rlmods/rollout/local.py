"""Sampling with the policy itself, for any Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np
import torch

from rlmods.distributed.sharding import unsharded
from rlmods.errors import check_bounds
from rlmods.needs import RolloutNeeds
from rlmods.ops import keyed_uniforms
from rlmods.policy.base import Policy
from rlmods.policy.cpu_linear import packed_weights
from rlmods.rollout.agreement import check_agreement
from rlmods.rollout.base import TokenRollout
from rlmods.rollout.decode import Decoded, OnStep, decode, sampling_mode
from rlmods.rollout.encoding import Context, Continuation, Progress, diverged


@dataclass
class Local(TokenRollout):
    """Samples with the policy's own weights, without reading the checkpoint's generation_config. On
    x86-64 processors with a copy of them, which is made for each call and laid out for products
    with few rows (`packed_weights`), elsewhere without a copy.

    A prompt is processed once for all its samples, and finished rows leave the batch. Later turns
    go on from the keys and values of earlier ones, of as many responses as are sampled at once. A
    response depends on the weights and on (seed, prompt id, how often that id occurred before,
    sample, iteration), not on other rows or a global generator."""

    needs: ClassVar[RolloutNeeds] = RolloutNeeds(gives_entropies=True)

    batch_size: int = 256
    """Number of rows decoded at once. All samples of a prompt are in one batch, even if they are
    more."""
    _is_sampling: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, "rollout", {"batch_size": (self.batch_size >= 1, "at least 1")})

    @property
    def rows_at_once(self) -> int:
        return self.batch_size

    def check_policy(self, policy: Policy) -> None:
        """Check that sampling and training give the same log-probabilities (`check_agreement`).

        Raises:
            UserError: they do not.
        """
        check_agreement(policy, padded=self.batch_size > 1)

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples. Restores the train or eval
        mode of every module.

        Raises:
            UserError: the policy's logits are not finite.
        """
        policy = self.synced
        samples = len(contexts[0].samples) if contexts else 1
        # Contexts of similar length together, for little padding; the longest first, so that a lack
        # of memory shows at once.
        order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i].tokens))
        size = max(1, self.batch_size // samples)
        continuations: dict[int, list[Continuation]] = {}
        progress = Progress(self.on_tokens, len(contexts) * samples)
        with self.sampling():
            for start in range(0, len(order), size):
                indices = order[start : start + size]
                batch = [contexts[i] for i in indices]
                decoded = self._decode_batch(policy, batch, iteration, progress)
                continuations.update(zip(indices, decoded, strict=True))
        return [continuations[i] for i in range(len(contexts))]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Prepare the policy for sampling: eval mode, weights gathered and laid out once for all
        calls of `extend` in the block. To gather sharded weights, ranks wait for each other when
        they enter the block, and not in it: they may make different numbers of calls."""
        policy = self.synced
        if self._is_sampling:
            yield
            return
        packed = packed_weights(policy, policy.model.get_output_embeddings())
        with sampling_mode(policy), unsharded(policy), packed:
            self._is_sampling = True
            try:
                yield
            finally:
                self._is_sampling = False

    def _decode_batch(
        self, policy: Policy, batch: list[Context], iteration: int, on_step: OnStep
    ) -> list[list[Continuation]]:
        limits = [context.limit for context in batch]
        uniforms = []
        pasts = []
        for context in batch:
            uniforms += self._uniforms(context, iteration, max(limits))
            pasts.append(context.past)
            context.past = None

        def stop(tokens: list[int]) -> bool:
            text = policy.decode(tokens)
            return any(end in text for end in self.stop)

        decoded = decode(
            policy,
            [context.tokens for context in batch],
            limits,
            torch.from_numpy(np.stack(uniforms)),
            beginnings=[context.num_shared for context in batch],
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=stop if self.stop else None,
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
        sampled = iter(_continuations(decoded))
        return [list(islice(sampled, len(context.samples))) for context in batch]

    def _uniforms(
        self, context: Context, iteration: int, count: int
    ) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """Return the random numbers of the next `count` tokens of each sample."""
        prompt = context.prompt
        uniforms = []
        for sample in context.samples:
            key = (self.seed, prompt.prompt.id, prompt.occurrence, sample, iteration)
            uniforms.append(keyed_uniforms(context.position + count, *key)[context.position :])
        return uniforms


def _continuations(decoded: Decoded) -> list[Continuation]:
    """Return each row without the slots behind its end."""
    rows = zip(
        decoded.tokens.tolist(),
        decoded.logprobs.tolist(),
        decoded.lengths.tolist(),
        decoded.stopped.tolist(),
        decoded.entropies.tolist(),
        decoded.pasts,
        strict=True,
    )
    continuations = []
    for ids, logprobs, length, stopped, entropies, past in rows:
        continuations.append(
            Continuation(ids[:length], logprobs[:length], stopped, entropies[:length], past)
        )
    return continuations
