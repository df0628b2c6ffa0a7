"""Sampling with the policy itself, for any Hugging Face causal language model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np
import torch

from rlmods.distributed.deferred import is_deferred
from rlmods.distributed.sharding import unsharded
from rlmods.errors import UserError, check_bounds
from rlmods.needs import RolloutNeeds
from rlmods.ops import keyed_uniforms
from rlmods.policy.base import Policy
from rlmods.policy.cpu_linear import packed_weights
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout, diverged
from rlmods.rollout.decode import Decoded, OnStep, decode, sampling_mode


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


LENGTHS = (2, 9)
"""Tokens of the prompts."""
NUM_TOKENS = 4
"""Tokens of the responses."""
MAX_GAP = 1e-3
"""Largest mean distance that rounding explains, nats per token."""
MAX_GAP_16_BIT = 0.2
"""The same for weights of 16 bits."""


def check_agreement(policy: Policy, *, padded: bool = True) -> None:
    """Check on two short texts that sampling gives the log-probabilities of training.

    Args:
        padded: also check prompts of different length in one batch, which pads the shorter one.

    Raises:
        UserError: it does not; training would be off-policy without a trace of it in the loss.
    """
    if policy.device.type == "meta" or is_deferred(policy):
        return
    size = policy.model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 5 * length) % size for i in range(length)] for length in LENGTHS]
    with unsharded(policy):  # gathered weights may have another data type than shards
        is_float32 = next(policy.parameters()).dtype == torch.float32
    max_gap = MAX_GAP if is_float32 else MAX_GAP_16_BIT
    name = type(policy.model).__name__
    gap = max(sampler_gap(policy, [prompt]) for prompt in prompts)
    if not gap <= max_gap:
        raise UserError(
            f"policy: {name} gives other log-probabilities with a cache than without ({gap:.2g} "
            "nats per token), which is not supported: choose another model"
        )
    if not padded:
        return
    short, long = prompts
    shared = [[*long[:5], *short[:1]], long]
    gap = max(sampler_gap(policy, prompts), sampler_gap(policy, shared, [5, 5]))
    if not gap <= max_gap:
        raise UserError(
            f"policy: padding changes the log-probabilities of {name} by {gap:.2g} nats per "
            "token, because it reaches the model's state: "
            "type rollout.batch_size=1, which samples one prompt at a time, without padding"
        )


@torch.no_grad()
def sampler_gap(
    policy: Policy, prompts: Sequence[Sequence[int]], beginnings: Sequence[int] | None = None
) -> float:
    """Return the mean of |log pi - log pi'| over the tokens of a response to each prompt, sampled
    in one batch with pi' and scored with pi. `beginnings`: number of ids of each prompt that are
    processed once for those that have them in common.

    The first token of the vocabulary with a cumulative probability above 1/2 is sampled, so nothing
    is random."""
    autocast = torch.autocast(policy.device.type, enabled=False)
    with sampling_mode(policy), unsharded(policy), autocast:
        decoded = decode(
            policy,
            prompts,
            [NUM_TOKENS] * len(prompts),
            torch.full((len(prompts), NUM_TOKENS), 0.5, dtype=torch.float64),
            beginnings=beginnings,
            # so that beginnings are shared, or not, however short the prompts are
            forward_cost=1_000_000 if beginnings is None else 0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        )
        total = 0.0
        for i, prompt in enumerate(prompts):
            length = int(decoded.lengths[i])
            tokens = decoded.tokens[i, :length]
            row = torch.cat([torch.tensor(prompt, device=tokens.device), tokens])[None]
            mask = torch.arange(row.shape[1], device=row.device)[None] >= len(prompt)
            gaps = policy(row, mask).logprobs[mask] - decoded.logprobs[i, :length]
            total += float(gaps.abs().sum())
    return total / int(decoded.lengths.sum())
