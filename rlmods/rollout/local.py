"""Sampling with the policy itself, for any Hugging Face causal language model: batched decoding
with a growing key-value cache and keyed random numbers.

P prompts, G samples each, R = P * G rows, L new tokens at most, V tokens in the vocabulary."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.distributed.sharding import unsharded
from rlmods.errors import UserError, in_one_line
from rlmods.needs import RolloutNeeds
from rlmods.ops import keyed_uniforms
from rlmods.policy.base import Policy
from rlmods.policy.fused import sampling
from rlmods.policy.linear import autocast_dtype
from rlmods.policy.quantization import has_int8_products
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout, diverged
from rlmods.rollout.cache import FORWARD_COST, MIN_REPLAYS, CachedRows, Past
from rlmods.rollout.graph import check_graphs
from rlmods.settings.bounds import Count

COMPACT_BELOW = 7 / 8
"""Fraction of unfinished rows below which finished rows leave the batch. Copying the cache costs
about as much as one step."""
COMPACT_GRAPH_BELOW = 1 / 2
"""The same with recorded steps, as each number of rows needs a recording of its own."""


@dataclass
class Decoded:
    """R rows in the order of the prompts, the samples of a prompt next to each other."""

    tokens: Int[Tensor, "R L"]
    """Sampled ids; arbitrary from `lengths` on."""
    logprobs: Float[Tensor, "R L"]
    """Natural log-probability of each under the distribution it was sampled from."""
    lengths: Int[Tensor, " R"]
    """Number of sampled tokens, including EOS."""
    stopped: Bool[Tensor, " R"]
    """True if EOS or a stop string ended the row, False if the limit did."""
    entropies: Float[Tensor, "R K"]
    """Entropy of the distribution at each of the first K steps, nats (`entropy`); arbitrary from
    `lengths` on."""
    pasts: list[Past | None]
    """Keys and values of a prompt and its sampled tokens but the last; None unless wanted (`keep`),
    and if single rows cannot be copied."""

    def continuations(self) -> list[Continuation]:
        """Return each row without the slots behind its end."""
        rows = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.lengths.tolist(),
            self.stopped.tolist(),
            self.entropies.tolist(),
            self.pasts,
            strict=True,
        )
        found = []
        for ids, logprobs, length, stopped, entropies, past in rows:
            found.append(
                Continuation(ids[:length], logprobs[:length], stopped, entropies[:length], past)
            )
        return found


# not inference_mode: some models keep tensors made in forward, which training then uses
@torch.no_grad()
def decode(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    uniforms: Float[Tensor, "R L"],
    *,
    beginnings: Sequence[int] | None = None,
    forward_cost: int = FORWARD_COST,
    temperature: float,
    top_p: float,
    top_k: int,
    stop: Callable[[int, list[int]], bool] | None = None,
    window: int = 0,
    on_step: Callable[[int, int], None] | None = None,
    num_entropies: int = 0,
    pasts: list[Past | None] | None = None,
    keep: Sequence[bool] = (),
    graphs: bool = False,
) -> Decoded:
    """Sample R / P responses to each prompt, given modules in eval mode.

    Args:
        limits: maximum number of response tokens of each prompt.
        uniforms: `[r, t]` is the only source of randomness of row r at step t.
        beginnings: number of ids of each prompt that some other prompts begin with too. They are
            processed once where that saves more than `forward_cost` ids.
        stop: receives the index of a prompt and the last `window` tokens of one of its rows, and
            returns True if the row ends there.
        on_step: called after every step with the number of rows that ended in it and the number of
            tokens it sampled.
        num_entropies: number of steps K whose entropies are returned.
        pasts: processed rows that have ids in common with each prompt. The list is emptied.
        keep: prompts whose `Decoded.pasts` are wanted.
        graphs: record decode steps and replay them (`StepGraph`)."""
    context = CachedRows(policy, graphs)
    steps = max(limits)
    shared = beginnings or [0] * len(prompts)
    kept = pasts or [None] * len(prompts)
    logits = context.begin(prompts, kept, steps, shared, forward_cost)
    kept.clear()
    batch = _Batch(policy, context, prompts, limits, uniforms, num_entropies, keep)
    if len(uniforms) > len(prompts):
        context.select(batch.prompt_of)
        logits = logits[batch.prompt_of]
    for step in range(steps):
        uniform = batch.uniforms[batch.rows, step]
        tokens, logprobs = sample_tokens(
            logits, uniform, temperature=temperature, top_p=top_p, top_k=top_k
        )
        if step < num_entropies:
            batch.out.entropies[batch.rows, step] = entropy(logits, temperature)
        num_sampled = batch.num_active
        batch.record(step, tokens, logprobs, stop, window)
        if on_step is not None:
            on_step(num_sampled - batch.num_active, num_sampled)
        if batch.num_active == 0:
            break
        logits = context.append(batch.compact(tokens))
    batch.keep_pasts(torch.arange(len(batch.rows), device=policy.device))
    return batch.out


class _Batch:
    """The rows that are sampled at once, B of the R rows of the output."""

    def __init__(
        self,
        policy: Policy,
        context: CachedRows,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        uniforms: Float[Tensor, "R L"],
        num_entropies: int,
        keep: Sequence[bool],
    ) -> None:
        device = policy.device
        num_rows = len(uniforms)
        steps = max(limits)
        self.context = context
        self.prompts = prompts
        self.keep = keep
        self.uniforms = uniforms.to(device)
        self.prompt_of: Int[Tensor, " R"] = torch.arange(
            len(prompts), device=device
        ).repeat_interleave(num_rows // len(prompts))
        self.limit: Int[Tensor, " R"] = torch.tensor(limits, device=device)[self.prompt_of]
        self.eos = torch.tensor(sorted(policy.eos_ids), device=device)
        self.out = Decoded(
            tokens=torch.zeros(num_rows, steps, dtype=torch.long, device=device),
            logprobs=torch.zeros(num_rows, steps, device=device),
            lengths=torch.zeros(num_rows, dtype=torch.long, device=device),
            stopped=torch.zeros(num_rows, dtype=torch.bool, device=device),
            entropies=torch.zeros(num_rows, min(num_entropies, steps), device=device),
            pasts=[None] * num_rows,
        )
        self.rows: Int[Tensor, " B"] = torch.arange(num_rows, device=device)
        """The row of the output for each row of the batch."""
        self.active: Bool[Tensor, " B"] = torch.ones_like(self.out.stopped)
        self.num_active = num_rows

    def record(
        self,
        step: int,
        tokens: Int[Tensor, " B"],
        logprobs: Float[Tensor, " B"],
        stop: Callable[[int, list[int]], bool] | None,
        window: int,
    ) -> None:
        """Add the tokens of a step to the output, and find the rows that end with them."""
        out = self.out
        out.tokens[self.rows, step] = tokens
        out.logprobs[self.rows, step] = logprobs
        out.lengths[self.rows] += self.active
        ends = (tokens[:, None] == self.eos).any(-1)
        if stop is not None:
            rows = self.rows[self.active]
            tails = out.tokens[rows, max(0, step + 1 - window) : step + 1].tolist()
            stops = list(map(stop, self.prompt_of[rows].tolist(), tails))
            ends[self.active] |= torch.tensor(stops, device=ends.device)
        out.stopped[self.rows] |= ends & self.active
        self.active = self.active & ~ends & (step + 1 < self.limit[self.rows])
        self.num_active = int(self.active.sum())

    def compact(self, tokens: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Remove finished rows from the batch if they are many, and return the tokens of the rows
        that stay."""
        least = COMPACT_GRAPH_BELOW if self.context.graphs else COMPACT_BELOW
        if self.num_active > least * len(self.rows):
            return tokens
        self.keep_pasts((~self.active).nonzero().squeeze(-1))
        left = self.active.nonzero().squeeze(-1)
        self.context.select(left)
        self.rows = self.rows[left]
        self.active = self.active[left]
        return tokens[left]

    def keep_pasts(self, finished: Int[Tensor, " F"]) -> None:
        """Keep the keys and values of these rows of the batch, for the prompts that want them."""
        if not any(self.keep) or not self.context.has_growing_layers:
            return
        rows = self.rows[finished]
        indices = torch.stack([finished, rows, self.prompt_of[rows]], 1)
        for i, row, prompt in indices.tolist():
            if self.keep[prompt]:
                sampled = self.out.tokens[row, : self.out.lengths[row] - 1].tolist()
                self.out.pasts[row] = self.context.past(i, [*self.prompts[prompt], *sampled])


def sample_tokens(
    logits: Float[Tensor, "R V"],
    uniform: Float[Tensor, " R"],
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """Return one token per row, and its natural log-probability (float32) under the distribution it
    was sampled from.

    The inverse CDF of softmax(logits / temperature), truncated and renormalised, at `uniform` in
    [0, 1): one number determines one token, and tokens of probability 0 are never sampled.
    Temperature 0 is greedy; the log-probability is then that of temperature 1 without truncation,
    as the greedy distribution itself would always give log 1. Non-finite logits give a non-finite
    log-probability."""
    scores = logits.float()
    if temperature > 0:
        scores = truncate(scores / temperature, top_p=top_p, top_k=top_k)
    scores = scores - scores.amax(-1, keepdim=True)
    cdf = cumulative(scores.exp())
    total = cdf[:, -1:]
    if temperature > 0:
        # In float32 a uniform just below 1 rounds to 1, and searching for the total would return an
        # index past the last token.
        highest = torch.nextafter(total, torch.zeros_like(total))
        point = torch.minimum(uniform[:, None].to(cdf) * total, highest)
        tokens = torch.searchsorted(cdf, point, right=True).clamp(max=logits.shape[-1] - 1)
    else:
        tokens = scores.argmax(-1, keepdim=True)
    logprobs = (scores.gather(-1, tokens) - total.log()).squeeze(-1).float()
    return tokens.squeeze(-1), logprobs


FIXED_POINT = 2**44
"""Unit of probabilities as integers: 2^18 of them fit into 62 bits."""


def cumulative(weights: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return the cumulative sums of numbers from 0 to 1 in float64. In float32, tokens of
    probability below 6e-8 late in the vocabulary would get an interval of width 0.

    A GPU adds integers, because its sums of floating-point numbers are not the same each time."""
    if weights.device.type == "cuda":
        return fixed_point_sums(weights)
    return weights.cumsum(-1, dtype=torch.float64)


def fixed_point_sums(weights: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Return the cumulative sums of multiples of `1 / FIXED_POINT`, whatever the order in which
    they are added."""
    return (weights.double() * FIXED_POINT).long().cumsum(-1).double() / FIXED_POINT


def entropy(logits: Float[Tensor, "R V"], temperature: float) -> Float[Tensor, " R"]:
    """Return the entropy of softmax(logits / temperature), nats, without truncation. Temperature 0
    counts as 1."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    return -(logprobs.exp() * logprobs).nansum(-1)  # 0 log 0 = 0


def truncate(scores: Float[Tensor, "R V"], *, top_p: float, top_k: int) -> Float[Tensor, "R V"]:
    """Set scores to -inf outside the `top_k` best tokens (0: all; ties stay), then outside the
    fewest whose probability reaches `top_p`."""
    if 0 < top_k < scores.shape[-1]:
        last = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if top_p < 1:
        ranked, order = scores.sort(stable=True, dim=-1, descending=True)
        probability = ranked.softmax(-1)
        is_on_gpu = probability.device.type == "cuda"
        sums = fixed_point_sums(probability) if is_on_gpu else probability.cumsum(-1)
        preceding = sums - probability  # total probability of the better tokens
        removed = torch.empty_like(order, dtype=torch.bool).scatter(-1, order, preceding >= top_p)
        scores = scores.masked_fill(removed, -torch.inf)
    return scores


@dataclass
class Local(TokenRollout):
    """Samples with the policy's own weights, without reading the checkpoint's generation_config. On
    x86-64 processors with a copy of them, which is made for each call and laid out for products
    with few rows, on GPUs with the copy of `fused`, elsewhere without one.

    A prompt is processed once for all its samples, and finished rows leave the batch. Later turns
    go on from the keys and values of earlier ones, of as many responses as are sampled at once. A
    response depends on the weights and on (seed, prompt id, how often that id occurred before,
    sample, iteration), not on other rows or a global generator. On a GPU rounding depends on the
    number of rows."""

    needs: ClassVar[RolloutNeeds] = RolloutNeeds(gives_entropies=True)

    batch_size: Count = 256
    """Number of rows decoded at once. All samples of a prompt are in one batch, even if they are
    more."""
    fused: bool = True
    """Compute queries, keys and values by one product, and on GPUs with adapters merged: in Llama,
    Mistral, Qwen2 and Qwen3 without shards and quantization (`policy.fused`). While it samples, a
    GPU holds a copy of the blocks in the data type of autocast, or without autocast and adapters of
    the joined weights."""

    graphs: bool = False
    """Record a decode step as a CUDA graph and replay it: one launch in place of hundreds. The
    recording fixes the number of rows and the size of the cache, so finished rows leave the batch
    when half are left. It needs `fused`."""

    @property
    def rows_at_once(self) -> int:
        return self.batch_size

    def check_policy(self, policy: Policy) -> None:
        """Check on two short texts that sampling gives the log-probabilities of training, unless a
        batch is one prompt also in one batch, which pads the shorter one.

        Raises:
            UserError: it does not; training would be off-policy without a trace of it in the loss.
        """
        if policy.device.type == "meta" or not policy.is_checked:  # else the learner comes back
            return
        size = policy.model.config.get_text_config().vocab_size
        prompts = [[(7 * i + 5 * length) % size for i in range(length)] for length in LENGTHS]
        with unsharded(policy):  # gathered weights may have another data type than shards
            weight = next(policy.parameters())
            is_float32 = weight.dtype == torch.float32 and autocast_dtype(weight) is None
        # embeddings are float32 also in a model with products in 8 bits
        is_exact = is_float32 and not has_int8_products(policy.model)
        max_gap = MAX_GAP if is_exact else MAX_GAP_ROUNDED
        name = type(policy.model).__name__
        gap = max(sampler_gap(policy, [prompt], None, self.fused) for prompt in prompts)
        if not gap <= max_gap:
            raise UserError(
                f"policy: {name} gives other log-probabilities with a cache than without "
                f"({gap:.2g} nats per token), which is not supported: choose another model"
            )
        if self.graphs:
            check_graphs(policy, self.fused)
            check_replays(policy, prompts, max_gap)
        if self.batch_size == 1:
            return
        short, long = prompts
        shared = [[*long[:5], *short[:1]], long]
        gap = max(
            sampler_gap(policy, prompts, None, self.fused),
            sampler_gap(policy, shared, [5, 5], self.fused),
        )
        if not gap <= max_gap:
            raise UserError(
                f"policy: padding changes the log-probabilities of {name} by {gap:.2g} nats per "
                "token, because it reaches the model's state: "
                "type rollout.batch_size=1, which samples one prompt at a time, without padding"
            )

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite.
        """
        samples = len(contexts[0].samples) if contexts else 1
        # Contexts of similar length together, for little padding; the longest first, so that a lack
        # of memory shows at once.
        order = sorted(range(len(contexts)), key=lambda i: -len(contexts[i].tokens))
        size = max(1, self.batch_size // samples)
        continuations: dict[int, list[Continuation]] = {}
        progress = Progress(self.on_tokens, len(contexts) * samples)
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            batch = [contexts[i] for i in indices]
            decoded = self._decode_batch(self.synced, batch, iteration, progress)
            continuations.update(zip(indices, decoded, strict=True))
        return [continuations[i] for i in range(len(contexts))]

    def sampling(self) -> AbstractContextManager[None]:
        """Prepare the policy for sampling: eval mode, weights gathered and laid out once for all
        calls of `extend` in the block. To gather sharded weights, ranks wait for each other when
        they enter the block, and not in it: they may make different numbers of calls."""
        return sampling(self.synced, self.fused)

    def _decode_batch(
        self, policy: Policy, batch: list[Context], iteration: int, progress: Progress
    ) -> list[list[Continuation]]:
        limits = [context.limit for context in batch]
        uniforms = []
        pasts = []
        for context in batch:
            prompt = context.prompt
            start = context.position
            for sample in context.samples:
                key = (self.seed, prompt.prompt.id, prompt.occurrence, sample, iteration)
                uniforms.append(keyed_uniforms(start + max(limits), *key)[start:])
            pasts.append(context.past)
            context.past = None
        ends = [(*self.stop, *context.stop) for context in batch]
        lengths = [len(text.encode()) for texts in ends for text in texts]

        def stop(prompt: int, tokens: list[int]) -> bool:
            text = policy.decode(tokens) if ends[prompt] else ""
            return any(end in text for end in ends[prompt])

        decoded = decode(
            policy,
            [context.tokens for context in batch],
            limits,
            torch.from_numpy(np.stack(uniforms)),
            beginnings=[context.num_shared for context in batch],
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=stop if lengths else None,
            # An ordinary token decodes to at least one byte; the extra tokens allow for special
            # ones, which decode to none.
            window=max(lengths, default=0) + 8,
            on_step=progress,
            num_entropies=max(context.num_entropies for context in batch),
            pasts=pasts,
            keep=[context.keep for context in batch],
            graphs=self.graphs,
        )
        if not bool(decoded.logprobs.isfinite().all()):
            raise diverged(iteration)
        sampled = iter(decoded.continuations())
        return [list(islice(sampled, len(context.samples))) for context in batch]


LENGTHS = (2, 9)
"""Tokens of the prompts."""
NUM_TOKENS = 4
"""Tokens of the responses."""
MAX_GAP = 1e-3
"""Largest mean distance that rounding explains, nats per token."""
MAX_GAP_ROUNDED = 0.2
"""The same for weights of 16 bits and for products in 8 bits."""


@torch.no_grad()
def sampler_gap(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    beginnings: Sequence[int] | None = None,
    fused: bool = False,
    graphs: bool = False,
    num_tokens: int = NUM_TOKENS,
) -> float:
    """Return the mean of |log pi - log pi'| over the tokens of a response to each prompt, sampled
    in one batch with pi' and scored with pi. `beginnings`: number of ids of each prompt that are
    processed once for those that have them in common.

    The first token of the vocabulary with a cumulative probability above 1/2 is sampled, so nothing
    is random."""
    with sampling(policy, fused):
        decoded = decode(
            policy,
            prompts,
            [num_tokens] * len(prompts),
            torch.full((len(prompts), num_tokens), 0.5, dtype=torch.float64),
            beginnings=beginnings,
            # so that beginnings are shared, or not, however short the prompts are
            forward_cost=1_000_000 if beginnings is None else 0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            graphs=graphs,
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


def check_replays(policy: Policy, prompts: Sequence[Sequence[int]], max_gap: float) -> None:
    """Check that replayed decode steps give the log-probabilities of training.

    Raises:
        UserError: they do not, or a step cannot be recorded.
    """
    advice = "type rollout.graphs=false"
    try:
        num_tokens = MIN_REPLAYS + NUM_TOKENS
        gap = sampler_gap(policy, prompts, fused=True, graphs=True, num_tokens=num_tokens)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = in_one_line(error.__context__ or error, 160)
        raise UserError(
            f"rollout.graphs=true: a decode step cannot be recorded ({reason}): {advice}"
        ) from error
    if not gap <= max_gap:
        raise UserError(
            f"rollout.graphs=true changes log-probabilities by {gap:.2g} nats per token: {advice}"
        )
