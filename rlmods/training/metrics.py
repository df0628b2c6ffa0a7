"""Metrics of sampled responses and of updates."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.distributed.collectives import Ranks
from rlmods.ops import constant_group, group_reduce
from rlmods.training.meter import Meter
from rlmods.training.turns import log_turns
from rlmods.types import Experience, ImportanceWeights, Response, Scores


def values_and_mask(values: Sequence[float | None]) -> tuple[Tensor, Tensor]:
    """Return the values with 0 in place of None, and a mask that is False there."""
    filled = torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
    return filled, torch.tensor([v is not None for v in values], dtype=torch.bool)


def reported_correctness(scores: Scores) -> Sequence[bool | None]:
    """Return the correctness of each response by which a reward lets others decide; None where it
    reports none."""
    if scores.correct is None or scores.monitored:
        return [None] * len(scores)
    return scores.correct


def lacks_correctness(scores: Scores) -> bool:
    """Return whether a response is scored, but without a correctness."""
    pairs = zip(scores.values, reported_correctness(scores), strict=True)
    return any(value is not None and correct is None for value, correct in pairs)


def correctness_or_reward(scores: Scores) -> Tensor:
    """Return the scores by which `sampling` filters, [N] in float64: unshaped correctness if a
    weighted reward reports it, else the total reward; NaN for unscored responses."""
    values, scored = values_and_mask(scores.values)
    correct, is_known = values_and_mask(reported_correctness(scores))
    return torch.where(is_known, correct, values).masked_fill(~scored, math.nan)


def log_responses(
    meter: Meter, responses: Sequence[Response], scores: Scores, group: Tensor, selected: Tensor
) -> None:
    """Log the metrics of all sampled responses, whether selected for training or not."""
    filter_scores = correctness_or_reward(scores).to(group.device)
    scored = ~filter_scores.isnan()
    group_on_host = group.cpu()
    texts: dict[int, list[str]] = {}
    for i, response in zip(group_on_host.tolist(), responses, strict=True):
        texts.setdefault(i, []).append(response.text)
    unique = [len(set(group_texts)) / len(group_texts) for group_texts in texts.values()]
    flat = constant_group(filter_scores.nan_to_num(0.0), scored, group)
    log_by_source(meter, "train", responses, scores)
    log_groups(meter, scores, group_on_host)
    for name, values in scores.terms.items():
        meter.mean(f"train/reward/{name}", *values_and_mask(values))
    for name, count in scores.counts.items():
        meter.sum(f"reward/{name}", count)
    meter.mean("train/unscored_fraction", (~scored).double())
    meter.sum("train/responses", len(responses))
    log_lengths(meter, "train", responses)
    meter.mean("train/flat_group_fraction", flat.double())
    correct = [x for x in reported_correctness(scores) if x is not None]
    if len(correct) == len(scores):
        log_smaller_groups(meter, torch.tensor(correct), group_on_host)
    meter.mean("train/kept_fraction", selected.double())
    meter.mean("train/unique_fraction", torch.tensor(unique))


def log_lengths(meter: Meter, phase: str, responses: Sequence[Response]) -> None:
    """Log the mean number of sampled tokens, the fraction of responses that a limit truncated, and
    metrics of turns if there are any."""
    tokens = torch.tensor([float(r.num_sampled) for r in responses])
    truncated = torch.tensor([float(r.finish == "length") for r in responses])
    meter.mean(f"{phase}/response_tokens", tokens)
    meter.mean(f"{phase}/truncated_fraction", truncated)
    if any(r.turns for r in responses):
        log_turns(meter, phase, responses)
    sessions = [r.session for r in responses if r.session is not None]
    if sessions:
        for kind in ("crash", "timeout", "silent"):
            failed = torch.tensor([float(x.failure == kind) for x in sessions])
            meter.mean(f"{phase}/{kind}_fraction", failed)


def log_by_source(meter: Meter, phase: str, responses: Sequence[Response], scores: Scores) -> None:
    """Log reward and accuracy over all scored responses, and over the responses to the prompts of
    each source: `<phase>/reward/<source>`."""
    of_response = [response.prompt.source for response in responses]
    for name, column in {"reward": scores.values, "accuracy": scores.correct}.items():
        if column is None:
            continue
        values, scored = values_and_mask(column)
        meter.mean(f"{phase}/{name}", values, scored)
        for source in sorted({x for x in of_response if x is not None}):
            own = torch.tensor([x == source for x in of_response])
            meter.mean(f"{phase}/{name}/{source}", values, scored & own)


def log_groups(meter: Meter, scores: Scores, group: Tensor) -> None:
    """Log the standard deviation of the rewards of a group (n - 1 in the denominator, over groups
    with two scored responses or more), and the fractions of groups that are all correct and all
    wrong. Groups are of equal size."""
    values, scored = values_and_mask(scores.values)
    count = group_reduce(scored.double(), group, "sum")
    mean = group_reduce(values, group, "sum") / count.clamp(min=1)
    squares = group_reduce(torch.where(scored, values - mean, 0.0).square(), group, "sum")
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    std = torch.where(constant_group(values, scored, group), 0.0, std)
    meter.mean("train/reward_std", std, count > 1)
    if scores.correct is not None:
        correct, graded = values_and_mask(scores.correct)
        any_graded = group_reduce(graded.double(), group, "sum") > 0
        worst = group_reduce(torch.where(graded, correct, 1.0), group, "amin")
        best = group_reduce(torch.where(graded, correct, 0.0), group, "amax")
        meter.mean("train/all_correct_fraction", worst, any_graded)
        meter.mean("train/all_wrong_fraction", 1 - best, any_graded)


def log_smaller_groups(meter: Meter, correct: Tensor, group: Tensor) -> None:
    """Log the fraction of groups that would be flat with half and with a quarter of the samples:
    the mean probability that m responses, drawn from a group without replacement, are all correct
    or all wrong, (C(k, m) + C(G - k, m)) / C(G, m) with k correct ones of G."""
    num_correct = [int(k) for k in group_reduce(correct.double(), group, "sum").tolist()]
    size = len(correct) // len(set(group.tolist()))
    for name, m in {"half": size // 2, "quarter": size // 4}.items():
        if m:
            flat = [math.comb(k, m) + math.comb(size - k, m) for k in num_correct]
            share = torch.tensor(flat, dtype=torch.float64) / math.comb(size, m)
            meter.mean(f"train/flat_group_fraction/{name}", share)


def log_update(
    meter: Meter,
    micro: Experience,
    log_ratio: Tensor,
    old_logprobs: Tensor,
    entropy: Tensor,
    clipped: Tensor,
    iteration: int,
    compare_sampler: bool = True,
) -> Tensor:
    """Log entropy, distance from the old policy and (with `compare_sampler`) from the sampler, and
    clipping of one microbatch. The distance from the sampler has a name of its own for rows sampled
    ahead, because the policy has moved since.

    Returns [2]: the KL estimate `r - 1 - log r` summed over tokens, and the number of tokens, of
    rows graded in this `iteration`: the ratio of older rows includes earlier updates."""
    mask = micro.mask
    d = log_ratio.detach()
    kl = d.exp() - 1 - d
    fresh = mask & (micro.policy_version == iteration)[:, None]
    meter.mean("train/entropy", entropy, mask)
    meter.mean("train/kl_old", kl, fresh)
    meter.mean("train/clip_fraction/low", (clipped & (micro.advantages < 0)).double(), mask)
    meter.mean("train/clip_fraction/high", (clipped & (micro.advantages > 0)).double(), mask)
    meter.maximum("train/ratio_max", d.exp(), mask)
    if compare_sampler:
        gap = (old_logprobs - micro.behavior_logprobs).abs()
        ahead = (micro.sampler_version < micro.policy_version)[:, None]
        meter.mean("train/sampler_logprob_gap", gap, mask & ~ahead)
        meter.mean("train/ahead_logprob_gap", gap, mask & ahead)
    return torch.stack([torch.where(fresh, kl, 0.0).double().sum(), fresh.sum().double()])


def log_correction(meter: Meter, correction: ImportanceWeights, mask: Tensor) -> None:
    """Log the weights of one microbatch: their mean, the fractions of tokens out of bounds whose
    weight is a bound (truncated) or 0 (masked), and the effective sample size."""
    weights, outside = correction.weights, correction.outside
    meter.mean("train/correction_mean", weights, mask)
    meter.mean("train/correction_truncated", (outside & (weights != 0)).double(), mask)
    meter.mean("train/correction_masked", (outside & (weights == 0)).double(), mask)
    meter.effective_fraction("train/correction_ess", weights, mask)


def log_critic(meter: Meter, returns: Tensor, values: Tensor, mask: Tensor, ranks: Ranks) -> None:
    """Log the explained variance of the critic before its update, `1 - Var(R - V) / Var(R)` over
    all ranks, and the means of V and R."""
    count = ranks.reduce(mask.sum()).clamp(min=1)

    def variance(x: Tensor) -> Tensor:
        x = torch.where(mask, x, 0.0).double()
        mean = ranks.reduce(x.sum()) / count
        return ranks.reduce(torch.where(mask, x - mean, 0.0).square().sum()) / count

    total = variance(returns)
    if total > 0:
        meter.mean("train/explained_variance", 1 - variance(returns - values) / total)
    meter.mean("train/value", values, mask)
    meter.mean("train/return", returns, mask)


def log_teacher(meter: Meter, batch: Experience, log_ratio: Tensor) -> None:
    """Log the estimated KL from the teacher, and how often it finds a token more likely than the
    policy, of the tokens that it has scored."""
    assert batch.teacher_logprobs is not None
    scored = batch.mask & ~batch.teacher_logprobs.isnan()
    meter.mean("train/kl_teacher", -log_ratio, scored)
    meter.mean("train/teacher_above_fraction", (log_ratio > 0).double(), scored)
