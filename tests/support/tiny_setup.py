"""A world small enough to train in a test: a random model of 10 thousand parameters, sums of digits, every part replaceable."""

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
from rlmods.rollout import Local
from rlmods.router import Routing
from rlmods.sampling import Fixed
from rlmods.schedule import Schedule
from rlmods.training.evaluation import Validation
from rlmods.types import Experience, Response, Scores

X = TypeVar("X")

SPLITS = Arithmetic(level=1, num_train=24, num_val=8)()


def even(responses: list[Response]) -> Scores:
    """Rewards a first token with an even id: a coin flip at first, easy to learn, and mixed within almost every group."""
    right = [r.tokens[0] % 2 == 0 for r in responses]
    return Scores([float(x) for x in right], correct=right)


def policy(seed: int = 0, **options: Any) -> Policy:
    torch.manual_seed(seed)
    made = Tiny(pretrained=False, hidden_size=32, num_layers=2, **options)()
    made.eos_ids = frozenset(range(25))  # a quarter of the vocabulary, so that random answers differ in length
    return made


def learner(kind: type[Learner] = PolicyGradient, **change: Any) -> Any:
    given: dict[str, Any] = {
        "policy": change.pop("adapter", NoAdapter())(change.pop("policy", None) or policy()),
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
        given |= {"router": Routing(), "sampling": Fixed(), "advantage": GroupNorm(), "critic": NoCritic(), "kl": NoKL()}
        given |= {"ratio": Clipped(), "aggregation": TokenMean(), "ptx_prompts": ()}
    names = {field.name for field in fields(kind.settings_type)}
    settings = kind.settings_type(**{name: change.pop(name) for name in names & change.keys()})
    return kind(settings=settings, **given | change)


class Log(Logger):
    """Rows as they come."""

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
    """Train on the CPU; returns the logged rows."""
    log = Log()
    options = {"accelerator": "cpu", "devices": 1, **options}
    trainer = trainers.build(max_iterations=iterations, callbacks=callbacks, loggers=[log], **options)
    trainer.fit(learner, datamodule=PromptModule(splits, learner.batch.prompts, learner.seed), ckpt_path=resume, weights_only=True)
    return log.rows


class OneRank:
    """Stands in for the Trainer where a test asks for losses and gradients only."""

    world_size, global_rank = 1, 0
    max_iterations = 1
    callbacks: tuple[Any, ...] = ()


def close(gradient: torch.Tensor, reference: torch.Tensor) -> None:
    """Assert that two gradients are equal up to rounding: relative distance at most 1e-5, about 100 float32 roundings."""
    assert reference.norm() > 1e-4
    assert float((gradient - reference).norm() / reference.norm()) < 1e-5


def extension(learner: Any, kind: type[X]) -> X:
    """Return the learner's extension of this type."""
    [found] = [extension for extension in learner.extensions if isinstance(extension, kind)]
    return found


def attached(learner: Any) -> Any:
    """Attach a single-rank stand-in for the Trainer."""
    learner.trainer = OneRank()
    learner.rollout.sync(learner.policy, iteration=0)
    return learner


def collected(learner: Any, num_prompts: int = 4) -> Experience:
    """Return scored responses to the first prompts, with old log-probs, as an optimizer step meets them."""
    experience, _ = attached(learner).sample(SPLITS.train[:num_prompts])
    return learner.scorer.add_old_logprobs(experience, torch.ones(len(experience), dtype=torch.bool))


def gradients(learner: Any, batch: Experience) -> torch.Tensor:
    """Flattened gradient of the loss of one optimizer step on these rows."""
    from rlmods.types import Totals

    learner.zero_grad()
    totals = Totals(batch.mask.sum().clamp(min=1), batch.mask.any(1).sum().clamp(min=1))
    for micro, _ in learner.microbatches(batch):
        learner.loss(micro, totals).backward()
    parameters = [p for network in learner.networks.values() for p in network.parameters()]
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
