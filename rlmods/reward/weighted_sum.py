"""Weighted sum of rewards."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.grading.pool import WorkerError
from rlmods.needs import RewardNeeds
from rlmods.reward.isolated import Isolated
from rlmods.reward.members import check_members
from rlmods.reward.scores import as_scores
from rlmods.types import Prompt, Response, Scores


@dataclass(frozen=True)
class WeightedSum:
    """Weighted sum of rewards: sum over terms of weight * reward. A term that abstains on a
    response (None) is left out of that sum; if all terms abstain, so does the sum.

    The unweighted scores of each term are in `Scores.terms`; its counts and columns are kept as
    `<term>/<name>`. `Scores.correct` is taken from the first term that has it. Any reward can be a
    term, in YAML or from the command line:

        reward.terms.format.weight=0.1    ~reward.terms.overlong
        +reward@reward.terms.brevity.reward=brevity

    `reward.terms.NAME.timeout_s=5` runs a term in worker processes (`Isolated`): it abstains on
    responses on which it hangs or crashes.

    A term of weight 0 is a monitor: its scores, and its correctness if no weighted term has one,
    are logged only (`Scores.monitored`). The data need not have answers for it, and the sum
    abstains if all other terms do.

    If a term gives rewards by token, so does the sum; the score of a term without token rewards is
    added to the last token, which then ends a step. None marks a token that ends no step of any
    term. `Scores.step_tokens` and `Scores.outcomes` have the two kinds of terms apart.

    Raises: UserError for terms of another form, if all weights are 0, or if the worker processes of
    a term exit during every call; ValueError naming the term for a result that is not one finite
    number or None per response; RuntimeError naming the term, file and line if a term raises: a
    silent score of 0 would be a wrong training signal."""

    terms: Mapping[str, Mapping[str, Any]]
    """By name: `reward`, the callable; `weight`, 1 by default; and `timeout_s`, by default none. In
    YAML, `_convert_: all` keeps Hydra from treating the rewards, which are dataclasses, as
    configuration."""

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError(
                "WeightedSum: reward.terms is empty: type "
                "+reward@reward.terms.accuracy.reward=accuracy"
            )
        for name, term in self.terms.items():
            _check_term(name, term)
        self.rewards  # noqa: B018 - fail now for a term that cannot be isolated
        if not any(self.weights.values()):
            raise UserError(
                "WeightedSum: every weight is 0, so nothing is rewarded: type "
                f"reward.terms.{next(iter(self.terms))}.weight=1"
            )

    @property
    def members(self) -> dict[str, Any]:
        return {f"terms.{name}.reward": term["reward"] for name, term in self.terms.items()}

    @property
    def needs(self) -> RewardNeeds:
        weighted = [name for name, weight in self.weights.items() if weight]
        return RewardNeeds.combine(self.terms[name]["reward"] for name in weighted)

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that all terms can grade responses to `prompt`. Raises ValueError."""
        check_members(self.members.values(), prompt)

    @cached_property
    def rewards(self) -> dict[str, Callable[[Sequence[Response]], Any]]:
        """Callables of the terms, by name."""
        rewards = {}
        for name, term in self.terms.items():
            reward = term["reward"]
            timeout_s = term.get("timeout_s")
            rewards[name] = reward if timeout_s is None else Isolated(reward, timeout_s)
        return rewards

    @cached_property
    def weights(self) -> dict[str, float]:
        return {name: float(term.get("weight", 1.0)) for name, term in self.terms.items()}

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores: dict[str, Scores] = {}
        weighted: dict[str, Scores] = {}
        by_step: dict[str, Scores] = {}
        by_response: dict[str, Scores] = {}
        for name, reward in self.rewards.items():
            term = run_reward(name, reward, responses)
            scores[name] = term
            if self.weights[name]:
                weighted[name] = term
                kind = by_response if term.tokens is None else by_step
                kind[name] = term
        total = Scores(
            values=self._totals(weighted, len(responses)),
            weights={name: self.weights[name] for name in weighted},
            **_correctness(scores, weighted),
            **_merged(scores),
        )
        if not by_step:
            return total
        return replace(
            total,
            tokens=self._token_rewards(weighted, responses),
            step_tokens=self._token_rewards(by_step, responses),
            outcomes=self._totals(by_response, len(responses)) if by_response else None,
        )

    def _totals(self, scores: Mapping[str, Scores], num_responses: int) -> list[float | None]:
        """Return the weighted sum of the terms' values."""
        totals = []
        for row in range(num_responses):
            values = [_times(self.weights[name], term.values[row]) for name, term in scores.items()]
            totals.append(_sum(values))
        return totals

    def _token_rewards(
        self, scores: Mapping[str, Scores], responses: Sequence[Response]
    ) -> list[list[float | None]]:
        """Return the weighted sum of token rewards; a reward per response is on the last sampled
        token."""
        rows = []
        for row, response in enumerate(responses):
            total: list[float | None] = [None] * len(response.tokens)
            for name, term in scores.items():
                rewards = _rewards_of_row(name, term, row, response)
                if rewards is not None:
                    added = [_times(self.weights[name], reward) for reward in rewards]
                    total = list(map(_sum, zip(total, added, strict=True)))
            rows.append(total)
        return rows


def _check_term(name: str, term: Any) -> None:
    """Raise UserError for a term of another form."""
    is_term = isinstance(term, Mapping) and set(term) <= {"reward", "weight", "timeout_s"}
    if not is_term or not callable(term.get("reward")):
        raise UserError(
            f"WeightedSum: terms.{name} must be {{weight: NUMBER, reward: REWARD}} "
            f"(with _convert_: all in YAML): type +reward@reward.terms.{name}.reward=OPTION "
            f"+reward.terms.{name}.weight=1.0"
        )
    weight = term.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise UserError(f"WeightedSum: terms.{name}.weight={weight!r} is not a number")


def _correctness(scores: Mapping[str, Scores], weighted: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the correctness of the first term that has it, weighted terms first, and whether it is
    monitored only."""
    reported = {name: term for name, term in scores.items() if term.correct is not None}
    for name, term in reported.items():
        if name in weighted and not term.monitored:
            return {"correct": term.correct, "monitored": False}
    for term in reported.values():
        return {"correct": term.correct, "monitored": True}
    return {}


def _merged(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return terms, counts and columns under the names of the terms."""
    terms: dict[str, Any] = {}
    counts: dict[str, int] = {}
    columns: dict[str, Any] = {}
    for name, term in scores.items():
        terms |= {name: term.values} | _prefixed(name, term.terms)
        counts |= _prefixed(name, term.counts)
        columns |= _prefixed(name, term.columns)
    return {"terms": terms, "counts": counts, "columns": columns}


def _rewards_of_row(
    name: str, term: Scores, row: int, response: Response
) -> Sequence[float | None] | None:
    """Return a term's reward of each token of a response, None if it abstains."""
    value = term.values[row]
    if value is None or not response.tokens:
        return None
    if term.tokens is None:
        return _on_last_sampled(value, response)
    rewards = term.tokens[row]
    if len(rewards) != len(response.tokens):
        raise ValueError(
            f"reward {name}: {len(rewards)} token rewards for the {len(response.tokens)} "
            f"tokens of response {row}"
        )
    return rewards


def run_reward(
    name: str, reward: Callable[[Sequence[Response]], Any], responses: Sequence[Response]
) -> Scores:
    """Return the scores of a reward called `name`.

    Raises:
        UserError: the reward raises one, or its worker processes exit during every call.
        RuntimeError: the reward raises another exception; the message names the reward, file and
        line.
        ValueError: a result that is not one finite number or None for each response.
    """
    try:
        result = reward(responses)
    except UserError:
        raise
    except WorkerError as error:
        raise UserError(f"reward {name}: {error}") from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise RuntimeError(
            f"reward {name} raised {type(error).__name__}: {error} "
            f"({frame.filename}:{frame.lineno})"
        ) from error
    return as_scores(result, len(responses), name)


def _on_last_sampled(value: float, response: Response) -> list[float | None]:
    """Return a reward for each token, None except on the last token that the policy sampled."""
    rewards: list[float | None] = [None] * len(response.tokens)
    for position in reversed(range(len(rewards))):
        if response.mask is None or response.mask[position]:
            rewards[position] = value
            break
    return rewards


def _times(weight: float, score: float | None) -> float | None:
    return None if score is None else weight * score


def _sum(scores: Iterable[float | None]) -> float | None:
    """Return the sum of the scores that are not None, or None if there are none."""
    known = [score for score in scores if score is not None]
    return sum(known) if known else None


def _prefixed(name: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}/{key}": value for key, value in entries.items()}
