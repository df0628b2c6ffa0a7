"""Two optimizer steps of every algorithm on as many ranks as there are: `python -m
tests.support.two_ranks OUT STRATEGY`."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch

from rlmods.cli.console import silence_libraries
from rlmods.config import build
from rlmods.data.loader import PromptLoader
from rlmods.distributed import sharding, trainer as trainers
from rlmods.distributed.collectives import all_gather, is_first_rank
from rlmods.distributed.deferred import defer_loading, is_deferred
from rlmods.distributed.strategy import DDP, FSDP2
from rlmods.types import Prompt, Response, Scores
from tests.support import composition
from tests.support.composed import ALGORITHMS, algorithm, alone, composed
from tests.support.mixtures import mixture
from tests.support.tiny_setup import Log, untimed

ONLINE = (
    "batch.prompts=6",
    "batch.samples=3",
    "rollout.max_tokens=8",
    "batch.epochs=2",
    "batch.minibatches=1",
    "sampling=fixed",
)
GKD = tuple(s for s in ONLINE if not s.startswith(("batch.samples=", "sampling=")))
SDPO = (
    *(s for s in ONLINE if s != "sampling=fixed"),
    "teacher.success=0",
    "teacher.rate=0.3",
)
ROWS = ("batch.prompts=10", "batch.epochs=2", "batch.minibatches=1")
HINT = ("teacher.demonstration=answer", "teacher.template='{demonstration} {prompt}'")
LORA = ("adapter=lora", "adapter.rank=4")
AGENT = (
    "data=hidden_number",
    "environment=agent",
    "environment.agent=tests.support.agents:forgets",
    "reward=length",
)
GAME = ("data=hidden_number", "environment=guess_number", "reward=length")
BRANCHES = ("branching=entropy", "branching.num_initial=1", "branching.tau=-100")
SMALL = (
    "batch.token_budget=48",
    "validation.max_prompts=5",
    "batch.max_norm=0.5",
    "data.num_train=64",
    "data.num_val=8",
)
OWN_SETTINGS: dict[str, tuple[str, ...]] = {
    "sdpo": SDPO,
    "arpo": ("branching.num_initial=1", *GAME, "environment.max_turns=4"),
    "iterative_grpo": ("algo.reference_every=1", "algo.refresh_prompts=6"),
}
"""Further overrides of an algorithm's own recipe."""
OTHERS: dict[str, tuple[str, ...]] = {
    "dapo sequence_mean and two validations": (
        "algo=dapo",
        *ONLINE,
        "aggregation=sequence_mean",
        "validation.samples=3",
    ),
    "dapo fixed_length and second pass": (
        "algo=dapo",
        *ONLINE,
        "aggregation=fixed_length",
        "validation.samples=0",
        "data.num_train=8",
    ),
    "dapo one rank masked": ("algo=dapo", *ONLINE, "algo.max_draws=1"),
    "dapo checkpointed activations": ("algo=dapo", *ONLINE, "policy.gradient_checkpointing=true"),
    "dapo corrected": (
        "algo=dapo",
        *ONLINE,
        "rollout.top_p=0.6",
        "correction=masked",
        "correction.low=0.8",
    ),
    "dapo high entropy": ("algo=dapo", *ONLINE, "tokens=entropy", "tokens.fraction=0.3"),
    "grpo clip_cov": (
        "algo=grpo",
        *ONLINE,
        "tokens=clip_cov",
        "tokens.fraction=0.1",
        "tokens.low=0.1",
    ),
    "grpo kl_cov": ("algo=grpo", *ONLINE, "tokens=kl_cov", "tokens.fraction=0.1", "ratio=none"),
    "grpo likelihood": (
        "algo=grpo",
        *ONLINE,
        *GAME,
        "environment.max_turns=4",
        "algo.positive_coefficient=0.3",
        "algo.observation_coefficient=0.3",
    ),
    "ppo lambdas of vapo": (
        "algo=ppo",
        *ONLINE,
        "advantage.alpha=0.3",
        "advantage.critic_lam=1.0",
        "algo.positive_coefficient=0.1",
    ),
    "reinforce_pp overlong": (
        "algo=reinforce_pp",
        *ONLINE,
        "algo.overlong_filter=true",
        "rollout.max_tokens=6",
    ),
    "grpo sum of estimators": (
        "algo=grpo",
        *ONLINE,
        "advantage=sum",
        "+advantage@advantage.terms.whitened.estimator=reinforce_pp",
        "+advantage@advantage.terms.group.estimator=group_norm",
        "advantage.terms.group.estimator.scale=batch",
        "+advantage.terms.group.reward=format",
        "+advantage@advantage.terms.batch.estimator=batch_mean",
        "+advantage.terms.batch.weight=-0.5",
    ),
    "grpo kl in the reward": ("algo=grpo", *ONLINE, "kl=reward", "kl.coefficient=0.5"),
    "ppo shared": ("algo=ppo", *ONLINE, "critic=shared", "kl.coefficient=0.2"),
    "ppo pretraining": ("algo=ppo", *ONLINE, "critic.pretraining=1", "algo.ptx_coefficient=0.5"),
    "ppo imitating": (
        "algo=ppo",
        *ONLINE,
        "algo.ptx_coefficient=0.5",
        "algo.ptx_rows=5",
        "algo.normalize_reward=true",
    ),
    "ppo imitating and overlong": (
        "algo=ppo",
        *ONLINE,
        "algo.ptx_coefficient=0.5",
        "algo.overlong_filter=true",
        "rollout.max_tokens=6",
    ),
    "ppo shared imitating": ("algo=ppo", *ONLINE, "critic=shared", "algo.ptx_coefficient=0.5"),
    "grpo moving reference": ("algo=grpo", *ONLINE, "algo.reference_every=1", "kl.coefficient=0.5"),
    "grpo lora": ("algo=grpo", *ONLINE, *LORA, "policy.gradient_checkpointing=true"),
    "ppo lora": (
        "algo=ppo",
        *ONLINE,
        *LORA,
        "critic=shared",
        "algo.reference_every=1",
        "algo.ptx_coefficient=0.5",
    ),
    "grpo full kl": (
        "algo=grpo",
        *ONLINE,
        "kl=full",
        "reference=model",
        "+policy@reference.policy=tiny",
        "kl.coefficient=0.5",
    ),
    "grpo full kl lora": (
        "algo=grpo",
        *ONLINE,
        *LORA,
        "kl=full",
        "algo.reference_every=1",
        "kl.coefficient=0.5",
    ),
    "distill demonstration": (
        "algo=distill",
        *ONLINE,
        "teacher=self",
        "teacher.weights=current",
        *HINT,
    ),
    "grpo moving teacher": (
        "algo=grpo",
        *ONLINE,
        "advantage=teacher",
        "teacher=self",
        "teacher.weights=ema",
        "teacher.rate=0.3",
        "teacher.sibling=true",
        "teacher.success=0",
    ),
    "sdpo lora": ("algo=sdpo", *SDPO, *LORA),
    "gkd demonstration": ("algo=gkd", *GKD, "teacher=self", *HINT, *LORA),
    "grpo agent lora": ("algo=grpo", *ONLINE, *LORA, *AGENT),
    "grpo turns lora": ("algo=grpo", *ONLINE, *LORA, *GAME, "environment.max_turns=4"),
    "grpo tools": (
        "algo=grpo",
        *ONLINE,
        "data=long_sums",
        "environment=tools",
        "environment.max_tokens=12",
        "reward=length",
    ),
    "grpo branches": (
        "algo=grpo",
        *ONLINE,
        *GAME,
        *BRANCHES,
        "environment.max_turns=4",
        "advantage=tree",
    ),
    "dpo lora": ("algo=dpo", *ROWS, *LORA),
    "dpo precomputed": ("algo=dpo", *ROWS, "algo.reference=precomputed"),
    **{
        f"dpo {how}": ("algo=dpo", *ROWS, f"preference={how}")
        for how in ("ipo", "simpo", "orpo", "cdpo")
    },
    "experts replayed": (
        "algo=grpo",
        *ONLINE,
        "router=replay",
        "router.aux_coefficient=0.5",
        "policy.gradient_checkpointing=true",
    ),
    "experts frozen": ("algo=ppo", *ONLINE, "router=frozen", "router.replay=true"),
    "experts resting": (
        "algo=ppo",
        *ONLINE,
        "critic=shared",
        "router=two_stage",
        "router.replay=true",
        "algo.ptx_coefficient=0.5",
    ),
    "reward_model ranking": (
        "algo=reward_model",
        *ROWS,
        "ranking=plackett_luce",
        "data.num_candidates=4",
    ),
}


def experts(folder: Path) -> list[str]:
    """A mixture of experts, on disk, for which the other ranks wait."""
    written = folder.with_suffix(".written")
    if is_first_rank():
        mixture().export(folder)
        written.touch()
    while not written.exists():
        time.sleep(0.02)
    return ["policy=hf", f"policy.name={folder}", "validation.every=null"]


def typed(case: str, folder: Path) -> list[str]:
    """The overrides of a case: an algorithm's own recipe, or one of `OTHERS`."""
    if case in OTHERS:
        return [
            *SMALL,
            *OTHERS[case],
            *(experts(folder / "mixture") if case.startswith("experts") else ()),
        ]
    kind = algorithm(case)
    size = ONLINE if kind.samples_responses else ROWS
    own = OWN_SETTINGS.get(case, ())
    size = GKD if case == "gkd" else size
    sizes = [s for s in size if s != "sampling=fixed" or "sampling" in kind.config_groups]
    return [*alone(case, folder), *sizes, *SMALL, *own]


# their teacher here is the policy: no gradient
CASES = [case for case in (*ALGORITHMS, *OTHERS) if case not in ("distill", "gkd")]
ORDERS = [
    "iterative_grpo",
    "ppo",
    "remax",
    "sft",
    "dpo",
    "online_dpo",
    "process_reward_model",
    "dapo one rank masked",
    "dapo checkpointed activations",
    "ppo shared imitating",
    "grpo moving reference",
    "grpo full kl lora",
    "distill demonstration",
    "grpo moving teacher",
    "sdpo",
    "sdpo lora",
    "gkd demonstration",
    "dpo precomputed",
    "experts replayed",
    "experts resting",
    "ppo lora",
    "ppo pretraining",
    "dpo lora",
]
"""Cases that differ in which forwards come when, and not only in what a part computes."""
OVER_RANKS = [
    "reinforce",
    "reinforce_pp overlong",
    "ppo imitating and overlong",
    "dapo sequence_mean and two validations",
    "dapo fixed_length and second pass",
    "dapo corrected",
    "dapo high entropy",
    "grpo clip_cov",
    "grpo kl_cov",
    "grpo likelihood",
    "dpo ipo",
    "reward_model ranking",
    "grpo branches",
    "grpo sum of estimators",
]
"""Further cases with a part that reduces over ranks. Parts of the others compute row by row."""
GATHERS = [
    "iterative_grpo",
    "ppo",
    "remax",
    "dpo",
    "online_dpo",
    "process_reward_model",
    "dapo one rank masked",
    "ppo shared imitating",
    "grpo full kl",
    "distill demonstration",
    "grpo moving teacher",
    "sdpo",
    "experts replayed",
    "ppo lora",
    "ppo pretraining",
    "grpo turns lora",
    "grpo agent lora",
]
"""Cases that differ in which networks are gathered, and when."""
THOROUGH = "RLMODS_THOROUGH" in os.environ
"""Set it to train every case with each strategy."""
STRATEGIES: dict[str, tuple[Any, list[str]]] = {
    "ddp": (DDP, CASES if THOROUGH else [*ORDERS, *OVER_RANKS]),
    "fsdp": (FSDP2, CASES if THOROUGH else GATHERS),
}
"""Where a case runs on two ranks."""


ROUNDS = (
    "iterative_grpo",
    "grpo moving reference",
    "grpo moving teacher",
    "sdpo",
    "sdpo lora",
    "dapo fixed_length and second pass",
    "grpo full kl lora",
    "ppo lora",
    "ppo pretraining",
)
"""Cases in which something moves between iterations: networks, or the data into its next pass."""


class Abstains:
    """No reward for some prompts: their rows carry no loss."""

    def __init__(self, reward: Any, without: Sequence[Prompt]) -> None:
        self.reward, self.without = reward, {prompt.id for prompt in without}

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores: Scores = self.reward(responses)
        kept = [
            None if r.prompt.id in self.without else value
            for r, value in zip(responses, scores.values, strict=True)
        ]
        return replace(scores, values=kept)


class Tape(L.Callback):
    """What was sampled, on every rank."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.before: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: L.Trainer, learner: Any) -> None:
        # not before: weights may have been read just now
        self.before = {name: tensor.cpu() for name, tensor in cloned(learner).items()}

    def on_iteration_end(self, trainer: L.Trainer, learner: Any, metrics: Any) -> None:
        mine = [(row["id"], row["response"], tuple(row["tokens"])) for row in learner.samples]
        self.said += sorted(row for rank in all_gather(mine) for row in rank)


def trained(case: str, folder: Path, *, more: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """Weights, metrics and samples of plain gradient descent: weights then tell what the gradient
    was. `more`: further overrides."""
    silence_libraries()
    made = composed(*typed(case, folder), f"run_dir={folder / 'run'}", *more)
    run = build.load(made)
    learner: Any = run.learner
    learner.optimizer = partial(torch.optim.SGD, lr=0.2)
    if case in ("dapo one rank masked", "sdpo"):
        share = next(
            iter(
                PromptLoader(
                    made.splits.train, made.batch.prompts, made.config.seed, rank=1, world_size=2
                )
            )
        )
        learner.reward = Abstains(learner.reward, share)
    log, tape = Log(), Tape()
    deferred = any(map(is_deferred, learner.all_networks))
    options = {"accelerator": "cpu", "devices": 1, **options}
    iterations = 2 if case in ROUNDS else 1
    trainer = trainers.build(max_iterations=iterations, callbacks=[tape], loggers=[log], **options)
    trainer.fit(learner, datamodule=run.data())
    weights = cloned(learner)
    return {
        "weights": weights,
        "before": tape.before,
        "rows": untimed(log.rows),
        "said": tape.said,
        "deferred": deferred,
    }


def cloned(learner: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in sharding.full_state(learner).items()}


if __name__ == "__main__":
    composition.speed_up()
    out, name, *given = sys.argv[1:]
    strategy, cases = STRATEGIES[name]
    results: dict[str, Any] = {}
    for case in given or cases:
        folder = Path(out).parent / case.replace(" ", "_")
        with defer_loading(strategy is FSDP2):  # as trainer=fsdp does
            results[case] = trained(case, folder, devices=2, strategy=strategy())
        print(case, flush=True)
    if is_first_rank():
        torch.save(results, out)
