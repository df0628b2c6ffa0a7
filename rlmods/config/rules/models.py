"""Rules on the models of a run: reference, teacher, reward model, routers and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlmods.config.rules.grading import terms
from rlmods.config.run_spec import RunSpec
from rlmods.distributed.strategy import shards
from rlmods.distributed.trainer import PRECISIONS
from rlmods.environment import Agent
from rlmods.needs import (
    AdapterNeeds,
    FrozenModelNeeds,
    KLNeeds,
    PreferenceNeeds,
    needs_of,
)
from rlmods.protocols import ReturnsLogprobs
from rlmods.reward import Neural
from rlmods.training.settings import (
    DPOSettings,
    GKDSettings,
    IterativeGRPOSettings,
    OnlineDPOSettings,
    PolicyGradientSettings,
)


def reference(spec: RunSpec) -> Iterator[str]:
    without = {
        "kl": not needs_of(spec.parts.get("kl"), KLNeeds).reference,
        "preference": not needs_of(spec.parts.get("preference"), PreferenceNeeds).reference,
    }
    is_other = not needs_of(spec.parts.get("reference"), FrozenModelNeeds).copies_policy
    for group, without_reference in without.items():
        if "reference" in spec.parts and is_other and without_reference:
            yield (
                f"{spec.option('reference')} has no effect, because {spec.option(group)} needs no "
                "reference: drop it"
            )
    if reference_every(spec.settings) is not None and without["kl"]:
        yield (
            f"algo.reference_every updates the reference, but {spec.option('kl')} has none: type "
            "kl=loss, or drop it"
        )


def teacher(spec: RunSpec) -> Iterator[str]:
    part = spec.parts.get("teacher")
    if part is None:
        return
    algo = f"algo={spec.config.algo.name}"
    option = spec.option("teacher")
    needs = needs_of(part, FrozenModelNeeds)
    shows_more = part.shows_more
    if isinstance(spec.settings, GKDSettings):
        samples = spec.batch.samples
        if spec.settings.on_policy_fraction < 1 and (samples > 1 or needs.scores):
            yield (
                f"{algo} takes the response of the data to some prompts, but {option} with "
                f"batch.samples={samples} needs sampled ones: type algo.on_policy_fraction=1"
            )
    if spec.algorithm.needs_distributions and isinstance(part, ReturnsLogprobs):
        yield (
            f"{algo} needs whole distributions, which {option} does not return: type teacher=local"
        )
    if isinstance(part, ReturnsLogprobs) and spec.parts["rollout"].temperature != 1:
        yield f"{option} returns log-probabilities of temperature 1: type rollout.temperature=1"
    if shows_more and isinstance(spec.parts.get("environment"), Agent):
        other = (
            "another environment=" if spec.algorithm.trains_on_turns else "environment=single_turn"
        )
        yield (
            f"{option} shows more than the policy's prompt, but the program of environment=agent "
            f"writes its prompts: type {other}"
        )
    if needs.copies_policy and freezes_policy(spec) and spec.choices.get("reference") == "policy":
        if reference_every(spec.settings) is not None:
            yield (
                f"{option} and the moving reference would be one adapter: type "
                "teacher.weights=current, or drop algo.reference_every"
            )
        if needs.rate and needs_of(spec.parts.get("kl"), KLNeeds).reference:
            yield (
                f"{option} and the reference of {spec.option('kl')} would be one adapter, which "
                "teacher.weights=ema moves: type teacher.weights=current, or kl=none"
            )


def preference_reference(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, DPOSettings):
        return
    if not needs_of(spec.parts["preference"], PreferenceNeeds).reference:
        typed = {
            "algo.reference_every sets the reference": reference_every(settings) is not None,
            "algo.reference sets the reference": settings.reference != "live",
        }
        for use, is_typed in typed.items():
            if is_typed:
                yield f"{use}, but {spec.option('preference')} has none: drop it"
    if "judge" in spec.parts and settings.reference != "live":
        yield (
            f"algo.reference={settings.reference} needs responses that are in the data, but they "
            "are sampled: type algo.reference=live"
        )


def reward_model_rounds(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, IterativeGRPOSettings):
        return
    algo = f"algo={spec.config.algo.name}"
    if not any(isinstance(term.reward, Neural) and term.weight for term in terms(spec)):
        yield (
            f"{algo} trains the reward model in rounds: type reward=neural "
            "reward.terms.neural.reward.model=RUN"
        )
    every = settings.reference_every
    if every is None:
        yield f"{algo} needs the number of iterations per round: type algo.reference_every=20"
        return
    length = spec.config.trainer.max_iterations
    if every > length:
        yield (
            f"algo.reference_every={every} is longer than the run, "
            f"trainer.max_iterations={length}: type algo.reference_every={length}"
        )
    num_prompts = spec.batch.prompts * every
    if settings.refresh_prompts > num_prompts:
        yield (
            f"algo.refresh_prompts={settings.refresh_prompts}, but a round has {num_prompts} "
            f"prompts: type algo.refresh_prompts={num_prompts}"
        )


def router(spec: RunSpec) -> Iterator[str]:
    if "router" not in spec.parts:
        return
    if spec.parts["router"].every != 1 and freezes_policy(spec):
        yield (
            "router.every has no effect, because the adapter freezes the routers: type "
            "router.every=1 (router.replay=true can stay)"
        )


def precision(spec: RunSpec) -> Iterator[str]:
    chosen = str(spec.config.trainer.get("precision", "32-true"))
    if chosen not in ("auto", *PRECISIONS):
        yield (
            f"trainer.precision={chosen}: type trainer.precision=auto, "
            "trainer.precision=32-true or trainer.precision=bf16-mixed"
        )


def quantization(spec: RunSpec) -> Iterator[str]:
    kind = spec.config.policy.get("quantization", None)
    if kind is not None and not freezes_policy(spec):
        other = "adapter=lora, or " if "adapter" in spec.algorithm.config_groups else ""
        yield (
            f"policy.quantization={kind} needs frozen weights: type {other}policy.quantization=null"
        )
    if kind is not None and shards(spec.config.trainer.get("strategy")):
        yield (
            f"policy.quantization={kind} cannot be sharded: type trainer=ddp, or "
            "policy.quantization=null"
        )


def master_weights(spec: RunSpec) -> Iterator[str]:
    dtype = spec.config.policy.get("dtype", None)
    takes_adapter = "adapter" in spec.algorithm.config_groups
    if dtype in ("bfloat16", "float16") and not (takes_adapter and freezes_policy(spec)):
        other = ", or adapter=lora" if takes_adapter else ""
        yield (
            f"policy.dtype={dtype} would train {dtype} weights, and rounding loses most updates "
            "at the usual learning rates: type policy.dtype=float32 "
            f"trainer.precision=bf16-mixed{other}"
        )


def reference_every(settings: Any) -> int | None:
    """Return the number of iterations after which the reference is set to the policy; None:
    never."""
    moves = isinstance(settings, PolicyGradientSettings | OnlineDPOSettings)
    return settings.reference_every if moves else None


def freezes_policy(spec: RunSpec) -> bool:
    """Return True if the policy's own weights do not change."""
    return needs_of(spec.adapter, AdapterNeeds).freezes
