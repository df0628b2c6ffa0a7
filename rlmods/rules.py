"""What does not fit what: each rule returns None, or the one line to print, with the override to type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from rlmods.reward import Neural

if TYPE_CHECKING:
    from rlmods.compose import Plan


def _group_size(plan: Plan) -> str | None:
    samples = plan.batch.samples
    for group in ("advantage", "sampling", "reward"):
        online = plan.algorithm.samples_responses and group in plan.parts
        if online and samples < 2 and (getattr(plan.parts[group], "needs_group", False)):
            return f"{group}={plan.choices.get(group)} compares answers to one prompt, and batch.samples={samples}: type batch.samples=8"
    if "judge" in plan.parts and samples < 2:
        return f"a judge compares answers to one prompt, and batch.samples={samples}: type batch.samples=4"
    return None


def _critic(plan: Plan) -> str | None:
    if "critic" not in plan.parts:
        return None
    wanted, made = getattr(plan.parts["advantage"], "needs_values", False), hasattr(plan.parts["critic"], "coefficient")
    if wanted and not made:
        return f"advantage={plan.choices.get('advantage')} needs a critic: type critic=separate, or another advantage=group_norm"
    if made and not wanted:
        return f"critic={plan.choices.get('critic')} would be trained and never asked: type critic=none, or advantage=gae"
    return None


def _steps(plan: Plan) -> str | None:
    if not getattr(plan.parts.get("advantage"), "needs_steps", False):
        return None
    chosen = plan.choices.get("advantage")
    if plan.parts["kl"].where == "reward" and plan.parts["kl"].coefficient > 0:
        return f"advantage={chosen} reads the rewards of steps alone, so a KL in the reward would be lost: type kl=loss, or kl=none"
    if not getattr(plan.parts["reward"], "gives_steps", False):
        reward = plan.choices.get("reward")
        return f"advantage={chosen} needs a reward for each step, and reward={reward} gives one a response: type reward=process"
    return None


def _scale(plan: Plan) -> str | None:
    scaled = plan.config.algo.get("normalize_reward", False) or plan.config.algo.get("clip_reward", None) is not None
    if scaled and hasattr(plan.parts.get("advantage"), "threshold"):
        chosen = plan.choices.get("advantage")
        return f"algo.normalize_reward and algo.clip_reward move rewards, and advantage={chosen} compares them with a threshold: drop them"
    if scaled and getattr(plan.parts["reward"], "gives_steps", False):
        return "algo.normalize_reward and algo.clip_reward scale one reward a response, and this reward gives one a step: drop them"
    return None


def _reference(plan: Plan) -> str | None:
    if plan.config.algo.get("reference_every", None) is not None and not getattr(plan.parts.get("kl"), "needs_reference", True):
        return f"algo.reference_every moves the reference, and kl={plan.choices.get('kl')} has none: type kl=loss, or drop it"
    return None


def _rounds(plan: Plan) -> str | None:
    if not getattr(plan.algorithm, "trains_reward_model", False):
        return None
    name, terms = plan.config.algo.name, getattr(plan.parts["reward"], "terms", {})
    if not any(isinstance(term["reward"], Neural) and term.get("weight", 1.0) for term in terms.values()):
        return f"algo={name} trains the reward model in rounds: type reward=neural reward.terms.neural.reward.model=RUN"
    if plan.config.algo.reference_every is None:
        return f"algo={name} works in rounds of so many iterations: type algo.reference_every=20"
    length, every = plan.config.trainer.max_iterations, plan.config.algo.reference_every
    if length < every:
        return f"no round of algo.reference_every={every} ends in trainer.max_iterations={length}: type algo.reference_every={length}"
    if getattr(plan.parts["ranking"], "margin", False):
        return "ranking.margin=true, and a judge says by no margin what is better: type ranking.margin=false"
    most = plan.batch.prompts * every
    if plan.config.algo.refresh_prompts > most:
        return f"algo.refresh_prompts={plan.config.algo.refresh_prompts}, but a round has {most} prompts: type algo.refresh_prompts={most}"
    return None


def _ptx(plan: Plan) -> str | None:
    for prompt in plan.ptx:
        if "response" not in prompt.meta:
            advice = "type data@ptx=jsonl ptx.train=FILE ptx.response=COLUMN"
            return f"algo.ptx_coefficient imitates responses, and prompt {prompt.id} has none: {advice}"
    return None


def _minibatches(plan: Plan) -> str | None:
    rows = plan.batch.prompts * plan.algorithm.rows_per_prompt(plan.batch)
    if rows % plan.batch.minibatches == 0:
        return None
    fits = ", ".join(str(n) for n in range(1, 65) if rows % n == 0)
    return f"batch.minibatches={plan.batch.minibatches} does not divide the {rows} rows of an iteration: type one of {fits}"


def _prompts(plan: Plan) -> str | None:
    count = len(plan.splits.train)
    if plan.batch.prompts <= count:
        return None
    return f"batch.prompts={plan.batch.prompts}, but the data has {count} prompts: type batch.prompts={count}"


def _answers(plan: Plan) -> str | None:
    for group in ("reward", "judge"):
        if not getattr(plan.parts.get(group), "needs_answer", False):
            continue
        for prompt in (*plan.splits.train, *plan.splits.val):
            if prompt.answer is None:
                chosen = f"{group}={plan.choices.get(group)}"
                other = "" if plan.algorithm.samples_responses else ", or reward=format, as it is for validation only"
                return f"{chosen} compares with a gold answer, and prompt {prompt.id} has none: type data.answer=COLUMN{other}"
    return None


def _graded(plan: Plan) -> str | None:
    for prompt in (*plan.splits.train, *plan.splits.val) if "reward" in plan.parts else ():
        try:
            plan.parts["reward"].check_prompt(prompt)
        except ValueError as error:
            return f"reward={plan.choices.get('reward')} cannot grade responses to prompt {prompt.id} ({error}): correct the row"
    return None


COLUMNS = {
    "response": ("imitates responses", "type data.response=COLUMN"),
    "candidates": ("learns from preferences", "type data=preferences data.train=FILE"),
    "steps": ("learns from labelled steps", "type data=preferences data.train=FILE data.steps=COLUMN data.step_labels=COLUMN"),
}
"""What a row of data may have to bring: what for, and how to name it."""


def _columns(plan: Plan) -> str | None:
    for column in plan.algorithm.needs_columns:
        purpose, advice = COLUMNS[column]
        for prompt in plan.splits.train:
            if column not in prompt.meta or (column == "candidates" and "ranks" not in prompt.meta):
                if "steps" in prompt.meta:
                    advice = "it has labelled steps, which algo=process_reward_model learns from"
                return f"algo={plan.config.algo.name} {purpose}, and prompt {prompt.id} has none: {advice}"
    return None


def _preferences(plan: Plan) -> str | None:
    preference, ranking, algo = plan.parts.get("preference"), plan.parts.get("ranking"), plan.config.algo
    if preference is not None and not preference.needs_reference:
        for key, without in (("reference_every", None), ("reference", "live")):
            if algo.get(key, without) != without:
                return f"algo.{key} is about the reference, and preference={plan.choices.get('preference')} has none: drop it"
    if "judge" in plan.parts and algo.get("reference", "live") != "live":
        return f"algo.reference={algo.reference}: what the policy will say is not known before, so type algo.reference=live"
    if getattr(preference, "needs_kl", False) and plan.batch.prompts // plan.batch.minibatches < 2:
        return "this preference loss estimates a KL from responses to other prompts of the optimizer step: type batch.minibatches=1"
    if "candidates" not in plan.algorithm.needs_columns:
        return None
    rows = [prompt for prompt in plan.splits.train if "candidates" in prompt.meta]
    if getattr(preference, "needs_pairs", ranking is not None) and not any(len(set(prompt.meta["ranks"])) > 1 for prompt in rows):
        other = "type preference=kto, which learns from verdicts" if preference is not None else "give pairs or rankings: data.train=FILE"
        return f"algo={algo.name} compares responses to one prompt, and no row of the data prefers one to another: {other}"
    if getattr(ranking, "margin", False) and not any(prompt.meta.get("margin") is not None for prompt in rows):
        return "ranking.margin=true, and the data has no margin: type ranking.margin=false"
    if algo.get("zero_mean", False) and not any("candidates" in prompt.meta for prompt in plan.splits.val):
        return "algo.zero_mean=true takes the mean score of held-out responses, and there are none: type algo.zero_mean=false"
    return None


def _temperature(plan: Plan) -> str | None:
    temperature = getattr(plan.parts.get("rollout"), "temperature", 1.0)
    if plan.algorithm.samples_responses and temperature == 0:
        return "rollout.temperature=0 samples the same answer every time, so there is nothing to learn: type rollout.temperature=1"
    return None


def _truncation(plan: Plan) -> str | None:
    rollout = plan.parts.get("rollout")
    if "ratio" in plan.parts and (getattr(rollout, "top_p", 1.0) < 1 or getattr(rollout, "top_k", 0) > 0):
        return (
            "rollout.top_p and rollout.top_k draw from another distribution than the one that is trained: "
            "type rollout.top_p=1 rollout.top_k=0 (validation has its own settings)"
        )
    return None


def _quantization(plan: Plan) -> str | None:
    kind = plan.config.policy.get("quantization", None)
    if kind is None:
        return None
    if not getattr(plan.adapter, "freezes", False):
        other = "type adapter=lora, or " if "adapter" in plan.algorithm.groups else "type "
        return f"policy.quantization={kind} is for weights that are not trained: {other}policy.quantization=null"
    if plan.choices.get("critic") == "separate" and plan.config.critic.init is None:
        return f"critic=separate copies the trunk in full, which policy.quantization={kind} is there to avoid: type critic=shared"
    return None


def _values(plan: Plan) -> str | None:
    allowed = {"fallback": ("train", "skip", "error"), "surplus": ("keep", "drop")}
    for key, values in allowed.items():
        if key in plan.config.algo and plan.config.algo[key] not in values:
            return f"algo.{key}={plan.config.algo[key]}: one of {', '.join(values)}"
    number, positive = (lambda x: x >= 0, "0 or more"), (lambda x: x > 0, "above 0")
    some = (lambda x: x >= 1, "at least 1")
    rules: dict[str, tuple[tuple[type, ...], tuple[Callable[[Any], bool], str]]] = {
        "entropy_coefficient": ((int, float), number),
        "target_entropy": ((int, float, type(None)), positive),
        "entropy_rate": ((int, float), positive),
        "target_kl": ((int, float, type(None)), positive),
        "overlong_filter": ((bool,), (lambda x: True, "")),
        "normalize_reward": ((bool,), (lambda x: True, "")),
        "clip_reward": ((int, float, type(None)), positive),
        "max_draws": ((int,), some),
        "replay_fraction": ((int, float), number),
        "replay_staleness": ((int,), some),
        "reference_every": ((int, type(None)), some),
        "ptx_coefficient": ((int, float), number),
        "ptx_rows": ((int,), some),
        "refresh_prompts": ((int,), some),
        "refresh_lr": ((int, float), positive),
        "refresh_epochs": ((int,), some),
        "refresh_rows": ((int,), some),
    }
    words = {bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
    for key, (types, (holds, bound)) in rules.items():
        value = plan.config.algo.get(key, None)
        if key not in plan.config.algo or (value is None and type(None) in types):
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or not holds(value):
            kinds = [words[kind] for kind in types if not (kind is int and float in types)]
            return f"algo.{key}={value}: must be {' or '.join(kinds)}{', ' if bound else ''}{bound}"
    return None


def _protocols(plan: Plan) -> str | None:
    for name, part in plan.parts.items():
        missing = [m for m in (("generate", "sync") if name == "rollout" else ("__call__",)) if not hasattr(part, m)]
        if missing:
            return f"{name}={plan.choices.get(name)}: {type(part).__name__} has no {' and no '.join(missing)}; see rlmods/protocols.py"
        if name == "rollout" and not (is_dataclass(part) and hasattr(part, "temperature")):
            return f"rollout={plan.choices.get(name)}: must be a dataclass with a temperature, as validation samples with its own settings"
        for attribute in ("coefficient", "where") if name == "kl" else ():
            if not hasattr(part, attribute):
                return f"kl={plan.choices.get('kl')}: {type(part).__name__} has no {attribute}; see rlmods/protocols.py"
    return None


def _precision(plan: Plan) -> str | None:
    precision = str(plan.config.trainer.get("precision", "32-true"))
    if precision in ("32", "32-true", "bf16-mixed"):
        return None
    return f"trainer.precision={precision}: type trainer.precision=32-true or trainer.precision=bf16-mixed"


RULES: tuple[Callable[[Plan], str | None], ...] = (
    _protocols, _values, _group_size, _critic, _steps, _scale, _reference, _rounds, _ptx, _minibatches, _prompts, _answers,
    _columns, _graded, _preferences, _temperature, _truncation, _precision, _quantization,
)  # fmt: skip
