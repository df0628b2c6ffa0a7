"""Rules on the rows of the data: their number and the columns that the algorithm reads."""

from __future__ import annotations

from collections.abc import Iterator

from rlmods.config.run_spec import RunSpec
from rlmods.data.file_rows import kinds
from rlmods.errors import counted
from rlmods.needs import PreferenceNeeds, needs_of
from rlmods.ranking import BradleyTerry
from rlmods.training.settings import GKDSettings, PolicyGradientSettings, RewardModelSettings

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
    advice = "type data@ptx=jsonl ptx.train=FILE ptx.response=COLUMN"
    if not spec.splits.ptx:
        yield f"algo.ptx_coefficient: all rows are held out by data=: {advice}"
    sources = {prompt.source for prompt in kinds(spec.splits.ptx)}
    for name in spec.splits.ptx_weights or ():
        if sources and name not in sources:
            yield f"ptx: all rows of the source {name} are held out by data=: drop the source"
    for prompt in kinds(spec.splits.ptx):
        if "response" not in prompt.meta:
            if prompt.source is not None:
                advice = f"type ptx.sources.{prompt.source}.response=COLUMN"
            yield (
                f"algo.ptx_coefficient needs responses, but prompt {prompt.id} has none: {advice}"
            )


def prompts(spec: RunSpec) -> Iterator[str]:
    count = len(spec.splits.train)
    if spec.batch.prompts > count:
        yield (
            f"batch.prompts={spec.batch.prompts}, but the data has {counted(count, 'prompt')}: "
            f"type batch.prompts={count}"
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
            known = set(prompt.meta)
            if prompt.answer is not None:
                known.add("answer")
            yield (
                f"teacher.demonstration={teacher.demonstration}, but prompt {prompt.id} has no "
                f"such column (it has {', '.join(sorted(known)) or 'none'}): type another"
            )


def margins(spec: RunSpec) -> Iterator[str]:
    ranking = spec.parts.get("ranking")
    reads_margins = isinstance(ranking, BradleyTerry) and ranking.margin
    if reads_margins and all(
        prompt.meta.get("margin") is None for prompt in kinds(spec.splits.train)
    ):
        yield "ranking.margin=true, but the data has no margin: type ranking.margin=false"


def preferences(spec: RunSpec) -> Iterator[str]:
    preference = spec.parts.get("preference")
    needs = needs_of(preference, PreferenceNeeds)
    if needs.kl and spec.batch.prompts // spec.batch.minibatches < 2:
        yield (
            "this preference loss estimates a KL from responses to other prompts of the "
            "optimizer step: type batch.minibatches=1"
        )
    if "candidates" not in spec.algorithm.needs_columns:
        return
    rows = [prompt for prompt in kinds(spec.splits.train) if "candidates" in prompt.meta]
    if needs.pairs and not any(len(set(prompt.meta["ranks"])) > 1 for prompt in rows):
        advice = "type data.train=FILE with pairs or rankings"
        if preference is not None:
            advice = "type preference=kto, which trains on labels"
        yield (
            f"algo={spec.config.algo.name} compares responses to one prompt, but no row of the "
            f"data prefers one to another: {advice}"
        )
    settings = spec.settings
    has_zero_mean = isinstance(settings, RewardModelSettings) and settings.zero_mean
    if has_zero_mean and all("candidates" not in prompt.meta for prompt in spec.splits.val):
        yield (
            "algo.zero_mean=true subtracts the mean score of held-out responses, but there are "
            "none: type algo.zero_mean=false"
        )
