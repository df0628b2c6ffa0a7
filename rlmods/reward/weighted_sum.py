"""Weighted sum of rewards."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.grading.pool import WorkerError
from rlmods.needs import RewardNeeds
from rlmods.protocols import ChecksPrompt
from rlmods.reward.isolated import Isolated
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
            if (
                not isinstance(term, Mapping)
                or not callable(term.get("reward"))
                or not set(term) <= {"reward", "weight", "timeout_s"}
            ):
                typed = (
                    f"type +reward@reward.terms.{name}.reward=OPTION "
                    f"+reward.terms.{name}.weight=1.0"
                )
                raise UserError(
                    f"WeightedSum: terms.{name} must be {{weight: NUMBER, reward: REWARD}} "
                    f"(with _convert_: all in YAML): {typed}"
                )
            weight = term.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UserError(f"WeightedSum: terms.{name}.weight={weight!r} is not a number")
        self.rewards  # noqa: B018 - fail now for a term that cannot be isolated
        if not any(self.weights.values()):
            raise UserError(
                "WeightedSum: every weight is 0, so nothing is rewarded: type "
                f"reward.terms.{next(iter(self.terms))}.weight=1"
            )

    @property
    def needs(self) -> RewardNeeds:
        weighted = [name for name, weight in self.weights.items() if weight]
        return RewardNeeds.combine(self.terms[name]["reward"] for name in weighted)

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that all terms can grade responses to `prompt`.

        Raises:
            ValueError: a term cannot.
        """
        for term in self.terms.values():
            reward = term["reward"]
            if isinstance(reward, ChecksPrompt):
                reward.check_prompt(prompt)

    @cached_property
    def rewards(self) -> dict[str, Callable[[Sequence[Response]], Any]]:
        """Callables of the terms, by name."""
        return {
            name: term["reward"]
            if term.get("timeout_s") is None
            else Isolated(term["reward"], term["timeout_s"])
            for name, term in self.terms.items()
        }

    @cached_property
    def weights(self) -> dict[str, float]:
        return {name: float(term.get("weight", 1.0)) for name, term in self.terms.items()}

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores = {
            name: run_reward(name, reward, responses) for name, reward in self.rewards.items()
        }
        weighted = {name: term for name, term in scores.items() if self.weights[name]}
        by_step = {name: term for name, term in weighted.items() if term.tokens is not None}
        by_response = {name: term for name, term in weighted.items() if term.tokens is None}
        with_correct = [name for name, term in scores.items() if term.correct is not None]
        rewarded = [
            name for name in with_correct if name in weighted and not scores[name].monitored
        ]
        return Scores(
            values=self._totals(weighted, len(responses)),
            correct=scores[[*rewarded, *with_correct][0]].correct if with_correct else None,
            monitored=bool(with_correct) and not rewarded,
            terms={
                key: values
                for name, term in scores.items()
                for key, values in {name: term.values, **_prefixed(name, term.terms)}.items()
            },
            weights={name: self.weights[name] for name in weighted},
            counts={
                key: count
                for name, term in scores.items()
                for key, count in _prefixed(name, term.counts).items()
            },
            columns={
                key: column
                for name, term in scores.items()
                for key, column in _prefixed(name, term.columns).items()
            },
            tokens=self._token_rewards(weighted, responses) if by_step else None,
            step_tokens=self._token_rewards(by_step, responses) if by_step else None,
            outcomes=self._totals(by_response, len(responses)) if by_step and by_response else None,
        )

    def _totals(self, scores: Mapping[str, Scores], num_responses: int) -> list[float | None]:
        """Return the weighted sum of the terms' values."""
        return [
            _sum(_times(self.weights[name], term.values[row]) for name, term in scores.items())
            for row in range(num_responses)
        ]

    def _token_rewards(
        self, scores: Mapping[str, Scores], responses: Sequence[Response]
    ) -> list[list[float | None]]:
        """Return the weighted sum of token rewards; a reward per response is on the last sampled
        token."""
        rows = []
        for row, response in enumerate(responses):
            total: list[float | None] = [None] * len(response.tokens)
            for name, term in scores.items():
                value = term.values[row]
                if value is None or not total:
                    continue
                rewards = (
                    _on_last_sampled(value, response) if term.tokens is None else term.tokens[row]
                )
                if len(rewards) != len(total):
                    raise ValueError(
                        f"reward {name}: {len(rewards)} token rewards for the {len(total)} "
                        f"tokens of response {row}"
                    )
                total = [
                    _sum((x, _times(self.weights[name], y)))
                    for x, y in zip(total, rewards, strict=True)
                ]
            rows.append(total)
        return rows


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
    sampled = [True] * len(response.tokens) if response.mask is None else list(response.mask)
    last = max((i for i, own in enumerate(sampled) if own), default=-1)
    return [value if i == last else None for i in range(len(sampled))]


def _times(weight: float, score: float | None) -> float | None:
    return None if score is None else weight * score


def _sum(scores: Iterable[float | None]) -> float | None:
    """Return the sum of the scores that are not None, or None if there are none."""
    known = [score for score in scores if score is not None]
    return sum(known) if known else None


def _prefixed(name: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}/{key}": value for key, value in entries.items()}
