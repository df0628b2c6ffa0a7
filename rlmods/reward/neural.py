"""The score of a trained reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any, ClassVar, Literal, get_args

import torch

from rlmods.policy.scalar import ScalarModel, find, pool
from rlmods.types import Response, Scores, UserError

Aggregate = Literal["mean", "min", "mean_minus_std"]


def ensemble(scores: Sequence[float], how: Aggregate, k: float = 1.0) -> float:
    """mean(r), min(r), or mean(r) - k std(r) over the members' scores of one response; population standard deviation, 0 for one member.

    Where a policy has found what fools one member, the others disagree (arXiv:2310.02743, which takes off the variance).
    """
    if how == "min":
        return min(scores)
    return fmean(scores) - (k * pstdev(scores) if how == "mean_minus_std" else 0.0)


class Trained:
    """A reward that reads with trained models. They load at the first call and stay out of copies and checkpoints."""

    model: Any
    token_budget: int

    @property
    def sources(self) -> list[str]:
        """The names that are given."""
        names = self.model if isinstance(self.model, Sequence) and not isinstance(self.model, str) else [self.model]
        return [str(name) for name in names if name]

    @cached_property
    def networks(self) -> tuple[ScalarModel, ...]:
        """Frozen, on the GPU where there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return tuple(ScalarModel.load(source).to(device) for source in self.sources)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def check(self, option: Literal["neural", "process"]) -> None:
        """Look at the models while the run is composed.

        Raises:
            UserError: none is named, there is none, or it is one for the other option.
        """
        if not self.sources:
            algorithm = {"neural": "reward_model", "process": "process_reward_model"}[option]
            advice = f"type reward.terms.{option}.reward.model=RUN_OR_DIRECTORY (train one with algo={algorithm})"
            raise UserError(f"reward={option} needs a reward model: {advice}")
        for source in self.sources:
            fits = "process" if find(source)[1].get("kind", option) == "process" else "neural"
            if fits != option:
                raise UserError(f"{source!r} does not fit reward={option}: type reward={fits} reward.terms.{fits}.reward.model={source}")
        if self.token_budget < 1:
            raise UserError(f"reward={option}: token_budget={self.token_budget} must be at least 1")


@dataclass(frozen=True)
class Neural(Trained):
    """`pool(head(hidden_t)) - offset` over the tokens of the response, by a trained reward model, or an `ensemble` of several.

    The text is read through the reward model's own tokenizer and template, with its end-of-text token where the response is finished: the
    policy may be any other model. Pooling and offset are those it was trained with. An empty response that is finished gets the score of
    the end-of-text token alone; an empty one that was cut off has no token to read and abstains. Members are logged as the terms
    `member_<i>`, their disagreement as the column `std`.

    Raises UserError where there is no such reward model, and for a text that exceeds its context.
    """

    model: str | Sequence[str] | None = None
    """Run, directory or hub name of a reward model; or a list of them."""
    aggregate: Aggregate = "mean"
    """Of an ensemble's scores: mean, min or mean_minus_std."""
    k: float = 1.0
    """Standard deviations taken off by mean_minus_std."""
    token_budget: int = 8192
    """Tokens of one forward pass, padding included."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check("neural")
        if self.aggregate not in get_args(Aggregate):
            raise UserError(f"Neural: aggregate={self.aggregate!r} is none of {', '.join(get_args(Aggregate))}")
        if self.k < 0:
            raise UserError(f"Neural: k={self.k}: must be 0 or more")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        members = [self._score(network, responses) for network in self.networks]
        rows = [[score for score in row if score is not None] for row in zip(*members, strict=True)]
        values = [ensemble(row, self.aggregate, self.k) if row else None for row in rows]
        if len(members) == 1:
            return Scores(values)
        return Scores(
            values,
            terms={f"member_{i}": scores for i, scores in enumerate(members)},
            columns={"std": [pstdev(row) if row else None for row in rows]},
        )

    def _score(self, network: ScalarModel, responses: Sequence[Response]) -> list[float | None]:
        rows = [(network.encode(r.prompt), network.encode_response(r.text, finished=r.finish == "stop")) for r in responses]
        numbers = network.grade(rows, self.token_budget)
        lengths = torch.tensor([len(response) for _, response in rows])
        mask = torch.arange(numbers.shape[1]) < lengths[:, None]
        scores = pool(numbers, mask, network.metadata.get("pooling", "last")) - network.metadata.get("offset", 0.0)
        return [score if length else None for score, length in zip(scores.tolist(), lengths.tolist(), strict=True)]
