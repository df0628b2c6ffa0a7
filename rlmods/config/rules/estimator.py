"""Compatibility rules between reward, advantage, KL and ratio."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rlmods.advantage import Sum
from rlmods.config.rules.rows import terms
from rlmods.config.run_spec import RunSpec, applying
from rlmods.critic import NoCritic
from rlmods.environment import Agent
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
    part = spec.parts.get("critic")
    if part is None:
        return applying()
    needs_critic = advantage_needs(spec).values
    has_critic = not isinstance(part, NoCritic)
    iterations = spec.config.trainer.max_iterations
    return applying(
        (
            needs_critic and not has_critic,
            f"{spec.option('advantage')} needs a critic: type critic=separate, or "
            "advantage=group_norm",
        ),
        (
            has_critic and not needs_critic,
            f"{spec.option('critic')} would be trained but not used: type critic=none, or "
            "advantage=gae",
        ),
        (
            part.pretraining >= iterations,
            f"critic.pretraining={part.pretraining} leaves none of the {iterations} iterations to "
            f"the policy: type trainer.max_iterations={part.pretraining + iterations}",
        ),
    )


def credit_terms(spec: RunSpec) -> Iterator[str]:
    advantage = spec.parts.get("advantage")
    if not isinstance(advantage, Sum):
        return
    reward = spec.parts["reward"]
    names = list(reward.terms) if isinstance(reward, WeightedSum) else []
    for part in advantage.parts:
        path = f"advantage.terms.{part.name}.reward"
        if part.reward is not None and part.needs.greedy:
            yield (
                f"{path}={part.reward}: the greedy response has its total reward as baseline: "
                f"type {path}=null"
            )
        if part.reward is None or part.reward in names:
            continue
        hint = suggest(part.reward, names) if names else f"type {path}=null"
        yield f"{path}={part.reward}: {spec.option('reward')} has no such term; {hint}"


def failed_programs(spec: RunSpec) -> Iterator[str]:
    """The reward of a failed program replaces the total, not the terms of the reward."""
    environment = spec.parts.get("environment")
    if not isinstance(environment, Agent) or environment.failure_reward is None:
        return applying()
    needs = advantage_needs(spec)
    key = "environment.failure_reward"
    return applying(
        (
            needs.terms or needs.outcomes,
            f"{key}={environment.failure_reward} replaces the total reward, and "
            f"{spec.option('advantage')} reads its terms: type {key}=null",
        )
    )


class Estimator(NamedTuple):
    """An estimator of the run, and the reward that it reads."""

    name: str
    """The override that chose it."""
    needs: AdvantageNeeds
    reward: Term
    """With the override that chose it, or the key of a term, as its path."""
    terms: Sequence[Term]
    """The terms that it reads."""


def estimators(spec: RunSpec) -> Iterator[Estimator]:
    """Yield the run's estimator, or each estimator of advantage=sum; none without a reward."""
    advantage = spec.parts.get("advantage")
    if advantage is None:
        return
    total = Term(spec.option("reward"), spec.parts.get("reward"))
    weighted = [term for term in terms(spec) if term.weight]
    if not isinstance(advantage, Sum):
        yield Estimator(spec.option("advantage"), advantage_needs(spec), total, weighted)
        return
    for part in advantage.parts:
        estimator = Estimator(f"advantage.terms.{part.name}", part.needs, total, weighted)
        if part.reward is not None:
            reward = spec.parts["reward"].terms[part.reward]["reward"]
            term = Term(f"reward.terms.{part.reward}.reward", reward)
            estimator = estimator._replace(reward=term, terms=list(leaves(term)))
        yield estimator


def steps(spec: RunSpec) -> Iterator[str]:
    for estimator in estimators(spec):
        advantage = estimator.name
        reward = estimator.reward.path
        gives = estimator.reward.needs
        if not estimator.needs.steps and gives.gives_steps:
            path = next(term.path for term in estimator.terms if term.needs.gives_steps)
            yield (
                f"{reward} gives one reward per step, and {advantage} would add them up and so "
                f"pay for the number of steps: type {path}.aggregate=min, or advantage=process"
            )
        if not estimator.needs.steps:
            continue
        if not gives.gives_steps:
            yield (
                f"{advantage} needs a reward for each step, but {reward} returns one per "
                "response: type reward=process"
            )
        for term in estimator.terms:
            if term.needs.gives_tokens:
                yield (
                    f"{advantage} reads rewards by token as rewards of steps: let {term.path} "
                    "give one per response (reward=environment: by_turn=false)"
                )
        if estimator.needs.outcomes and not gives.gives_outcomes:
            monitors = [term.path for term in terms(spec) if not term.weight]
            other = f"{monitors[0].removesuffix('.reward')}.weight=1, or " if monitors else ""
            yield (
                f"{advantage} also needs a reward for each response, but {reward} only has "
                f"rewards of steps: type {other}advantage=process"
            )


def reward_scaling(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, PolicyGradientSettings):
        return applying()
    needs = advantage_needs(spec)
    of_reward = reward_needs(spec)
    advantage = spec.option("advantage")
    scales = settings.normalize_reward or settings.clip_reward is not None
    problem = "algo.normalize_reward and algo.clip_reward scale one reward per response, but"
    return applying(
        (
            settings.normalize_reward and needs.nonnegative,
            f"algo.normalize_reward subtracts the mean reward, but {advantage} needs rewards of "
            "at least 0: drop it",
        ),
        (
            scales and needs.correctness,
            f"{problem} {advantage} reads correctness only: drop them",
        ),
        (
            scales and needs.terms,
            f"{problem} {advantage} reads the terms of the reward: drop them",
        ),
        (
            scales and of_reward.gives_tokens,
            f"{problem} this reward gives rewards by token: drop them",
        ),
        (
            scales and of_reward.gives_steps,
            f"{problem} this reward returns one per step: drop them",
        ),
    )


def kl_in_reward(spec: RunSpec) -> Iterator[str]:
    needs = advantage_needs(spec)
    if not _is_in_reward(spec.parts.get("kl")):
        return applying()
    option = spec.option("advantage")
    advice = "so a KL in the reward would have no effect: type kl=loss, or kl=none"
    return applying(
        (
            needs.steps and not needs.normalizes_rewards,
            f"{option} uses only the rewards of steps, {advice}",
        ),
        (needs.terms, f"{option} uses only the rewards of terms, {advice}"),
        (needs.correctness, f"{option} reads correctness only, {advice}"),
    )


def kl_estimator(spec: RunSpec) -> Iterator[str]:
    kl = spec.parts.get("kl")
    if not isinstance(kl, Penalty | Adaptive | Ramp):
        return applying()
    is_exact = isinstance(kl, Penalty) and kl.gradient == "exact"
    return applying(
        (
            kl.where == "loss" and kl.estimator == "k1" and not is_exact,
            f"{spec.option('kl')}: the expected gradient of kl.estimator=k1 in the loss is 0, "
            "whatever the reference: type kl.estimator=k2, or kl.where=reward",
        ),
        (
            kl.where == "reward" and kl.estimator != "k1",
            f"{spec.option('kl')}: only k1 in the reward has the gradient of the reverse KL, not "
            f"kl.estimator={kl.estimator}: type kl.estimator=k1, or kl.where=loss",
        ),
    )


def token_credit(spec: RunSpec) -> Iterator[str]:
    if needs_of(spec.parts.get("ratio"), RatioNeeds).level != "sequence":
        return applying()
    needs = advantage_needs(spec)
    differs_with_kl = needs.credit == "reward_to_go" or needs.normalizes_rewards
    ratio = f"{spec.option('ratio')} has one ratio per response"
    problem = (
        f"{ratio} and uses only the mean of its advantages, but those of "
        f"{spec.option('advantage')} differ by token"
    )
    return applying(
        (
            needs.teacher,
            f"{ratio}, but the teacher grades each token: type ratio=sequence_token",
        ),
        (
            needs.credit == "token",
            f"{problem}: type ratio=sequence_token, or advantage=group_norm",
        ),
        (
            differs_with_kl and _is_in_reward(spec.parts.get("kl")),
            f"{problem} with {spec.option('kl')}: type ratio=sequence_token, or kl=loss",
        ),
    )


def token_selection(spec: RunSpec) -> Iterator[str]:
    needs = needs_of(spec.parts.get("tokens"), TokenNeeds)
    ratio = needs_of(spec.parts.get("ratio"), RatioNeeds)
    tokens = spec.option("tokens")
    return applying(
        (
            needs.behavior and ratio.temperature not in (None, spec.parts["rollout"].temperature),
            f"{tokens} compares policy and sampler, but {spec.option('ratio')} reads the policy at "
            f"temperature {ratio.temperature}: type rollout.temperature={ratio.temperature}, or "
            "tokens=all",
        ),
        (
            ratio.level == "sequence" and needs.step,
            f"{tokens} selects single tokens, but {spec.option('ratio')} has one ratio per "
            "response, and its gradient is of all tokens: type ratio=sequence_token, or tokens=all",
        ),
    )


def distance_from_old_policy(spec: RunSpec) -> Iterator[str]:
    needs = needs_of(spec.parts.get("tokens"), TokenNeeds)
    is_single_step = spec.batch.epochs * spec.batch.minibatches == 1
    return applying(
        (
            needs.distance and is_single_step and not spec.settings.replay_fraction,
            f"{spec.option('tokens')} penalises the distance from the old policy, which is 0 in "
            "the only optimizer step of an iteration: type batch.minibatches=4, or tokens=all",
        )
    )


def greedy_baseline(spec: RunSpec) -> Iterator[str]:
    return applying(
        (
            advantage_needs(spec).greedy and reward_needs(spec).group,
            f"{spec.option('reward')} compares responses to one prompt, but "
            f"{spec.option('advantage')} has a single greedy one as baseline: type "
            "advantage=rloo",
        )
    )


def selected_rows(spec: RunSpec) -> Iterator[str]:
    selects_rows = needs_of(spec.parts.get("sampling"), SamplingNeeds).selects_rows
    return applying(
        (
            selects_rows and advantage_needs(spec).normalizes_batch,
            f"{spec.option('sampling')} keeps the best responses, and {spec.option('advantage')} "
            "normalises over the responses that are kept: type advantage=accept, or "
            "sampling=fixed",
        )
    )


def advantage_needs(spec: RunSpec) -> AdvantageNeeds:
    """Return the declarations of the run's estimator."""
    return needs_of(spec.parts.get("advantage"), AdvantageNeeds)


def reward_needs(spec: RunSpec) -> RewardNeeds:
    """Return the declarations of the run's reward."""
    return needs_of(spec.parts.get("reward"), RewardNeeds)


def _is_in_reward(kl: Any) -> bool:
    """Return True if `kl` is subtracted from the rewards, now or later."""
    is_subtracted = kl is not None and kl.where == "reward"
    return is_subtracted and (kl.coefficient > 0 or isinstance(kl, Controller))
