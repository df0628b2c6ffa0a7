"""Several rewards as one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlmods.reward.isolated import Isolated
from rlmods.reward.pool import WorkerError
from rlmods.reward.scores import as_scores
from rlmods.types import Prompt, Response, Scores, UserError


@dataclass(frozen=True)
class WeightedSum:
    """sum over terms of weight * reward. A term that abstains on a response (None) is left out of that sum; where all do, so does the sum.

    The unweighted scores of each term are in `Scores.terms`, its counts and columns are kept as `<term>/<name>`. `Scores.correct` comes
    from the first term that knows. Any reward can be a term, in YAML or from the command line:

        reward.terms.format.weight=0.1    ~reward.terms.overlong    +reward@reward.terms.mine.reward=mine

    `reward.terms.NAME.timeout_s=5` runs a term in worker processes (`Isolated`): what hangs or crashes costs one response, and is counted.

    A term of weight 0 is a monitor: its scores and its correctness (where no paid term knows) are logged and decide nothing
    (`Scores.monitored`). It may find no answers in the data, and where all others abstain, so does the sum.

    Where a term gives rewards by token, so does the sum; the score of a term that gives none is added on the last token, which then ends a
    step. None is a token that ends no step of any term.

    Raises: UserError for terms that are not written so, that all have weight 0, or whose worker processes do nothing but end; ValueError
    naming the term for a result that is not one finite number or None a response; RuntimeError naming the term, file and line where a term
    raises, as a silent zero would train on noise.
    """

    terms: Mapping[str, Mapping[str, Any]]
    """By name: `reward`, the callable, `weight`, 1 where it is left out, and `timeout_s`, none where it is left out. In YAML
    `_convert_: all` keeps Hydra from taking the rewards, which are dataclasses, for more configuration."""

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError("WeightedSum: no terms; add one with +reward@reward.terms.accuracy.reward=accuracy")
        for name, term in self.terms.items():
            if not isinstance(term, Mapping) or not callable(term.get("reward")) or not set(term) <= {"reward", "weight", "timeout_s"}:
                raise UserError(f"WeightedSum: terms.{name} is not written as {{weight: NUMBER, reward: REWARD}} (under _convert_: all)")
            weight = term.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UserError(f"WeightedSum: terms.{name}.weight={weight!r} is no number")
        self.rewards  # noqa: B018 - a term that cannot be isolated is an error now
        if not any(self.weights.values()):
            raise UserError(f"WeightedSum: every weight is 0, so nothing is rewarded: type reward.terms.{next(iter(self.terms))}.weight=1")

    @property
    def needs_answer(self) -> bool:
        """Whether any paid term reads the gold answer."""
        return self._paid_for("needs_answer")

    @property
    def gives_steps(self) -> bool:
        """Whether any paid term has a reward for each step."""
        return self._paid_for("gives_steps")

    @property
    def needs_group(self) -> bool:
        """Whether any paid term compares the responses to one prompt."""
        return self._paid_for("needs_group")

    def check_prompt(self, prompt: Prompt) -> None:
        """
        Raises:
            ValueError: a term cannot grade responses to it.
        """
        for term in self.terms.values():
            if hasattr(term["reward"], "check_prompt"):
                term["reward"].check_prompt(prompt)

    def _paid_for(self, trait: str) -> bool:
        return any(getattr(term["reward"], trait, False) for name, term in self.terms.items() if self.weights[name])

    @cached_property
    def rewards(self) -> dict[str, Callable[[Sequence[Response]], Any]]:
        """The terms' callables, by name."""
        return {
            name: term["reward"] if term.get("timeout_s") is None else Isolated(term["reward"], term["timeout_s"])
            for name, term in self.terms.items()
        }

    @cached_property
    def weights(self) -> dict[str, float]:
        return {name: float(term.get("weight", 1.0)) for name, term in self.terms.items()}

    def __call__(self, responses: Sequence[Response]) -> Scores:
        parts = {name: _run(name, reward, responses) for name, reward in self.rewards.items()}
        paid = {name: part for name, part in parts.items() if self.weights[name]}
        totals = [_sum(_times(self.weights[name], part.values[row]) for name, part in paid.items()) for row in range(len(responses))]
        knowing = [name for name, part in parts.items() if part.correct is not None]
        deciding = [name for name in knowing if name in paid and not parts[name].monitored]
        return Scores(
            values=totals,
            correct=parts[[*deciding, *knowing][0]].correct if knowing else None,
            monitored=bool(knowing) and not deciding,
            terms={key: values for name, part in parts.items() for key, values in {name: part.values, **_under(name, part.terms)}.items()},
            counts={key: count for name, part in parts.items() for key, count in _under(name, part.counts).items()},
            columns={key: column for name, part in parts.items() for key, column in _under(name, part.columns).items()},
            tokens=self._tokens(paid, responses),
        )

    def _tokens(self, parts: Mapping[str, Scores], responses: Sequence[Response]) -> list[list[float | None]] | None:
        """Token rewards of the whole, if a term gives any."""
        if all(part.tokens is None for part in parts.values()):
            return None
        rows = []
        for row, response in enumerate(responses):
            total: list[float | None] = [None] * len(response.tokens)
            for name, part in parts.items():
                value = part.values[row]
                if value is None or not total:
                    continue
                spread = [None] * (len(total) - 1) + [value] if part.tokens is None else part.tokens[row]
                if len(spread) != len(total):
                    raise ValueError(f"reward {name}: {len(spread)} token rewards for the {len(total)} tokens of response {row}")
                total = [_sum((x, _times(self.weights[name], y))) for x, y in zip(total, spread, strict=True)]
            rows.append(total)
        return rows


def _run(name: str, reward: Callable[[Sequence[Response]], Any], responses: Sequence[Response]) -> Scores:
    try:
        result = reward(responses)
    except UserError:
        raise
    except WorkerError as error:
        raise UserError(f"reward {name}: {error}") from error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise RuntimeError(f"reward {name} raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})") from error
    return as_scores(result, len(responses), name)


def _times(weight: float, score: float | None) -> float | None:
    return None if score is None else weight * score


def _sum(scores: Iterable[float | None]) -> float | None:
    """Of those that are not None; None without any."""
    known = [score for score in scores if score is not None]
    return sum(known) if known else None


def _under(name: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}/{key}": value for key, value in entries.items()}
