"""Sample candidate responses to compare: `python -m rlmods.collect RUN_OR_MODEL [group=option]
[key=value]`.

RUN_OR_MODEL is a run directory (its `export/` responds to the training prompts of the run's data,
with its rollout and batch.samples unless overrides change them), a directory of a Hugging Face
model, or a hub name. Without it, the policy is that of policy=OPTION.

    out=candidates.jsonl    output file; rows that it already has are not sampled again, so the same
    command continues after an interruption num_prompts=null        use only the first num_prompts
    training prompts; null: all batch.samples=8         responses per prompt; see also
    rollout.temperature, top_p, top_k, stop, max_tokens min_candidates=2        prompts with fewer
    distinct candidates go to <out>.dropped.jsonl instead near=1.0                drop a candidate
    with at least this similarity to an earlier one. 1: only if equal up to case and white space;
                            below 1: also by the Jaccard index of pairs of adjacent words and
                            punctuation marks. Responses that differ in one number are similar, so
                            keep 1 if a single number matters

A row is a JSON object: `id`, `prompt` (text or messages), `answer`, `source` (of a prompt that has
one), `meta`, `candidates` (each with `text`, `tokens`, `num_tokens`, `logprob` under the sampling
distribution, and `finish`), `dropped` (number of `empty`, `duplicate` and `near_duplicate`
responses), and the provenance of the row: `model`, `weights`, `data`, `sampling`. Prints one JSON
object that summarises all rows of `out`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from rlmods.algo import Batch
from rlmods.cli.command import (
    INTERRUPTED,
    Output,
    command,
    configuration,
    find_policy,
    progress,
    take_settings,
)
from rlmods.config.instantiate import instantiate, parse_settings
from rlmods.config.lengths import max_prompt_tokens, short_prompts
from rlmods.environment import SingleTurn
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.files import fingerprint
from rlmods.policy.hf import load
from rlmods.protocols import ChecksPolicy, ReportsTokens
from rlmods.run import dumps
from rlmods.run.secrets import saved_form
from rlmods.training.collate import generate
from rlmods.types import Prompt, Response

RUN_KEYS = ("data", "rollout", "environment", "batch", "seed")
"""Groups and settings taken from the run's configuration unless they are overridden."""
REASONS = ("empty", "duplicate", "near_duplicate")
"""Reasons to drop a response."""


@dataclass(frozen=True)
class CollectSettings:
    """Settings of the command, described in the module docstring."""

    out: str = "candidates.jsonl"
    num_prompts: int | None = None
    min_candidates: int = 2
    near: float = 1.0

    def __post_init__(self) -> None:
        rules = {
            "num_prompts": (
                self.num_prompts is None or _is_count(self.num_prompts),
                "null or a whole number of at least 1",
            ),
            "min_candidates": (_is_count(self.min_candidates), "a whole number of at least 1"),
            "near": (
                isinstance(self.near, int | float) and 0 < self.near <= 1,
                "above 0 and at most 1",
            ),
        }
        for name, (valid, expected) in rules.items():
            if not valid:
                raise UserError(f"{name}={getattr(self, name)}: must be {expected}")


def collect(source: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Write the missing rows of `out` and return the summary to print.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = (None, None) if source is None else find_policy(source, overrides)
    config = configuration(overrides, saved=saved, run_keys=RUN_KEYS, settings=CollectSettings)
    settings = take_settings(config, CollectSettings)
    batch = parse_settings(config.batch, "batch", Batch)
    rollout = instantiate(config.rollout, "rollout")
    if not isinstance(instantiate(config.environment, "environment"), SingleTurn):
        raise UserError("candidates are responses of a single turn: type environment=single_turn")
    _check_samples(batch.samples, settings.min_candidates, getattr(rollout, "temperature", 1.0))
    prompts = list(instantiate(config.data, "data")().train)
    policy = _policy(model, config)
    if isinstance(rollout, ChecksPolicy):
        rollout.check_policy(policy)
    kept = short_prompts(policy, prompts, max_prompt_tokens(config, "data"))
    policy.warn_of_control_tokens((), kept)
    provenance = _provenance(model, config, policy, batch.samples, settings)
    output = Output(Path(settings.out).expanduser(), provenance)
    remaining = _remaining(kept[: settings.num_prompts], output)
    rollout.sync(policy, iteration=0)
    with progress("sampling", batch.samples * len(remaining)) as update:
        for start in range(0, len(remaining), batch.prompts):
            chunk = remaining[start : start + batch.prompts]
            num_done = start * batch.samples
            if isinstance(rollout, ReportsTokens):
                rollout.on_tokens = lambda done, *_, before=num_done: update(before + done)
            responses = generate(rollout, chunk, samples=batch.samples, iteration=0)
            for i, prompt in enumerate(chunk):
                sampled = responses[i * batch.samples : (i + 1) * batch.samples]
                _write(output, prompt, sampled, settings)
            update(num_done + len(responses))
    summary = _summary(output)
    if len(kept) < len(prompts):
        summary["long_prompts"] = len(prompts) - len(kept)
    return summary


def _write(
    output: Output, prompt: Prompt, responses: Sequence[Response], settings: CollectSettings
) -> None:
    """Write the row of a prompt."""
    candidates, dropped = deduplicate(responses, settings.near)
    row = _prompt_row(prompt) | {
        "candidates": [_candidate(response) for response in candidates],
        "dropped": {reason: dropped[reason] for reason in REASONS},
    }
    output.add(row, keep=len(candidates) >= settings.min_candidates)


def deduplicate(responses: Sequence[Response], near: float) -> tuple[list[Response], Counter[str]]:
    """Return the responses that are neither empty nor similar to an earlier one, and the number of
    the others by `REASONS`."""
    kept: list[Response] = []
    dropped: Counter[str] = Counter()
    for response in responses:
        text = response.text
        others = [other.text for other in kept]
        if not text.strip():
            dropped["empty"] += 1
        elif text in others:
            dropped["duplicate"] += 1
        elif any(
            _normalize(text) == _normalize(other) or similarity(text, other) >= near < 1
            for other in others
        ):
            dropped["near_duplicate"] += 1
        else:
            kept.append(response)
    return kept, dropped


def similarity(first: str, second: str) -> float:
    """Return |P & Q| / |P | Q|, the Jaccard index of the pairs of adjacent words and punctuation
    marks of two texts, with start and end.

    Ignores case. 1 for equal texts, 0 for texts that share no pair; symmetric; sensitive to word
    order, unlike an index of single words."""
    p = _pairs_of_words(first)
    q = _pairs_of_words(second)
    return len(p & q) / len(p | q)


def _pairs_of_words(text: str) -> set[tuple[str, str]]:
    words = re.findall(r"\w+|[^\w\s]", text.casefold())
    return set(pairwise(["", *words, ""]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_samples(samples: int, min_candidates: int, temperature: float) -> None:
    if samples < min_candidates:
        raise UserError(
            f"batch.samples={samples} is less than min_candidates={min_candidates}: type "
            f"batch.samples={max(min_candidates, 8)}"
        )
    if temperature == 0 and samples > 1:
        raise UserError(
            "rollout.temperature=0 samples the same response every time: type rollout.temperature=1"
        )


def _policy(model: str | Path | None, config: DictConfig) -> Policy:
    torch.manual_seed(config.seed)  # for a policy whose weights are initialised at random
    policy: Policy = instantiate(config.policy, "policy")() if model is None else load(model)
    return policy.to("cuda" if torch.cuda.is_available() else "cpu")


def _provenance(
    model: str | Path | None,
    config: DictConfig,
    policy: Policy,
    samples: int,
    settings: CollectSettings,
) -> dict[str, Any]:
    """Return the settings that determine the candidates of a prompt."""
    # without secrets, since every row holds it
    saved = saved_form(config)
    sampling = saved["rollout"] | {
        "samples": samples,
        "min_candidates": settings.min_candidates,
        "near": settings.near,
    }
    sampling.pop("batch_size", None)  # changes the speed only
    name = dumps(saved["policy"])
    if model is not None:
        name = str(Path(model).resolve() if Path(model).exists() else model)
    weights = fingerprint(policy)
    return {"model": name, "weights": weights, "data": saved["data"], "sampling": sampling}


def _remaining(prompts: Sequence[Prompt], output: Output) -> list[Prompt]:
    """Return the prompts without a row. Raises: UserError if the prompt of an existing row has
    changed."""
    done = output.rows
    for prompt in prompts:
        now = _prompt_row(prompt)
        del now["meta"]
        row = done.get(prompt.id)
        if row is not None and dumps({key: row.get(key) for key in now}) != dumps(now):
            raise UserError(
                f"{output.path}: prompt {prompt.id} has changed since its row was written: "
                "type another out=FILE"
            )
    return [prompt for prompt in prompts if prompt.id not in done]


def _prompt_row(prompt: Prompt) -> dict[str, Any]:
    text = prompt.text if prompt.messages is None else list(prompt.messages)
    source = {} if prompt.source is None else {"source": prompt.source}
    return {"id": prompt.id, "prompt": text, "answer": prompt.answer, **source, "meta": prompt.meta}


def _candidate(response: Response) -> dict[str, Any]:
    return {
        "text": response.text,
        "tokens": list(response.tokens),
        "logprob": sum(response.behavior_logprobs),
        "num_tokens": len(response.tokens),
        "finish": response.finish,
    }


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def _summary(output: Output) -> dict[str, Any]:
    lengths: list[int] = []
    for row in output.kept.values():
        lengths += [candidate["num_tokens"] for candidate in row["candidates"]]
    dropped = Counter[str]()
    for row in output.rows.values():
        dropped.update(row["dropped"])
    return {
        "out": str(output.path),
        "prompts": len(output.rows),
        "dropped_prompts": len(output.dropped),
        "candidates": len(lengths),
        **{reason: dropped[reason] for reason in REASONS},
        "mean_tokens": sum(lengths) / len(lengths) if lengths else None,
    }


def main(arguments: list[str]) -> None:
    # a sweep may name its directories lr=1e-4
    has_source = bool(arguments) and ("=" not in arguments[0] or Path(arguments[0]).exists())
    source, overrides = (arguments[0], arguments[1:]) if has_source else (None, arguments)
    command(arguments, __doc__, lambda: collect(source, overrides), interrupt_message=INTERRUPTED)


if __name__ == "__main__":
    main(sys.argv[1:])
