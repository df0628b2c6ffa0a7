"""Detection of reward hacking: statistics of an iteration, and alerts on their changes since the
run began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from rlmods.callbacks.hooks import Metrics, Rows

Stats = Mapping[str, float]
"""Statistics of an iteration by name, or their means over iterations."""
TERM_PREFIX = "reward/"


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the alerts; documented as arguments of `HackingMonitor`."""

    correlation: float
    growth: float
    drop: float
    kl: float
    unique: float
    repetition: float
    truncated: float
    ungraded: float


@dataclass(frozen=True)
class Alert:
    """One indication of reward hacking."""

    kind: str
    message: str
    value: float
    """Value of the statistic that triggered the alert."""
    sort_key: Callable[[Mapping[str, Any]], float]
    """Key of sample-log rows; those with the highest keys are shown as examples."""


def compute_stats(rows: Rows, metrics: Metrics) -> dict[str, float]:
    """Compute the statistics of one iteration from its responses (rows of the sample log) and its
    logged metrics."""
    scored = [row for row in rows if row.get("reward") is not None]
    lengths = [float(len(row["tokens"])) for row in scored]
    terms = sorted({key for row in scored for key in row if key.startswith(TERM_PREFIX)})
    stats = dict[str, float]()
    for name in ("reward", *terms):
        known = [
            (n, float(row[name]), row.get("correct"))
            for n, row in zip(lengths, scored, strict=True)
            if row.get(name) is not None
        ]
        if known:
            values = [value for _, value, _ in known]
            stats |= {
                f"{name}/mean": fmean(values),
                f"{name}/spread": pstdev(values),
                f"{name}/by_length": length_correlation(known),
            }
    for name in ("accuracy", "kl_ref", "unique_fraction", "truncated_fraction", "response_tokens"):
        if (value := metrics.get(f"train/{name}")) is not None:
            stats[name] = value
    stats["repetition"] = (
        fmean([repeated_fraction(str(row.get("response", ""))) for row in rows]) if rows else 0.0
    )
    if responses := metrics.get("train/responses"):
        for key, count in metrics.items():
            if key.startswith(TERM_PREFIX) and key.endswith(("/timeouts", "/errors")):
                stats[f"ungraded/{key.removeprefix(TERM_PREFIX)}"] = count / responses
    return stats


def length_correlation(rows: Sequence[tuple[float, float, Any]]) -> float:
    """Return the Pearson correlation of length and value over rows (length, value, correct),
    centered among equally correct ones.

    0 without variance.
    """
    lengths, values = list[float](), list[float]()
    for group in {correct for *_, correct in rows}:
        members = [(n, value) for n, value, correct in rows if correct == group]
        means = [fmean(column) for column in zip(*members, strict=True)]
        lengths += [n - means[0] for n, _ in members]
        values += [value - means[1] for _, value in members]
    product = (sum(x * x for x in lengths) * sum(y * y for y in values)) ** 0.5
    return (
        sum(x * y for x, y in zip(lengths, values, strict=True)) / product
        if product > 1e-9
        else 0.0
    )


def repeated_fraction(text: str, size: int = 4) -> float:
    """Return the fraction of word n-grams that occurred before in the same text."""
    words = text.split()
    grams = list(zip(*(words[i:] for i in range(size)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def average(iterations: Sequence[Stats]) -> dict[str, float]:
    """Average each statistic over the iterations that have it."""
    names = {name for stats in iterations for name in stats}
    return {name: fmean([stats[name] for stats in iterations if name in stats]) for name in names}


def noise_std(history: Sequence[float]) -> float:
    """Estimate the standard deviation of normal noise in a series that may have a trend: its median
    absolute step / 0.954."""
    steps = [abs(b - a) for a, b in pairwise(history) if a != b]
    return median(steps) / 0.954 if steps else 0.0


def find_alerts(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """Return all alerts.

    Args:
        start: averages of the first iterations.
        now: averages of the latest iterations.
        best: averages of the iterations with the highest accuracy (or gold reward: `gold`).
    """
    detectors = (
        _length,
        _gap,
        _frontier,
        _diversity,
        _repetition,
        _truncation,
        _collapse,
        _graders,
    )
    return [alert for detect in detectors for alert in detect(start, now, best, limits)]


def _gold(stats: Stats) -> float | None:
    return stats.get("gold", stats.get("accuracy"))


def _drop(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> float:
    """Return the drop of the gold reward (or the accuracy) from its best, 0 if it may be chance:
    less than `noise` (four standard errors) or less than `limits.drop` (for a gold reward, whose
    scale is unknown, a quarter of its rise)."""
    first, high, gold = _gold(start), _gold(best), _gold(now)
    if high is None or gold is None:
        return 0.0
    min_drop = 0.25 * (high - (high if first is None else first)) if "gold" in now else limits.drop
    return high - gold if high - gold >= max(min_drop, now.get("noise", 0.0), 1e-9) else 0.0


def _length(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """The reward correlates with length, and responses have become longer."""
    before, after = start.get("response_tokens", 0.0), now.get("response_tokens", 0.0)
    correlation = now.get("reward/by_length", 0.0)
    if not (correlation >= limits.correlation and after >= before * (1 + limits.growth)):
        return []
    suffix = "/by_length"
    terms = {
        key.removesuffix(suffix): value
        for key, value in now.items()
        if key.startswith(TERM_PREFIX) and key.endswith(suffix)
    }
    del terms["reward"]
    top = max(terms, key=lambda term: terms[term], default=None)
    detail = ""
    if top and terms[top] >= limits.correlation:
        detail = f", most of all the term {top.removeprefix(TERM_PREFIX)} ({terms[top]:.2f})"
    message = (
        "the reward grows with length: among equally correct responses their correlation is "
        f"{correlation:.2f}{detail}, "
    )
    message += f"and the mean length went from {before:.1f} to {after:.1f} tokens"
    return [Alert("length", message, correlation, _num_tokens)]


def _gap(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """The reward has risen while the accuracy (or gold reward) has fallen."""
    high, gold = _gold(best), _gold(now)
    if high is None or gold is None or not _drop(start, now, best, limits):
        return []
    rise = now.get("reward/mean", 0.0) - best.get("reward/mean", 0.0)
    if rise <= 0.1 * max(start.get("reward/spread", 0.0), 1e-6):
        return []
    rises = {
        key.split("/")[1]: now[key] - best.get(key, now[key])
        for key in now
        if key.startswith(TERM_PREFIX) and key.endswith("/mean") and key.count("/") == 2
    }
    top = max(rises, key=lambda term: rises[term], default=None)
    detail = f" (most in the term {top}: +{rises[top]:.2f})" if top and rises[top] > 0 else ""
    name = "gold reward" if "gold" in now else "accuracy"
    message = (
        f"the reward rose by {rise:.2f} to {now['reward/mean']:.2f}{detail} while the {name} "
        f"fell from {high:.2f} to {gold:.2f}"
    )
    return [Alert("gap", message, high - gold, _reward_if_incorrect)]


def _frontier(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """The KL to the reference has grown while the accuracy (or gold reward) has fallen."""
    high, gold, best_kl, kl = _gold(best), _gold(now), best.get("kl_ref"), now.get("kl_ref")
    if high is None or gold is None or best_kl is None or kl is None:
        return []
    if kl < limits.kl or kl < 2 * best_kl or not _drop(start, now, best, limits):
        return []
    message = (
        f"the policy is {kl:.3f} nats per token from the reference, and was better at "
        f"{best_kl:.3f} ({high:.2f}, now {gold:.2f})"
    )
    return [Alert("frontier", message, kl, _reward)]


def _diversity(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """Responses to a prompt have become identical, at an accuracy below 0.9."""
    before, after = start.get("unique_fraction", 0.0), now.get("unique_fraction", 1.0)
    if after > limits.unique * before or now.get("accuracy", 0.0) >= 0.9:
        return []
    message = (
        f"responses to a prompt have become alike: {after:.0%} are different, at first {before:.0%}"
    )
    return [Alert("diversity", message, after, _reward)]


def _repetition(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    before, after = start["repetition"], now["repetition"]
    if after < before + limits.repetition:
        return []
    message = (
        f"responses repeat themselves: {after:.0%} of the 4-grams of a response occurred in "
        f"it before, at first {before:.0%}"
    )
    return [
        Alert(
            "repetition",
            message,
            after,
            lambda row: repeated_fraction(str(row.get("response", ""))),
        )
    ]


def _truncation(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    before, after = start.get("truncated_fraction", 0.0), now.get("truncated_fraction", 0.0)
    if after < before + limits.truncated:
        return []
    message = (
        f"{after:.0%} of the responses are truncated at rollout.max_tokens, at first {before:.0%}"
    )
    return [Alert("truncation", message, after, _num_tokens)]


def _collapse(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    """A term scores every response the same, and lower than at first."""
    alerts = []
    for key, spread in now.items():
        name = key.removeprefix(TERM_PREFIX).removesuffix("/spread")
        mean = f"{TERM_PREFIX}{name}/mean"
        if (
            not key.startswith(TERM_PREFIX)
            or not key.endswith("/spread")
            or name == "spread"
            or spread > 1e-9
        ):
            continue
        if start.get(key, 0.0) > 1e-3 and now[mean] < start[mean]:
            message = (
                f"the term {name} has collapsed: every response gets {now[mean]:.2f}, at first "
                f"the mean was {start[mean]:.2f}"
            )
            alerts.append(Alert(f"collapse/{name}", message, now[mean], _reward))
    return alerts


def _graders(start: Stats, now: Stats, best: Stats, limits: Thresholds) -> list[Alert]:
    alerts = []
    for key, fraction in now.items():
        if key.startswith("ungraded/") and fraction >= limits.ungraded:
            term, kind = key.removeprefix("ungraded/").rsplit("/", 1)
            message = (
                f"the grader of the term {term} has {kind} on {fraction:.0%} of the responses, "
                "which are scored as wrong"
            )
            alerts.append(Alert(f"graders/{term}/{kind}", message, fraction, _num_tokens))
    return alerts


def _num_tokens(row: Mapping[str, Any]) -> float:
    return float(len(row["tokens"]))


def _reward(row: Mapping[str, Any]) -> float:
    return float("-inf") if row.get("reward") is None else float(row["reward"])


def _reward_if_incorrect(row: Mapping[str, Any]) -> float:
    return _reward(row) - 1e6 * bool(row.get("correct"))
