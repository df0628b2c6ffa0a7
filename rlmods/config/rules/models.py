"""Rules on the models of a run: reference, teacher, reward model, routers and weights."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.config.rules.rows import terms
from rlmods.config.run_spec import RunSpec, applying
from rlmods.distributed.strategy import shards
from rlmods.distributed.trainer import PRECISION_ADVICE, PRECISIONS
from rlmods.environment import Agent
from rlmods.needs import (
    AdapterNeeds,
    FrozenModelNeeds,
    KLNeeds,
    OptimizerNeeds,
    PreferenceNeeds,
    needs_of,
)
from rlmods.protocols import ReturnsLogprobs
from rlmods.reward import Neural, WeightedSum
from rlmods.training.settings import (
    DPOSettings,
    GKDSettings,
    IterativeGRPOSettings,
    OnlineDPOSettings,
    PolicyGradientSettings,
)


def reference(spec: RunSpec) -> Iterator[str]:
    is_other = not needs_of(spec.parts.get("reference"), FrozenModelNeeds).copies_policy
    is_chosen = "reference" in spec.parts and is_other
    kl_without = not needs_of(spec.parts.get("kl"), KLNeeds).reference
    loss_without = not needs_of(spec.parts.get("preference"), PreferenceNeeds).reference
    problem = f"{spec.option('reference')} has no effect, because"
    return applying(
        (
            is_chosen and kl_without,
            f"{problem} {spec.option('kl')} needs no reference: drop it",
        ),
        (
            is_chosen and loss_without,
            f"{problem} {spec.option('preference')} needs no reference: drop it",
        ),
        (
            reference_every(spec.settings) is not None and kl_without,
            f"algo.reference_every updates the reference, but {spec.option('kl')} has none: type "
            "kl=loss, or drop it",
        ),
    )


def teacher(spec: RunSpec) -> Iterator[str]:
    part = spec.parts.get("teacher")
    if part is None:
        return applying()
    algo = f"algo={spec.config.algo.name}"
    option = spec.option("teacher")
    needs = needs_of(part, FrozenModelNeeds)
    settings = spec.settings
    samples = spec.batch.samples
    is_gkd = isinstance(settings, GKDSettings)
    reads_data = is_gkd and settings.on_policy_fraction < 1
    is_agent = isinstance(spec.parts.get("environment"), Agent)
    other = "environment=single_turn" if is_gkd else "another environment="
    is_adapter = (
        needs.copies_policy and freezes_policy(spec) and spec.choices.get("reference") == "policy"
    )
    return applying(
        (
            reads_data and (samples > 1 or needs.scores),
            f"{algo} takes the response of the data to some prompts, but {option} with "
            f"batch.samples={samples} needs sampled ones: type algo.on_policy_fraction=1",
        ),
        (
            is_gkd and isinstance(part, ReturnsLogprobs),
            f"{algo} needs whole distributions, which {option} does not return: type teacher=local",
        ),
        (
            isinstance(part, ReturnsLogprobs) and spec.parts["rollout"].temperature != 1,
            f"{option} returns log-probabilities of temperature 1: type rollout.temperature=1",
        ),
        (
            part.shows_more and is_agent,
            f"{option} shows more than the policy's prompt, but the program of environment=agent "
            f"writes its prompts: type {other}",
        ),
        (
            is_adapter and reference_every(settings) is not None,
            f"{option} and the moving reference would be one adapter: type "
            "teacher.weights=current, or drop algo.reference_every",
        ),
        (
            is_adapter and needs.rate and needs_of(spec.parts.get("kl"), KLNeeds).reference,
            f"{option} and the reference of {spec.option('kl')} would be one adapter, which "
            "teacher.weights=ema moves: type teacher.weights=current, or kl=none",
        ),
    )


def preference_reference(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, DPOSettings):
        return applying()
    has_none = not needs_of(spec.parts["preference"], PreferenceNeeds).reference
    option = spec.option("preference")
    is_other = settings.reference != "live"
    return applying(
        (
            has_none and reference_every(settings) is not None,
            f"algo.reference_every sets the reference, but {option} has none: drop it",
        ),
        (
            has_none and is_other,
            f"algo.reference sets the reference, but {option} has none: drop it",
        ),
        (
            "judge" in spec.parts and is_other,
            f"algo.reference={settings.reference} needs responses that are in the data, but they "
            "are sampled: type algo.reference=live",
        ),
    )


def reward_model_rounds(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, IterativeGRPOSettings):
        return applying()
    algo = f"algo={spec.config.algo.name}"
    every = settings.reference_every or 0
    reward = spec.parts["reward"]
    of_terms = reward.terms.items() if isinstance(reward, WeightedSum) else ()
    isolated = [
        name
        for name, term in of_terms
        if isinstance(term["reward"], Neural) and term.get("timeout_s") is not None
    ]
    length = spec.config.trainer.max_iterations
    num_prompts = spec.batch.prompts * every
    return applying(
        (
            not any(isinstance(term.reward, Neural) and term.weight for term in terms(spec)),
            f"{algo} trains the reward model in rounds: type reward=neural "
            "reward.terms.neural.reward.model=RUN",
        ),
        (
            bool(isolated),
            f"reward.terms.{''.join(isolated[:1])}.timeout_s: worker processes would keep the "
            f"reward model that {algo} trains as it was: drop it",
        ),
        (
            not every,
            f"{algo} needs the number of iterations per round: type algo.reference_every=20",
        ),
        (
            every > length,
            f"algo.reference_every={every} is longer than the run, "
            f"trainer.max_iterations={length}: type algo.reference_every={length}",
        ),
        (
            settings.refresh_prompts > num_prompts,
            f"algo.refresh_prompts={settings.refresh_prompts}, but a round has {num_prompts} "
            f"prompts: type algo.refresh_prompts={num_prompts}",
        ),
    )


def router(spec: RunSpec) -> Iterator[str]:
    part = spec.parts.get("router")
    return applying(
        (
            part is not None and part.every != 1 and freezes_policy(spec),
            "router.every has no effect, because the adapter freezes the routers: type "
            "router.every=1 (router.replay=true can stay)",
        )
    )


def precision(spec: RunSpec) -> Iterator[str]:
    chosen = str(spec.config.trainer.get("precision", "32-true"))
    return applying(
        (
            chosen not in ("auto", *PRECISIONS),
            f"trainer.precision={chosen}: {PRECISION_ADVICE}",
        ),
        (
            chosen == "16-mixed" and isinstance(spec.settings, IterativeGRPOSettings),
            "trainer.precision=16-mixed scales the loss of the policy, but "
            f"algo={spec.config.algo.name} also trains a reward model: type "
            "trainer.precision=32-true",
        ),
    )


def quantization(spec: RunSpec) -> Iterator[str]:
    kind = spec.config.policy.get("quantization", None)
    other = "adapter=lora, or " if "adapter" in spec.algorithm.config_groups else ""
    return applying(
        (
            kind is not None and not freezes_policy(spec),
            f"policy.quantization={kind} needs frozen weights: type {other}"
            "policy.quantization=null",
        ),
        (
            kind is not None and shards(spec.config.trainer.get("strategy")),
            f"policy.quantization={kind} cannot be sharded: type trainer=ddp, or "
            "policy.quantization=null",
        ),
    )


def optimizer(spec: RunSpec) -> Iterator[str]:
    target = str(spec.config.optimizer.get("_target_"))
    strategy = spec.config.trainer.get("strategy")
    create = instantiate(spec.config.optimizer, "optimizer", partial=True)
    steps_hidden = needs_of(create.func, OptimizerNeeds).hidden
    offloads = shards(strategy) and strategy.get("offload", False)
    return applying(
        (
            target.startswith("bitsandbytes.") and shards(strategy),
            f"{spec.option('optimizer')} cannot be sharded: type trainer=ddp, or optimizer=adamw",
        ),
        (
            steps_hidden and offloads,
            f"{spec.option('optimizer')} with trainer.strategy.offload=true computes its matrix "
            "products on the CPU: type trainer.strategy.offload=false, or optimizer=adamw",
        ),
    )


def compilation(spec: RunSpec) -> Iterator[str]:
    is_compiled = bool(spec.config.policy.get("compile", False))
    kind = spec.config.policy.get("quantization", None)
    dropout = getattr(spec.settings, "dropout", 0.0)
    keys = [f"{group}.policy.compile" for group in ("policy", "reference", "teacher")]
    nested = [key for key in keys if OmegaConf.select(spec.config, key)]
    return applying(
        (
            bool(nested),
            f"{' '.join(nested)}: type policy.compile=true, which compiles all networks",
        ),
        (
            is_compiled and kind is not None,
            f"policy.quantization={kind} cannot be compiled: type policy.compile=false",
        ),
        (
            is_compiled and dropout > 0,
            f"algo.dropout={dropout} would draw other numbers in compiled blocks: type "
            "policy.compile=false, or algo.dropout=0",
        ),
    )


def master_weights(spec: RunSpec) -> Iterator[str]:
    dtype = spec.config.policy.get("dtype", None)
    takes_adapter = "adapter" in spec.algorithm.config_groups
    is_frozen = takes_adapter and freezes_policy(spec)
    other = ", or adapter=lora" if takes_adapter else ""
    return applying(
        (
            dtype in ("bfloat16", "float16") and not is_frozen,
            f"policy.dtype={dtype} would train {dtype} weights, and rounding loses most updates "
            "at the usual learning rates: type policy.dtype=float32 "
            f"trainer.precision=bf16-mixed{other}",
        )
    )


def reference_every(settings: Any) -> int | None:
    """Return the number of iterations after which the reference is set to the policy; None:
    never."""
    moves = isinstance(settings, PolicyGradientSettings | OnlineDPOSettings)
    return settings.reference_every if moves else None


def freezes_policy(spec: RunSpec) -> bool:
    """Return True if the policy's own weights do not change."""
    return needs_of(spec.adapter, AdapterNeeds).freezes
