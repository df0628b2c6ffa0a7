"""A run that stopped and went on is the run that never stopped, bit by bit."""

import copy
import os
import signal
from contextlib import nullcontext
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch

from rlmods.adapter import LoRA
from rlmods.advantage import (
    EMA,
    GAE,
    Accept,
    BranchNorm,
    GroupMean,
    ReinforcePP,
    Sum,
    TeacherLogRatio,
)
from rlmods.algo import (
    DPO,
    GKD,
    PPO,
    RFT,
    SDPO,
    SFT,
    Batch,
    Distill,
    IterativeGRPO,
    OnlineDPO,
    ProcessRewardModel,
    RewardModel,
)
from rlmods.branching import Entropy
from rlmods.callbacks import GracefulStop, IterationCheckpoint
from rlmods.correction import Masked, Truncated
from rlmods.critic import Separate, Shared
from rlmods.data import Arithmetic
from rlmods.kl import Adaptive, Full, Penalty
from rlmods.preference import IPO, KTO, Sigmoid
from rlmods.ranking import BradleyTerry, PlackettLuce
from rlmods.ratio import KLPenalty, LogLikelihood
from rlmods.reference import Model
from rlmods.reward import EnvironmentReward, Neural, WeightedSum
from rlmods.rollout import Local, MultiTurn
from rlmods.router import Routing
from rlmods.sampling import BestOf, Dynamic
from rlmods.schedule import KLAdaptive, Schedule
from rlmods.teacher import Local as LocalTeacher, SelfTeacher
from rlmods.tokens import ClipCov, HighEntropy, KLCov, OffPolicy
from rlmods.training.evaluation import Validation
from rlmods.training.extensions.replay import Replay
from rlmods.training.muon import Muon
from rlmods.types import Response, Scores
from tests.reward.models import save
from tests.support.environments import Chat, Echo, forgetful
from tests.support.fake_engine import FakeEngine
from tests.support.kill_resume import differing
from tests.support.mixtures import mixture
from tests.support.tiny_setup import fit, half_flat, learner, policy, untimed

SMALL = Arithmetic(level=1, num_train=10, num_val=4)()
"""So few prompts that the third iteration is in the second epoch already."""


def longer(prompt: Any, first: str, second: str) -> float:
    """A judge."""
    return 0.5 if len(first) == len(second) else float(len(first) > len(second))


def by_prompt(responses: list[Response]) -> Scores:
    """Half of the prompts are always solved, a fifth never, the others now and then."""
    numbers = {prompt.id: number for number, prompt in enumerate(SMALL.train)}
    correct = [
        numbers[r.prompt.id] < 5 or (numbers[r.prompt.id] > 6 and r.meta["sample"] % 2 == 0)
        for r in responses
    ]
    return Scores([float(x) for x in correct], correct=correct)


TOKENS = {
    "entropy": HighEntropy(0.3),
    "clip_cov": ClipCov(0.2, -0.1, 0.1),
    "kl_cov": KLCov(0.2),
    "off_policy": OffPolicy(0.02),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "dynamic": {
        "sampling": Dynamic(),
        "reward": half_flat,
        "batch": Batch(prompts=6, samples=2),
        "surplus": "keep",
    },
    "minibatches": {
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
        "schedule": Schedule(warmup=1, decay="cosine"),
    },
    "kl_adaptive": {
        "batch": Batch(prompts=4, samples=4, minibatches=4),
        "schedule": KLAdaptive(target=1e-3, rate=1.1),
    },
    "muon": {
        "kind": PPO,
        "advantage": GAE(),
        "critic": Separate(lr=0.02),
        "optimizer": partial(Muon, lr=0.01, weight_decay=0.1, fused=True),
        "batch": Batch(prompts=4, samples=4, minibatches=2),
        "schedule": Schedule(warmup=1, decay="cosine"),
    },
    "reference": {"kl": Penalty("k3", 0.1, "loss")},
    "ppo": {
        "kind": PPO,
        "advantage": GAE(whiten=True),
        "critic": Separate(),
        "kl": Adaptive("k1", 0.05, "reward", target=0.01, horizon=20.0),
        "ratio": KLPenalty(target=1e-4),
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
        "target_entropy": 3.0,
        "normalize_reward": True,
        "replay_fraction": 0.5,
        "reference_every": 2,
        "ptx_coefficient": 0.1,
        "ptx_prompts": SMALL.train,
        "ptx_rows": 4,
    },
    "shared": {
        "kind": PPO,
        "advantage": GAE(),
        "critic": Shared(),
        "target_kl": 1e-3,
        "batch": Batch(prompts=4, samples=4, epochs=2),
    },
    "pretraining": {
        "kind": PPO,
        "advantage": GAE(gamma=0.9, whiten=True),
        "critic": Separate(pretraining=4),
        "kl": Adaptive("k1", 0.05, "reward", target=0.01, horizon=20.0),
        "ratio": KLPenalty(target=1e-4),
        "sampling": Dynamic(),
        "reward": half_flat,
        "schedule": Schedule(warmup=1, decay="cosine"),
        "batch": Batch(prompts=6, samples=2, epochs=2, minibatches=2),
        "target_entropy": 3.0,
        "replay_fraction": 0.5,
    },
    **{
        f"tokens {name}": {
            "tokens": part,
            "rollout": FakeEngine(ahead=1),
            "correction": Truncated(),
            "sampling": Dynamic(),
            "reward": half_flat,
            "batch": Batch(prompts=6, samples=2, epochs=2, minibatches=2),
            "replay_fraction": 0.5,
        }
        for name, part in TOKENS.items()
    },
    "mixture of experts": {
        "policy": mixture(),
        "router": Routing(replay=True, every=2, aux_coefficient=0.01),
        "sampling": Dynamic(),
        "batch": Batch(prompts=6, samples=2, epochs=2, minibatches=2),
        "replay_fraction": 0.5,
    },
    "whitened dynamic": {
        "advantage": ReinforcePP(),
        "sampling": Dynamic(),
        "batch": Batch(prompts=6, samples=2),
        "surplus": "keep",
    },
    "ema": {"advantage": EMA(decay=0.5)},
    "ema in a sum": {
        "advantage": Sum(
            {"slow": {"estimator": EMA(decay=0.5)}, "group": {"estimator": GroupMean()}}
        )
    },
    "retired prompts": {
        "reward": by_prompt,
        "retire_solved": 1,
        "retire_unsolved": 1,
        "bring_back": 0.3,
    },
    "ahead": {
        "rollout": FakeEngine(ahead=1),
        "correction": Truncated(),
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
    },
    "ahead dynamic": {
        "rollout": FakeEngine(ahead=1),
        "correction": Masked(),
        "sampling": Dynamic(),
        "reward": half_flat,
        "batch": Batch(prompts=6, samples=2),
        "replay_fraction": 0.5,
    },
    "turns": {
        "rollout": MultiTurn(Local(max_tokens=6), Echo()),
        "reward": EnvironmentReward(),
        "sampling": Dynamic(),
    },
    "turns ppo": {
        "kind": PPO,
        "rollout": MultiTurn(Local(max_tokens=6), Echo()),
        "reward": EnvironmentReward(by_turn=True),
        "advantage": GAE(whiten=True),
        "critic": Separate(),
        "kl": Penalty("k1", 0.05, "reward"),
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
        "replay_fraction": 0.5,
        "validation": Validation(every=2, samples=2),
        "validation_prompts": list(SMALL.val),
    },
    "turns ahead": {
        "rollout": MultiTurn(FakeEngine(ahead=1), Echo(max_tokens=100)),
        "reward": EnvironmentReward(),
        "correction": Truncated(),
        "sampling": Dynamic(),
        "batch": Batch(prompts=6, samples=2, minibatches=2),
    },
    "cuts": {
        "kind": PPO,
        "policy": forgetful(policy()),
        "rollout": MultiTurn(Local(max_tokens=6), Chat()),
        "reward": EnvironmentReward(by_turn=True),
        "advantage": GAE(),
        "critic": Separate(),
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
        "replay_fraction": 0.5,
    },
    "branches": {
        "rollout": MultiTurn(
            Local(max_tokens=6),
            Echo(),
            Entropy(num_initial=1, num_branches=2, mode="probability", tau=0.0),
        ),
        "reward": EnvironmentReward(by_turn=True),
        "advantage": BranchNorm(attribution="hard"),
        "sampling": Dynamic(),
        "batch": Batch(prompts=4, samples=4, epochs=2, minibatches=2),
        "replay_fraction": 0.5,
    },
    "rft": {"kind": RFT, "advantage": Accept(), "sampling": BestOf(k=2), "ratio": LogLikelihood()},
    "dpo": {"kind": DPO, "preference": Sigmoid(), "batch": Batch(prompts=4, minibatches=2)},
    "dpo precomputed": {"kind": DPO, "preference": IPO(), "reference": "precomputed"},
    "kto": {
        "kind": DPO,
        "preference": KTO(),
        "batch": Batch(prompts=4, minibatches=2),
        "sft_coefficient": 0.1,
    },
    "online_dpo": {
        "kind": OnlineDPO,
        "preference": Sigmoid(),
        "judge": longer,
        "reference_every": 2,
    },
    "iterative_grpo": {
        "kind": IterativeGRPO,
        "kl": Penalty("k3", 0.1, "loss"),
        "judge": longer,
        "ranking": BradleyTerry(),
        "reference_every": 2,
        "refresh_prompts": 4,
    },
    "reward_model": {
        "kind": RewardModel,
        "rollout": None,
        "reward": None,
        "ranking": BradleyTerry(),
        "batch": Batch(prompts=4),
    },
    "reward_model held out": {
        "kind": RewardModel,
        "rollout": None,
        "reward": None,
        "ranking": PlackettLuce(),
        "validation": Validation(every=2),
        "validation_prompts": list(SMALL.val),
    },
    "process_reward_model": {
        "kind": ProcessRewardModel,
        "rollout": None,
        "reward": None,
        "batch": Batch(prompts=4),
    },
    "reference model": {
        "kl": Full(0.1),
        "reference": Model(policy=partial(policy, seed=3, context_length=64)),
    },
    "distill": {
        "kind": Distill,
        "advantage": TeacherLogRatio(),
        "teacher": LocalTeacher(
            policy=partial(policy, seed=3),
            demonstration="answer",
            template="{demonstration};{prompt}",
        ),
        "kl": Penalty("k3", 0.1, "loss"),
        "batch": Batch(prompts=4, samples=2, minibatches=2),
    },
    "sdpo moving teacher": {
        "advantage": TeacherLogRatio(),
        "teacher": SelfTeacher(
            weights="ema", rate=0.2, sibling=True, template="{demonstration};{prompt}", success=0.0
        ),
        "batch": Batch(prompts=4, samples=3, minibatches=2),
    },
    "gkd": {
        "kind": GKD,
        "teacher": SelfTeacher(
            weights="start", demonstration="response", template="{demonstration};{prompt}"
        ),
        "batch": Batch(prompts=4, samples=1, minibatches=2),
    },
    "sdpo": {
        "kind": SDPO,
        "teacher": SelfTeacher(
            weights="ema", rate=0.2, sibling=True, template="{demonstration};{prompt}", success=0.0
        ),
        "on_policy_fraction": 1.0,
        "top_k": 5,
        "batch": Batch(prompts=4, samples=3, minibatches=2),
    },
    "sft": {"kind": SFT, "batch": Batch(prompts=4, minibatches=2)},
    "lora": {
        "adapter": LoRA(rank=4),
        "kl": Penalty("k3", 0.1, "loss"),
        "sampling": Dynamic(),
        "batch": Batch(prompts=6, samples=2),
    },
    "lora moving reference": {
        "adapter": LoRA(rank=4),
        "kl": Penalty("k3", 0.1, "loss"),
        "reference_every": 2,
    },
    "lora ppo": {
        "kind": PPO,
        "adapter": LoRA(rank=4),
        "advantage": GAE(),
        "critic": Separate(),
        "kl": Penalty("k1", 0.05, "reward"),
        "batch": Batch(prompts=4, samples=4, epochs=2),
    },
    "lora dpo": {
        "kind": DPO,
        "adapter": LoRA(rank=4),
        "preference": Sigmoid(),
        "batch": Batch(prompts=4, minibatches=2),
    },
}


class Tape(L.Callback):
    """What was asked and what was said."""

    def __init__(self) -> None:
        self.prompts: list[list[str]] = []
        self.samples: list[list[dict[str, Any]]] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int
    ) -> None:
        self.prompts.append([prompt.id for prompt in batch])

    def on_iteration_end(self, trainer: L.Trainer, learner: Any, metrics: Any) -> None:
        self.samples.append(learner.samples)


class CtrlC(L.Callback):
    """Interrupts while an iteration is under way."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_start(
        self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int
    ) -> None:
        if learner.iteration == self.after:
            self.after = -1
            os.kill(os.getpid(), signal.SIGINT)


def run(
    variant: str, folder, *callbacks: L.Callback, resume=None
) -> tuple[Any, Tape, list[dict[str, Any]]]:
    """Six iterations, less where a callback stops them, of a learner that nothing was done with
    before."""
    change = copy.deepcopy(VARIANTS[variant])
    if change.get("kind") is IterativeGRPO:
        change["reward"] = WeightedSum(
            {"neural": {"reward": Neural(save(folder / "reward_model"))}}
        )
    made = learner(**change)
    tape = Tape()
    checkpoint = IterationCheckpoint(folder, every=0)
    rows = fit(
        made,
        6,
        callbacks=(tape, checkpoint, GracefulStop(), *callbacks),
        resume=resume,
        splits=SMALL,
    )
    return made, tape, untimed(rows)


QUICK = ("dynamic", "ppo", "ahead")
"""Variants of `make test`."""


@pytest.mark.parametrize(
    "variant",
    [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in VARIANTS],
)
def test_going_on_is_never_having_stopped(variant, tmp_path):
    straight, whole, rows = run(variant, tmp_path / "straight")
    stopped, first, before = run(variant, tmp_path, CtrlC(after=2))
    [saved] = tmp_path.glob("*.ckpt")
    assert (saved.name, stopped.iteration) == ("iteration_000003.ckpt", 3)
    content = torch.load(saved, weights_only=True)  # holds plain values
    assert content["rlmods"]["iteration"] == content["iteration"] == 3
    assert len(first.prompts) * 4 > len(SMALL.train)
    if variant == "dynamic":  # four of six groups are kept of a batch, in 2 + 1 + 2 batches
        assert stopped.buffer.num_groups == 2
        assert len(first.prompts) == 5
    resumed, second, after = run(variant, tmp_path, resume=saved)
    assert resumed.iteration == straight.iteration == 6
    if variant in ("sdpo", "sdpo moving teacher"):
        assert all(row["train/teacher_scored_fraction"] == 1.0 for row in rows)
    if variant == "cuts":
        assert all(row["train/cut_fraction"] > 0.2 for row in rows)
    if variant == "turns ahead":
        assert min(row["train/turns"] for row in rows) > 1.2
        assert max(row["train/staleness_max"] for row in rows) > 0
    if variant == "retired prompts":
        assert stopped.checkpoint.state()["parts"]["PromptRetirement"]["pools"]["retired"]
        assert sum(row["train/num_brought_back"] for row in before) > 0
        assert sum(row["train/num_brought_back"] for row in after) > 0
    if variant.startswith("tokens "):
        assert all(0 < row["train/trained_fraction"] < 1 for row in rows)
        assert stopped.buffer.num_groups == 2
    assert first.prompts + second.prompts == whole.prompts
    assert first.samples + second.samples == whole.samples
    assert before + after == rows
    assert not differing(dict(resumed.state_dict()), dict(straight.state_dict()))
    assert differing(dict(resumed.state_dict()), dict(stopped.state_dict()))
    assert not differing(resumed.optimizers().state_dict(), straight.optimizers().state_dict())
    assert not differing(
        resumed.lr_schedulers().state_dict(), straight.lr_schedulers().state_dict()
    )
    assert not differing(resumed.checkpoint.state(), straight.checkpoint.state())
    assert straight.checkpoint.state()["parts"].get("RewardModelRefresh", {"trained": True})[
        "trained"
    ]


def test_reference_is_where_training_began(tmp_path):
    run("reference", tmp_path, CtrlC(after=2))
    resumed, _, rows = run("reference", tmp_path, resume=tmp_path / "iteration_000003.ckpt")
    assert not differing(resumed.reference.policy.state_dict(), policy().state_dict())
    assert rows[0]["train/kl_ref"] > 1e-5


def test_fork_that_grades_in_another_way_begins_without_graded_rows(tmp_path):
    def learner_graded_by(grading: dict[str, str], **change: Any) -> Any:
        variant = copy.deepcopy(VARIANTS["dynamic"])
        variant["normalize_reward"] = True
        made = learner(**variant, replay_fraction=0.5, **change)
        made.checkpoint.grading = grading
        return made

    def held(made: Any) -> list[bool]:
        [replay] = [x for x in made.extensions if isinstance(x, Replay)]
        return [made.buffer.num_groups > 0, replay.rows is not None, made.reward_scale.count > 0]

    first = learner_graded_by({"rows": "a", "rewards": "a"})
    fit(first, 3, callbacks=(IterationCheckpoint(tmp_path, every=1),), splits=SMALL)
    saved = torch.load(tmp_path / "iteration_000003.ckpt", weights_only=True)
    for rows, rewards in (("a", "a"), (None, None), ("b", "a"), ("b", "b")):
        grading = {} if rows is None else {"rows": rows, "rewards": rewards}
        made = learner_graded_by(grading)
        warned = pytest.warns(UserWarning, match="begins anew") if rows == "b" else nullcontext()
        with warned:
            made.checkpoint.load(copy.deepcopy(saved))
        assert held(made) == [rows != "b", rows != "b", rewards != "b"]


def test_second_ctrl_c_stops_at_once(tmp_path):
    """Nothing half done is saved."""
    with pytest.raises(SystemExit):
        run("dynamic", tmp_path, CtrlC(after=2), CtrlC(after=2))
    assert list(tmp_path.glob("*.ckpt")) == []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored


def test_how_often_one_looks_does_not_change_training():
    found = []
    for every in (None, 1, 2):
        made = learner(
            validation=Validation(every=every, samples=2), validation_prompts=list(SMALL.val)
        )
        rows = untimed(fit(made, 4, splits=SMALL))
        training = [row for row in rows if "train/reward" in row]
        found.append((dict(made.policy.state_dict()), training))
        assert sum("val/accuracy" in row for row in rows) == {None: 2, 1: 5, 2: 3}[every]
    assert not differing(found[0], found[1])
    assert not differing(found[0], found[2])
