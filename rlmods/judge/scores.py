"""Judges that compare the scores of a reward function or of a trained reward model."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from rlmods.errors import UserError
from rlmods.needs import JudgeNeeds, RewardNeeds, needs_of
from rlmods.protocols import Candidate
from rlmods.reward import Accuracy, Neural as RewardModel
from rlmods.reward.scores import as_scores
from rlmods.settings.bounds import NonNegative, bounded
from rlmods.types import Prompt, Response, as_response

Pair = tuple[Prompt, Candidate, Candidate]
"""A prompt and two responses to it."""


def compare_scores(
    pairs: Sequence[Pair],
    reward: Callable[[Sequence[Response]], Any],
    tie: float,
    counts: Counter[str],
) -> list[float | None]:
    """Return one verdict per pair: 1.0 if the first response has the higher score, 0.0 if the
    second has, 0.5 if they differ by at most `tie`, None if a score is missing.

    `reward` is called once; a response to a prompt object that is in several pairs is scored once.
    The reward's own counts, such as the number of answers that could not be graded, are added to
    `counts`.

    Raises:
        ValueError: a score that is neither a finite number nor None.
    """
    responses: dict[tuple[int, str, str], Response] = {}
    keys = []
    for prompt, *candidates in pairs:
        for candidate in candidates:
            response = as_response(prompt, candidate)
            key = (id(prompt), response.text, response.finish)
            responses.setdefault(key, response)
            keys.append(key)
    scores = as_scores(reward(list(responses.values())), len(responses), "judge")
    counts.update(scores.counts)
    values = dict(zip(responses, scores.values, strict=True))
    verdicts: list[float | None] = []
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        a = values[first]
        b = values[second]
        if a is None or b is None:
            verdicts.append(None)
        else:
            verdicts.append(0.5 if abs(a - b) <= tie else float(a > b))
    return verdicts


@dataclass(frozen=True)
@bounded("judge")
class Rule:
    """Judge that prefers the response with the higher reward; no verdict if the reward abstains on
    either. It takes any reward:

        +reward@judge.reward=math

    Responses that come from a file have a text but no tokens: terms that count tokens, such as an
    overlong penalty, are 0 for them.

    Raises: UserError if `reward` is not callable or `tie` is negative.
    """

    reward: Callable[[Sequence[Response]], Any] | None = None
    """Reward to compare by. null: `Accuracy`, i.e. whether the final answer equals the gold
    answer."""
    tie: NonNegative = 0.0
    """Largest difference of rewards that is a tie."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Running totals of the reward's counts: `timeouts` and `errors` of answers that could not be
    graded."""

    def __post_init__(self) -> None:
        if not callable(self.scorer):
            raise UserError("judge.reward cannot be called: type +reward@judge.reward=accuracy")

    @cached_property
    def scorer(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def needs(self) -> JudgeNeeds:
        return JudgeNeeds(answer=needs_of(self.scorer, RewardNeeds).answer, responses=True)

    def __call__(self, prompt: Prompt, first: Candidate, second: Candidate) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return one verdict per pair. Each response is scored once, all in one call of the
        reward."""
        return compare_scores(pairs, self.scorer, self.tie, self.counts)


@dataclass(frozen=True)
@bounded("judge")
class Neural:
    """Judge that prefers the response with the higher reward model score.

    Responses are encoded with the reward model's own tokenizer; a truncated one has no end-of-text
    token. The model is loaded at the first comparison.

    Raises: UserError if there is no such model or `tie` is negative; at a comparison, for a text
    that exceeds the model's context."""

    model: str | Sequence[str] | None = None
    """Run of `algo=reward_model`, directory or hub name; or a list of them, whose mean score is
    used."""
    tie: NonNegative = 0.0
    """Largest difference of scores that is a tie."""

    needs: ClassVar[JudgeNeeds] = JudgeNeeds(responses=True)

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("judge=neural needs a reward model: type judge.model=RUN_OR_DIRECTORY")
        self.scorer.check("neural")

    @cached_property
    def scorer(self) -> RewardModel:
        return RewardModel(self.model)

    def __call__(self, prompt: Prompt, first: Candidate, second: Candidate) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return one verdict per pair. Each response is scored once, in batches."""
        return compare_scores(pairs, self.scorer, self.tie, Counter())
