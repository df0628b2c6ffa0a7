"""Rules on the rows of the data: their number, and the columns, gold answers and sources that the
algorithm and the reward read, in training and validation."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from rlmods.config.instantiate import at_key
from rlmods.config.run_spec import RunSpec, applying
from rlmods.data import Splits
from rlmods.data.file_rows import kinds
from rlmods.errors import counted
from rlmods.needs import JudgeNeeds, PreferenceNeeds, needs_of
from rlmods.protocols import ChecksPrompt
from rlmods.ranking import BradleyTerry
from rlmods.reward import BySource, WeightedSum
from rlmods.reward.weighted_sum import Term, leaves, walk
from rlmods.rollout.turns import MultiTurn
from rlmods.training.settings import GKDSettings, PolicyGradientSettings, RewardModelSettings
from rlmods.types import Prompt

COLUMNS = {
    "response": ("trains on responses", "type data.response=COLUMN"),
    "candidates": ("trains on preferences", "type data=preferences data.train=FILE"),
    "steps": (
        "trains on labelled steps",
        "type data=preferences data.train=FILE data.steps=COLUMN data.step_labels=COLUMN",
    ),
}
"""Purpose of each required column, and the override that selects it."""


def ptx(spec: RunSpec) -> Iterator[str]:
    settings = spec.settings
    if not isinstance(settings, PolicyGradientSettings) or not settings.ptx_coefficient:
        return
    if not spec.splits.ptx:
        yield (
            "algo.ptx_coefficient: all rows are held out by data=: type data@ptx=jsonl "
            "ptx.train=FILE ptx.response=COLUMN"
        )
    sources = {prompt.source for prompt in kinds(spec.splits.ptx)}
    for name in spec.splits.ptx_weights or ():
        if sources and name not in sources:
            yield f"ptx: all rows of the source {name} are held out by data=: drop the source"
    for prompt in kinds(spec.splits.ptx):
        if "response" not in prompt.meta:
            advice = "data@ptx=jsonl ptx.train=FILE ptx.response=COLUMN"
            if prompt.source is not None:
                advice = f"ptx.sources.{prompt.source}.response=COLUMN"
            yield (
                f"algo.ptx_coefficient needs responses, but prompt {prompt.id} has none: type "
                f"{advice}"
            )


def prompts(spec: RunSpec) -> Iterator[str]:
    count = len(spec.splits.train)
    return applying(
        (
            spec.batch.prompts > count,
            f"batch.prompts={spec.batch.prompts}, but the data has {counted(count, 'prompt')}: "
            f"type batch.prompts={count}",
        )
    )


def columns(spec: RunSpec) -> Iterator[str]:
    for column in spec.algorithm.columns(spec.settings):
        needed = {column, "ranks"} if column == "candidates" else {column}
        for prompt in kinds(spec.splits.train):
            if not needed <= prompt.meta.keys():
                purpose, advice = COLUMNS[column]
                if isinstance(spec.settings, GKDSettings):
                    advice += ", or algo.on_policy_fraction=1"
                yield (
                    f"algo={spec.config.algo.name} {purpose}, but prompt {prompt.id} has none: "
                    f"{advice}"
                )


def demonstrations(spec: RunSpec) -> Iterator[str]:
    teacher = spec.parts.get("teacher")
    if teacher is None or teacher.demonstration is None:
        return
    for prompt in kinds(spec.splits.train):
        if teacher.shows(prompt) is None:
            yield (
                f"teacher.demonstration={teacher.demonstration}, but prompt {prompt.id} has no "
                f"such column: type answer, or one of {', '.join(prompt.meta)}"
            )


def margins(spec: RunSpec) -> Iterator[str]:
    ranking = spec.parts.get("ranking")
    reads_margins = isinstance(ranking, BradleyTerry) and ranking.margin
    values = (prompt.meta.get("margin") for prompt in kinds(spec.splits.train))
    return applying(
        (
            reads_margins and all(value is None for value in values),
            "ranking.margin=true, but the data has no margin: type ranking.margin=false",
        )
    )


def preferences(spec: RunSpec) -> Iterator[str]:
    preference = spec.parts.get("preference")
    needs = needs_of(preference, PreferenceNeeds)
    reads_candidates = "candidates" in spec.algorithm.needs_columns
    compares = needs.pairs and "candidates" in spec.algorithm.needs_columns
    rows = [row for row in kinds(spec.splits.train) if compares and "candidates" in row.meta]
    has_preference = any(len(set(row.meta["ranks"])) > 1 for row in rows)
    settings = spec.settings
    has_zero_mean = isinstance(settings, RewardModelSettings) and settings.zero_mean
    other = "data.train=FILE with pairs or rankings"
    return applying(
        (
            needs.kl and spec.batch.prompts // spec.batch.minibatches < 2,
            "this preference loss estimates a KL from responses to other prompts of the "
            "optimizer step: type batch.minibatches=1",
        ),
        (
            compares and not has_preference,
            f"algo={spec.config.algo.name} compares responses to one prompt, but no row of the "
            "data prefers one to another: type "
            f"{other if preference is None else 'preference=kto, which trains on labels'}",
        ),
        (
            has_zero_mean
            and reads_candidates
            and all("candidates" not in prompt.meta for prompt in spec.splits.val),
            "algo.zero_mean=true subtracts the mean score of held-out responses, but there are "
            "none: type algo.zero_mean=false",
        ),
    )


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
    answered = {prompt.source for prompt in _kinds(spec) if prompt.answer is not None}
    other = ", or reward=format, as it is for validation only"
    for prompt in _kinds(spec) if judge_reads or readers else ():
        if prompt.answer is not None:
            continue
        is_one = prompt.source in answered
        advice = "correct the row, or leave it out" if is_one else "type data.answer=COLUMN"
        problem = f"needs gold answers, but {prompt.name} has none: {advice}"
        yield from applying(
            (
                not readers.isdisjoint((None, prompt.source)),
                f"{spec.option('reward')} {problem}"
                f"{'' if spec.algorithm.samples_responses else other}",
            ),
            (judge_reads, f"{spec.option('judge')} {problem}"),
        )


def reward_columns(spec: RunSpec) -> Iterator[str]:
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


def graded_prompts(spec: RunSpec) -> Iterator[str]:
    checks = [term for term in terms(spec) if isinstance(term.reward, ChecksPrompt)]
    for prompt in chain(spec.splits.train, spec.splits.val) if checks else ():
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
        yield from applying(
            (
                term.needs.turns and not has_turns,
                f"{term.path} reads the rewards of an environment, and environment=single_turn "
                "gives none: type environment=guess_number",
            ),
            (
                by_token and has_turns and not term.needs.turns,
                f"{term.path} rewards single tokens of a response, whose observations in "
                f"{spec.option('environment')} are not sampled: drop it, or type "
                "environment=single_turn",
            ),
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
    if own is not None:  # as the reward of the run
        config = spec.config.copy()
        config.reward = config.validation.reward
        choices = {**spec.choices, "reward": str(spec.choices.get("reward@validation.reward"))}
        parts = {**spec.parts, "reward": own}
        spec = replace(spec, config=config, parts=parts, choices=choices)
    for key, held_out in sets.items():
        of_set = replace(spec, splits=Splits(held_out, ()))
        for message in chain(answers(of_set), reward_columns(of_set), graded_prompts(of_set)):
            message = at_key(message, "data", key)
            yield message if own is None else at_key(message, "reward", "validation.reward")


def _kinds(spec: RunSpec) -> Iterator[Prompt]:
    """Return prompts of all kinds, which the rules on columns tell apart."""
    return chain(kinds(spec.splits.train), kinds(spec.splits.val))
