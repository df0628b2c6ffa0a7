"""Rewards by source of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.protocols import ChecksPrompt
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
        reward = self.for_prompt(prompt)
        if isinstance(reward, ChecksPrompt):
            reward.check_prompt(prompt)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        rows: dict[str, list[int]] = {}
        for row, response in enumerate(responses):
            self.for_prompt(response.prompt)
            rows.setdefault(str(response.prompt.source), []).append(row)
        parts = {
            name: run_reward(name, self.rewards[name], [responses[row] for row in own])
            for name, own in rows.items()
        }

        def merge(columns: Iterable[tuple[str, Sequence[Any]]]) -> list[Any]:
            """Return one column, given those of some sources."""
            merged: list[Any] = [None] * len(responses)
            for name, values in columns:
                for row, value in zip(rows[name], values, strict=True):
                    merged[row] = value
            return merged

        def token_rewards(name: str, part: Scores) -> Sequence[Sequence[float | None]]:
            """Return the token rewards of a source; a score without any is on the last token."""
            if part.tokens is not None:
                return part.tokens
            lengths = (len(responses[row].tokens) for row in rows[name])
            return [
                [*[None] * (n - 1), value] if n else []
                for n, value in zip(lengths, part.values, strict=True)
            ]

        def step_tokens(name: str, part: Scores) -> Sequence[Sequence[float | None]]:
            """Return the token rewards of a source without its rewards per response."""
            if part.step_tokens is not None:
                return part.step_tokens
            return (
                part.tokens
                if part.tokens is not None
                else [[None] * len(responses[row].tokens) for row in rows[name]]
            )

        def outcomes(part: Scores) -> Sequence[float | None]:
            """Return the rewards per response of a source, without its token rewards."""
            if part.outcomes is not None:
                return part.outcomes
            return part.values if part.tokens is None else [None] * len(part)

        correct = [
            (name, part.correct)
            for name, part in parts.items()
            if part.correct is not None and not part.monitored
        ]
        columns = sorted({column for part in parts.values() for column in part.columns})
        needs = self.needs
        gives_tokens = needs.gives_steps or any(part.tokens is not None for part in parts.values())
        terms = {
            f"{name}/{term}": merge([(name, values)])
            for name, part in parts.items()
            for term, values in part.terms.items()
        }
        for name in self.rewards:  # the same terms on every rank, whatever the sources of its rows
            for term in self._weights(name):
                terms.setdefault(
                    f"{name}/{term}",
                    merge([(name, parts[name].values)])
                    if name in parts and term == "total"
                    else merge([]),
                )
        if any("gold" in part.terms for part in parts.values()):
            terms["gold"] = merge(
                (name, part.terms["gold"]) for name, part in parts.items() if "gold" in part.terms
            )
        return Scores(
            values=merge((name, part.values) for name, part in parts.items()),
            correct=merge(correct),
            terms=terms,
            weights={
                f"{name}/{term}": weight
                for name in self.rewards
                for term, weight in self._weights(name).items()
            },
            counts={
                f"{name}/{count}": value
                for name, part in parts.items()
                for count, value in part.counts.items()
            },
            columns={
                column: merge(
                    (name, part.columns[column])
                    for name, part in parts.items()
                    if column in part.columns
                )
                for column in columns
            },
            tokens=merge((name, token_rewards(name, part)) for name, part in parts.items())
            if gives_tokens
            else None,
            step_tokens=merge((name, step_tokens(name, part)) for name, part in parts.items())
            if gives_tokens
            else None,
            outcomes=merge((name, outcomes(part)) for name, part in parts.items())
            if gives_tokens and needs.gives_outcomes
            else None,
        )
