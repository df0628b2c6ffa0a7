"""Metrics over microbatches and ranks, wall time by phase, and logging of responses and updates.

Means are sums and counts that are divided once, so microbatches of unequal size and ranks with
unequal work give the exact mean."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric

from rlmods.distributed.collectives import Ranks, all_gather
from rlmods.ops import constant_group, group_reduce, masked_mean
from rlmods.training.out_of_memory import explain_out_of_memory
from rlmods.types import Experience, ImportanceWeights, Response, Scores


class Mean(Metric):
    """Sum over count, and the count.

    torchmetrics' MeanMetric forgets its weights under `nan_strategy="disable"`, and hides NaN under
    the others."""

    full_state_update = False
    sum: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("sum", "count"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, sum: Tensor | float, count: Tensor | float) -> None:
        self.sum += sum
        self.count += count

    def compute(self) -> Tensor:
        return torch.stack([self.sum / self.count, self.count])


class Maximum(Metric):
    """Largest element, and the number of elements."""

    full_state_update = False
    max: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("max", torch.tensor(-torch.inf, dtype=torch.float64), dist_reduce_fx="max")
        self.add_state("count", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, max: Tensor | float, count: Tensor | float) -> None:
        self.max = torch.maximum(
            self.max, torch.as_tensor(max, dtype=self.max.dtype, device=self.max.device)
        )
        self.count += count

    def compute(self) -> Tensor:
        return torch.stack([self.max, self.count])


class EffectiveFraction(Metric):
    """Effective sample size of weights as a fraction of their number n, (sum w)^2 / (n sum w^2)
    (Kish 1965), and n.

    1 for equal weights, 1 / n if only one of them is not 0, 0 if all are 0."""

    full_state_update = False
    sum: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("sum", "squares", "count"):
            self.add_state(name, torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, sum: Tensor | float, squares: Tensor | float, count: Tensor | float) -> None:
        self.sum += sum
        self.squares += squares
        self.count += count

    def compute(self) -> Tensor:
        fraction = self.sum.square() / (self.count * self.squares)
        return torch.stack([torch.where(self.squares == 0, 0.0, fraction), self.count])


IDENTITY: dict[type[Metric], tuple[Any, ...]] = {
    Mean: (0.0, 0.0),
    Maximum: (-torch.inf, 0.0),
    EffectiveFraction: (0.0, 0.0, 0.0),
    SumMetric: (0.0,),
}
"""Identity update per metric type."""


class Meter:
    """Metrics of one iteration by name. Ranks may add different names."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.metrics: dict[str, Metric] = {}
        self._unused: dict[tuple[str, type[Metric]], Metric] = {}
        """Metrics of earlier iterations, which take longer to make than to reset."""

    def mean(self, name: str, x: Tensor | float, where: Tensor | None = None) -> None:
        """Add the elements of `x` (those where `where` is True) to the mean called `name`."""
        x = torch.as_tensor(x, dtype=torch.float64, device=self.device).detach()
        where = None if where is None else where.to(self.device)
        count = torch.tensor(x.numel(), device=self.device) if where is None else where.sum()
        total = x.sum() if where is None else torch.where(where, x, 0.0).sum()
        self._get(name, Mean).update(total, count)

    def maximum(self, name: str, x: Tensor, where: Tensor) -> None:
        """Add the elements of `x` where `where` is True to the maximum called `name`."""
        x = torch.where(where, x.detach().double(), -torch.inf)
        self._get(name, Maximum).update(x.max() if x.numel() else -torch.inf, where.sum())

    def effective_fraction(self, name: str, weights: Tensor, where: Tensor) -> None:
        """Add the weights where `where` is True to the effective fraction called `name`."""
        weights = torch.where(where, weights.detach().double(), 0.0)
        self._get(name, EffectiveFraction).update(
            weights.sum(), weights.square().sum(), where.sum()
        )

    def sum(self, name: str, value: int) -> None:
        """Add `value` to the sum called `name`."""
        self._get(name, SumMetric).update(
            torch.tensor(value, dtype=torch.float64, device=self.device)
        )

    def compute(self) -> dict[str, float]:
        """Return the values over all ranks, without metrics to which no element was added."""
        for rank in all_gather({name: type(metric) for name, metric in self.metrics.items()}):
            for name in rank.keys() - self.metrics.keys():
                self._get(name, rank[name]).update(*IDENTITY[rank[name]])
        values, found = (
            dict[str, float](),
            {name: self.metrics[name].compute().tolist() for name in sorted(self.metrics)},
        )
        for name, value in found.items():
            if not isinstance(value, list):
                values[name] = value
            elif value[1]:
                values[name] = value[0]
        return values

    def reset(self, device: torch.device | None = None) -> None:
        """Remove all metrics; from now on they are on `device`, if given."""
        self._unused |= {(name, type(metric)): metric for name, metric in self.metrics.items()}
        self.metrics = {}
        if device is not None:
            self.device, self._unused = device, {}

    def _get(self, name: str, kind: type[Metric]) -> Metric:
        if name not in self.metrics:
            if (metric := self._unused.pop((name, kind), None)) is not None:
                metric.reset()
            else:
                metric = kind(nan_strategy="disable") if kind is SumMetric else kind()
                metric = metric.set_dtype(torch.float64).to(self.device)
            self.metrics[name] = metric
        return self.metrics[name]


class PhaseTimer:
    """Wall time by phase of the iteration, and the progress that the watchdog compares between
    ranks."""

    def __init__(self, notify: Callable[[str], None], advise: Callable[[str], str]) -> None:
        """
        Args:
            notify: calls a hook of the callbacks by name.
            advise: returns the overrides to type if a phase runs out of memory.
        """
        self._notify, self._advise = notify, advise
        self.phase = "start"
        self.progress = 0
        """Number of phases and microbatches begun or ended; ranks advance it identically."""
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to `seconds[phase]`."""
        self.on_safe_point()
        start = time.perf_counter()
        with self.within(phase):
            yield
        self.seconds[phase] += time.perf_counter() - start  # type: ignore[assignment]

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Set the current phase for the block.

        Raises:
            UserError: memory is exhausted; with the override that needs less.
        """
        outer, self.phase, self.progress = self.phase, phase, self.progress + 1
        with explain_out_of_memory(phase, self._advise):
            yield
        self.phase, self.progress = outer, self.progress + 1

    def on_safe_point(self) -> None:
        """Call `on_safe_point` of the callbacks. An exception raised here leaves nothing half
        written."""
        self._notify("on_safe_point")

    def advance(self) -> None:
        """Count one microbatch."""
        self.progress += 1
        self.on_safe_point()


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory so far in MiB: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def values_and_mask(values: Sequence[float | None]) -> tuple[Tensor, Tensor]:
    """Return the values with 0 in place of None, and a mask that is False there."""
    filled = torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
    return filled, torch.tensor([v is not None for v in values], dtype=torch.bool)


def lacks_correctness(scores: Scores) -> bool:
    """Return True if the reward scored a response without reporting whether it is correct."""
    if scores.correct is None or scores.monitored:
        return True
    return any(
        correct is None and value is not None
        for correct, value in zip(scores.correct, scores.values, strict=True)
    )


def correctness(scores: Scores) -> Tensor:
    """Return the scores by which `sampling` filters, [N] in float64: unshaped correctness if a
    weighted reward reports it, else the total reward; NaN for unscored responses."""
    correct = (
        [None] * len(scores.values)
        if scores.correct is None or scores.monitored
        else scores.correct
    )
    source = [
        None if value is None else value if c is None else c
        for value, c in zip(scores.values, correct, strict=True)
    ]
    return torch.tensor([math.nan if x is None else float(x) for x in source], dtype=torch.float64)


def log_responses(
    meter: Meter, responses: Sequence[Response], scores: Scores, group: Tensor, selected: Tensor
) -> None:
    """Log the metrics of all sampled responses, whether selected for training or not."""
    filter_scores = correctness(scores).to(group.device)
    texts: dict[int, list[str]] = {}
    for i, response in zip(group.tolist(), responses, strict=True):
        texts.setdefault(i, []).append(response.text)
    log_by_source(meter, "train", responses, scores)
    log_groups(meter, scores, group.cpu())
    for name, values in scores.terms.items():
        meter.mean(f"train/reward/{name}", *values_and_mask(values))
    for name, count in scores.counts.items():
        meter.sum(f"reward/{name}", count)
    meter.mean("train/unscored_fraction", filter_scores.isnan().double())
    meter.sum("train/responses", len(responses))
    meter.mean("train/response_tokens", torch.tensor([float(r.num_sampled) for r in responses]))
    meter.mean(
        "train/truncated_fraction", torch.tensor([float(r.finish == "length") for r in responses])
    )
    log_turns(meter, "train", responses)
    meter.mean(
        "train/flat_group_fraction",
        constant_group(filter_scores.nan_to_num(0.0), ~filter_scores.isnan(), group).double(),
    )
    meter.mean("train/kept_fraction", selected.double())
    meter.mean(
        "train/unique_fraction",
        torch.tensor([len(set(group_texts)) / len(group_texts) for group_texts in texts.values()]),
    )


def log_turns(meter: Meter, phase: str, responses: Sequence[Response]) -> None:
    """Log the means per response of several turns: turns, tokens of observations, calls of tools,
    calls that failed, calls that could not be read, seconds in tools, and the fraction of responses
    with cuts (`Response.cuts`); if responses may branch also the fraction of those that branch off
    from another one, and the sampled tokens and the calls that a response has from there. Nothing
    is logged of responses of one turn (`environment=single_turn`)."""
    responses = [r for r in responses if r.turns]
    calls = [[call for turn in r.turns for call in turn.calls] for r in responses]
    values = {
        "turns": [len(r.turns) for r in responses],
        "observation_tokens": [len(r.tokens) - r.num_sampled for r in responses],
        "tool_calls": [len(own) for own in calls],
        "tool_errors": [
            sum(call.error not in (None, "malformed") for call in own) for own in calls
        ],
        "malformed_calls": [sum(call.error == "malformed" for call in own) for own in calls],
        "tool_s": [sum(call.seconds for call in own) for own in calls],
        "cut_fraction": [bool(r.cuts) for r in responses],
    }
    if any(r.in_tree for r in responses):
        values["branched_fraction"] = [r.branch is not None for r in responses]
        values["shared_tokens"] = [r.num_sampled - r.num_new for r in responses]
        values["shared_tool_calls"] = [r.num_shared_calls for r in responses]
    for name, numbers in values.items() if responses else ():
        meter.mean(f"{phase}/{name}", torch.tensor(numbers, dtype=torch.float64))


def log_by_source(meter: Meter, phase: str, responses: Sequence[Response], scores: Scores) -> None:
    """Log reward and accuracy over all scored responses, and over those to the prompts of each
    source: `<phase>/reward/<source>`."""
    sources = sorted(
        {response.prompt.source for response in responses if response.prompt.source is not None}
    )
    for name, column in {"reward": scores.values, "accuracy": scores.correct}.items():
        if column is None:
            continue
        values, scored = values_and_mask(column)
        meter.mean(f"{phase}/{name}", values, scored)
        for source in sources:
            own = torch.tensor([response.prompt.source == source for response in responses])
            meter.mean(f"{phase}/{name}/{source}", values, scored & own)


def log_groups(meter: Meter, scores: Scores, group: Tensor) -> None:
    """Log the standard deviation of the rewards of a group (n - 1 in the denominator, over groups
    with two scored responses or more), and the fractions of groups whose graded responses are all
    correct and all wrong (over groups with any). Groups are of equal size."""
    values, scored = values_and_mask(scores.values)
    count = group_reduce(scored.double(), group, "sum")
    mean = group_reduce(values, group, "sum") / count.clamp(min=1)
    squares = group_reduce(torch.where(scored, values - mean, 0.0).square(), group, "sum")
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    meter.mean(
        "train/reward_std", torch.where(constant_group(values, scored, group), 0.0, std), count > 1
    )
    if scores.correct is not None:
        correct, graded = values_and_mask(scores.correct)
        any_graded = group_reduce(graded.double(), group, "sum") > 0
        meter.mean(
            "train/all_correct_fraction",
            group_reduce(torch.where(graded, correct, 1.0), group, "amin"),
            any_graded,
        )
        meter.mean(
            "train/all_wrong_fraction",
            1 - group_reduce(torch.where(graded, correct, 0.0), group, "amax"),
            any_graded,
        )


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
    clipping of one microbatch.

    The distance from the sampler is 0 but for rounding if both have the same weights. For rows
    sampled ahead it also has what the policy moved in one iteration, and a name of its own.

    Returns [2]: the KL estimate `r - 1 - log r` summed over tokens, and the number of tokens, of
    rows sampled in this `iteration`. Older rows are left out because their ratio includes earlier
    updates."""
    d, mask = log_ratio.detach(), micro.mask
    meter.mean("train/entropy", entropy, mask)
    kl, fresh = d.exp() - 1 - d, mask & (micro.policy_version == iteration)[:, None]
    meter.mean("train/kl_old", kl, fresh)
    meter.mean("train/clip_fraction/low", (clipped & (micro.advantages < 0)).double(), mask)
    meter.mean("train/clip_fraction/high", (clipped & (micro.advantages > 0)).double(), mask)
    meter.maximum("train/ratio_max", d.exp(), mask)
    if compare_sampler:
        gap, ahead = (
            (old_logprobs - micro.behavior_logprobs).abs(),
            (micro.sampler_version < micro.policy_version)[:, None],
        )
        meter.mean("train/sampler_logprob_gap", gap, mask & ~ahead)
        meter.mean("train/ahead_logprob_gap", gap, mask & ahead)
    return torch.stack([torch.where(fresh, kl, 0.0).double().sum(), fresh.sum().double()])


def log_correction(meter: Meter, correction: ImportanceWeights, mask: Tensor) -> None:
    """Log the weights of one microbatch: their mean, the fractions of tokens whose ratio is out of
    bounds and whose weight is a bound (truncated) or 0 (masked), and the effective sample size as a
    fraction of the tokens."""
    weights, outside = correction.weights, correction.outside
    meter.mean("train/correction_mean", weights, mask)
    meter.mean("train/correction_truncated", (outside & (weights != 0)).double(), mask)
    meter.mean("train/correction_masked", (outside & (weights == 0)).double(), mask)
    meter.effective_fraction("train/correction_ess", weights, mask)


def log_critic(meter: Meter, returns: Tensor, values: Tensor, mask: Tensor, ranks: Ranks) -> None:
    """Log the explained variance of the critic before its update, `1 - Var(R - V) / Var(R)` over
    all ranks, and the means of V and R."""
    residual, target = (torch.where(mask, x, 0.0).double() for x in (returns - values, returns))
    count = ranks.reduce(mask.sum()).clamp(min=1)

    def variance(x: Tensor) -> Tensor:
        mean = ranks.reduce(x.sum()) / count
        return ranks.reduce(torch.where(mask, x - mean, 0.0).square().sum()) / count

    total = variance(target)
    if total > 0:
        meter.mean("train/explained_variance", 1 - variance(residual) / total)
    meter.mean("train/value", values, mask)
    meter.mean("train/return", returns, mask)


def sample_row(response: Response, scores: Scores, i: int) -> dict[str, Any]:
    """Return one row of the sample log: response i with its scores."""
    prompt = response.prompt
    return {
        "id": prompt.id,
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "answer": prompt.answer,
        **({} if prompt.source is None else {"source": prompt.source}),
        "response": response.text,
        "tokens": list(response.tokens),
        "finish": response.finish,
        **({"turns": [asdict(turn) for turn in response.turns]} if response.turns else {}),
        **({"cuts": list(response.cuts)} if response.cuts else {}),
        "reward": scores.values[i],
        "correct": None if scores.correct is None else scores.correct[i],
        **{f"reward/{name}": values[i] for name, values in scores.terms.items()},
        **{name: column[i] for name, column in scores.columns.items()},
    }


def sample_rows(
    responses: Sequence[Response],
    scores: Scores,
    selected: Tensor,
    iteration: int,
    group: Tensor | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of the sample log of an iteration, one per response.

    `kept` is True if `sampling` selects the response. `advantage` is the one that the response is
    trained with, which `log_advantages` sets. It stays None for a response that is unscored, not
    selected, truncated (`algo.overlong_filter`) or of a rejected group, and, if advantages are
    normalised over the rows of an iteration, for one of a group that waits for the next iteration.

    If responses may branch, each row has a `branch`: `sample`, the index of the response among
    those to its prompt (of equal `group`), `parent`, that of the response whose first `shared`
    tokens it has (None, 0: sampled from the prompt on), `decisions`, those of `rlmods.branching` at
    its tool results if the rollout reports them in `meta["decisions"]`, and `segments`, which
    `log_advantages` sets."""
    columns = ({"iteration": iteration, "advantage": None, "kept": k} for k in selected.tolist())
    rows = [
        sample_row(response, scores, i) | more
        for i, (response, more) in enumerate(zip(responses, columns, strict=True))
    ]
    if group is not None and any(response.in_tree for response in responses):
        seen = Counter[int]()
        for response, row, prompt in zip(responses, rows, group.tolist(), strict=True):
            start = (
                {"parent": None, "shared": 0}
                if response.branch is None
                else asdict(response.branch)
            )
            row["branch"] = {
                "sample": seen[prompt],
                **start,
                "decisions": list(response.meta.get("decisions", ())),
                "segments": None,
            }
            seen[prompt] += 1
    return rows


def log_advantages(rows: Mapping[int, Sequence[dict[str, Any]]], batch: Experience) -> None:
    """Set `advantage` in the rows of the sample log, given by group, of the responses in `batch`
    that have a loss: the mean over their tokens. The responses of a group are in the order in which
    they were sampled; groups without rows are those of earlier iterations.

    In trees of responses also `segments`: [begin, end, advantage] of each run of sampled tokens
    with equal advantages, as indices of the response's tokens."""
    advantages, trained, seen = (
        masked_mean(batch.advantages, batch.mask).tolist(),
        batch.mask.any(1).tolist(),
        Counter[int](),
    )
    for i, (group, advantage, is_trained) in enumerate(
        zip(batch.group.tolist(), advantages, trained, strict=True)
    ):
        if is_trained and group in rows:
            row = rows[group][seen[group]]
            row["advantage"] = advantage
            if "branch" in row:
                response = slice(int(batch.lengths[i]) - len(row["tokens"]), int(batch.lengths[i]))
                row["branch"]["segments"] = equal_runs(
                    batch.advantages[i, response].tolist(), batch.mask[i, response].tolist()
                )
        seen[group] += 1


def equal_runs(values: Sequence[float], mask: Sequence[bool]) -> list[list[float]]:
    """Return [begin, end, value] of the runs of equal values where the mask is True."""
    runs: list[list[float]] = []
    for t, (value, is_true) in enumerate(zip(values, mask, strict=True)):
        if is_true and runs and runs[-1][1:] == [t, value]:
            runs[-1][1] = t + 1
        elif is_true:
            runs.append([t, t + 1, value])
    return runs
