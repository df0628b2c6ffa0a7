"""Rewards by source of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.reward.members import check_members
from rlmods.reward.weighted_sum import run_reward
from rlmods.types import Prompt, Response, Scores


@dataclass(frozen=True)
class BySource:
    """Grade each response by the reward of its prompt's `source`, the name of a data set in a
    mixture.

    Each reward gets the responses of its own rows in one call. Terms and counts keep their names
    behind that of the source, `<source>/<name>`; columns of the same name are one column.
    Correctness is None where the reward reports none or only monitors it (`Scores.monitored`); a
    monitor's scores are among the terms. What a response gets does not depend on the other
    responses of the call, unless its own reward compares them.

    Raises: UserError without rewards, and for a prompt whose source has none.
    """

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]] = field(default_factory=dict)
    """Rewards by source, each an option of `reward`. In YAML, `_convert_: all` keeps Hydra from
    treating them as configuration."""

    def __post_init__(self) -> None:
        if not self.rewards:
            raise UserError(
                "reward=by_source needs rewards: type +reward@reward.rewards.NAME=OPTION for "
                "each source of the data"
            )
        for name, reward in self.rewards.items():
            if not callable(reward):
                raise UserError(
                    f"reward.rewards.{name}: is no reward: type "
                    f"+reward@reward.rewards.{name}=OPTION"
                )

    @property
    def members(self) -> dict[str, Any]:
        return {f"rewards.{name}": reward for name, reward in self.rewards.items()}

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds.combine(self.rewards.values())

    def _weights(self, source: str) -> dict[str, float]:
        """Return the weights of the terms of a source's reward that count; one without terms is the
        term `total`."""
        weights = getattr(self.rewards[source], "weights", None) or {"total": 1.0}
        return {name: weight for name, weight in weights.items() if weight}

    def for_prompt(self, prompt: Prompt) -> Any:
        """Return the reward that grades responses to `prompt`.

        Raises:
            UserError: there is none.
        """
        if prompt.source is None:
            advice = "type data=mixture, or data.source=COLUMN"
            raise UserError(
                f"reward=by_source grades by the source of a prompt, but prompt {prompt.id} "
                f"has none: {advice}"
            )
        if prompt.source not in self.rewards:
            problem = (
                f"reward=by_source has no reward for the source {prompt.source!r} of prompt "
                f"{prompt.id}, only for {', '.join(self.rewards)}"
            )
            raise UserError(f"{problem}: type +reward@reward.rewards.{prompt.source}=OPTION")
        return self.rewards[prompt.source]

    def check_prompt(self, prompt: Prompt) -> None:
        """Check that the reward of the prompt's source can grade responses to it.

        Raises:
            ValueError: it cannot.
        """
        check_members([self.for_prompt(prompt)], prompt)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        rows: dict[str, list[int]] = {}
        for row, response in enumerate(responses):
            self.for_prompt(response.prompt)
            rows.setdefault(str(response.prompt.source), []).append(row)
        parts: dict[str, _Part] = {}
        for name, own in rows.items():
            part_responses = [responses[row] for row in own]
            scores = run_reward(name, self.rewards[name], part_responses)
            parts[name] = _Part(scores, own, part_responses)
        num_rows = len(responses)

        def column(values: Callable[[_Part], Sequence[Any] | None]) -> list[Any]:
            return _merge([(part.rows, values(part)) for part in parts.values()], num_rows)

        merged = Scores(
            values=column(lambda part: part.scores.values),
            correct=column(lambda part: None if part.scores.monitored else part.scores.correct),
            terms=self._terms(parts, num_rows),
            weights={
                f"{name}/{term}": weight
                for name in self.rewards
                for term, weight in self._weights(name).items()
            },
            counts={
                f"{name}/{count}": value
                for name, part in parts.items()
                for count, value in part.scores.counts.items()
            },
            columns=_columns(parts, num_rows),
        )
        by_token = any(part.scores.tokens is not None for part in parts.values())
        if not self.needs.gives_steps and not by_token:
            return merged
        return replace(
            merged,
            tokens=column(_token_rewards),
            step_tokens=column(_step_tokens),
            outcomes=column(_outcomes) if self.needs.gives_outcomes else None,
        )

    def _terms(self, parts: Mapping[str, _Part], num_rows: int) -> dict[str, list[Any]]:
        """Return the terms of all rewards: the same on every rank, whatever the sources of its
        rows."""
        terms = {}
        for name, part in parts.items():
            for term, values in part.scores.terms.items():
                terms[f"{name}/{term}"] = _merge([(part.rows, values)], num_rows)
        for name in self.rewards:
            for term in self._weights(name):
                key = f"{name}/{term}"
                if key not in terms and term == "total" and name in parts:
                    part = parts[name]
                    terms[key] = _merge([(part.rows, part.scores.values)], num_rows)
                terms.setdefault(key, [None] * num_rows)
        gold = [(part.rows, part.scores.terms.get("gold")) for part in parts.values()]
        if any(values is not None for _, values in gold):
            terms["gold"] = _merge(gold, num_rows)
        return terms


@dataclass(frozen=True)
class _Part:
    """Scores of one source."""

    scores: Scores
    rows: Sequence[int]
    responses: Sequence[Response]


def _merge(parts: Iterable[tuple[Sequence[int], Sequence[Any] | None]], num_rows: int) -> list[Any]:
    """Return one column from the rows and values of some sources; None for all other rows."""
    merged: list[Any] = [None] * num_rows
    for rows, values in parts:
        if values is not None:
            for row, value in zip(rows, values, strict=True):
                merged[row] = value
    return merged


def _columns(parts: Mapping[str, _Part], num_rows: int) -> dict[str, list[Any]]:
    """Return the columns; those of the same name are one."""
    columns = {}
    for name in sorted({name for part in parts.values() for name in part.scores.columns}):
        values = [(part.rows, part.scores.columns.get(name)) for part in parts.values()]
        columns[name] = _merge(values, num_rows)
    return columns


def _token_rewards(part: _Part) -> Sequence[Sequence[float | None]]:
    """Return the token rewards of a source; a score without any is on the last token."""
    if part.scores.tokens is not None:
        return part.scores.tokens
    rows = []
    for response, value in zip(part.responses, part.scores.values, strict=True):
        rewards: list[float | None] = [None] * len(response.tokens)
        if rewards:
            rewards[-1] = value
        rows.append(rewards)
    return rows


def _step_tokens(part: _Part) -> Sequence[Sequence[float | None]]:
    """Return the token rewards of a source without its rewards per response."""
    if part.scores.step_tokens is not None:
        return part.scores.step_tokens
    if part.scores.tokens is not None:
        return part.scores.tokens
    return [[None] * len(response.tokens) for response in part.responses]


def _outcomes(part: _Part) -> Sequence[float | None]:
    """Return the rewards per response of a source, without its token rewards."""
    if part.scores.outcomes is not None:
        return part.scores.outcomes
    return part.scores.values if part.scores.tokens is None else [None] * len(part.responses)
