"""What an online algorithm logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmods.ops import constant_group, masked_mean
from rlmods.training.evaluation import known, row
from rlmods.training.metrics import Meter
from rlmods.types import Experience, Response, Scores


def watch(meter: Meter, micro: Experience, log_ratio: Tensor, old: Tensor, entropy: Tensor, clipped: Tensor, iteration: int) -> Tensor:
    """How far one microbatch has moved: entropy, distance from the old policy and from the sampler, what was clipped.

    Returns that distance summed over tokens, and the number of tokens: of rows of this `iteration`, as older ones tell of earlier moves."""
    d, mask = log_ratio.detach(), micro.mask
    meter.mean("train/entropy", entropy, mask)
    distance, fresh = d.exp() - 1 - d, mask & (micro.version == iteration)[:, None]
    meter.mean("train/kl_old", distance, fresh)
    meter.mean("train/clip_fraction/low", (clipped & (micro.advantages < 0)).double(), mask)
    meter.mean("train/clip_fraction/high", (clipped & (micro.advantages > 0)).double(), mask)
    meter.maximum("train/ratio_max", d.exp(), mask)
    meter.mean("train/sampler_logprob_gap", (old - micro.behavior_logprobs).abs(), mask)
    return torch.stack([torch.where(fresh, distance, 0.0).double().sum(), fresh.sum().double()])


def critic(meter: Meter, returns: Tensor, values: Tensor, mask: Tensor, across_ranks: Callable[[Tensor], Tensor]) -> None:
    """What the critic knew before it was trained on these rows: `1 - Var(R - V) / Var(R)`, 1 is all, 0 is nothing."""
    left, right = (torch.where(mask, x, 0.0).double() for x in (returns - values, returns))
    count = across_ranks(mask.sum()).clamp(min=1)

    def variance(x: Tensor) -> Tensor:
        mean = across_ranks(x.sum()) / count
        return across_ranks(torch.where(mask, x - mean, 0.0).square().sum()) / count

    total = variance(right)
    if total > 0:
        meter.mean("train/explained_variance", 1 - variance(left) / total)
    meter.mean("train/value", values, mask)
    meter.mean("train/return", returns, mask)


def sampled(meter: Meter, responses: Sequence[Response], scores: Scores, judged: Tensor, group: Tensor, keep: Tensor) -> None:
    """Everything that was sampled, kept or not. `judged` [N]: what `sampling` decided by, NaN where unscored."""
    texts: dict[int, list[str]] = {}
    for i, response in zip(group.tolist(), responses, strict=True):
        texts.setdefault(i, []).append(response.text)
    meter.mean("train/reward", *known(scores.values))
    if scores.correct is not None:
        meter.mean("train/accuracy", *known(scores.correct))
    for name, values in scores.terms.items():
        meter.mean(f"train/reward/{name}", *known(values))
    for name, count in scores.counts.items():
        meter.total(f"reward/{name}", count)
    meter.mean("train/unscored_fraction", judged.isnan().double())
    meter.total("train/responses", len(responses))
    meter.mean("train/response_tokens", torch.tensor([float(len(r.tokens)) for r in responses]))
    meter.mean("train/truncated_fraction", torch.tensor([float(r.finish == "length") for r in responses]))
    meter.mean("train/flat_group_fraction", constant_group(judged.nan_to_num(0.0), ~judged.isnan(), group).double())
    meter.mean("train/kept_fraction", keep.double())
    meter.mean("train/unique_fraction", torch.tensor([len(set(said)) / len(said) for said in texts.values()]))


def rows(responses: Sequence[Response], scores: Scores, experience: Experience, keep: Tensor, iteration: int) -> list[dict[str, Any]]:
    """Lines of the sample log, one a response."""
    advantage = masked_mean(experience.advantages, experience.mask).tolist()
    extra = ({"iteration": iteration, "advantage": a, "kept": k} for a, k in zip(advantage, keep.tolist(), strict=True))
    return [row(response, scores, i) | more for i, (response, more) in enumerate(zip(responses, extra, strict=True))]
