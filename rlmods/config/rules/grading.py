"""Rules on the data that the reward reads: sources, gold answers and columns, in training and
validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rlmods.config.instantiate import at_key
from rlmods.config.run_spec import RunSpec
from rlmods.data import Splits
from rlmods.data.file_rows import kinds
from rlmods.needs import JudgeNeeds, needs_of
from rlmods.protocols import ChecksPrompt
from rlmods.reward import BySource, WeightedSum
from rlmods.reward.weighted_sum import Term, leaves, walk
from rlmods.rollout.turns import MultiTurn
from rlmods.types import Prompt


def terms(spec: RunSpec) -> Iterator[Term]:
    """Yield the terms of the run's reward; none without a reward."""
    reward = spec.parts.get("reward")
    if reward is None:
        return
    wrapped = isinstance(reward, WeightedSum) and "terms" not in spec.config.reward
    if wrapped:  # a single reward, which `compose` made a sum of one term
        (term,) = reward.terms.values()
        reward = term["reward"]
    yield from leaves(Term("reward", reward))


def sources(spec: RunSpec) -> Iterator[str]:
    reward = spec.parts.get("reward")
    one_of_each = {prompt.source: prompt for prompt in _kinds(spec)}
    for name, prompt in one_of_each.items():
        if isinstance(reward, WeightedSum) and name in reward.terms:
            yield (
                f"the source {name} has the name of a term of the reward, and so have their "
                "metrics: rename it, data.sources.NAME"
            )
        for term in walk(Term("reward", reward)):
            if isinstance(term.reward, BySource) and term.source in (None, name):
                term.reward.for_prompt(prompt)  # raises UserError


def answers(spec: RunSpec) -> Iterator[str]:
    judge_reads = needs_of(spec.parts.get("judge"), JudgeNeeds).answer
    readers = {term.source for term in terms(spec) if term.weight and term.needs.answer}
    if not judge_reads and not readers:
        return
    answered = {prompt.source for prompt in _kinds(spec) if prompt.answer is not None}
    for prompt in _kinds(spec):
        if prompt.answer is not None:
            continue
        advice = "type data.answer=COLUMN"
        if prompt.source in answered:
            advice = "correct the row, or leave it out"
        problem = f"needs gold answers, but {prompt.name} has none: {advice}"
        if not readers.isdisjoint((None, prompt.source)):
            online = spec.algorithm.samples_responses
            other = "" if online else ", or reward=format, as it is for validation only"
            yield f"{spec.option('reward')} {problem}{other}"
        if judge_reads:
            yield f"{spec.option('judge')} {problem}"


def columns(spec: RunSpec) -> Iterator[str]:
    for term in terms(spec):
        graded = [p.meta for p in _kinds(spec) if term.source in (None, p.source)]
        for setting in term.needs.columns:
            column = getattr(term.reward, setting)
            if graded and all(meta.get(column) is None for meta in graded):
                known = ", ".join(sorted(set().union(*graded))) or "none"
                yield (
                    f"{term.path}.{setting}={column}: no row has this column, so nothing is "
                    f"graded: type {term.path}.{setting}=COLUMN (of {known})"
                )


def prompts(spec: RunSpec) -> Iterator[str]:
    checks = [term for term in terms(spec) if isinstance(term.reward, ChecksPrompt)]
    for prompt in _prompts(spec) if checks else ():
        for term in checks:
            if term.source not in (None, prompt.source):
                continue
            try:
                term.reward.check_prompt(prompt)
            except ValueError as error:
                problem = str(error).replace("type reward.", f"type {term.path}.")
                yield (
                    f"{spec.option('reward')} cannot grade responses to {prompt.name}: "
                    f"{problem}; correct the row"
                )


def turn_rewards(spec: RunSpec) -> Iterator[str]:
    has_turns = isinstance(spec.parts.get("rollout"), MultiTurn)
    for term in terms(spec):
        by_token = term.needs.gives_steps or term.needs.gives_tokens
        if term.needs.turns and not has_turns:
            yield (
                f"{term.path} reads the rewards of an environment, and environment=single_turn "
                "gives none: type environment=guess_number"
            )
        if by_token and has_turns and not term.needs.turns:
            yield (
                f"{term.path} rewards single tokens of a response, whose observations in "
                f"{spec.option('environment')} are not sampled: drop it, or type "
                "environment=single_turn"
            )


def validation(spec: RunSpec) -> Iterator[str]:
    """Check that the reward of validation can grade the held-out prompts, and the prompts of the
    named sets."""
    own = spec.validation.reward
    sets: dict[str, Sequence[Prompt]] = {}
    if own is not None:
        sets["data"] = spec.splits.val
    for name, named in (spec.validation.data or {}).items():
        sets[f"validation.data.{name}"] = named
    if sets and "reward" not in spec.parts:
        yield (
            f"algo={spec.config.algo.name} grades no responses: drop validation.reward and "
            "validation.data"
        )
        return
    if own is not None:
        spec = _with_reward(spec, own)
    for key, held_out in sets.items():
        of_set = replace(spec, splits=Splits(held_out, ()))
        for rule in (answers, columns, prompts):
            for message in rule(of_set):
                message = at_key(message, "data", key)
                yield message if own is None else at_key(message, "reward", "validation.reward")


def _with_reward(spec: RunSpec, reward: Any) -> RunSpec:
    """Return the spec with the reward of validation as its reward."""
    config = spec.config.copy()
    config.reward = config.validation.reward
    choices = {**spec.choices, "reward": str(spec.choices.get("reward@validation.reward"))}
    return replace(spec, config=config, parts={**spec.parts, "reward": reward}, choices=choices)


def _kinds(spec: RunSpec) -> Iterator[Prompt]:
    """Yield prompts of all kinds, which the rules on columns tell apart."""
    yield from kinds(spec.splits.train)
    yield from kinds(spec.splits.val)


def _prompts(spec: RunSpec) -> Iterator[Prompt]:
    yield from spec.splits.train
    yield from spec.splits.val
