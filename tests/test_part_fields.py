"""Values out of bounds are refused by the name of their field."""

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import pytest

from rlmods import judge, reward
from rlmods.adapter import LoRA
from rlmods.advantage import (
    EMA,
    GAE,
    GDPO,
    BatchMean,
    BranchNorm,
    GroupNorm,
    NStep,
    Process,
    ReinforcePP,
    TurnNorm,
)
from rlmods.aggregation import FixedLength
from rlmods.branching import Entropy
from rlmods.callbacks import (
    GracefulStop,
    IterationCheckpoint,
    Monitor,
    TokenBudget,
    Watchdog,
)
from rlmods.correction import Masked, Truncated
from rlmods.critic import Separate, Shared
from rlmods.data import HiddenNumber
from rlmods.errors import UserError
from rlmods.judge import Rule
from rlmods.kl import Adaptive, Full, Penalty, Ramp
from rlmods.preference import IPO, KTO, ORPO, Sigmoid, SimPO
from rlmods.ratio import CISPO, DPPO, TOPR, Clipped, GeometricMean, KLPenalty, Soft
from rlmods.rollout import VLLM, Local, VLLMServer
from rlmods.router import Routing
from rlmods.sampling import BestOf
from rlmods.schedule import KLAdaptive, Schedule
from rlmods.teacher import Server
from rlmods.tokens import ClipCov, HighEntropy, KLCov, OffPolicy
from rlmods.training.evaluation import Validation
from rlmods.training.settings import Batch, DPOSettings, GKDSettings, RewardModelSettings

KL = {"estimator": "k1", "coefficient": 0.1, "where": "reward"}
SERVER = partial(Server, url="http://h/v1", model="m")
SERVED = partial(judge.LLM, url="http://h/v1", model="m")
VALIDATION = partial(Validation, samples=2)
CHECKPOINT = partial(IterationCheckpoint, "folder")
POSITIVE = (0.0, -1.0, nan)
"""Values outside of the bounds of a number above 0."""
BAD: list[tuple[str, Callable[..., Any], dict[str, tuple[Any, ...]]]] = [
    ("advantage", EMA, {"decay": (-0.1, 1.0, nan)}),
    (
        "advantage",
        GAE,
        {
            "gamma": (-0.1, 1.1, nan),
            "lam": (-0.1, 1.1, nan),
            "critic_lam": (-0.1, 1.1),
            "alpha": POSITIVE,
        },
    ),
    ("advantage", GDPO, {"eps": POSITIVE}),
    ("advantage", BatchMean, {"eps": POSITIVE}),
    ("advantage", BranchNorm, {"eps": POSITIVE}),
    ("advantage", TurnNorm, {"eps": POSITIVE, "gamma": (-0.1, 1.1, nan)}),
    ("advantage", GroupNorm, {"eps": POSITIVE}),
    ("advantage", NStep, {"n": (0,), "gamma": (-0.1, 1.1, nan)}),
    ("advantage", Process, {"eps": POSITIVE, "gamma": (1.1,), "outcome_weight": (0.0,)}),
    ("advantage", ReinforcePP, {"gamma": (-0.1, 1.1), "baseline": ("mean",)}),
    ("ratio", CISPO, {"low": (-0.1,), "high": (-0.1,)}),
    ("ratio", GeometricMean, {"low": (-0.1, nan), "high": (-0.1, nan)}),
    ("ratio", KLPenalty, {"coefficient": (-1.0, inf, 1e-4, 2000.0), "target": (0.0,)}),
    ("ratio", KLPenalty, {"minimum": (-1.0,), "maximum": (1e-4,)}),
    ("ratio", DPPO, {"divergence": ("js",), "low": (0.0,), "high": (nan,)}),
    ("ratio", Soft, {"positive_temperature": POSITIVE, "negative_temperature": POSITIVE}),
    ("ratio", Clipped, {"low": (-0.1, 1.1), "high": (-1.0, nan), "level": ("word",)}),
    ("ratio", Clipped, {"dual": (1.0,)}),
    ("ratio", TOPR, {"level": ("response",)}),
    ("kl", partial(Penalty, **KL), {"estimator": ("k4",), "coefficient": (-1.0, nan)}),
    ("kl", partial(Penalty, **KL), {"where": ("both",), "gradient": ("other", "exact")}),
    ("kl", partial(Adaptive, **KL), {"estimator": ("k4",), "where": ("both",)}),
    ("kl", partial(Adaptive, **KL), {"coefficient": (-1.0, 0.0, 200.0), "target": POSITIVE}),
    ("kl", partial(Adaptive, **KL), {"minimum": POSITIVE}),
    ("kl", partial(Adaptive, **KL), {"horizon": POSITIVE, "maximum": (1e-5,)}),
    ("kl", partial(Ramp, **KL), {"final": (-0.1, inf), "iterations": (0,)}),
    ("kl", Full, {"coefficient": (-1.0, nan, inf)}),
    ("correction", Truncated, {"high": (0.9, nan), "level": ("response",)}),
    (
        "correction",
        Masked,
        {
            "low": (-0.1, 1.1),
            "high": (0.9, nan),
            "level": ("response",),
            "gate": ("k3",),
            "limit": POSITIVE,
        },
    ),
    ("tokens", HighEntropy, {"fraction": (0.0, 1.1, nan)}),
    ("tokens", ClipCov, {"fraction": (0.0, 1.1, nan), "high": (1.0, nan)}),
    ("tokens", KLCov, {"fraction": (0.0, 1.1, nan), "coefficient": POSITIVE}),
    ("tokens", OffPolicy, {"threshold": POSITIVE}),
    ("aggregation", FixedLength, {"length": (0,)}),
    ("sampling", BestOf, {"k": (0,)}),
    ("preference", SimPO, {"beta": POSITIVE, "gamma": (-0.1,)}),
    ("preference", KTO, {"beta": POSITIVE, "desirable_weight": POSITIVE}),
    ("preference", KTO, {"undesirable_weight": POSITIVE}),
    ("preference", Sigmoid, {"beta": POSITIVE, "label_smoothing": (-0.1, 0.5)}),
    ("preference", IPO, {"beta": POSITIVE}),
    ("preference", ORPO, {"beta": POSITIVE}),
    ("algo", DPOSettings, {"sft_coefficient": (-1.0,), "dropout": (-1.0,)}),
    ("algo", GKDSettings, {"beta": (-0.1, 1.1), "on_policy_fraction": (1.5,)}),
    ("algo", RewardModelSettings, {"centre": (-1.0,)}),
    ("critic", Separate, {"coefficient": (0,), "clip": (0.0,), "lr": (-1.0,)}),
    ("critic", Separate, {"pretraining": (-1,)}),
    ("critic", Shared, {"coefficient": (0,), "clip": (0.0,)}),
    ("schedule", Schedule, {"warmup": (-1,), "decay": ("step",), "final": (-1.0, 1.1, nan)}),
    ("schedule", KLAdaptive, {"target": (0.0,), "rate": (1.0,), "minimum": (0.0, 2.0)}),
    ("schedule", KLAdaptive, {"maximum": (0.5,)}),
    (
        "router",
        Routing,
        {"every": (0,), "aux_coefficient": (-1.0,)},
    ),
    ("branching", Entropy, {"num_initial": (0,), "num_branches": (0,), "num_tokens": (0,)}),
    ("branching", Entropy, {"alpha": (nan,), "beta": (inf,), "tau": (nan,)}),
    ("teacher", SERVER, {"timeout_s": (0.0,), "retries": (-1,)}),
    ("teacher", SERVER, {"backoff_s": (-1.0,), "concurrency": (0,)}),
    ("judge", SERVED, {"temperature": (-1.0,), "timeout_s": (0.0,), "concurrency": (0,)}),
    ("judge", Rule, {"tie": (-1.0,)}),
    ("judge", partial(judge.Neural, "owner/name"), {"tie": (-1.0,)}),
    ("reward", partial(reward.Neural, "owner/name"), {"k": (-1,), "token_budget": (0,)}),
    ("rollout", Local, {"max_tokens": (0,), "temperature": (-1.0, nan), "stop": ([""],)}),
    ("rollout", Local, {"top_p": (0.0, 1.1), "top_k": (-1,)}),
    ("rollout", VLLM, {"temperature": (0.001,), "max_tokens": (0,), "stop": ([""],)}),
    ("rollout", VLLM, {"cache_gib": (0,), "max_length": (1,), "dtype": ("int8",)}),
    ("rollout", partial(VLLMServer, urls=["http://h"]), {"temperature": (0.001,), "top_p": (0.0,)}),
    ("rollout", partial(VLLMServer, urls=["http://h"]), {"concurrency": (0,), "ahead": (2,)}),
    ("batch", Batch, {"prompts": (0,), "minibatches": (0,)}),
    ("batch", Batch, {"max_norm": (0.0,), "max_nonfinite": (0,)}),
    ("validation", VALIDATION, {"top_p": (0.0, 1.5), "top_k": (-1,), "max_tokens": (0,)}),
    ("validation", VALIDATION, {"pass_at": ([0], [3], [1.5])}),
    ("adapter", LoRA, {"rank": (0,), "alpha": (0,), "init": ("pissa",)}),
    ("data", lambda **values: HiddenNumber(**values)(), {"high": (0,)}),
    ("callbacks.checkpoint", CHECKPOINT, {"every": (-1,), "keep": (-1,), "keep_every": (-1,)}),
    ("callbacks.checkpoint", CHECKPOINT, {"every_s": (0.0,), "best_mode": ("highest",)}),
    ("callbacks.monitor", Monitor, {"max_ratio": (0,), "max_kl": (-1,)}),
    ("callbacks.stop", GracefulStop, {"grace_s": (-1,)}),
    ("callbacks.budget", TokenBudget, {"max_tokens": (-1,)}),
    ("callbacks.watchdog", Watchdog, {"timeout_s": (-1,)}),
]
CASES = [
    pytest.param(group, make, field, value, id=f"{group}.{field}={value}")
    for group, make, fields in BAD
    for field, values in fields.items()
    for value in values
]


@pytest.mark.parametrize(("group", "make", "field", "value"), CASES)
def test_refused_by_name(group: str, make: Callable[..., Any], field: str, value: Any) -> None:
    # TypeError where types are checked at run time
    message = rf"^{group}\.{field}=.+: must be |parameter '{field}'"
    with pytest.raises((ValueError, UserError, TypeError), match=message):
        make(**{field: value})
