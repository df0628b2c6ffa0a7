"""Parts refuse values out of range, whatever is assumed elsewhere of the mathematics."""

from typing import Any

import pytest

from rlmods import (
    advantage,
    aggregation,
    correction,
    kl,
    preference,
    ratio,
    sampling,
    schedule,
    tokens,
)
from rlmods.critic.loss import CriticConfig

KL = {"estimator": "k3", "where": "loss"}
OUT_OF_RANGE: list[tuple[Any, dict[str, Any]]] = [
    (advantage.GroupNorm, {"eps": 0.0}),
    (advantage.BatchMean, {"eps": -1e-6}),
    (advantage.GDPO, {"eps": 0.0}),
    (advantage.BranchNorm, {"eps": 0.0}),
    (advantage.EMA, {"decay": 1.0}),
    (advantage.GAE, {"gamma": 1.1}),
    (advantage.GAE, {"lam": -0.1}),
    (advantage.GAE, {"critic_lam": 1.1}),
    (advantage.GAE, {"alpha": 0.0}),
    (advantage.NStep, {"n": 0}),
    (advantage.NStep, {"gamma": 1.1}),
    (advantage.Process, {"outcome_weight": 0.0}),
    (advantage.ReinforcePP, {"gamma": -0.1}),
    (aggregation.FixedLength, {"length": 0}),
    (correction.Masked, {"low": 1.1}),
    (correction.Masked, {"high": 0.9}),
    (correction.Masked, {"limit": 0.0}),
    (correction.Truncated, {"high": 0.9}),
    (CriticConfig, {"coefficient": 0.0}),
    (CriticConfig, {"clip": 0.0}),
    (CriticConfig, {"pretraining": -1}),
    (kl.Penalty, {**KL, "coefficient": -0.1}),
    (kl.Full, {"coefficient": -0.1}),
    (kl.Adaptive, {**KL, "coefficient": 0.1, "horizon": 0.0}),
    (kl.Adaptive, {**KL, "coefficient": 0.1, "minimum": 0.05, "maximum": 0.01}),
    (kl.Adaptive, {**KL, "coefficient": 0.1, "minimum": 0.2, "maximum": 1.0}),
    (kl.Ramp, {**KL, "coefficient": 0.1, "iterations": 0}),
    (kl.Ramp, {**KL, "coefficient": 0.1, "final": -0.1}),
    (preference.IPO, {"beta": 0.0}),
    (preference.KTO, {"undesirable_weight": 0.0}),
    (preference.ORPO, {"beta": 0.0}),
    (preference.Sigmoid, {"label_smoothing": 0.5}),
    (preference.SimPO, {"gamma": -0.1}),
    (ratio.CISPO, {"high": -0.1}),
    (ratio.Clipped, {"low": 1.1}),
    (ratio.Clipped, {"high": -0.1}),
    (ratio.Clipped, {"dual": 1.0}),
    (ratio.DPPO, {"low": 0.0}),
    (ratio.GeometricMean, {"low": -0.1}),
    (ratio.KLPenalty, {"target": 0.0}),
    (ratio.KLPenalty, {"minimum": 0.5, "maximum": 0.4}),
    (ratio.KLPenalty, {"coefficient": 2000.0}),
    (ratio.Soft, {"positive_temperature": 0.0}),
    (sampling.BestOf, {"k": 0}),
    (schedule.KLAdaptive, {"rate": 1.0}),
    (schedule.KLAdaptive, {"minimum": 1.1}),
    (schedule.KLAdaptive, {"maximum": 0.9}),
    (schedule.Schedule, {"final": 1.1}),
    (schedule.Schedule, {"warmup": -1}),
    (tokens.ClipCov, {"fraction": 0.0}),
    (tokens.ClipCov, {"low": 2.0, "high": 1.0}),
    (tokens.HighEntropy, {"fraction": 1.1}),
    (tokens.KLCov, {"coefficient": 0.0}),
    (tokens.OffPolicy, {"threshold": 0.0}),
]


@pytest.mark.parametrize(("kind", "values"), OUT_OF_RANGE)
def test_values_out_of_range_are_refused_by_name(kind: Any, values: dict[str, Any]) -> None:
    group = kind.__module__.split(".")[1]
    names = "|".join(name for name in values if name not in KL)
    with pytest.raises(ValueError, match=rf"^{group}\.({names})=\S+: must be "):
        kind(**values)
