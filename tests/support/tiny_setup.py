"""Small training setup for tests: a random model of 10 thousand parameters, sums of digits, and
replaceable parts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from rlmods.adapter import NoAdapter
from rlmods.advantage import GroupNorm
from rlmods.aggregation import TokenMean
from rlmods.algo import Batch, Learner, PolicyGradient
from rlmods.critic import NoCritic
from rlmods.data import Arithmetic, PromptModule, Splits
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
from rlmods.training.extensions import Likelihood
from rlmods.types import Experience, Response, Scores

X = TypeVar("X")

SPLITS = Arithmetic(level=1, num_train=24, num_val=8)()


def even(responses: list[Response]) -> Scores:
    """Score 1 for a first token with an even id, else 0: random at first, easy to learn, and
    different within almost every group."""
    correct = [r.tokens[0] % 2 == 0 for r in responses]
    return Scores([float(x) for x in correct], correct=correct)


def half_flat(responses: list[Response]) -> Scores:
    """Score the samples of the first two prompts of a batch 1, and those of the others 1 and 0 in
    turn: whatever is sampled, two groups are flat and the others are not."""
    order = {
        prompt_id: i for i, prompt_id in enumerate(dict.fromkeys(r.prompt.id for r in responses))
    }
    correct = [order[r.prompt.id] < 2 or r.meta["sample"] % 2 == 0 for r in responses]
    return Scores([float(x) for x in correct], correct=correct)


def policy(seed: int = 0, **options: Any) -> Policy:
    """Return a policy with random weights."""
    torch.manual_seed(seed)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=2, **options)()
    # a quarter of the vocabulary, so that random responses differ in length
    policy.eos_ids = frozenset(range(25))
    return policy


def sharp(seed: int = 3) -> Policy:
    """Return a policy whose distributions are far from uniform."""
    made = policy(seed)
    with torch.no_grad():
        made.model.model.norm.weight.mul_(12.0)
    return made


def other_vocabulary() -> Policy:
    """Return a policy whose tokenizer has one token more."""
    made = policy()
    made.tokenizer.add_tokens(["new"])
    return made


def flat(network: torch.nn.Module) -> torch.Tensor:
    """Return a copy of all parameters in one dimension."""
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


def perturb(network: torch.nn.Module, scale: float = 0.02, seed: int = 1) -> None:
    """Add normal noise of this standard deviation to the weights."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p) * scale)


def flat_gradient(network: torch.nn.Module) -> torch.Tensor:
    """Return the gradient of all parameters in one dimension."""
    return torch.cat([p.grad.flatten() for p in network.parameters()])  # type: ignore[union-attr]


def learner(kind: type[Learner] = PolicyGradient, **changes: Any) -> Any:
    """Return a learner with default parts. `changes`: other parts, and settings of the
    algorithm."""
    arguments: dict[str, Any] = {
        "policy": changes.pop("adapter", NoAdapter())(changes.pop("policy", None) or policy()),
        "rollout": Local(max_tokens=8),
        "reward": even,
        "optimizer": partial(torch.optim.AdamW, lr=1e-2),
        "schedule": Schedule(),
        "batch": Batch(prompts=4, samples=4),
        "validation": Validation(every=None),
        "splits": Splits(
            SPLITS.train, changes.pop("validation_prompts", []), ptx=changes.pop("ptx_prompts", ())
        ),
        "seed": 0,
    }
    if issubclass(kind, PolicyGradient):
        arguments |= {
            "router": Routing(),
            "sampling": Fixed(),
            "advantage": GroupNorm(),
            "critic": NoCritic(),
            "kl": NoKL(),
        }
        arguments |= {"ratio": Clipped(), "aggregation": TokenMean()}
    if "reference" in kind.config_groups:
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
    trainer = trainers.build(
        max_iterations=iterations, callbacks=callbacks, loggers=[log], **options
    )
    trainer.fit(
        learner,
        datamodule=PromptModule(splits, learner.batch.prompts, learner.seed),
        ckpt_path=resume,
        weights_only=True,
    )
    return log.rows


def untimed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return logged rows without times and memory."""
    measured = ("time/", "perf/", "wall_s")
    return [{k: v for k, v in row.items() if not k.startswith(measured)} for row in rows]


class OneRank:
    """Minimal replacement of the Trainer for tests of losses and gradients on a single rank."""

    world_size, global_rank = 1, 0
    max_iterations = 1
    callbacks: tuple[Any, ...] = ()
    strategy = None
    precision_plugin = None


def close(gradient: torch.Tensor, reference: torch.Tensor) -> None:
    """Assert that two gradients are equal up to rounding: relative distance at most 1e-5, about 100
    float32 roundings."""
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
    """Return scored responses to the first prompts with old log-probabilities, ready for an
    optimizer step."""
    experience, _ = attached(learner).sample(SPLITS.train[:num_prompts])
    experience = learner.normalize_advantages(experience)
    return learner.scorer.add_old_logprobs(
        experience, torch.ones(len(experience), dtype=torch.bool)
    )


def sampled(learner: Any, num_prompts: int = 3) -> tuple[Experience, list[Response]]:
    """Return `collected` rows, and the responses that they are made of."""
    responses: list[Response] = []
    build = learner.build_batch

    def spied(prompts: Any, found: list[Response], scores: Scores) -> Experience:
        responses.extend(found)
        return build(prompts, found, scores)

    with patch.object(learner, "build_batch", spied):
        return collected(learner, num_prompts), responses


class Recorder:
    """Optimizer that records the gradient of the latest step instead of stepping; 0 where a
    parameter has none, and without a step."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.gradient = torch.zeros(sum(p.numel() for p in parameters))

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        self.gradient = torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().clone()
                for p in self.parameters
            ]
        )


def gradients(
    learner: Any, batch: Any, loss: Any = None, *more: Any, max_norm: float = math.inf
) -> torch.Tensor:
    """Return the flattened gradient with which `TrainStep` steps the optimizer on these rows, and
    on `more` rows with their losses. It is not clipped, unless to `max_norm`. The learner's weights
    and counts stay as they were."""
    recorder, step = (
        Recorder([p for network in learner.networks.values() for p in network.parameters()]),
        learner.step,
    )
    before = step.max_norm, step.num_steps, step.num_nonfinite

    def backward(loss: torch.Tensor) -> None:
        loss.backward()
        learner.on_after_backward()

    with (
        patch.object(learner, "optimizers", lambda: recorder),
        patch.object(learner, "manual_backward", backward),
    ):
        step.max_norm = max_norm
        if loss is None and isinstance(learner, PolicyGradient):
            batch = learner.select_tokens(batch)
            for added in learner.extensions:
                if isinstance(added, Likelihood):
                    added.before_step(batch)
        step(batch, loss or learner.loss, *more)
    step.max_norm, step.num_steps, step.num_nonfinite = before
    return recorder.gradient
