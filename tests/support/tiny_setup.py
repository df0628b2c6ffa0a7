"""Small training setup for tests: a random model of 10 thousand parameters, sums of digits, and replaceable parts."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from rlmods.adapter import NoAdapter
from rlmods.advantage import GroupNorm
from rlmods.aggregation import TokenMean
from rlmods.algo import Batch, Learner, PolicyGradient
from rlmods.critic import NoCritic
from rlmods.data import Arithmetic, PromptModule
from rlmods.distributed import trainer as trainers
from rlmods.kl import NoKL
from rlmods.policy import Policy, Tiny
from rlmods.ratio import Clipped
from rlmods.reference import StartPolicy
from rlmods.rollout import Local
from rlmods.router import Routing
from rlmods.sampling import Fixed
from rlmods.schedule import Schedule
from rlmods.training.evaluation import Validation
from rlmods.types import Experience, Response, Scores

X = TypeVar("X")

SPLITS = Arithmetic(level=1, num_train=24, num_val=8)()


def even(responses: list[Response]) -> Scores:
    """Score 1 for a first token with an even id, else 0: random at first, easy to learn, and different within almost every group."""
    correct = [r.tokens[0] % 2 == 0 for r in responses]
    return Scores([float(x) for x in correct], correct=correct)


def policy(seed: int = 0, **options: Any) -> Policy:
    """Return a policy with random weights."""
    torch.manual_seed(seed)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=2, **options)()
    policy.eos_ids = frozenset(range(25))  # a quarter of the vocabulary, so that random responses differ in length
    return policy


def learner(kind: type[Learner] = PolicyGradient, **changes: Any) -> Any:
    """Return a learner with default parts. `changes`: other parts, and settings of the algorithm."""
    arguments: dict[str, Any] = {
        "policy": changes.pop("adapter", NoAdapter())(changes.pop("policy", None) or policy()),
        "rollout": Local(max_tokens=8),
        "reward": even,
        "optimizer": partial(torch.optim.AdamW, lr=1e-2),
        "schedule": Schedule(),
        "batch": Batch(prompts=4, samples=4),
        "validation": Validation(every=None),
        "validation_prompts": [],
        "seed": 0,
    }
    if issubclass(kind, PolicyGradient):
        arguments |= {"router": Routing(), "sampling": Fixed(), "advantage": GroupNorm(), "critic": NoCritic(), "kl": NoKL()}
        arguments |= {"ratio": Clipped(), "aggregation": TokenMean(), "ptx_prompts": ()}
    if "reference" in kind.groups:
        arguments |= {"reference": changes.pop("reference_part", StartPolicy())}
    names = {field.name for field in fields(kind.settings_type)}
    settings = kind.settings_type(**{name: changes.pop(name) for name in names & changes.keys()})
    return kind(settings=settings, **arguments | changes)


class Log(Logger):
    """Logger that keeps the logged rows in a list."""

    name, version = "log", ""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.rows.append({"iteration": step, **metrics})

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def fit(
    learner: Learner,
    iterations: int,
    *,
    callbacks: tuple[L.Callback, ...] = (),
    resume: Path | None = None,
    splits: Any = SPLITS,
    **options: Any,
) -> list[dict[str, Any]]:
    """Train on the CPU and return the logged rows."""
    log = Log()
    options = {"accelerator": "cpu", "devices": 1, **options}
    trainer = trainers.build(max_iterations=iterations, callbacks=callbacks, loggers=[log], **options)
    trainer.fit(learner, datamodule=PromptModule(splits, learner.batch.prompts, learner.seed), ckpt_path=resume, weights_only=True)
    return log.rows


class OneRank:
    """Minimal replacement of the Trainer for tests of losses and gradients on a single rank."""

    world_size, global_rank = 1, 0
    max_iterations = 1
    callbacks: tuple[Any, ...] = ()


def close(gradient: torch.Tensor, reference: torch.Tensor) -> None:
    """Assert that two gradients are equal up to rounding: relative distance at most 1e-5, about 100 float32 roundings."""
    assert reference.norm() > 1e-4
    assert float((gradient - reference).norm() / reference.norm()) < 1e-5


def extension(learner: Any, kind: type[X]) -> X:
    """Return the learner's extension of this type."""
    [match] = [extension for extension in learner.extensions if isinstance(extension, kind)]
    return match


def attached(learner: Any) -> Any:
    """Attach a `OneRank` to the learner, sync the rollout, and return the learner."""
    learner.trainer = OneRank()
    learner.rollout.sync(learner.policy, iteration=0)
    return learner


def collected(learner: Any, num_prompts: int = 4) -> Experience:
    """Return scored responses to the first prompts with old log-probabilities, ready for an optimizer step."""
    experience, _ = attached(learner).sample(SPLITS.train[:num_prompts])
    return learner.scorer.add_old_logprobs(experience, torch.ones(len(experience), dtype=torch.bool))


def gradients(learner: Any, batch: Experience) -> torch.Tensor:
    """Return the flattened gradient of the loss of one optimizer step on these rows."""
    from rlmods.types import Totals

    learner.zero_grad()
    totals = Totals(batch.mask.sum().clamp(min=1), batch.mask.any(1).sum().clamp(min=1))
    for micro, _ in learner.microbatches(batch):
        learner.loss(micro, totals).backward()
    parameters = [p for network in learner.networks.values() for p in network.parameters()]
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
