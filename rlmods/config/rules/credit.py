"""Rules on the way from rewards to the gradient: what is rewarded, what the estimator reads, what
the ratio and the KL leave of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlmods.config.run_spec import RunSpec
from rlmods.needs import AdvantageNeeds, RatioNeeds, RewardNeeds, SamplingNeeds, needs_of
from rlmods.reward import BySource, WeightedSum
from rlmods.types import Prompt


def steps(spec: RunSpec) -> str | None:
    if "advantage" not in spec.parts:
        return None
    needs_steps = needs_of(spec.parts["advantage"], AdvantageNeeds).steps
    gives_steps = needs_of(spec.parts["reward"], RewardNeeds).gives_steps
    option, reward = spec.choices.get("advantage"), spec.choices.get("reward")
    if needs_steps and not gives_steps:
        return (
            f"advantage={option} needs a reward for each step, but reward={reward} returns one "
            "per response: type reward=process"
        )
    parts = list(terms(spec))
    if needs_steps and (
        spread := [
            path
            for path, part, weight in parts
            if weight and needs_of(part, RewardNeeds).gives_tokens
        ]
    ):
        return (
            f"advantage={option} would read every token of a spread reward as a step: type "
            f"{spread[0]}.spread=last"
        )
    if (
        needs_of(spec.parts["advantage"], AdvantageNeeds).outcomes
        and not needs_of(spec.parts["reward"], RewardNeeds).gives_outcomes
    ):
        problem = (
            f"advantage={option} also needs a reward for each response, but reward={reward} only "
            "has rewards of steps"
        )
        monitors = [
            path.removesuffix(".reward")
            for path, part, weight in parts
            if not weight and not needs_of(part, RewardNeeds).gives_steps
        ]
        return (
            f"{problem}: type {f'{monitors[0]}.weight=1, or ' if monitors else ''}advantage=process"
        )
    if gives_steps and not needs_steps:
        path = next(
            path
            for path, part, weight in parts
            if weight and needs_of(part, RewardNeeds).gives_steps
        )
        problem = (
            f"reward={reward} gives one reward per step, and advantage={option} would add them up "
            "and so pay for the number of steps"
        )
        return f"{problem}: type {path}.aggregate=min, or advantage=process"
    return None


def terms(spec: RunSpec, prompt: Prompt | None = None) -> Iterator[tuple[str, Any, float]]:
    """Yield the rewards that the reward consists of, or those that grade a prompt, with their paths
    in the configuration and weights."""
    reward = spec.parts.get("reward")
    if isinstance(reward, BySource) and prompt is not None:
        yield from _terms(reward.for_prompt(prompt), f"reward.rewards.{prompt.source}")
    elif reward is not None:
        yield from _terms(reward, "reward", wrapped="terms" not in spec.config.reward)


def _terms(reward: Any, path: str, *, wrapped: bool = False) -> Iterator[tuple[str, Any, float]]:
    """`wrapped`: `reward` is a sum with one term, which is at `path` itself in the
    configuration."""
    if isinstance(reward, BySource):
        for name, part in reward.rewards.items():
            yield from _terms(part, f"{path}.rewards.{name}")
    elif isinstance(reward, WeightedSum):
        for name, term in reward.terms.items():
            yield (
                path if wrapped else f"{path}.terms.{name}.reward",
                term["reward"],
                reward.weights[name],
            )
    else:
        yield path, reward, 1.0


def kl_in_reward(spec: RunSpec) -> str | None:
    if not _penalises_rewards(spec.parts.get("kl")):
        return None
    advantage, option = spec.parts["advantage"], spec.choices.get("advantage")
    if (
        needs_of(advantage, AdvantageNeeds).steps
        and not needs_of(advantage, AdvantageNeeds).normalizes_rewards
    ):
        return (
            f"advantage={option} uses only the rewards of steps, so a KL in the reward would have "
            "no effect: type kl=loss, or kl=none"
        )
    if needs_of(advantage, AdvantageNeeds).terms:
        return (
            f"advantage={option} uses only the rewards of terms, so a KL in the reward would have "
            "no effect: type kl=loss, or kl=none"
        )
    if needs_of(advantage, AdvantageNeeds).correctness:
        return (
            f"advantage={option} reads correctness only, so a KL in the reward would have no "
            "effect: type kl=loss, or kl=none"
        )
    return None


def kl_estimator(spec: RunSpec) -> str | None:
    kl = spec.parts.get("kl")
    estimator, option = getattr(kl, "estimator", None), spec.choices.get("kl")
    if estimator is None or kl is None:
        return None
    if kl.where == "loss" and estimator == "k1" and getattr(kl, "gradient", "value") == "value":
        problem = (
            f"kl={option}: the expected gradient of kl.estimator=k1 in the loss is 0, whatever "
            "the reference"
        )
        return f"{problem}: type kl.estimator=k2, or kl.where=reward"
    if kl.where == "reward" and estimator != "k1":
        problem = (
            f"kl={option}: only k1 in the reward has the gradient of the reverse KL, not "
            f"kl.estimator={estimator}"
        )
        return f"{problem}: type kl.estimator=k1, or kl.where=loss"
    return None


def token_credit(spec: RunSpec) -> str | None:
    if needs_of(spec.parts.get("ratio"), RatioNeeds).level != "sequence":
        return None
    advantage, kl = spec.parts["advantage"], spec.parts["kl"]
    credit = needs_of(advantage, AdvantageNeeds).credit
    ratio, option = (spec.choices.get(group) for group in ("ratio", "advantage"))
    problem = (
        f"ratio={ratio} has one ratio per response and uses only the mean of its advantages, "
        f"but those of advantage={option}"
    )
    if "teacher" in spec.parts:
        return (
            f"ratio={ratio} has one ratio per response, but the teacher grades each token: type "
            "ratio=sequence_token"
        )
    if credit == "token":
        return f"{problem} differ by token: type ratio=sequence_token, or advantage=group_norm"
    differs = credit == "reward_to_go" or needs_of(advantage, AdvantageNeeds).normalizes_rewards
    if differs and _penalises_rewards(kl):
        return (
            f"{problem} differ by token with kl={spec.choices.get('kl')}: type "
            "ratio=sequence_token, or kl=loss"
        )
    return None


def selected_rows(spec: RunSpec) -> str | None:
    if (
        needs_of(spec.parts.get("sampling"), SamplingNeeds).selects_rows
        and needs_of(spec.parts["advantage"], AdvantageNeeds).normalizes_batch
    ):
        sampling, advantage = spec.choices.get("sampling"), spec.choices.get("advantage")
        problem = (
            f"sampling={sampling} keeps the best responses, and advantage={advantage} subtracts "
            "the mean of those kept"
        )
        return f"{problem}: type advantage=accept, or sampling=fixed"
    return None


def greedy_baseline(spec: RunSpec) -> str | None:
    if (
        needs_of(spec.parts.get("advantage"), AdvantageNeeds).greedy
        and needs_of(spec.parts["reward"], RewardNeeds).group
    ):
        problem = f"reward={spec.choices.get('reward')} compares responses to one prompt"
        return (
            f"{problem}, but advantage={spec.choices.get('advantage')} has a single greedy one as "
            "baseline: type advantage=rloo"
        )
    return None


def _penalises_rewards(kl: Any) -> bool:
    """Return True if `kl` is subtracted from the rewards; a coefficient of 0 that may change counts
    too."""
    varies = hasattr(kl, "on_iteration_end")
    return getattr(kl, "where", None) == "reward" and (varies or kl.coefficient > 0)
