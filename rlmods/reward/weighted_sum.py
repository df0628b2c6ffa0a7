"""Rewards that call other rewards: sums, means and noise, and what all rewards that do so share."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal, Protocol, runtime_checkable

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds, needs_of
from rlmods.reward.accuracy import Accuracy
from rlmods.reward.isolated import Isolated
from rlmods.reward.scores import as_scores, run_reward
from rlmods.settings.bounds import Fraction, Positive, bounded, mismatch
from rlmods.types import Response, Scores


@dataclass(frozen=True)
class Term:
    """A reward, as one that another reward calls."""

    path: str
    """Its key in the configuration; of a member, below the key of the reward that calls it."""
    reward: Any
    weight: float = 1.0
    """0: its score is not part of the reward."""
    source: str | None = None
    """Source of the prompts whose responses it grades; None: all."""

    @property
    def needs(self) -> RewardNeeds:
        """The declarations of the reward."""
        return needs_of(self.reward, RewardNeeds)


@runtime_checkable
class HasMembers(Protocol):
    """A reward that calls other rewards."""

    @property
    def members(self) -> Sequence[Term]:
        """The other rewards."""
        ...


def walk(term: Term) -> Iterator[Term]:
    """Yield a reward, those that it calls, those that these call, and so on."""
    yield term
    if not isinstance(term.reward, HasMembers):
        return
    for member in term.reward.members:
        path = f"{term.path}.{member.path}"
        weight = term.weight * member.weight
        yield from walk(Term(path, member.reward, weight, member.source or term.source))


def leaves(term: Term) -> Iterator[Term]:
    """Yield the rewards that call no others, among a reward and its members."""
    for inner in walk(term):
        if not isinstance(inner.reward, HasMembers):
            yield inner


def check_rewards(option: str, rewards: Mapping[str, Any]) -> None:
    """Raise UserError for an option without `rewards`, or with a value that is not a reward."""
    if not rewards:
        raise UserError(
            f"reward={option} needs rewards: type +reward@reward.rewards.NAME=OPTION for each"
        )
    for name, reward in rewards.items():
        if not callable(reward):
            raise UserError(
                f"reward.rewards.{name} is not a reward: type +reward@reward.rewards.{name}=OPTION"
            )


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

    If a term gives rewards by token, so does the sum (`combine`).

    Raises: UserError for terms of another form, if all weights are 0, or if the worker processes of
    a term exit during every call; ScoreError naming the term for a result that is not one finite
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
    def members(self) -> list[Term]:
        return [
            Term(f"terms.{name}.reward", term["reward"], self.weights[name])
            for name, term in self.terms.items()
        ]

    @property
    def needs(self) -> RewardNeeds:
        weighted = [name for name, weight in self.weights.items() if weight]
        return RewardNeeds.combine(self.terms[name]["reward"] for name in weighted)

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
        scores = {
            name: run_reward(name, reward, responses) for name, reward in self.rewards.items()
        }
        weights = {name: weight for name, weight in self.weights.items() if weight}
        weighted = {name: scores[name] for name in weights}
        total = replace(combine(weighted, weights, responses), weights=weights)
        reported = [term for term in scores.values() if term.correct is not None]
        counted = [
            term for term in weighted.values() if term.correct is not None and not term.monitored
        ]
        if reported:
            correct = (counted or reported)[0].correct
            total = replace(total, correct=correct, monitored=not counted)
        terms: dict[str, Any] = {}
        counts: dict[str, int] = {}
        columns: dict[str, Any] = {}
        for name, term in scores.items():
            terms |= {name: term.values} | prefixed(name, term.terms)
            counts |= prefixed(name, term.counts)
            columns |= prefixed(name, term.columns)
        return replace(total, terms=terms, counts=counts, columns=columns, members=scores)


def _check_term(name: str, term: Any) -> None:
    """Raise UserError for a term of another form."""
    is_term = isinstance(term, Mapping) and set(term) <= {"reward", "weight", "timeout_s"}
    if not is_term or not callable(term.get("reward")):
        raise UserError(
            f"WeightedSum: terms.{name} must be {{weight: NUMBER, reward: REWARD}} "
            f"(with _convert_: all in YAML): type +reward@reward.terms.{name}.reward=OPTION "
            f"+reward.terms.{name}.weight=1.0"
        )
    rules = (("weight", 1.0, float), ("timeout_s", None, Positive | None))
    for key, default, annotation in rules:
        value = term.get(key, default)
        allowed = mismatch(value, annotation)
        if allowed is not None:
            raise UserError(f"reward.terms.{name}.{key}={value}: must be {allowed}")


def combine(
    scores: Mapping[str, Scores], weights: Mapping[str, float], responses: Sequence[Response]
) -> Scores:
    """Return the weighted sum of scores.

    If some are by token, so is the sum; a score without token rewards is added to the last sampled
    token, which then ends a step. None marks a token that ends no step of any reward.
    `Scores.step_tokens` and `Scores.outcomes` have the two kinds of rewards apart.

    Raises:
        ValueError: another number of token rewards than of tokens.
    """
    total = Scores(_totals(scores, weights, len(responses)))
    steps = {}
    outcomes = {}
    for name, term in scores.items():
        if term.tokens is None:
            outcomes[name] = term
            continue
        steps[name] = replace(term, tokens=term.step_tokens or term.tokens)
        if term.outcomes is not None:
            outcomes[name] = Scores(term.outcomes)
    if not steps:
        return total
    return replace(
        total,
        tokens=_token_totals(scores, weights, responses),
        step_tokens=_token_totals(steps, weights, responses),
        outcomes=_totals(outcomes, weights, len(responses)) if outcomes else None,
    )


def _totals(
    scores: Mapping[str, Scores], weights: Mapping[str, float], num_responses: int
) -> list[float | None]:
    totals: list[float | None] = [None] * num_responses
    for row in range(num_responses):
        totals[row] = _sum((weights[name], x.values[row]) for name, x in scores.items())
    return totals


def _token_totals(
    scores: Mapping[str, Scores], weights: Mapping[str, float], responses: Sequence[Response]
) -> list[list[float | None]]:
    rows = []
    for row, response in enumerate(responses):
        total: list[float | None] = [None] * len(response.tokens)
        for name, term in scores.items():
            value = term.values[row]
            if value is None:
                continue
            if term.tokens is None:
                rewards: Sequence[float | None] = _on_last_sampled(value, response)
            else:
                rewards = term.tokens[row]
            if len(rewards) != len(total):
                raise ValueError(
                    f"reward {name}: {len(rewards)} token rewards for the {len(total)} tokens of "
                    f"response {row}"
                )
            for position, reward in enumerate(rewards):
                total[position] = _sum([(1.0, total[position]), (weights[name], reward)])
        rows.append(total)
    return rows


def _on_last_sampled(value: float, response: Response) -> list[float | None]:
    """Return a reward for each token, None except on the last token that the policy sampled."""
    rewards: list[float | None] = [None] * len(response.tokens)
    for position in reversed(range(len(rewards))):
        if response.mask is None or response.mask[position]:
            rewards[position] = value
            break
    return rewards


def _sum(terms: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the sum of weight * score over the scores that are not None; None if there are
    none."""
    known = [weight * score for weight, score in terms if score is not None]
    return sum(known) if known else None


def prefixed(name: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries as `name/KEY`."""
    return {f"{name}/{key}": value for key, value in entries.items()}


_REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "min": min,
    "median": median,
}


@dataclass(frozen=True)
class Ensemble:
    """Mean, minimum or median of the rewards' scores of each response; the minimum is robust to a
    single reward that scores too high (arXiv:2310.02743). Rewards that abstain (None) are skipped;
    if all abstain, the ensemble abstains.

    Each reward's scores are in `Scores.terms`, its counts and columns are named `<reward>/<name>`,
    and correctness comes from the first reward that reports it, as in `WeightedSum`. The result is
    one number per response: per-token rewards are dropped. Rewards are added in YAML or from the
    command line:

        reward=ensemble +reward@reward.rewards.format=format
        +reward@reward.rewards.accuracy=accuracy

    Raises: UserError for no rewards, or one that gives rewards by step; the errors of `WeightedSum`
    if a reward fails."""

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]]
    """Rewards by name. In YAML, `_convert_: all` keeps Hydra from converting the rewards, which are
    dataclasses, to configs."""
    how: Literal["mean", "min", "median"] = "mean"
    """mean, min or median."""

    def __post_init__(self) -> None:
        check_rewards("ensemble", self.rewards)
        if not RewardNeeds.combine(self.rewards.values()).gives_steps:
            return
        for term in leaves(Term("reward", self)):
            if term.needs.gives_steps:
                raise UserError(
                    f"Ensemble: {term.path} gives one reward per step, and their sum pays for the "
                    f"number of steps: type {term.path}.aggregate=min"
                )

    @property
    def members(self) -> list[Term]:
        return [Term(f"rewards.{name}", reward) for name, reward in self.rewards.items()]

    @property
    def needs(self) -> RewardNeeds:
        return replace(RewardNeeds.combine(self.rewards.values()), gives_tokens=False)

    @cached_property
    def _sum(self) -> WeightedSum:
        """Calls the rewards and collects their terms, counts and columns."""
        return WeightedSum({name: {"reward": reward} for name, reward in self.rewards.items()})

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores = self._sum(responses)
        reduce = _REDUCTIONS[self.how]
        values = []
        for row in range(len(responses)):
            given = [scores.terms[name][row] for name in self.rewards]
            known = [score for score in given if score is not None]
            values.append(reduce(known) if known else None)
        return replace(scores, values=values, tokens=None)


@dataclass(frozen=True)
@bounded("reward")
class Flipped:
    """1 - r instead of the reward r of a `fraction` of the responses, chosen by a hash of `seed`,
    prompt and text: a grader that errs on some responses, on the same response always in the same
    way. Correctness, and so accuracy, stays what it is.

    Source: class-conditional label noise with equal rates (Natarajan et al., 2013).

        reward=flipped +reward@reward.reward=code

    Raises:
        UserError: a reward that gives rewards by step.
    """

    fraction: Fraction = 0.2
    """Fraction of responses with a flipped reward."""
    seed: int = 0
    """Seed of the choice; independent of the run's seed."""
    reward: Callable[[Sequence[Response]], Any] | None = None
    """Reward from 0 to 1. null: `Accuracy`."""

    def __post_init__(self) -> None:
        if not callable(self.grader):
            raise UserError("Flipped: reward cannot be called: type +reward@reward.reward=accuracy")
        if RewardNeeds.combine([self.grader]).gives_steps:
            raise UserError(
                "Flipped: its reward gives one number per step: type +reward@reward.reward=accuracy"
            )

    @cached_property
    def grader(self) -> Callable[[Sequence[Response]], Any]:
        return Accuracy() if self.reward is None else self.reward

    @property
    def members(self) -> list[Term]:
        return [Term("reward", self.grader)]

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds.combine([self.grader])

    def __call__(self, responses: Sequence[Response]) -> Scores:
        graded = as_scores(self.grader(responses), len(responses), "flipped")
        flips = list(map(self._is_flipped, responses))
        values = [
            1.0 - value if flip and value is not None else value
            for value, flip in zip(graded.values, flips, strict=True)
        ]
        columns = {**graded.columns, "flipped": flips}
        return replace(graded, values=values, monitored=True, columns=columns)

    def _is_flipped(self, response: Response) -> bool:
        key = f"{self.seed}\n{response.prompt.id}\n{response.text}"
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:7]) < self.fraction * 2**56
