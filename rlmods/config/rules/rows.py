"""Rules on the data: number of rows, required columns, gold answers and preferences."""

from __future__ import annotations

import re
from dataclasses import replace

from rlmods.config.plan import Plan
from rlmods.config.rules.credit import terms
from rlmods.config.validation import at_validation
from rlmods.data import Splits
from rlmods.errors import UserError
from rlmods.needs import JudgeNeeds, PreferenceNeeds, RewardNeeds, needs_of
from rlmods.protocols import ChecksPrompt
from rlmods.reward import BySource
from rlmods.reward.members import with_members


def ptx(plan: Plan) -> str | None:
    if not getattr(plan.settings, "ptx_coefficient", 0):
        return None
    rows, weights, advice = (
        plan.splits.ptx,
        plan.splits.ptx_weights or {},
        "type data@ptx=jsonl ptx.train=FILE ptx.response=COLUMN",
    )
    if not rows:
        return f"algo.ptx_coefficient: all rows are held out by data=: {advice}"
    for prompt in rows:
        if "response" not in prompt.meta:
            of_source = (
                f"type ptx.sources.{prompt.source}.response=COLUMN, or ~ptx.sources.{prompt.source}"
            )
            return (
                f"algo.ptx_coefficient needs responses, but prompt {prompt.id} has none: "
                f"{of_source if weights else advice}"
            )
    if missing := sorted(weights.keys() - {prompt.source for prompt in rows}):
        return (
            f"algo.ptx_coefficient: all rows of the source {missing[0]} are held out by data=: "
            f"type ~ptx.sources.{missing[0]}"
        )
    return None


def minibatches(plan: Plan) -> str | None:
    rows = plan.batch.prompts * plan.algorithm.rows_per_prompt(plan.batch)
    if rows % plan.batch.minibatches == 0:
        return None
    fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
    return (
        f"batch.minibatches={plan.batch.minibatches} does not divide the {rows} rows of an "
        f"iteration: type one of {fits}"
    )


def prompts(plan: Plan) -> str | None:
    count = len(plan.splits.train)
    if plan.batch.prompts <= count:
        return None
    return (
        f"batch.prompts={plan.batch.prompts}, but the data has {count} prompts: type "
        f"batch.prompts={count}"
    )


def sources(plan: Plan) -> str | None:
    reward, prompts = plan.parts.get("reward"), (*plan.splits.train, *plan.splits.val)
    names = {prompt.source for prompt in prompts if prompt.source is not None}
    if same := sorted(names & set(getattr(reward, "terms", {}))):
        return (
            f"the source {same[0]} has the name of a term of the reward, and so have their "
            "metrics: rename it, data.sources.NAME"
        )
    if not isinstance(reward, BySource):
        return None
    for prompt in prompts:
        try:
            reward.for_prompt(prompt)
        except UserError as error:
            return str(error)
    if unused := sorted(reward.rewards.keys() - names):
        return (
            f"reward.rewards.{unused[0]} grades nothing, the sources of the data are "
            f"{', '.join(sorted(names))}: drop it"
        )
    return None


def answers(plan: Plan) -> str | None:
    for group in ("reward", "judge"):
        part = plan.parts.get(group)
        if not _needs_answer(part, group):
            continue
        for prompt in (*plan.splits.train, *plan.splits.val):
            own = part.for_prompt(prompt) if isinstance(part, BySource) else part
            needed = _needs_answer(own, group)
            if prompt.answer is None and needed:
                option = f"{group}={plan.choices.get(group)}"
                other = (
                    ""
                    if plan.algorithm.samples_responses
                    else ", or reward=format, as it is for validation only"
                )
                return (
                    f"{option} needs gold answers, but prompt {prompt.id} has none: type "
                    f"data.answer=COLUMN{other}"
                )
    return None


def _needs_answer(part: object, group: str) -> bool:
    if group == "judge":
        return needs_of(part, JudgeNeeds).answer
    return needs_of(part, RewardNeeds).answer


def graded(plan: Plan) -> str | None:
    for path, part, _ in terms(plan):
        source = None
        if isinstance(plan.parts["reward"], BySource):
            source = path.split(".")[2]
        prompts = [
            prompt
            for prompt in (*plan.splits.train, *plan.splits.val)
            if source is None or prompt.source == source
        ]
        for own_path, reward in with_members(part, path):
            for setting in needs_of(reward, RewardNeeds).columns:
                column = getattr(reward, setting)
                if not prompts or any(prompt.meta.get(column) is not None for prompt in prompts):
                    continue
                names = {name for prompt in prompts for name in prompt.meta}
                return (
                    f"{own_path}.{setting}={column}: no row has this column, so nothing is graded: "
                    f"type {own_path}.{setting}=COLUMN (of {', '.join(sorted(names)) or 'none'})"
                )
    return None


def gradable(plan: Plan) -> str | None:
    for prompt in (*plan.splits.train, *plan.splits.val) if "reward" in plan.parts else ():
        for path, part, _ in terms(plan, prompt):
            try:
                if isinstance(part, ChecksPrompt):
                    part.check_prompt(prompt)
            except ValueError as error:
                problem = str(error).replace("type reward.", f"type {path}.")
                return (
                    f"reward={plan.choices.get('reward')} cannot grade responses to "
                    f"{prompt.name}: {problem}; correct the row"
                )
    return None


def validation(plan: Plan) -> str | None:
    """Check that the reward of validation can grade the held-out prompts, and those of the named
    sets."""
    own, sets = (
        plan.validation.reward,
        {} if plan.validation.reward is None else {"data": plan.splits.val},
    )
    sets |= {
        f"validation.data.{name}": prompts for name, prompts in (plan.validation.data or {}).items()
    }
    if sets and "reward" not in plan.parts:
        return (
            f"algo={plan.config.algo.name} grades no responses: drop validation.reward and "
            "validation.data"
        )
    if own is not None:
        config = plan.config.copy()
        config.reward, option = (
            config.validation.reward,
            plan.choices.get("reward@validation.reward"),
        )
        plan = replace(
            plan,
            config=config,
            parts={**plan.parts, "reward": own},
            choices={**plan.choices, "reward": str(option)},
        )
    for key, prompts in sets.items():
        for rule in (answers, graded, gradable):
            if message := rule(replace(plan, splits=Splits(prompts, ()))):
                message = re.sub(r"(?<![\w./@])data(?=\.\w)", key, message)
                return message if own is None else at_validation(message)
    return None


COLUMNS = {
    "response": ("trains on responses", "type data.response=COLUMN"),
    "candidates": ("trains on preferences", "type data=preferences data.train=FILE"),
    "steps": (
        "trains on labelled steps",
        "type data=preferences data.train=FILE data.steps=COLUMN data.step_labels=COLUMN",
    ),
}
"""Purpose of each required column, and the override that selects it."""


def columns(plan: Plan) -> str | None:
    for column in plan.algorithm.columns(plan.settings):
        purpose, advice = COLUMNS[column]
        if hasattr(plan.settings, "on_policy_fraction"):
            advice += ", or algo.on_policy_fraction=1"
        for prompt in plan.splits.train:
            if column not in prompt.meta or (column == "candidates" and "ranks" not in prompt.meta):
                if "steps" in prompt.meta:
                    advice = "it has labelled steps, for algo=process_reward_model"
                return (
                    f"algo={plan.config.algo.name} {purpose}, but prompt {prompt.id} has none: "
                    f"{advice}"
                )
    return None


def demonstrations(plan: Plan) -> str | None:
    teacher = plan.parts.get("teacher")
    column = getattr(teacher, "demonstration", None)
    if teacher is None or column is None:
        return None
    for prompt in plan.splits.train:
        if teacher.shows(prompt) is None:
            known = (
                ", ".join(
                    sorted({*prompt.meta, *(["answer"] if prompt.answer is not None else [])})
                )
                or "none"
            )
            return (
                f"teacher.demonstration={column}, but prompt {prompt.id} has no such column (it "
                f"has {known}): type another"
            )
    return None


def preferences(plan: Plan) -> str | None:
    preference, ranking, settings = (
        plan.parts.get("preference"),
        plan.parts.get("ranking"),
        plan.settings,
    )
    if preference is not None and not needs_of(preference, PreferenceNeeds).reference:
        for key, default in (("reference_every", None), ("reference", "live")):
            if getattr(settings, key, default) != default:
                return (
                    f"algo.{key} sets the reference, but "
                    f"preference={plan.choices.get('preference')} has none: drop it"
                )
    if preference is not None and getattr(settings, "kl_coefficient", 0.0) > 0:
        if not needs_of(preference, PreferenceNeeds).reference:
            return (
                "algo.kl_coefficient needs a reference, but "
                f"preference={plan.choices.get('preference')} has none: drop it"
            )
        if settings.reference != "live":
            return (
                "algo.kl_coefficient needs the distributions of the reference in every step: "
                "type algo.reference=live"
            )
    if "judge" in plan.parts and getattr(settings, "reference", "live") != "live":
        return (
            f"algo.reference={settings.reference} needs responses that are in the data, but they "
            "are sampled: type algo.reference=live"
        )
    if (
        needs_of(preference, PreferenceNeeds).kl
        and plan.batch.prompts // plan.batch.minibatches < 2
    ):
        return (
            "this preference loss estimates a KL from responses to other prompts of the "
            "optimizer step: type batch.minibatches=1"
        )
    if "candidates" not in plan.algorithm.needs_columns:
        return None
    rows = [prompt for prompt in plan.splits.train if "candidates" in prompt.meta]
    needs_pairs = needs_of(preference, PreferenceNeeds).pairs
    if needs_pairs and not any(len(set(prompt.meta["ranks"])) > 1 for prompt in rows):
        other = (
            "type preference=kto, which trains on labels"
            if preference is not None
            else "type data.train=FILE with pairs or rankings"
        )
        return (
            f"algo={plan.config.algo.name} compares responses to one prompt, but no row of the "
            f"data prefers one to another: {other}"
        )
    if getattr(ranking, "margin", False) and not any(
        prompt.meta.get("margin") is not None for prompt in rows
    ):
        return "ranking.margin=true, but the data has no margin: type ranking.margin=false"
    if getattr(settings, "zero_mean", False) and not any(
        "candidates" in prompt.meta for prompt in plan.splits.val
    ):
        return (
            "algo.zero_mean=true subtracts the mean score of held-out responses, but there are "
            "none: type algo.zero_mean=false"
        )
    return None
