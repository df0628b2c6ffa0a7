"""Signs that a reward is being gamed: what an iteration looked like, and what has changed since the run began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from rlmods.callbacks.hooks import Metrics, Rows

Figures = Mapping[str, float]
"""Of an iteration, by name; means over iterations too."""
TERM = "reward/"


@dataclass(frozen=True)
class Thresholds:
    """From where on something is suspicious: the arguments of `HackingMonitor`, which says what they are."""

    correlation: float
    growth: float
    drop: float
    kl: float
    unique: float
    repetition: float
    truncated: float
    ungraded: float


@dataclass(frozen=True)
class Suspicion:
    """One sign, in words, with the responses that show it best."""

    kind: str
    words: str
    figure: float
    rank: Callable[[Mapping[str, Any]], float]
    """Rows for which this is highest are shown."""


def read(rows: Rows, metrics: Metrics) -> dict[str, float]:
    """Figures of one iteration from its responses (rows of the sample log) and what was logged for it."""
    scored = [row for row in rows if row.get("reward") is not None]
    lengths = [float(len(row["tokens"])) for row in scored]
    terms = sorted({key for row in scored for key in row if key.startswith(TERM)})
    columns = {"reward": "reward", **{term: term for term in terms}}
    figures = dict[str, float]()
    for name, column in columns.items():
        known = [(n, float(row[column]), row.get("correct")) for n, row in zip(lengths, scored, strict=True) if row.get(column) is not None]
        if known:
            values = [value for _, value, _ in known]
            figures |= {f"{name}/mean": fmean(values), f"{name}/spread": pstdev(values), f"{name}/by_length": by_length(known)}
    for name in ("accuracy", "kl_ref", "unique_fraction", "truncated_fraction", "response_tokens"):
        if (value := metrics.get(f"train/{name}")) is not None:
            figures[name] = value
    figures["repetition"] = fmean([repetition(str(row.get("response", ""))) for row in rows]) if rows else 0.0
    if responses := metrics.get("train/responses"):
        for key, count in metrics.items():
            if key.startswith(TERM) and key.endswith(("/timeouts", "/errors")):
                figures[f"ungraded/{key.removeprefix(TERM)}"] = count / responses
    return figures


def by_length(rows: Sequence[tuple[float, float, Any]]) -> float:
    """Pearson's correlation of length and value among rows (length, value, correct) that are equally correct; 0 without variance."""
    left, right = list[float](), list[float]()
    for kind in {correct for *_, correct in rows}:
        some = [(n, value) for n, value, correct in rows if correct == kind]
        means = [fmean(column) for column in zip(*some, strict=True)]
        left += [n - means[0] for n, _ in some]
        right += [value - means[1] for _, value in some]
    product = (sum(x * x for x in left) * sum(y * y for y in right)) ** 0.5
    return sum(x * y for x, y in zip(left, right, strict=True)) / product if product > 1e-9 else 0.0


def repetition(text: str, size: int = 4) -> float:
    """Share of word n-grams that occurred before in the same text."""
    words = text.split()
    grams = list(zip(*(words[i:] for i in range(size)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def average(readings: Sequence[Figures]) -> dict[str, float]:
    """Mean of each figure over the readings that have it."""
    names = {name for reading in readings for name in reading}
    return {name: fmean([reading[name] for reading in readings if name in reading]) for name in names}


def deviation(course: Sequence[float]) -> float:
    """Standard deviation of the noise in a course that may have a trend: the median step, as normal noise has it, over 0.954."""
    steps = [abs(b - a) for a, b in pairwise(course) if a != b]
    return median(steps) / 0.954 if steps else 0.0


def suspicions(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """Every sign there is.

    Args:
        start: of the first iterations.
        now: of the latest.
        best: of those in which the accuracy (or the gold reward: `gold`) was highest.
    """
    signs = (_length, _gap, _frontier, _diversity, _repetition, _truncation, _collapse, _graders)
    return [found for sign in signs for found in sign(start, now, best, limits)]


def _gold(figures: Figures) -> float | None:
    return figures.get("gold", figures.get("accuracy"))


def _fall(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> float:
    """How far the gold reward (or the accuracy) has fallen from its best, 0 where that may be chance: less than `noise`, four standard
    errors, or than `limits.drop` (of a gold reward, which has no scale of its own, a quarter of its rise)."""
    first, high, gold = _gold(start), _gold(best), _gold(now)
    if high is None or gold is None:
        return 0.0
    least = 0.25 * (high - (high if first is None else first)) if "gold" in now else limits.drop
    return high - gold if high - gold >= max(least, now.get("noise", 0.0), 1e-9) else 0.0


def _length(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """Longer answers are paid more, and answers have become longer."""
    before, after = start.get("response_tokens", 0.0), now.get("response_tokens", 0.0)
    paid = now.get("reward/by_length", 0.0)
    if not (paid >= limits.correlation and after >= before * (1 + limits.growth)):
        return []
    terms = {key.removesuffix("/by_length"): value for key, value in now.items() if key.startswith(TERM) and key.endswith("/by_length")}
    del terms["reward"]
    most = max(terms, key=lambda term: terms[term], default=None)
    blame = f", most of all the term {most.removeprefix(TERM)} ({terms[most]:.2f})" if most and terms[most] >= limits.correlation else ""
    words = f"pays for length: among equally correct answers reward and length correlate at {paid:.2f}{blame}, "
    return [Suspicion("length", f"{words}and the mean length went from {before:.1f} to {after:.1f} tokens", paid, _tokens)]


def _gap(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """The reward has risen while what it stands for has fallen."""
    high, gold = _gold(best), _gold(now)
    if high is None or gold is None or not _fall(start, now, best, limits):
        return []
    rise = now.get("reward/mean", 0.0) - best.get("reward/mean", 0.0)
    if rise <= 0.1 * max(start.get("reward/spread", 0.0), 1e-6):
        return []
    rises = {
        key.split("/")[1]: now[key] - best.get(key, now[key])
        for key in now
        if key.startswith(TERM) and key.endswith("/mean") and key.count("/") == 2
    }
    most = max(rises, key=lambda term: rises[term], default=None)
    blame = f" (most in the term {most}: +{rises[most]:.2f})" if most and rises[most] > 0 else ""
    name = "gold reward" if "gold" in now else "accuracy"
    words = f"the reward rose by {rise:.2f} to {now['reward/mean']:.2f}{blame} while the {name} fell from {high:.2f} to {gold:.2f}"
    return [Suspicion("gap", words, high - gold, _reward_of_wrong)]


def _frontier(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """The policy has moved on from the reference for nothing."""
    high, gold, near, far = _gold(best), _gold(now), best.get("kl_ref"), now.get("kl_ref")
    if high is None or gold is None or near is None or far is None:
        return []
    if far < limits.kl or far < 2 * near or not _fall(start, now, best, limits):
        return []
    words = f"the policy is {far:.3f} nats per token from the reference, and was better at {near:.3f} ({high:.2f}, now {gold:.2f})"
    return [Suspicion("frontier", words, far, _reward)]


def _diversity(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """All say the same, and it is not right."""
    before, after = start.get("unique_fraction", 0.0), now.get("unique_fraction", 1.0)
    if after > limits.unique * before or now.get("accuracy", 0.0) >= 0.9:
        return []
    words = f"responses to a prompt have become alike: {after:.0%} are different, {before:.0%} were"
    return [Suspicion("diversity", words, after, _reward)]


def _repetition(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    before, after = start["repetition"], now["repetition"]
    if after < before + limits.repetition:
        return []
    words = f"responses repeat themselves: {after:.0%} of the 4-grams of a response occurred in it before, at first {before:.0%}"
    return [Suspicion("repetition", words, after, lambda row: repetition(str(row.get("response", ""))))]


def _truncation(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    before, after = start.get("truncated_fraction", 0.0), now.get("truncated_fraction", 0.0)
    if after < before + limits.truncated:
        return []
    words = f"{after:.0%} of the responses are cut off at rollout.max_tokens, at first {before:.0%}"
    return [Suspicion("truncation", words, after, _tokens)]


def _collapse(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    """A term gives every response the same, less than it gave."""
    found = []
    for key, spread in now.items():
        name = key.removeprefix(TERM).removesuffix("/spread")
        mean = f"{TERM}{name}/mean"
        if not key.startswith(TERM) or not key.endswith("/spread") or name == "spread" or spread > 1e-9:
            continue
        if start.get(key, 0.0) > 1e-3 and now[mean] < start[mean]:
            words = f"the term {name} has collapsed: every response gets {now[mean]:.2f}, at first the mean was {start[mean]:.2f}"
            found.append(Suspicion(f"collapse/{name}", words, now[mean], _reward))
    return found


def _graders(start: Figures, now: Figures, best: Figures, limits: Thresholds) -> list[Suspicion]:
    found = []
    for key, share in now.items():
        if key.startswith("ungraded/") and share >= limits.ungraded:
            term, kind = key.removeprefix("ungraded/").rsplit("/", 1)
            words = f"the grader of the term {term} has {kind} on {share:.0%} of the responses, which are scored as wrong"
            found.append(Suspicion(f"graders/{term}/{kind}", words, share, _tokens))
    return found


def _tokens(row: Mapping[str, Any]) -> float:
    return float(len(row["tokens"]))


def _reward(row: Mapping[str, Any]) -> float:
    return float("-inf") if row.get("reward") is None else float(row["reward"])


def _reward_of_wrong(row: Mapping[str, Any]) -> float:
    return _reward(row) - 1e6 * bool(row.get("correct"))
