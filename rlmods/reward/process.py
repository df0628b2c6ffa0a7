"""The scores of a trained process reward model, step by step."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal, get_args

from rlmods.policy.scalar import ScalarModel
from rlmods.reward.neural import Trained
from rlmods.types import Response, Scores, UserError

Aggregate = Literal["min", "mean", "last", "product"]

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": fmean,
    "last": lambda steps: steps[-1],
    "product": math.prod,
}
"""Scores of the steps to one of the response."""


def step_ends(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], separator: str) -> list[int]:
    """Index of the last token of each step: the one that completes the separator, and the last token of all.

    A step has more than whitespace in it. What has not belongs to the step before: several separators with nothing between them are one.
    """
    text, mark = decode(tokens), re.escape(separator)
    runs = [run.span() for run in re.finditer(rf"{mark}(?:\s*{mark})*", text)]
    ends = [end for start, end in runs if text[:start].strip() and text[end:].strip()]
    found = set(tokens_at(decode, tokens, ends))
    return sorted(found | {len(tokens) - 1} if tokens else found)


def tokens_at(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Index of the token that completes so many characters of the text, for each of `ends`."""
    return [bisect_left(range(len(tokens)), end, key=lambda i: len(decode(tokens[: i + 1]))) for end in ends]


@dataclass(frozen=True)
class Process(Trained):
    """sigmoid(head(hidden_t)) at the last token of each step of a response, by a trained process reward model: the chance that it is right.

    Without `aggregate` these are rewards by token, None on tokens that end no step, and the value is their sum; with it the value is one
    number of them (arXiv:2305.20050 has product and min). The scores are logged as the column `steps`. A response without tokens
    abstains. Rewards by token lie on the sampled tokens, so they need a reward model with the policy's tokenizer; for one number a
    response any will do, and reads the text in its own.

    Raises UserError where there is no such reward model, where it has another tokenizer, and for a text that exceeds its context.
    """

    model: str | None = None
    """Run, directory or hub name of a process reward model."""
    separator: str = "\n"
    """What ends a step."""
    aggregate: Aggregate | None = None
    """min, mean, last or product: one number a response. null: a reward for each step."""
    token_budget: int = 8192
    """Tokens of one forward pass, padding included."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check("process")
        if not self.separator:
            raise UserError('Process: separator is empty: type separator="\\n"')
        if self.aggregate not in (None, *get_args(Aggregate)):
            raise UserError(f"Process: aggregate={self.aggregate!r} is none of null, {', '.join(get_args(Aggregate))}")

    @property
    def gives_steps(self) -> bool:
        """Whether there is a reward for each step."""
        return self.aggregate is None

    def __call__(self, responses: Sequence[Response]) -> Scores:
        (network,) = self.networks
        prompts = [network.encode(response.prompt) for response in responses]
        rows = [(prompt, self._tokens(network, response, prompt)) for prompt, response in zip(prompts, responses, strict=True)]
        ends = [step_ends(network.decode, tokens, self.separator) for _, tokens in rows]
        chances = network.grade(rows, self.token_budget).sigmoid()
        steps = [chances[i, at].tolist() for i, at in enumerate(ends)]
        join = sum if self.aggregate is None else AGGREGATES[self.aggregate]
        values = [float(join(scores)) if scores else None for scores in steps]
        if not self.gives_steps:
            return Scores(values, columns={"steps": steps})
        found = [dict(zip(at, scores, strict=True)) for at, scores in zip(ends, steps, strict=True)]
        tokens = [[scores.get(t) for t in range(len(response.tokens))] for scores, response in zip(found, responses, strict=True)]
        return Scores(values, columns={"steps": steps}, tokens=tokens)

    def _tokens(self, network: ScalarModel, response: Response, prompt: list[int]) -> list[int]:
        """What the reward model reads: the sampled tokens where they mean the same to it, else its own encoding of the text."""
        sampled = list(response.tokens)
        if prompt == list(response.prompt_tokens) and response.text in (network.decode(sampled), network.decode(sampled[:-1])):
            return sampled
        if self.gives_steps:
            raise UserError(
                f"reward=process: {self.model!r} has another tokenizer than the policy, so its scores have no place on the policy's "
                "tokens: type reward.terms.process.reward.aggregate=min"
            )
        return network.encode_response(response.text, finished=response.finish == "stop")
