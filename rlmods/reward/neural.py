"""Reward from a trained reward model or an ensemble of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any, Literal

import torch

from rlmods.errors import UserError
from rlmods.policy.scalar import ScalarModel, find, pool
from rlmods.settings.bounds import Count, NonNegative, bounded
from rlmods.types import Response, Scores

Aggregate = Literal["mean", "min", "mean_minus_std"]


def ensemble(scores: Sequence[float], how: Aggregate, k: float = 1.0) -> float:
    """Combine the members' scores of one response: mean(r), min(r), or mean(r) - k std(r), with the
    population standard deviation.

    Members disagree on responses that exploit one of them (arXiv:2310.02743, which subtracts the
    variance instead)."""
    if how == "min":
        return min(scores)
    return fmean(scores) - (k * pstdev(scores) if how == "mean_minus_std" else 0.0)


class RewardModelBase:
    """Base class of rewards with trained models, which are loaded at the first call and not part of
    copies and checkpoints."""

    model: str | Sequence[str] | None
    token_budget: int

    @property
    def sources(self) -> list[str]:
        """Runs, directories or hub names of the models."""
        names = [self.model] if isinstance(self.model, str) else self.model or []
        return [str(name) for name in names if name]

    @cached_property
    def networks(self) -> tuple[ScalarModel, ...]:
        """Loaded models, frozen, on the GPU if there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return tuple(ScalarModel.load(source).to(device) for source in self.sources)

    def __getstate__(self) -> dict[str, Any]:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def check(self, option: Literal["neural", "process"]) -> None:
        """Check the models when the configuration is composed, without loading them.

        Raises:
            UserError: no model is given, it does not exist, or it belongs to the other option.
        """
        if not self.sources:
            algorithm = {"neural": "reward_model", "process": "process_reward_model"}[option]
            raise UserError(
                f"reward={option} needs a reward model: type reward.model="
                f"RUN_OR_DIRECTORY (train one with algo={algorithm})"
            )
        for source in self.sources:
            expected = "process" if find(source)[1].get("kind", option) == "process" else "neural"
            if expected != option:
                raise UserError(
                    f"{source!r} is not a model for reward={option}: type reward={expected} "
                    f"reward.terms.{expected}.reward.model={source}"
                )


@dataclass(frozen=True)
@bounded("reward")
class Neural(RewardModelBase):
    """Score of a trained reward model: `pool(head(hidden_t)) - offset` over the tokens of the
    response; or an `ensemble` of several models.

    The text is encoded with the reward model's own tokenizer and chat template, so its tokenizer
    may differ from the policy's; an end-of-text token is appended to finished responses. Pooling
    and offset are those of its training. An empty finished response is scored at its end-of-text
    token; an empty truncated one has no tokens and abstains. Members are logged as the terms
    `member_<i>`, their standard deviation as the column `std`.

    Raises UserError if there is no such reward model, and for a text that exceeds its context.
    """

    model: str | Sequence[str] | None = None
    """Run, directory or hub name of a reward model; or a list of them, an ensemble."""
    aggregate: Aggregate = "mean"
    """Aggregate of an ensemble's scores: mean, min or mean_minus_std."""
    k: NonNegative = 1.0
    """Number of standard deviations that mean_minus_std subtracts."""
    token_budget: Count = 8192
    """Maximum number of tokens in one forward pass, padding included."""

    def __post_init__(self) -> None:
        self.check("neural")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        members = [self._score(network, responses) for network in self.networks]
        values: list[float | None] = []
        deviations: list[float | None] = []
        for scores in zip(*members, strict=True):
            known = [score for score in scores if score is not None]
            values.append(ensemble(known, self.aggregate, self.k) if known else None)
            deviations.append(pstdev(known) if known else None)
        if len(members) == 1:
            return Scores(values)
        terms = {f"member_{i}": scores for i, scores in enumerate(members)}
        return Scores(values, terms=terms, columns={"std": deviations})

    def _score(self, network: ScalarModel, responses: Sequence[Response]) -> list[float | None]:
        rows = []
        for response in responses:
            finished = response.finish == "stop"
            text = network.encode_response(response.text, response.prompt, finished=finished)
            rows.append((network.encode(response.prompt), text))
        token_scores = network.grade(rows, self.token_budget)
        lengths = [len(text) for _, text in rows]
        mask = torch.arange(token_scores.shape[1]) < torch.tensor(lengths)[:, None]
        pooled = pool(token_scores, mask, network.metadata.get("pooling", "last"))
        scores = (pooled - network.metadata.get("offset", 0.0)).tolist()
        return [score if length else None for score, length in zip(scores, lengths, strict=True)]
