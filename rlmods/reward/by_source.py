"""Rewards by source of the prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import RewardNeeds, needs_of
from rlmods.reward.scores import run_reward
from rlmods.reward.weighted_sum import Term, WeightedSum, check_rewards, combine, prefixed
from rlmods.types import Prompt, Response, Scores


@dataclass(frozen=True)
class BySource:
    """Grade each response by the reward of its prompt's `source`, the name of a data set in a
    mixture: a sum of rewards (`combine`), each of which abstains on the rows of other sources.

    Each reward gets the responses of its own rows in one call. Terms and counts keep their names
    behind the name of the source, `<source>/<name>`; columns of the same name are one column.
    Correctness is None where the reward reports none or only monitors it (`Scores.monitored`); a
    monitor's scores are among the terms.

    Raises: UserError without rewards, and for a prompt whose source has none.
    """

    rewards: Mapping[str, Callable[[Sequence[Response]], Any]] = field(default_factory=dict)
    """Rewards by source, each an option of `reward`. In YAML, `_convert_: all` keeps Hydra from
    treating them as configuration."""

    def __post_init__(self) -> None:
        check_rewards("by_source", self.rewards)

    @property
    def members(self) -> list[Term]:
        return [
            Term(f"rewards.{name}", reward, source=name) for name, reward in self.rewards.items()
        ]

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds.combine(self.rewards.values())

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the terms of all sources; a reward without terms is the term `total`."""
        weights: dict[str, float] = {}
        for name, reward in self.rewards.items():
            own = reward.weights if isinstance(reward, WeightedSum | BySource) else {"total": 1.0}
            weights |= prefixed(name, {term: weight for term, weight in own.items() if weight})
        return weights

    def for_prompt(self, prompt: Prompt) -> Any:
        """Return the reward that grades responses to `prompt`.

        Raises:
            UserError: there is none.
        """
        if prompt.source is None:
            raise UserError(
                f"reward=by_source grades by the source of a prompt, but prompt {prompt.id} "
                "has none: type data=mixture, or data.source=COLUMN"
            )
        if prompt.source not in self.rewards:
            raise UserError(
                f"reward=by_source has no reward for the source {prompt.source!r} of prompt "
                f"{prompt.id}, only for {', '.join(self.rewards)}: type "
                f"+reward@reward.rewards.{prompt.source}=OPTION"
            )
        return self.rewards[prompt.source]

    def __call__(self, responses: Sequence[Response]) -> Scores:
        num_rows = len(responses)
        rows: dict[str, list[int]] = {name: [] for name in self.rewards}
        for row, response in enumerate(responses):
            self.for_prompt(response.prompt)
            rows[str(response.prompt.source)].append(row)
        parts: dict[str, Scores] = {}
        for name, reward in self.rewards.items():
            own = rows[name]
            if own:
                scores = run_reward(name, reward, list(map(responses.__getitem__, own)))
                parts[name] = _expanded(scores, own, num_rows)
            elif needs_of(reward, RewardNeeds).gives_steps:
                # on every rank rewards by step, whatever the sources of its rows
                parts[name] = Scores([None] * num_rows, tokens=[()] * num_rows)
        weights = self.weights
        terms: dict[str, Sequence[Any]] = {name: [None] * num_rows for name in weights}
        counts: dict[str, int] = {}
        columns: dict[str, Sequence[Any]] = {}
        for name, scores in parts.items():
            terms |= prefixed(name, scores.terms)
            if f"{name}/total" in weights:
                terms[f"{name}/total"] = scores.values
            counts |= prefixed(name, scores.counts)
            if "gold" in scores.terms:
                terms["gold"] = _merged([terms.get("gold", ()), scores.terms["gold"]], num_rows)
            for column, values in scores.columns.items():
                columns[column] = _merged([columns.get(column, ()), values], num_rows)
        graded = [x.correct for x in parts.values() if x.correct is not None and not x.monitored]
        return replace(
            combine(parts, dict.fromkeys(parts, 1.0), responses),
            correct=_merged(graded, num_rows),
            terms=terms,
            weights=weights,
            counts=counts,
            columns=dict(sorted(columns.items())),
        )


def _expanded(scores: Scores, rows: Sequence[int], num_rows: int) -> Scores:
    """Return the scores of some rows as scores of all rows, None for the others."""

    def expand(values: Sequence[Any] | None, blank: Any = None) -> Any:
        if values is None:
            return None
        expanded = [blank] * num_rows
        for row, value in zip(rows, values, strict=True):
            expanded[row] = value
        return expanded

    return replace(
        scores,
        values=expand(scores.values),
        correct=expand(scores.correct),
        terms={name: expand(values) for name, values in scores.terms.items()},
        columns={name: expand(values) for name, values in scores.columns.items()},
        tokens=expand(scores.tokens, ()),
        step_tokens=expand(scores.step_tokens, ()),
        outcomes=expand(scores.outcomes),
    )


def _merged(columns: Sequence[Sequence[Any]], num_rows: int) -> list[Any]:
    """Return one column from columns that hold None on the rows of other sources."""
    merged: list[Any] = [None] * num_rows
    for column in columns:
        for row, value in enumerate(column):
            if value is not None:
                merged[row] = value
    return merged
