"""Evaluation of a policy on held-out prompts, during training and by `python -m
rlmods.evaluate`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from rlmods.distributed.collectives import Ranks
from rlmods.grading.grader.style import MAX_CHARS
from rlmods.grading.grader.values import plain_number
from rlmods.policy.base import Policy
from rlmods.protocols import ReportsTokens, Reward, Rollout
from rlmods.reward.scores import grade
from rlmods.rollout.order import generate_in_order
from rlmods.rollout.turns import MultiTurn
from rlmods.training.meter import Meter
from rlmods.training.metrics import log_by_source, log_lengths, values_and_mask
from rlmods.training.sample_log import Row, sample_row
from rlmods.training.settings import ValidationSettings
from rlmods.types import Prompt, Response, Scores


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k responses is correct:
    1 - C(n-c, k) / C(n, k).

    Only graded responses count. With fewer than k of them it is whether any is correct, which is
    too low where others might have been.

    Source: arXiv:2107.03374, eq. 1.
    """
    k = min(k, num_samples)
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_correct(answers: Sequence[str | None], correct: Sequence[bool | None]) -> float | None:
    """Return the correctness of the most frequent answer of the graded responses to a prompt
    (maj@k, self-consistency).

    Answers are equal if their texts are, or if both are numbers of equal value. Responses without
    an answer have no vote; if none has one, the result is 0. For equally frequent answers it is the
    mean, the expectation under random choice. None if no response is graded.

    Source: arXiv:2203.11171.
    """
    votes: dict[str | Fraction, list[bool]] = {}
    for answer, is_correct in zip(answers, correct, strict=True):
        if answer is None or is_correct is None:
            continue
        text = answer.strip()
        number = plain_number(text) if len(text) <= MAX_CHARS else None
        votes.setdefault(text if number is None else number, []).append(is_correct)
    if not votes:
        return None if all(x is None for x in correct) else 0.0
    most = max(map(len, votes.values()))
    winners = [sum(group) / most for group in votes.values() if len(group) == most]
    return sum(winners) / len(winners)


def values_by_prompt(
    rows: Sequence[Row], samples: int, pass_at: Sequence[int] = ()
) -> dict[str, list[float]]:
    """Return the values of `val/accuracy`, `val/mean@k`, `val/pass@k` and `val/maj@k` of each
    graded prompt, and those of a named set as `val/NAME/accuracy`, ...

    Args:
        rows: those of the sample log of a validation on one rank: of each set the greedy responses,
        then `samples` to each prompt.
        samples: k.
        pass_at: further k of `val/pass@k`.
    """
    found: dict[str, list[float]] = {}
    for set_name in dict.fromkeys(row.get("set") for row in rows):
        own = [row for row in rows if row.get("set") == set_name]
        greedy = [row["correct"] for row in own if row["temperature"] == 0]
        sampled = [row for row in own if row["temperature"] > 0]
        values = {"accuracy": greedy, **sampled_values(sampled, samples, pass_at)}
        prefix = "val" if set_name is None else f"val/{set_name}"
        for name, column in values.items():
            known = [float(value) for value in column if value is not None]
            if known:
                found[f"{prefix}/{name}"] = known
    return found


def sampled_values(
    rows: Sequence[Row], samples: int, pass_at: Sequence[int] = ()
) -> dict[str, list[float | None]]:
    """Return mean@k, pass@k and, if the reward extracts answers, maj@k of the k responses to each
    prompt; None if none of them is graded.

    Args:
        rows: those of the sample log, `samples` to each prompt.
        samples: k.
        pass_at: further k of pass@k.
    """
    values: dict[str, list[float | None]] = {}
    for start in range(0, len(rows), max(1, samples)):
        group = rows[start : start + samples]
        correct = [row["correct"] for row in group]
        graded = [x for x in correct if x is not None]
        num_correct = sum(x > 0 for x in graded)
        mean = float(sum(graded)) / len(graded) if graded else None
        values.setdefault(f"mean@{samples}", []).append(mean)
        for k in dict.fromkeys((*pass_at, samples)):
            passed = pass_at_k(len(graded), num_correct, k) if graded else None
            values.setdefault(f"pass@{k}", []).append(passed)
        # the answers that a reward, or the first term of a sum that has such a column, extracts
        column = next((x for x in group[0] if f"/{x}".endswith("/extracted")), None)
        if column is not None:
            majority = majority_correct([row[column] for row in group], correct)
            values.setdefault(f"maj@{samples}", []).append(majority)
    return values


@dataclass(frozen=True)
class Validation(ValidationSettings):
    """Greedy accuracy on held-out prompts and, with `samples`, mean@k, pass@k and, if the reward
    extracts answers, maj@k. Every prompt with a graded response has the same weight.

    Sampling has its own settings and seed, so the frequency of validation does not change training.
    Metrics of the held-out prompts of `data` are `val/accuracy`, ..., and those of a named set
    `val/NAME/accuracy`, ..."""

    reward: Reward | None = None
    """Reward of validation, `reward@validation.reward=OPTION`; null: that of training."""

    def due(self, iteration: int) -> bool:
        """Return True if validation runs after `iteration` completed iterations."""
        return self.every is not None and iteration % self.every == 0

    def __call__(
        self,
        policy: Policy,
        rollout: Any,
        reward: Reward,
        prompts: Sequence[Prompt],
        ranks: Ranks,
        iteration: int = 0,
    ) -> tuple[dict[str, float], list[Row]]:
        """Evaluate the prompts and those of the named sets. Returns the metrics over all ranks, and
        the rows of the sample log of this rank, in which those of a named set have its name in
        `set`."""
        metrics: dict[str, float] = {}
        rows: list[Row] = []
        samplers = [(self.greedy(rollout), 1)]
        if self.samples:
            samplers.append((self.sampler(rollout), self.samples))
        for name, named in [(None, prompts), *(self.data or {}).items()]:
            if not named:
                continue
            own = list(named)[: self.max_prompts][ranks.rank :: ranks.world_size]
            meter = Meter(ranks.device)
            for sampler, samples in samplers:
                sampler.sync(policy, iteration=iteration)
                scored = self._evaluate(meter, sampler, self.reward or reward, own, samples)
                rows += scored if name is None else [row | {"set": name} for row in scored]
            for key, value in meter.compute().items():
                metrics[key if name is None else f"val/{name}/{key.removeprefix('val/')}"] = value
        return metrics, rows

    def greedy(self, rollout: Any) -> Any:
        """Return a copy of the rollout that decodes the most probable tokens."""
        return with_settings(rollout, temperature=0.0, top_p=1.0, top_k=0, **self._length())

    def sampler(self, rollout: Any) -> Any:
        """Return a copy of the rollout that samples with the settings of validation."""
        settings = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
        }
        return with_settings(rollout, **settings, **self._length())

    def _length(self) -> dict[str, int]:
        return {} if self.max_tokens is None else {"max_tokens": self.max_tokens}

    def _evaluate(
        self, meter: Meter, rollout: Rollout, reward: Reward, prompts: list[Prompt], samples: int
    ) -> list[Row]:
        """Log the metrics of responses to these prompts, and return the rows of the sample log."""
        responses = generate_in_order(rollout, prompts, samples=samples, iteration=0)
        scores = grade(reward, responses)
        for name, count in scores.counts.items():
            meter.sum(f"val/reward/{name}", count)
        rows = []
        for i, response in enumerate(responses):
            rows.append(sample_row(response, scores, i) | {"temperature": rollout.temperature})
        if rollout.temperature == 0:
            _log_greedy(meter, responses, scores)
        else:
            self._log_samples(meter, rows)
        return rows

    def _log_samples(self, meter: Meter, rows: Sequence[Row]) -> None:
        """Log mean@k, pass@k and maj@k, over all prompts and by their source."""
        sources = [row.get("source") for row in rows[:: self.samples]]
        for name, column in sampled_values(rows, self.samples, self.pass_at).items():
            values, graded = values_and_mask(column)
            meter.mean(f"val/{name}", values, graded)
            for source in sorted(filter(None, set(sources))):
                own = torch.tensor([x == source for x in sources])
                meter.mean(f"val/{name}/{source}", values, graded & own)


def _log_greedy(meter: Meter, responses: Sequence[Response], scores: Scores) -> None:
    """Log the metrics of greedy responses."""
    log_by_source(meter, "val", responses, scores)
    for name, values in scores.terms.items():
        meter.mean(f"val/reward/{name}", *values_and_mask(values))
    if "gold" in scores.terms:
        meter.mean("val/gold_reward", *values_and_mask(scores.terms["gold"]))
    log_lengths(meter, "val", responses)


def with_settings(rollout: Any, **settings: Any) -> Any:
    """Return a copy of the rollout with other sampling settings, which reports to the same hook;
    settings that it does not have are ignored."""
    if isinstance(rollout, MultiTurn):
        return rollout.with_settings(**settings)
    known = {name: value for name, value in settings.items() if hasattr(rollout, name)}
    changed = replace(rollout, **known)
    if isinstance(rollout, ReportsTokens):
        changed.on_tokens = rollout.on_tokens  # a run can be interrupted there
    return changed
