"""Our own sampling engine, over any Hugging Face causal LM."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rlmods.distributed.sharding import unsharded
from rlmods.policy.base import Policy
from rlmods.rollout.decode import OnStep, decode, sampling_mode
from rlmods.rollout.draw import uniforms
from rlmods.types import Prompt, Response, UserError


@dataclass
class Local:
    """Samples with the policy's own weights: nothing is copied, and nothing in the checkpoint's generation_config is read.

    A prompt is read once for all its samples, and rows that have ended leave the batch. What a row says depends on the weights and on
    (seed, prompt id, how often that id came before, sample, iteration): not on its neighbours or a global generator.
    """

    max_tokens: int = 16
    """Tokens of a response at most, EOS included."""
    temperature: float = 1.0
    """Logits are divided by it. 0 is greedy; `behavior_logprobs` are then those of temperature 1 without truncation."""
    top_p: float = 1.0
    """Sample among the fewest words whose probability reaches this. 1: among all."""
    top_k: int = 0
    """Sample among this many most probable words. 0: among all."""
    stop: Sequence[str] = ()
    """A response ends with the token that completes one of these strings; the string stays in `tokens` and `text`."""
    batch_size: int = 256
    """Rows decoded at once. All samples of a prompt are in one batch, even if they are more."""
    seed: int = 0
    """Another seed, other samples."""
    on_tokens: Callable[[int, int, int], None] | None = field(default=None, init=False, repr=False, compare=False)
    """Called after every step with the rows that ended, the rows in all and the tokens sampled so far in this call of `generate`."""
    _policy: Policy | None = field(default=None, init=False, repr=False, compare=False)
    _seen: Counter[tuple[str, int]] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        rules = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "stop": (all(isinstance(text, str) and text for text in self.stop), "strings that are not empty"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
        }
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise ValueError(f"rollout.{name}={getattr(self, name)!r}: must be {wanted}")

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Sample from this policy, with the weights it has when `generate` is called."""
        self._policy = policy
        self._seen.clear()

    def generate(self, prompts: Sequence[Prompt], *, samples: int, iteration: int) -> list[Response]:
        """`samples` responses to each prompt, prompt-major. Leaves every module's train or eval mode as it was.

        Raises:
            UserError: a prompt is empty or leaves no room for an answer, or the policy's logits are not finite.
        """
        if self._policy is None:
            raise RuntimeError("generate() before sync(): there is no policy to sample from")
        questions = self._questions(self._policy, prompts)
        # Like lengths together, so that little is padding; the longest first, so that a lack of memory shows at once.
        order = sorted(range(len(prompts)), key=lambda i: -len(questions[i].tokens))
        share = max(1, self.batch_size // samples)
        found: dict[int, list[Response]] = {}
        report = self._report(len(prompts) * samples)
        with sampling_mode(self._policy), unsharded(self._policy):
            for start in range(0, len(order), share):
                batch = order[start : start + share]
                said = self._answers(self._policy, [questions[i] for i in batch], samples, iteration, report)
                found.update(zip(batch, said, strict=True))
        return [response for i in range(len(prompts)) for response in found[i]]

    def _questions(self, policy: Policy, prompts: Sequence[Prompt]) -> list[_Question]:
        questions = []
        for prompt in prompts:
            tokens = policy.encode(prompt)
            if not tokens:
                raise UserError(f"prompt {prompt.id}: empty, so there is nothing for the model to continue; remove it from the data")
            if len(tokens) >= policy.context_length:
                room = f"{len(tokens)} tokens leave no room for an answer in the model's context of {policy.context_length}"
                raise UserError(f"prompt {prompt.id}: {room}; shorten it in the data, or type policy=... for a model with a longer context")
            questions.append(_Question(prompt, tokens, self._seen[prompt.id, prompt.time] + (prompt.time << 20)))
            self._seen[prompt.id, prompt.time] += 1
        return questions

    def _answers(self, policy: Policy, batch: list[_Question], samples: int, iteration: int, report: OnStep | None) -> list[list[Response]]:
        limits = [min(self.max_tokens, policy.context_length - len(q.tokens)) for q in batch]
        streams = [(self.seed, q.prompt.id, q.occurrence, sample, iteration) for q in batch for sample in range(samples)]
        decoded = decode(
            policy,
            [q.tokens for q in batch],
            limits,
            torch.from_numpy(np.stack([uniforms(max(limits), *stream) for stream in streams])),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=(lambda tokens: any(text in policy.decode(tokens) for text in self.stop)) if self.stop else None,
            # A token that is not special gives a byte or more; some special ones among them give none.
            window=max((len(text.encode()) for text in self.stop), default=0) + 8,
            on_step=report,
        )
        if not bool(decoded.logprobs.isfinite().all()):
            raise UserError(f"iteration {iteration}: the policy's logits are not finite, training has diverged; lower optimizer.lr")
        rows = zip(*(x.tolist() for x in (decoded.tokens, decoded.logprobs, decoded.lengths, decoded.stopped)), strict=True)
        return [[_response(policy, q, next(rows), sample, iteration) for sample in range(samples)] for q in batch]

    def _report(self, total: int) -> OnStep | None:
        """Adds up the steps of one call."""
        hook, done, tokens = self.on_tokens, 0, 0
        if hook is None:
            return None

        def report(ended: int, sampled: int) -> None:
            nonlocal done, tokens
            done, tokens = done + ended, tokens + sampled
            hook(done, total, tokens)

        return report


@dataclass(frozen=True, slots=True)
class _Question:
    prompt: Prompt
    tokens: list[int]
    occurrence: int
    """How often the prompt's id came before since `sync`: a question that is asked again gets different answers."""


def _response(policy: Policy, question: _Question, row: tuple[list[int], list[float], int, bool], sample: int, iteration: int) -> Response:
    tokens, logprobs, length, stopped = row
    tokens, logprobs = tokens[:length], logprobs[:length]
    return Response(
        prompt=question.prompt,
        prompt_tokens=question.tokens,
        tokens=tokens,
        behavior_logprobs=logprobs,
        text=policy.decode(tokens[:-1] if tokens[-1] in policy.eos_ids else tokens),
        finish="stop" if stopped else "length",
        meta={"sample": sample, "iteration": iteration},
    )
