"""Rules on the data: number of rows, required columns, gold answers and preferences."""

from __future__ import annotations

from dataclasses import replace

from rlmods.config.instantiate import at_key
from rlmods.config.rules.credit import terms
from rlmods.config.run_spec import RunSpec
from rlmods.data import Splits
from rlmods.errors import UserError
from rlmods.needs import JudgeNeeds, PreferenceNeeds, RewardNeeds, needs_of
from rlmods.protocols import ChecksPrompt
from rlmods.reward import BySource
from rlmods.reward.members import with_members


def ptx(spec: RunSpec) -> str | None:
    if not getattr(spec.settings, "ptx_coefficient", 0):
        return None
    rows, weights, advice = (
        spec.splits.ptx,
        spec.splits.ptx_weights or {},
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


def minibatches(spec: RunSpec) -> str | None:
    rows = spec.batch.prompts * spec.algorithm.rows_per_prompt(spec.batch)
    if rows % spec.batch.minibatches == 0:
        return None
    fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
    return (
        f"batch.minibatches={spec.batch.minibatches} does not divide the {rows} rows of an "
        f"iteration: type one of {fits}"
    )


def prompts(spec: RunSpec) -> str | None:
    count = len(spec.splits.train)
    if spec.batch.prompts <= count:
        return None
    return (
        f"batch.prompts={spec.batch.prompts}, but the data has {count} prompts: type "
        f"batch.prompts={count}"
    )


def sources(spec: RunSpec) -> str | None:
    reward, prompts = spec.parts.get("reward"), (*spec.splits.train, *spec.splits.val)
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


def answers(spec: RunSpec) -> str | None:
    for group in ("reward", "judge"):
        part = spec.parts.get(group)
        if not _needs_answer(part, group):
            continue
        for prompt in (*spec.splits.train, *spec.splits.val):
            own = part.for_prompt(prompt) if isinstance(part, BySource) else part
            needed = _needs_answer(own, group)
            if prompt.answer is None and needed:
                option = f"{group}={spec.choices.get(group)}"
                other = (
                    ""
                    if spec.algorithm.samples_responses
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


def graded(spec: RunSpec) -> str | None:
    for path, part, _ in terms(spec):
        source = None
        if isinstance(spec.parts["reward"], BySource):
            source = path.split(".")[2]
        prompts = [
            prompt
            for prompt in (*spec.splits.train, *spec.splits.val)
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


def gradable(spec: RunSpec) -> str | None:
    for prompt in (*spec.splits.train, *spec.splits.val) if "reward" in spec.parts else ():
        for path, part, _ in terms(spec, prompt):
            try:
                if isinstance(part, ChecksPrompt):
                    part.check_prompt(prompt)
            except ValueError as error:
                problem = str(error).replace("type reward.", f"type {path}.")
                return (
                    f"reward={spec.choices.get('reward')} cannot grade responses to "
                    f"{prompt.name}: {problem}; correct the row"
                )
    return None


def validation(spec: RunSpec) -> str | None:
    """Check that the reward of validation can grade the held-out prompts, and those of the named
    sets."""
    own, sets = (
        spec.validation.reward,
        {} if spec.validation.reward is None else {"data": spec.splits.val},
    )
    sets |= {
        f"validation.data.{name}": prompts for name, prompts in (spec.validation.data or {}).items()
    }
    if sets and "reward" not in spec.parts:
        return (
            f"algo={spec.config.algo.name} grades no responses: drop validation.reward and "
            "validation.data"
        )
    if own is not None:
        config = spec.config.copy()
        config.reward, option = (
            config.validation.reward,
            spec.choices.get("reward@validation.reward"),
        )
        spec = replace(
            spec,
            config=config,
            parts={**spec.parts, "reward": own},
            choices={**spec.choices, "reward": str(option)},
        )
    for key, prompts in sets.items():
        for rule in (answers, graded, gradable):
            if message := rule(replace(spec, splits=Splits(prompts, ()))):
                message = at_key(message, "data", key)
                return message if own is None else at_key(message, "reward", "validation.reward")
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


def columns(spec: RunSpec) -> str | None:
    for column in spec.algorithm.columns(spec.settings):
        purpose, advice = COLUMNS[column]
        if hasattr(spec.settings, "on_policy_fraction"):
            advice += ", or algo.on_policy_fraction=1"
        for prompt in spec.splits.train:
            if column not in prompt.meta or (column == "candidates" and "ranks" not in prompt.meta):
                if "steps" in prompt.meta:
                    advice = "it has labelled steps, for algo=process_reward_model"
                return (
                    f"algo={spec.config.algo.name} {purpose}, but prompt {prompt.id} has none: "
                    f"{advice}"
                )
    return None


def demonstrations(spec: RunSpec) -> str | None:
    teacher = spec.parts.get("teacher")
    column = getattr(teacher, "demonstration", None)
    if teacher is None or column is None:
        return None
    for prompt in spec.splits.train:
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


def preferences(spec: RunSpec) -> str | None:
    preference, ranking, settings = (
        spec.parts.get("preference"),
        spec.parts.get("ranking"),
        spec.settings,
    )
    if preference is not None and not needs_of(preference, PreferenceNeeds).reference:
        for key, default in (("reference_every", None), ("reference", "live")):
            if getattr(settings, key, default) != default:
                return (
                    f"algo.{key} sets the reference, but "
                    f"preference={spec.choices.get('preference')} has none: drop it"
                )
    if preference is not None and getattr(settings, "kl_coefficient", 0.0) > 0:
        if not needs_of(preference, PreferenceNeeds).reference:
            return (
                "algo.kl_coefficient needs a reference, but "
                f"preference={spec.choices.get('preference')} has none: drop it"
            )
        if settings.reference != "live":
            return (
                "algo.kl_coefficient needs the distributions of the reference in every step: "
                "type algo.reference=live"
            )
    if "judge" in spec.parts and getattr(settings, "reference", "live") != "live":
        return (
            f"algo.reference={settings.reference} needs responses that are in the data, but they "
            "are sampled: type algo.reference=live"
        )
    if (
        needs_of(preference, PreferenceNeeds).kl
        and spec.batch.prompts // spec.batch.minibatches < 2
    ):
        return (
            "this preference loss estimates a KL from responses to other prompts of the "
            "optimizer step: type batch.minibatches=1"
        )
    if "candidates" not in spec.algorithm.needs_columns:
        return None
    rows = [prompt for prompt in spec.splits.train if "candidates" in prompt.meta]
    needs_pairs = needs_of(preference, PreferenceNeeds).pairs
    if needs_pairs and not any(len(set(prompt.meta["ranks"])) > 1 for prompt in rows):
        other = (
            "type preference=kto, which trains on labels"
            if preference is not None
            else "type data.train=FILE with pairs or rankings"
        )
        return (
            f"algo={spec.config.algo.name} compares responses to one prompt, but no row of the "
            f"data prefers one to another: {other}"
        )
    if getattr(ranking, "margin", False) and not any(
        prompt.meta.get("margin") is not None for prompt in rows
    ):
        return "ranking.margin=true, but the data has no margin: type ranking.margin=false"
    if getattr(settings, "zero_mean", False) and not any(
        "candidates" in prompt.meta for prompt in spec.splits.val
    ):
        return (
            "algo.zero_mean=true subtracts the mean score of held-out responses, but there are "
            "none: type algo.zero_mean=false"
        )
    return None
