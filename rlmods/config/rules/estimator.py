"""Compatibility rules between reward, advantage, KL and ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.advantage import Sum
from rlmods.config.rules.grading import terms
from rlmods.config.run_spec import RunSpec
from rlmods.critic import NoCritic
from rlmods.errors import suggest
from rlmods.kl import Adaptive, Penalty, Ramp
from rlmods.needs import (
    AdvantageNeeds,
    FrozenModelNeeds,
    RatioNeeds,
    RewardNeeds,
    SamplingNeeds,
    TokenNeeds,
    needs_of,
)
from rlmods.protocols import Controller
from rlmods.reward import WeightedSum
from rlmods.reward.weighted_sum import Term, leaves
from rlmods.training.settings import PolicyGradientSettings


def group_size(spec: RunSpec) -> Iterator[str]:
    samples = spec.batch.samples
    if samples >= 2:
        return
    compares = {
        "advantage": advantage_needs(spec).group,
        "teacher": needs_of(spec.parts.get("teacher"), FrozenModelNeeds).group,
        "sampling": needs_of(spec.parts.get("sampling"), SamplingNeeds).group,
        "reward": reward_needs(spec).group,
    }
    for group, needs_group in compares.items():
        if needs_group and spec.algorithm.samples_responses:
            other = "sampling=fixed, or " if group == "sampling" else ""
            yield (
                f"{spec.option(group)} compares responses to one prompt, but "
                f"batch.samples={samples}: type {other}batch.samples=8"
            )
    if "judge" in spec.parts:
        yield (
            f"a judge compares responses to one prompt, but batch.samples={samples}: type "
            "batch.samples=4"
        )


def critic(spec: RunSpec) -> Iterator[str]:
    if "critic" not in spec.parts:
        return
    needs_critic = advantage_needs(spec).values
    has_critic = not isinstance(spec.parts["critic"], NoCritic)
    if needs_critic and not has_critic:
        yield (
            f"{spec.option('advantage')} needs a critic: type critic=separate, or "
            "advantage=group_norm"
        )
    if has_critic and not needs_critic:
        yield (
            f"{spec.option('critic')} would be trained but not used: type critic=none, or "
            "advantage=gae"
        )
    pretraining = spec.parts["critic"].pretraining
    iterations = spec.config.trainer.max_iterations
    if pretraining >= iterations:
        yield (
            f"critic.pretraining={pretraining} leaves none of the {iterations} iterations to the "
            f"policy: type trainer.max_iterations={pretraining + iterations}"
        )


def credit_terms(spec: RunSpec) -> Iterator[str]:
    advantage = spec.parts.get("advantage")
    if not isinstance(advantage, Sum):
        return
    reward = spec.parts["reward"]
    names = list(reward.terms) if isinstance(reward, WeightedSum) else []
    for part in advantage.parts:
        if part.reward is None or part.reward in names:
            continue
        path = f"advantage.terms.{part.name}.reward"
        hint = suggest(part.reward, names) if names else f"type {path}=null"
        yield f"{path}={part.reward}: {spec.option('reward')} has no such term; {hint}"


@dataclass(frozen=True)
class Estimator:
    """An estimator of the run, and the reward that it reads."""

    name: str
    """The override that chose it."""
    needs: AdvantageNeeds
    reward: str
    """The override that chose the reward, or the term's key."""
    reward_needs: RewardNeeds
    terms: Sequence[Term]
    """The terms that it reads."""


def estimators(spec: RunSpec) -> Iterator[Estimator]:
    """Yield the run's estimator, or each estimator of advantage=sum; none without a reward."""
    advantage = spec.parts.get("advantage")
    if advantage is None:
        return
    weighted = [term for term in terms(spec) if term.weight]
    total = (spec.option("reward"), reward_needs(spec), weighted)
    if not isinstance(advantage, Sum):
        yield Estimator(spec.option("advantage"), advantage_needs(spec), *total)
        return
    for part in advantage.parts:
        name = f"advantage.terms.{part.name}"
        if part.reward is None:
            yield Estimator(name, part.needs, *total)
            continue
        reward = spec.parts["reward"].terms[part.reward]["reward"]
        term = Term(f"reward.terms.{part.reward}.reward", reward)
        yield Estimator(name, part.needs, term.path, term.needs, list(leaves(term)))


def steps(spec: RunSpec) -> Iterator[str]:
    for estimator in estimators(spec):
        yield from _steps_of(estimator, spec)


def _steps_of(estimator: Estimator, spec: RunSpec) -> Iterator[str]:
    """Yield what keeps an estimator from reading its reward, which is by step or is not."""
    advantage = estimator.name
    reward = estimator.reward
    if estimator.needs.steps:
        if not estimator.reward_needs.gives_steps:
            yield (
                f"{advantage} needs a reward for each step, but {reward} returns one per "
                "response: type reward=process"
            )
        for term in estimator.terms:
            if term.needs.gives_tokens:
                yield (
                    f"{advantage} would read every token of a spread reward as a step: type "
                    f"{term.path}.spread=last"
                )
        if estimator.needs.outcomes and not estimator.reward_needs.gives_outcomes:
            monitors = [term.path for term in terms(spec) if not term.weight]
            other = f"{monitors[0].removesuffix('.reward')}.weight=1, or " if monitors else ""
            yield (
                f"{advantage} also needs a reward for each response, but {reward} only has "
                f"rewards of steps: type {other}advantage=process"
            )
    elif estimator.reward_needs.gives_steps:
        path = next(term.path for term in estimator.terms if term.needs.gives_steps)
        yield (
            f"{reward} gives one reward per step, and {advantage} would add them up and so pay "
            f"for the number of steps: type {path}.aggregate=min, or advantage=process"
        )


def reward_scaling(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, PolicyGradientSettings):
        return
    needs = advantage_needs(spec)
    advantage = spec.option("advantage")
    if settings.normalize_reward and needs.nonnegative:
        yield (
            f"algo.normalize_reward subtracts the mean reward, but {advantage} needs rewards of "
            "at least 0: drop it"
        )
    if not settings.normalize_reward and settings.clip_reward is None:
        return
    reasons = {
        f"{advantage} reads correctness only": needs.correctness,
        f"{advantage} reads the terms of the reward": needs.terms,
        "this reward is spread over tokens": reward_needs(spec).gives_tokens,
        "this reward returns one per step": reward_needs(spec).gives_steps,
    }
    for reason, applies in reasons.items():
        if applies:
            yield (
                "algo.normalize_reward and algo.clip_reward scale one reward per response, but "
                f"{reason}: drop them"
            )


def kl_in_reward(spec: RunSpec) -> Iterator[str]:
    if not _is_in_reward(spec.parts.get("kl")):
        return
    needs = advantage_needs(spec)
    reasons = {
        "uses only the rewards of steps": needs.steps and not needs.normalizes_rewards,
        "uses only the rewards of terms": needs.terms,
        "reads correctness only": needs.correctness,
    }
    for reason, applies in reasons.items():
        if applies:
            yield (
                f"{spec.option('advantage')} {reason}, so a KL in the reward would have no "
                "effect: type kl=loss, or kl=none"
            )


def kl_estimator(spec: RunSpec) -> Iterator[str]:
    kl = spec.parts.get("kl")
    if not isinstance(kl, Penalty | Adaptive | Ramp):
        return
    is_exact = isinstance(kl, Penalty) and kl.gradient == "exact"
    if kl.where == "loss" and kl.estimator == "k1" and not is_exact:
        yield (
            f"{spec.option('kl')}: the expected gradient of kl.estimator=k1 in the loss is 0, "
            "whatever the reference: type kl.estimator=k2, or kl.where=reward"
        )
    if kl.where == "reward" and kl.estimator != "k1":
        yield (
            f"{spec.option('kl')}: only k1 in the reward has the gradient of the reverse KL, not "
            f"kl.estimator={kl.estimator}: type kl.estimator=k1, or kl.where=loss"
        )


def token_credit(spec: RunSpec) -> Iterator[str]:
    if needs_of(spec.parts.get("ratio"), RatioNeeds).level != "sequence":
        return
    ratio = f"{spec.option('ratio')} has one ratio per response"
    needs = advantage_needs(spec)
    if needs.teacher:
        yield f"{ratio}, but the teacher grades each token: type ratio=sequence_token"
    problem = (
        f"{ratio} and uses only the mean of its advantages, but those of "
        f"{spec.option('advantage')} differ by token"
    )
    if needs.credit == "token":
        yield f"{problem}: type ratio=sequence_token, or advantage=group_norm"
    differs_with_kl = needs.credit == "reward_to_go" or needs.normalizes_rewards
    if differs_with_kl and _is_in_reward(spec.parts["kl"]):
        yield f"{problem} with {spec.option('kl')}: type ratio=sequence_token, or kl=loss"


def token_selection(spec: RunSpec) -> Iterator[str]:
    needs = needs_of(spec.parts.get("tokens"), TokenNeeds)
    ratio = needs_of(spec.parts.get("ratio"), RatioNeeds)
    if needs.behavior and ratio.temperature not in (None, spec.parts["rollout"].temperature):
        yield (
            f"{spec.option('tokens')} compares policy and sampler, but {spec.option('ratio')} "
            f"reads the policy at temperature {ratio.temperature}: type "
            f"rollout.temperature={ratio.temperature}, or tokens=all"
        )
    if ratio.level == "sequence" and needs.step:
        yield (
            f"{spec.option('tokens')} selects single tokens, but {spec.option('ratio')} has one "
            "ratio per response, and its gradient is of all tokens: type ratio=sequence_token, or "
            "tokens=all"
        )


def distance_from_old_policy(spec: RunSpec) -> Iterator[str]:
    needs = needs_of(spec.parts.get("tokens"), TokenNeeds)
    if not needs.distance or spec.settings.replay_fraction:
        return
    if spec.batch.epochs * spec.batch.minibatches == 1:
        yield (
            f"{spec.option('tokens')} penalises the distance from the old policy, which is 0 in "
            "the only optimizer step of an iteration: type batch.minibatches=4, or tokens=all"
        )


def greedy_baseline(spec: RunSpec) -> Iterator[str]:
    if advantage_needs(spec).greedy and reward_needs(spec).group:
        yield (
            f"{spec.option('reward')} compares responses to one prompt, but "
            f"{spec.option('advantage')} has a single greedy one as baseline: type "
            "advantage=rloo"
        )


def selected_rows(spec: RunSpec) -> Iterator[str]:
    selects_rows = needs_of(spec.parts.get("sampling"), SamplingNeeds).selects_rows
    if selects_rows and advantage_needs(spec).normalizes_batch:
        yield (
            f"{spec.option('sampling')} keeps the best responses, and {spec.option('advantage')} "
            "normalises over the responses that are kept: type advantage=accept, or "
            "sampling=fixed"
        )


def advantage_needs(spec: RunSpec) -> AdvantageNeeds:
    """Return the declarations of the run's estimator."""
    return needs_of(spec.parts.get("advantage"), AdvantageNeeds)


def reward_needs(spec: RunSpec) -> RewardNeeds:
    """Return the declarations of the run's reward."""
    return needs_of(spec.parts.get("reward"), RewardNeeds)


def _is_in_reward(kl: Any) -> bool:
    """Return True if `kl` is subtracted from the rewards, now or later."""
    if kl is None or kl.where != "reward":
        return False
    return kl.coefficient > 0 or isinstance(kl, Controller)
