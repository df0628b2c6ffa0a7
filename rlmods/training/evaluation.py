"""Grading a policy on held-out prompts: the same code before, during, after and without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rlmods.policy.base import Policy
from rlmods.reward.scores import as_scores
from rlmods.training.metrics import Meter
from rlmods.types import Prompt, Response, Scores


class Ranks(Protocol):
    """What evaluation asks of whoever runs it."""

    global_rank: int
    iteration: int

    @property
    def device(self) -> torch.device: ...


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k answers drawn from the n given ones is right: 1 - C(n-c, k) / C(n, k).

    Source: arXiv 2107.03374, eq. 1.
    """
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


@dataclass(frozen=True)
class Validation:
    """Greedy accuracy of held-out prompts, and mean@k and pass@k where `samples` asks for them.

    Sampling has its own settings and seed, and the sampler seeds by prompt: how often it runs does not change training.
    """

    every: int | None = 10
    """Iterations between two validations; there is always one before the first iteration and one at the end. null: only those."""
    samples: int = 0
    """k: responses drawn of each prompt for `val/mean@k` and `val/pass@k`; 0 skips them."""
    temperature: float = 1.0
    """Of those samples."""
    max_prompts: int | None = None
    """Only the first so many held-out prompts."""
    seed: int = 1234
    """Of those samples."""

    def __post_init__(self) -> None:
        rules = {
            "every": (self.every is None or self.every >= 1, "null or at least 1"),
            "samples": (self.samples >= 0, "0 or more"),
            "temperature": (self.temperature > 0, "above 0; the greedy answers are in val/accuracy"),
            "max_prompts": (self.max_prompts is None or self.max_prompts >= 1, "null or at least 1"),
        }
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise ValueError(f"validation.{name}={getattr(self, name)}: must be {wanted}")

    def due(self, iteration: int) -> bool:
        return self.every is not None and iteration % self.every == 0

    def __call__(
        self, policy: Policy, rollout: Any, reward: Callable[[Sequence[Response]], Any], prompts: Sequence[Prompt], ranks: Any
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics over all ranks, and this rank's rows for the sample log."""
        world_size = ranks.trainer.world_size if getattr(ranks, "_trainer", None) else 1
        mine = list(prompts)[: self.max_prompts][ranks.global_rank :: world_size]
        if not prompts:
            return {}, []
        meter = Meter(ranks.device)
        greedy = with_settings(rollout, temperature=0.0, top_p=1.0, top_k=0)
        rows = self._grade(meter, greedy, policy, reward, mine, 1, ranks.iteration)
        if self.samples:
            drawn = with_settings(rollout, temperature=self.temperature, top_p=1.0, top_k=0, seed=self.seed)
            rows += self._grade(meter, drawn, policy, reward, mine, self.samples, ranks.iteration)
        return meter.compute(), rows

    def _grade(
        self, meter: Meter, rollout: Any, policy: Policy, reward: Any, prompts: list[Prompt], samples: int, iteration: int
    ) -> list[dict[str, Any]]:
        rollout.sync(policy, iteration=iteration)
        responses = rollout.generate(prompts, samples=samples, iteration=0)
        scores = as_scores(reward(responses), len(responses), "reward")
        right, graded = known([None] * len(responses) if scores.correct is None else scores.correct)
        for name, count in scores.counts.items():
            meter.total(f"val/reward/{name}", count)
        if rollout.temperature == 0:
            if scores.correct is not None:
                meter.mean("val/accuracy", right, graded)
            meter.mean("val/reward", *known(scores.values))
            for name, values in scores.terms.items():
                meter.mean(f"val/reward/{name}", *known(values))
            if "gold" in scores.terms:
                meter.mean("val/gold_reward", *known(scores.terms["gold"]))
            meter.mean("val/response_tokens", torch.tensor([float(len(r.tokens)) for r in responses]))
            meter.mean("val/truncated_fraction", torch.tensor([float(r.finish == "length") for r in responses]))
        elif scores.correct is not None:
            meter.mean(f"val/mean@{samples}", right, graded)
            by_prompt = (right > 0).view(len(prompts), samples).sum(1).tolist()
            solved = torch.tensor([pass_at_k(samples, c, samples) for c in by_prompt])
            meter.mean(f"val/pass@{samples}", solved, graded.view(len(prompts), samples).any(1))
        return [row(r, scores, i) | {"temperature": rollout.temperature} for i, r in enumerate(responses)]


def with_settings(rollout: Any, **settings: Any) -> Any:
    """The same rollout with other sampling settings, those that it has."""
    return replace(rollout, **{name: value for name, value in settings.items() if hasattr(rollout, name)})


def correctness(scores: Scores) -> Tensor:
    """What sampling decides by, [N] in float64: unshaped correctness where a reward that is paid knows it, else the total score; NaN where
    there is none."""
    known = [None] * len(scores.values) if scores.correct is None or scores.monitored else scores.correct
    source = [None if value is None else value if right is None else right for value, right in zip(scores.values, known, strict=True)]
    return torch.tensor([math.nan if x is None else float(x) for x in source], dtype=torch.float64)


def known(values: Sequence[float | None]) -> tuple[Tensor, Tensor]:
    """Values with 0 for None, and where they are not None."""
    filled = torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
    return filled, torch.tensor([v is not None for v in values], dtype=torch.bool)


def row(response: Response, scores: Scores, i: int) -> dict[str, Any]:
    """One line of the sample log."""
    prompt = response.prompt
    return {
        "id": prompt.id,
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "answer": prompt.answer,
        "response": response.text,
        "tokens": list(response.tokens),
        "finish": response.finish,
        "reward": scores.values[i],
        "correct": None if scores.correct is None else scores.correct[i],
        **{f"reward/{name}": values[i] for name, values in scores.terms.items()},
        **{name: column[i] for name, column in scores.columns.items()},
    }
