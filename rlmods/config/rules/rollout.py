"""Rules on the members that a part's protocol requires, on the rollout's distribution, and on
environments of several turns."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import chain

from rlmods.branching import NoBranching
from rlmods.config.instantiate import instantiate
from rlmods.config.rules.estimator import advantage_needs
from rlmods.config.run_spec import RunSpec, applying
from rlmods.correction import NoCorrection
from rlmods.environment import SingleTurn
from rlmods.needs import EnvironmentNeeds, RolloutNeeds, ScheduleNeeds, needs_of
from rlmods.protocols import truncates
from rlmods.rollout.turns import MultiTurn, find_prompt_without_episode
from rlmods.training.settings import PolicyGradientSettings

MEMBERS = {
    "rollout": ("generate", "sync"),
    "environment": ("start", "max_turns", "max_tokens"),
    "kl": ("__call__", "coefficient", "where"),
}
"""Required members by group. Parts of other groups are called."""


def protocols(spec: RunSpec) -> Iterator[str]:
    for group, part in spec.parts.items():
        required = MEMBERS.get(group, ("__call__",))
        missing = [member for member in required if not hasattr(part, member)]
        if missing and not isinstance(part, SingleTurn | NoBranching):
            yield (
                f"{spec.option(group)}: {type(part).__name__} has no {' and no '.join(missing)}; "
                "see rlmods/protocols.py"
            )
    rollout = spec.parts.get("rollout")
    if rollout is not None and not (is_dataclass(rollout) and hasattr(rollout, "temperature")):
        yield (
            f"{spec.option('rollout')}: must be a dataclass with a temperature, as validation "
            "samples with its own settings"
        )


def temperature(spec: RunSpec) -> Iterator[str]:
    return applying(
        (
            spec.algorithm.samples_responses and spec.parts["rollout"].temperature == 0,
            "rollout.temperature=0 samples the same response every time, so there is no learning "
            "signal: type rollout.temperature=1",
        )
    )


def truncation(spec: RunSpec) -> Iterator[str]:
    correction = spec.parts.get("correction")
    is_corrected = correction is not None and not isinstance(correction, NoCorrection)
    other = "" if correction is None else ", or correction=truncated"
    return applying(
        (
            "ratio" in spec.parts and truncates(spec.parts.get("rollout")) and not is_corrected,
            "rollout.top_p and rollout.top_k sample from another distribution than the one that "
            f"is trained: type rollout.top_p=1 rollout.top_k=0{other} (validation has its own "
            "settings)",
        )
    )


def ahead(spec: RunSpec) -> Iterator[str]:
    if not needs_of(spec.parts.get("rollout"), RolloutNeeds).ahead:
        return applying()
    settings = spec.settings
    if not isinstance(settings, PolicyGradientSettings):
        problem = f"which algo={spec.config.algo.name} does not do: type rollout.ahead=0"
        return iter([f"rollout.ahead=1 samples for the next iteration, {problem}"])
    return applying(
        (
            isinstance(spec.parts.get("correction"), NoCorrection),
            "rollout.ahead=1 trains on samples of the policy before its last update: type "
            "correction=truncated, or rollout.ahead=0",
        ),
        (
            advantage_needs(spec).greedy,
            f"{spec.option('advantage')} samples again to grade a batch, while rollout.ahead=1 "
            "samples the next one: type rollout.ahead=0, or advantage=rloo",
        ),
        (
            settings.retire_solved is not None or settings.retire_unsolved is not None,
            "algo.retire_solved and algo.retire_unsolved choose prompts by the results of those "
            "before, and rollout.ahead=1 samples them before these are graded: type "
            "rollout.ahead=0, or drop them",
        ),
    )


def kl_schedule(spec: RunSpec) -> Iterator[str]:
    schedule = instantiate(spec.config.schedule, "schedule")
    has_ratio = "ratio" in spec.parts
    is_single_step = spec.batch.epochs * spec.batch.minibatches == 1
    return applying(
        (
            needs_of(schedule, ScheduleNeeds).kl and (not has_ratio or is_single_step),
            f"{spec.option('schedule')} reads the KL between the policies of the first and later "
            "optimizer steps of an iteration: type schedule=constant"
            f"{', or batch.minibatches=4' if has_ratio else ''}",
        )
    )


def several_turns(spec: RunSpec) -> Iterator[str]:
    has_turns = isinstance(spec.parts.get("rollout"), MultiTurn)
    trains_on_turns = isinstance(spec.settings, PolicyGradientSettings)
    samples_one = spec.algorithm.samples_responses and not trains_on_turns
    return applying(
        (
            has_turns and samples_one,
            f"algo={spec.config.algo.name} trains on responses of one turn, but "
            f"{spec.option('environment')} has several: type environment=single_turn",
        )
    )


def observations(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    is_policy_gradient = isinstance(settings, PolicyGradientSettings)
    return applying(
        (
            is_policy_gradient
            and settings.observation_coefficient
            and not isinstance(spec.parts.get("rollout"), MultiTurn),
            "algo.observation_coefficient trains on what the policy observes between its turns, "
            "and environment=single_turn has one turn: type environment=tools, or drop it",
        )
    )


def branching(spec: RunSpec) -> Iterator[str]:
    rule = spec.parts.get("branching")
    if rule is None or isinstance(rule, NoBranching):
        return applying()
    option = spec.option("branching")
    rollout = spec.parts.get("rollout")
    if not isinstance(rollout, MultiTurn):
        problem = "responses branch after the result of a tool, and environment=single_turn has"
        return iter([f"{option}: {problem} none: type environment=tools"])
    samples = spec.batch.samples
    return applying(
        (
            not needs_of(rollout.rollout, RolloutNeeds).gives_entropies,
            f"{option}: {spec.option('rollout')} does not return the entropies by which "
            "responses branch: type rollout=local, or branching=none",
        ),
        (
            not needs_of(rollout.environment, EnvironmentNeeds).copies,
            f"{option}: episodes of {spec.option('environment')} cannot be copied, which branches "
            "need: type branching=none, or another environment=",
        ),
        (
            samples <= rule.num_initial,
            f"branching.num_initial={rule.num_initial} leaves none of batch.samples={samples} "
            f"for branches: type branching.num_initial={max(1, samples // 2)}, a larger "
            "batch.samples, or branching=none",
        ),
    )


def episodes(spec: RunSpec) -> Iterator[str]:
    named = chain.from_iterable((spec.validation.data or {}).values())
    prompts = chain(spec.splits.train, spec.splits.val, named)
    problem = find_prompt_without_episode(spec.parts.get("rollout"), prompts)
    return applying((problem, f"{spec.option('environment')} cannot begin with {problem}"))
