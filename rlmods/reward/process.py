"""Rewards by step: of a trained process reward model, and of written calculations."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from rlmods.data.solutions import OPERATIONS
from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.policy.scalar import ScalarModel
from rlmods.policy.tiny import character_tokenizer
from rlmods.reward.neural import RewardModelBase
from rlmods.settings.bounds import Count, bounded
from rlmods.types import Response, Scores

Aggregate = Literal["min", "mean", "last", "product"]


def aggregate_steps(steps: Sequence[float], how: Aggregate | None) -> float:
    """Return one score of the steps of a response, of which there is at least one: their sum
    without `how`."""
    if how == "min":
        return min(steps)
    if how == "last":
        return steps[-1]
    if how == "product":
        return math.prod(steps)
    if how == "mean":
        return math.fsum(steps) / len(steps)
    return float(sum(steps))


def step_ends(
    decode: Callable[[Sequence[int]], str], tokens: Sequence[int], separator: str
) -> list[int]:
    """Index of the last token of each step: the token that completes the separator, and the last
    token of the response.

    A step contains more than whitespace; whitespace alone belongs to the step before, so that
    consecutive separators count as one."""
    text = decode(tokens)
    pattern = re.escape(separator)
    runs = [run.span() for run in re.finditer(rf"{pattern}(?:\s*{pattern})*", text)]
    ends = [end for start, end in runs if text[:start].strip() and text[end:].strip()]
    indices = set(tokens_at(decode, tokens, ends))
    return sorted(indices | {len(tokens) - 1} if tokens else indices)


def tokens_at(
    decode: Callable[[Sequence[int]], str], tokens: Sequence[int], ends: Sequence[int]
) -> list[int]:
    """Index of the token that completes the first `end` characters of the text, for each `end` of
    `ends`."""
    return [
        bisect_left(range(len(tokens)), end, key=lambda i: len(decode(tokens[: i + 1])))
        for end in ends
    ]


def scores_by_step(
    responses: Sequence[Response],
    ends: Sequence[Sequence[int]],
    steps: Sequence[Sequence[float]],
    how: Aggregate | None,
) -> Scores:
    """Return the scores of the steps of each response, whose last tokens have the indices `ends`:
    one reward per step, or with `how` their aggregate. A response without steps abstains."""
    values = [aggregate_steps(row, how) if row else None for row in steps]
    scores = Scores(values, columns={"steps": steps})
    if how is not None:
        return scores
    rows = []
    for response, indices, row in zip(responses, ends, steps, strict=True):
        rewards: list[float | None] = [None] * len(response.tokens)
        for index, step in zip(indices, row, strict=True):
            rewards[index] = step
        rows.append(rewards)
    return replace(scores, tokens=rows)


@dataclass(frozen=True)
@bounded("reward")
class Process(RewardModelBase):
    """Step scores of a trained process reward model: sigmoid(head(hidden_t)) at the last token of
    each step, the probability that the step is correct.

    Without `aggregate` these are per-token rewards, None on tokens that do not end a step, and the
    value is their sum, which grows with the number of steps: the advantage estimator must read
    steps (advantage=process). With `aggregate` the value is their aggregate (arXiv:2305.20050 uses
    product and min). The scores are logged as the column `steps`. A response without tokens
    abstains. Per-token rewards refer to the sampled tokens and require a reward model with the
    policy's tokenizer; with `aggregate` any reward model can be used, and it encodes the text with
    its own tokenizer.

    Raises UserError if there is no such reward model, if its tokenizer differs but must not, and
    for a text that exceeds its context."""

    model: str | None = None
    """Run, directory or hub name of a process reward model."""
    separator: str = "\n"
    """Text that ends a step."""
    aggregate: Aggregate | None = None
    """min, mean, last or product: one score per response. null: one reward per step."""
    token_budget: Count = 8192
    """Maximum number of tokens in one forward pass, padding included."""

    def __post_init__(self) -> None:
        self.check("process")

    @property
    def needs(self) -> RewardNeeds:
        by_step = self.aggregate is None
        return RewardNeeds(gives_steps=by_step, gives_outcomes=not by_step)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        (network,) = self.networks
        rows = []
        ends = []
        for response in responses:
            prompt = network.encode(response.prompt)
            tokens = self._tokens(network, response, prompt)
            rows.append((prompt, tokens))
            ends.append(step_ends(network.decode, tokens, self.separator))
        probabilities = network.grade(rows, self.token_budget).sigmoid()
        steps = [probabilities[i, indices].tolist() for i, indices in enumerate(ends)]
        return scores_by_step(responses, ends, steps, self.aggregate)

    def _tokens(self, network: ScalarModel, response: Response, prompt: list[int]) -> list[int]:
        """Input of the reward model: the sampled tokens if its tokenizer agrees with them, else its
        own encoding of the text."""
        sampled = list(response.tokens)
        texts = (network.decode(sampled), network.decode(sampled[:-1]))
        if prompt == list(response.prompt_tokens) and response.text in texts:
            return sampled
        if self.aggregate is None:
            raise UserError(
                f"reward=process: {self.model!r} has another tokenizer than the policy, so "
                "its step scores cannot be assigned to "
                "the policy's tokens: type reward.terms.process.reward.aggregate=min"
            )
        finished = response.finish == "stop"
        return network.encode_response(response.text, response.prompt, finished=finished)


CALCULATION = re.compile(r"(-?\d{1,12})([-+*])(-?\d{1,12})=(-?\d{1,24})")


def is_right(line: str) -> bool:
    """Return True for a calculation such as `30+40=70` that is right."""
    match = CALCULATION.fullmatch(line)
    if match is None:
        return False
    x, operator, y, value = match.groups()
    return bool(OPERATIONS[operator](int(x), int(y)) == int(value))


@dataclass(frozen=True)
@bounded("reward")
class Calculations:
    """1 for each line that is a right calculation, such as `30+40=70`, else 0: a process reward
    without a model. A step is a line that ends in a line break, so the answer behind the last one
    is not scored. A right step may follow from a wrong one, or may not help.

    Without `aggregate` these are rewards of tokens, as those of `Process`: type advantage=process.
    The scores are logged as the column `steps`. A response without steps abstains.

    Raises:
        UserError: the tokens of a response are not those of policy=tiny, one per character.
    """

    aggregate: Aggregate | None = None
    """min, mean, last or product: one score per response. null: one reward per step."""

    @property
    def needs(self) -> RewardNeeds:
        by_step = self.aggregate is None
        return RewardNeeds(gives_steps=by_step, gives_outcomes=not by_step)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        lines = [response.text.split("\n")[:-1] for response in responses]
        steps = [[float(is_right(line)) for line in own] for own in lines]
        ends = list(map(self._ends, responses)) if self.aggregate is None else []
        return scores_by_step(responses, ends, steps, self.aggregate)

    @cached_property
    def _tokenizer(self) -> Any:
        return character_tokenizer()

    def _ends(self, response: Response) -> list[int]:
        """Return the index of each token that is a line break.

        Raises:
            UserError: the tokens are not those of policy=tiny.
        """
        tokens = self._tokenizer.convert_ids_to_tokens(response.tokens)
        # a policy may sample special tokens anywhere, and the text has none
        no_text = {None, *self._tokenizer.all_special_tokens}
        pieces = ["" if token in no_text else token for token in tokens]
        if not "".join(pieces).startswith(response.text):
            raise UserError(
                "reward=calculations assigns its scores to the characters of policy=tiny: type "
                "policy=tiny, or aggregate=min beside _target_: rlmods.reward.Calculations"
            )
        return [i for i, piece in enumerate(pieces) if piece == "\n"]
