"""Rules that tell a run that goes wrong from its metrics, and when they begin to hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, Protocol

MAX_WINDOW = 5
"""Number of first and of latest values that are kept of a metric."""
NO_SIGNAL = "no_learning_signal"
"""Metric that is 1 if an iteration made no optimizer step, or all its advantages were 0."""
UNGRADED = "ungraded_fraction"
"""Metric: calls of graders that failed or timed out, per response."""


@dataclass
class Series:
    """What is kept of the values of a metric."""

    first: list[float] = field(default_factory=list)
    latest: list[float] = field(default_factory=list)
    best: float = -math.inf
    count: int = 0

    def add(self, value: float) -> None:
        """Add the value of an iteration."""
        if self.count < MAX_WINDOW:
            self.first.append(value)
        self.latest = [*self.latest, value][-MAX_WINDOW:]
        self.best = max(self.best, value)
        self.count += 1


class Condition(Protocol):
    """Condition on a metric, on its last `window` values. It does not hold until there are enough
    of them."""

    def find(self, series: Series, window: int) -> str | None:
        """Return what the metric does if the condition holds, in words; else None."""


@dataclass(frozen=True)
class Beyond:
    """Each value is above a limit, NaN or infinite."""

    limit: float

    def find(self, series: Series, window: int) -> str | None:
        beyond = [not -math.inf < value <= self.limit for value in series.latest[-window:]]
        if len(beyond) < window or not all(beyond):
            return None
        return f"is {series.latest[-1]:.4g}, beyond {self.limit:g}{_lasting(window)}"


@dataclass(frozen=True)
class Is:
    """Each value is equal to a number."""

    value: float

    def find(self, series: Series, window: int) -> str | None:
        if series.latest[-window:] != [self.value] * window:
            return None
        return f"is {self.value:g}{_lasting(window)}"


@dataclass(frozen=True)
class Changed:
    """The mean has risen since the start, by more than `rise`; or with `to` it has fallen to this
    fraction of the start or less, and by `fall` or more."""

    rise: float = 0.0
    to: float | None = None
    fall: float = 0.0

    def find(self, series: Series, window: int) -> str | None:
        if series.count < 2 * window:
            return None
        start = fmean(series.first[:window])
        now = fmean(series.latest[-window:])
        if self.to is None and now > start + self.rise:
            return f"rose from {start:.3g} to {now:.3g}"
        if self.to is not None and now < start - self.fall and now <= self.to * start:
            return f"fell from {start:.3g} to {now:.3g}"
        return None


@dataclass(frozen=True)
class Collapsed:
    """Each value is at most half of the best one, and lower by 0.1 or more."""

    def find(self, series: Series, window: int) -> str | None:
        highest = min(series.best / 2, series.best - 0.1)
        if series.count <= window or max(series.latest[-window:]) > highest:
            return None
        return f"has collapsed to {series.latest[-1]:.3g}, its best was {series.best:.3g}"


@dataclass(frozen=True)
class Rule:
    """Row of the table."""

    name: str
    """Name of the alert, logged as `alert/<name>`. Of the rules of one name, the first that holds
    is reported."""
    metric: str
    condition: Condition
    window: int
    """Number of iterations (or validations) to look at."""
    advice: str
    """Cause, and the override to type."""
    action: Literal["warn", "stop"] = "warn"
    also: tuple[str, Condition] | None = None
    """Metric and condition that must hold too."""
    unless: tuple[str, Condition] | None = None
    """Metric and condition with which the rule does not apply."""

    def find(self, series: Mapping[str, Series]) -> str | None:
        """Return what has happened and what to type, None if the rule does not hold."""
        happened = self._look(self.metric, self.condition, series)
        if happened is None:
            return None
        if self.unless is not None and self._look(*self.unless, series) is not None:
            return None
        if self.also is not None:
            also = self._look(*self.also, series)
            if also is None:
                return None
            if self.also[0] != NO_SIGNAL:
                happened += f" while {also}"
        return f"{happened}: {self.advice}"

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that the rule looks at."""
        others = [pair[0] for pair in (self.also, self.unless) if pair is not None]
        return [self.metric, *others]

    def _look(self, metric: str, condition: Condition, series: Mapping[str, Series]) -> str | None:
        found = condition.find(series[metric], self.window) if metric in series else None
        return None if found is None else f"{metric} {found}"


DIVERGED = "training has diverged; the run is saved and stopped, type a smaller optimizer.lr"
SAMPLER_DIFFERS = (
    "the sampler and the trainer disagree about the policy, as with padding that reaches a "
    "recurrent state, another temperature or top_p in the rollout, weights that it has not "
    "received, or other precision or expert routing; the run is saved and stopped, type "
    "rollout=local, or if the difference is intended correction=truncated"
)
AHEAD_DIFFERS = (
    "one iteration moves the policy too far for responses sampled ahead; the run is saved and "
    "stopped, type rollout.ahead=0, or a smaller optimizer.lr"
)
SAMPLER_GAP = "sampler_gap"
MAXIMA: dict[str, float | None] = {
    "max_ratio": 1000.0,
    "max_kl": 10.0,
    "max_grad_norm": 10000.0,
    "max_sampler_gap": 0.1,
    "max_ahead_gap": 0.5,
}
"""Limits by setting of `callbacks.monitor`. Healthy runs stay far below them."""
LIMITS = (
    ("ratio", "train/ratio_max", "max_ratio", 3, DIVERGED),
    ("kl_old", "train/kl_old", "max_kl", 3, DIVERGED),
    ("kl_ref", "train/kl_ref", "max_kl", 3, DIVERGED),
    ("grad_norm", "train/grad_norm", "max_grad_norm", 3, DIVERGED),
    (SAMPLER_GAP, "train/sampler_logprob_gap", "max_sampler_gap", 1, SAMPLER_DIFFERS),
    ("ahead_gap", "train/ahead_logprob_gap", "max_ahead_gap", 3, AHEAD_DIFFERS),
)
"""Rules that end the run: name, metric, setting with the limit, window, advice. A difference
between sampler and trainer is there from the first iteration on, and ends the run at once."""
CAUSES = (
    ("train/unscored_fraction", 1, "the reward abstains on every response: check reward="),
    (
        "train/greedy_unscored_fraction",
        1,
        "the reward abstains on every greedy response: type another advantage=rloo",
    ),
    (
        "train/truncated_fraction",
        1,
        "every response is truncated: type a larger rollout.max_tokens",
    ),
    (
        "train/all_wrong_fraction",
        1,
        "every response is wrong: type easier data, batch.samples=16, or algo=sft first",
    ),
    ("train/all_correct_fraction", 1, "every response is correct: type harder data"),
    (
        "train/flat_group_fraction",
        1,
        "all responses to a prompt score alike: type batch.samples=8 or more, or other data",
    ),
    (
        "train/kept_fraction",
        0,
        "sampling= selects no response: type sampling=fixed, or other bounds",
    ),
    (NO_SIGNAL, 1, "all advantages are 0 or no row has a loss; see samples/ and train/reward"),
)
"""Causes of iterations that train nothing, the most specific first: metric, its value, advice."""
IDLE = [
    Rule("idle", metric, Is(value), 5, f"nothing is trained, {advice}", also=(NO_SIGNAL, Is(1)))
    for metric, value, advice in CAUSES
]
SOLVED = ("train/accuracy", Beyond(0.9))
LEARNS = ("train/accuracy", Changed(rise=0.1))
GO_BACK = "go back to an earlier checkpoint, with a smaller optimizer.lr or kl=loss"
WARNINGS = (
    Rule(
        "entropy",
        "train/entropy",
        Changed(to=0.1),
        5,
        "the policy hardly explores; type ratio=clip_higher, algo.entropy_coefficient=0.01 or a "
        "smaller optimizer.lr",
        unless=SOLVED,
    ),
    Rule(
        "diversity",
        "train/unique_fraction",
        Changed(to=0.5),
        5,
        "responses to a prompt have become alike; type rollout.temperature=1 or kl=loss",
        unless=LEARNS,
    ),
    Rule(
        "length",
        "train/truncated_fraction",
        Changed(rise=0.3),
        5,
        "responses reach the limit; type a larger rollout.max_tokens, or "
        "+reward@reward.terms.length.reward=overlong",
    ),
    Rule(
        "drift",
        "train/kl_ref",
        Beyond(1.0),
        5,
        "the reward may be gamed far from the reference; read samples/, type kl=loss or a larger "
        "kl.coefficient",
        also=("train/reward", Changed()),
    ),
    Rule(
        "gap",
        "train/accuracy",
        Changed(to=0.8),
        5,
        "the reward is gamed; read samples/ and compare train/reward/<term>",
        also=("train/reward", Changed()),
    ),
    Rule(
        "graders",
        UNGRADED,
        Beyond(0.05),
        1,
        "such responses count as wrong; see reward/<term>/timeouts and reward/<term>/errors, type "
        "a larger timeout_s of the term or mend it",
    ),
    Rule(
        "reward",
        "train/reward_std",
        Changed(to=0.05, fall=0.05),  # a rare reward is missing in a batch now and then
        3,
        f"every response gets the same reward, lower than at first; {GO_BACK}",
        also=("train/reward", Changed(to=1.0)),
    ),
    Rule("collapse", "val/accuracy", Collapsed(), 2, GO_BACK),
)


def limit_rules(limits: Mapping[str, float | None]) -> list[Rule]:
    """Return the rules that end a run, `LIMITS`. `limits`: by setting; None: no rule."""
    rules = []
    for name, metric, setting, window, advice in LIMITS:
        limit = limits[setting]
        if limit is not None:
            advice = f"{advice}, or another callbacks.monitor.{setting}"
            rules.append(Rule(name, metric, Beyond(limit), window, advice, action="stop"))
    return rules


@dataclass
class Alerts:
    """Rules, and the values that they look at."""

    rules: Sequence[Rule]
    series: dict[str, Series] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    """Names of the rules that hold."""

    def add(self, metrics: Mapping[str, float]) -> list[tuple[Rule, str, float]]:
        """Add the metrics of an iteration, and return the rules that begin to hold with their
        message and the value of their metric."""
        looked_at = {metric for rule in self.rules for metric in rule.metrics}
        for metric in looked_at & metrics.keys():
            self.series.setdefault(metric, Series()).add(metrics[metric])
        holding: set[str] = set()
        begun = []
        for rule in self.rules:
            message = None if rule.name in holding else rule.find(self.series)
            if message is None:
                continue
            holding.add(rule.name)
            if rule.name not in self.active:
                begun.append((rule, message, self.series[rule.metric].latest[-1]))
        self.active = holding
        return begun


def derived(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics that rules look at and an iteration does not log, from those it logs."""
    norms = [value for name, value in metrics.items() if name.endswith("grad_norm")]
    has_no_step = not any(norms)  # not logged without a step
    has_no_advantage = metrics.get("train/zero_advantage_fraction") == 1
    derived = {NO_SIGNAL: float(has_no_step or has_no_advantage)}
    failures = [
        count
        for name, count in metrics.items()
        if name.startswith("reward/") and name.endswith(("/timeouts", "/errors"))
    ]
    responses = metrics.get("train/responses", 0.0)
    if failures and responses:
        derived[UNGRADED] = max(failures) / responses
    return derived


def _lasting(window: int) -> str:
    return f" for {window} iterations in a row" if window > 1 else ""
