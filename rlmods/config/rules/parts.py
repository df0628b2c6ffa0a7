"""Rules on the compatibility of parts with each other and with the algorithm."""

from __future__ import annotations

from rlmods.config.run_spec import RunSpec
from rlmods.correction import NoCorrection
from rlmods.critic import NoCritic
from rlmods.needs import (
    AdapterNeeds,
    AdvantageNeeds,
    KLNeeds,
    PreferenceNeeds,
    ReferenceNeeds,
    RewardNeeds,
    SamplingNeeds,
    TeacherNeeds,
    needs_of,
)
from rlmods.protocols import ReturnsLogprobs
from rlmods.reward import Neural


def group_size(spec: RunSpec) -> str | None:
    samples = spec.batch.samples
    compares = {
        "advantage": needs_of(spec.parts.get("advantage"), AdvantageNeeds).group,
        "sampling": needs_of(spec.parts.get("sampling"), SamplingNeeds).group,
        "reward": needs_of(spec.parts.get("reward"), RewardNeeds).group,
    }
    for group in compares:
        if spec.algorithm.samples_responses and samples < 2 and compares[group]:
            other = "sampling=fixed, or " if group == "sampling" else ""
            problem = (
                f"{group}={spec.choices.get(group)} compares responses to one prompt, but "
                f"batch.samples={samples}"
            )
            return f"{problem}: type {other}batch.samples=8"
    if "judge" in spec.parts and samples < 2:
        return (
            f"a judge compares responses to one prompt, but batch.samples={samples}: type "
            "batch.samples=4"
        )
    return None


def critic(spec: RunSpec) -> str | None:
    if "critic" not in spec.parts:
        return None
    needs_critic = needs_of(spec.parts["advantage"], AdvantageNeeds).values
    has_critic = not isinstance(spec.parts["critic"], NoCritic)
    if needs_critic and not has_critic:
        return (
            f"advantage={spec.choices.get('advantage')} needs a critic: type critic=separate, or "
            "advantage=group_norm"
        )
    if has_critic and not needs_critic:
        return (
            f"critic={spec.choices.get('critic')} would be trained but not used: type "
            "critic=none, or advantage=gae"
        )
    return None


def reward_scaling(spec: RunSpec) -> str | None:
    scaled = (
        getattr(spec.settings, "normalize_reward", False)
        or getattr(spec.settings, "clip_reward", None) is not None
    )
    if scaled and needs_of(spec.parts.get("advantage"), AdvantageNeeds).correctness:
        option = spec.choices.get("advantage")
        return (
            f"algo.normalize_reward and algo.clip_reward scale rewards, but advantage={option} "
            "reads correctness only: drop them"
        )
    if (
        getattr(spec.settings, "normalize_reward", False)
        and needs_of(spec.parts.get("advantage"), AdvantageNeeds).nonnegative
    ):
        option = spec.choices.get("advantage")
        return (
            f"algo.normalize_reward subtracts the mean reward, but advantage={option} needs "
            "rewards of at least 0: drop it"
        )
    if scaled and needs_of(spec.parts.get("advantage"), AdvantageNeeds).terms:
        option = spec.choices.get("advantage")
        return (
            "algo.normalize_reward and algo.clip_reward change the total reward, but "
            f"advantage={option} reads its terms: drop them"
        )
    if scaled and needs_of(spec.parts["reward"], RewardNeeds).gives_tokens:
        return (
            "algo.normalize_reward and algo.clip_reward scale one reward per response, but this "
            "reward is spread over tokens: drop them"
        )
    if scaled and needs_of(spec.parts["reward"], RewardNeeds).gives_steps:
        return (
            "algo.normalize_reward and algo.clip_reward scale one reward per response, but this "
            "reward returns one per step: drop them"
        )
    return None


def reference(spec: RunSpec) -> str | None:
    unused = {
        "kl": not needs_of(spec.parts.get("kl"), KLNeeds).reference,
        "preference": not needs_of(spec.parts.get("preference"), PreferenceNeeds).reference,
    }
    is_default = needs_of(spec.parts.get("reference"), ReferenceNeeds).copies_policy
    for group in unused:
        if "reference" in spec.parts and not is_default and unused[group]:
            option, reference = spec.choices.get(group), spec.choices.get("reference")
            return (
                f"reference={reference} has no effect, because {group}={option} needs no "
                "reference: drop it"
            )
    if (
        getattr(spec.settings, "reference_every", None) is not None
        and not needs_of(spec.parts.get("kl"), KLNeeds).reference
    ):
        return (
            f"algo.reference_every updates the reference, but kl={spec.choices.get('kl')} has "
            "none: type kl=loss, or drop it"
        )
    return None


def teacher(spec: RunSpec) -> str | None:
    part, option = spec.parts.get("teacher"), spec.choices.get("teacher")
    if part is None:
        if needs_of(spec.parts.get("advantage"), AdvantageNeeds).ignores_rewards:
            return (
                f"advantage={spec.choices.get('advantage')} ignores rewards, so nothing is "
                "learned: type advantage=group_norm"
            )
        return None
    if getattr(spec.algorithm, "needs_distributions", False):
        if isinstance(part, ReturnsLogprobs):
            return (
                f"algo={spec.config.algo.name} needs whole distributions, which teacher={option} "
                "does not return: type teacher=local"
            )
        if spec.batch.samples > 1:
            return (
                f"algo={spec.config.algo.name} takes one response to each prompt: type "
                "batch.samples=1"
            )
    if (
        isinstance(part, ReturnsLogprobs)
        and getattr(spec.parts["rollout"], "temperature", 1.0) != 1
    ):
        return (
            f"teacher={option} returns log-probabilities of temperature 1: type "
            "rollout.temperature=1"
        )
    moves = getattr(spec.settings, "reference_every", None) is not None
    if (
        moves
        and needs_of(part, TeacherNeeds).copies_policy
        and needs_of(spec.adapter, AdapterNeeds).freezes
        and spec.choices.get("reference") == "policy"
    ):
        return (
            f"teacher={option} and the moving reference would be one adapter: type "
            "teacher.weights=current, or drop algo.reference_every"
        )
    return None


def rounds(spec: RunSpec) -> str | None:
    if not getattr(spec.algorithm, "trains_reward_model", False):
        return None
    name, terms = spec.config.algo.name, getattr(spec.parts["reward"], "terms", {})
    if not any(
        isinstance(term["reward"], Neural) and term.get("weight", 1.0) for term in terms.values()
    ):
        return (
            f"algo={name} trains the reward model in rounds: type reward=neural "
            "reward.terms.neural.reward.model=RUN"
        )
    if spec.settings.reference_every is None:
        return f"algo={name} needs the number of iterations per round: type algo.reference_every=20"
    length, every = spec.config.trainer.max_iterations, spec.settings.reference_every
    if length < every:
        return (
            f"algo.reference_every={every} is longer than the run, "
            f"trainer.max_iterations={length}: type algo.reference_every={length}"
        )
    if getattr(spec.parts["ranking"], "margin", False):
        return "ranking.margin=true, but a judge returns no margins: type ranking.margin=false"
    num_prompts = spec.batch.prompts * every
    if (refresh := spec.settings.refresh_prompts) > num_prompts:
        return (
            f"algo.refresh_prompts={refresh}, but a round has {num_prompts} prompts: type "
            f"algo.refresh_prompts={num_prompts}"
        )
    return None


def temperature(spec: RunSpec) -> str | None:
    temperature = getattr(spec.parts.get("rollout"), "temperature", 1.0)
    if spec.algorithm.samples_responses and temperature == 0:
        return (
            "rollout.temperature=0 samples the same response every time, so there is no learning "
            "signal: type rollout.temperature=1"
        )
    return None


def truncation(spec: RunSpec) -> str | None:
    rollout, correction = spec.parts.get("rollout"), spec.parts.get("correction")
    if "ratio" not in spec.parts or not (
        getattr(rollout, "top_p", 1.0) < 1 or getattr(rollout, "top_k", 0) > 0
    ):
        return None
    if correction is not None and not isinstance(correction, NoCorrection):
        return None
    weighted = "" if correction is None else ", or correction=truncated"
    problem = (
        "rollout.top_p and rollout.top_k sample from another distribution than the one that "
        "is trained"
    )
    return (
        f"{problem}: type rollout.top_p=1 rollout.top_k=0{weighted} (validation has its own "
        "settings)"
    )


def ahead(spec: RunSpec) -> str | None:
    if not getattr(spec.parts.get("rollout"), "ahead", 0):
        return None
    settings, advantage = spec.settings, spec.parts.get("advantage")
    if not spec.algorithm.samples_ahead:
        return (
            f"rollout.ahead=1 samples for the next iteration, which algo={spec.config.algo.name} "
            "does not do: type rollout.ahead=0"
        )
    if isinstance(spec.parts.get("correction"), NoCorrection):
        return (
            "rollout.ahead=1 trains on samples of the policy before its last update: type "
            "correction=truncated, or rollout.ahead=0"
        )
    if needs_of(advantage, AdvantageNeeds).greedy:
        problem = (
            f"advantage={spec.choices.get('advantage')} samples again to grade a batch, while "
            "rollout.ahead=1 samples the next one"
        )
        return f"{problem}: type rollout.ahead=0, or advantage=rloo"
    if (
        getattr(settings, "retire_solved", None) is not None
        or getattr(settings, "retire_unsolved", None) is not None
    ):
        problem = (
            "algo.retire_solved and algo.retire_unsolved choose prompts by the results of those "
            "before"
        )
        return (
            f"{problem}, and rollout.ahead=1 samples them before these are graded: type "
            "rollout.ahead=0, or drop them"
        )
    return None


def router(spec: RunSpec) -> str | None:
    if (
        getattr(spec.parts.get("router"), "every", 1) != 1
        and needs_of(spec.adapter, AdapterNeeds).freezes
    ):
        return (
            "router.every has no effect, because the adapter freezes the routers: type "
            "router.every=1 (router.replay=true can stay)"
        )
    every, length = (
        getattr(spec.parts.get("router"), "every", None),
        spec.config.trainer.max_iterations,
    )
    if every is None or every <= length:
        return None
    return (
        f"router.every={every}, but trainer.max_iterations={length}: routers would never be "
        f"updated: type router.every={length}"
    )


def quantization(spec: RunSpec) -> str | None:
    kind = spec.config.policy.get("quantization", None)
    if kind is None:
        return None
    if not needs_of(spec.adapter, AdapterNeeds).freezes:
        other = "type adapter=lora, or " if "adapter" in spec.algorithm.groups else "type "
        return f"policy.quantization={kind} needs frozen weights: {other}policy.quantization=null"
    if spec.choices.get("critic") == "separate" and spec.config.critic.init is None:
        return (
            "critic=separate trains a full-precision copy of the trunk, which defeats "
            f"policy.quantization={kind}: type critic=shared"
        )
    return None
