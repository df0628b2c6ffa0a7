"""Sample candidate responses to compare: `python -m rlmods.collect RUN_OR_MODEL [group=option]
[key=value]`.

RUN_OR_MODEL is a run directory (its `export/` responds to the training prompts of the run's data,
with its rollout and batch.samples unless overrides change them), a directory of a Hugging Face
model, or a hub name. Without it, the policy is policy=OPTION.

    out=candidates.jsonl    output file; rows that it already has are not sampled again, so the same
                            command continues after an interruption
    num_prompts=null        use only the first num_prompts training prompts; null: all
    batch.samples=8         responses per prompt; see also rollout.temperature, top_p, top_k, stop,
                            max_tokens
    min_candidates=2        prompts with fewer distinct candidates go to <out>.dropped.jsonl instead

Of responses that are equal up to case and white space, the first is kept.

A row is a JSON object: `id`, `prompt` (text or messages), `answer`, `source` (of a prompt that has
one), `meta`, `candidates` (each with `text`, `tokens`, `num_tokens`, `logprob` under the sampling
distribution, and `finish`), `dropped` (number of `empty` and `duplicate` responses), and the
provenance of the row: `model`, `weights`, `data`, `sampling`. Prints one JSON object that
summarises all rows of `out`."""

import sys

from rlmods.errors import UserError, print_usage
from rlmods.settings.bounds import Count, bounded

print_usage(__name__, __doc__)

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
    fit_engine,
    progress,
    set_precision,
    take_settings,
    usable_prompts,
)
from rlmods.config.instantiate import instantiate, parse_settings
from rlmods.distributed.trainer import device_type
from rlmods.environment import SingleTurn
from rlmods.policy import Policy
from rlmods.policy.files import fingerprint
from rlmods.policy.hf import load
from rlmods.protocols import ReportsTokens
from rlmods.rollout.order import generate_in_order
from rlmods.run.files import dumps
from rlmods.run.secrets import saved_form
from rlmods.types import Prompt, Response

RUN_KEYS = ("data", "rollout", "environment", "batch", "seed")
"""Groups and settings taken from the run's configuration unless they are overridden."""
REASONS = ("empty", "duplicate")
"""Reasons to drop a response."""


@dataclass(frozen=True)
@bounded("")
class CollectSettings:
    """Settings of the command, described in the module docstring."""

    out: str = "candidates.jsonl"
    num_prompts: Count | None = None
    min_candidates: Count = 2


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
    if batch.samples < settings.min_candidates:
        raise UserError(
            f"batch.samples={batch.samples} is less than min_candidates={settings.min_candidates}: "
            f"type batch.samples={max(settings.min_candidates, 8)}"
        )
    if rollout.temperature == 0 and batch.samples > 1:
        raise UserError(
            "rollout.temperature=0 samples the same response every time: type rollout.temperature=1"
        )
    prompts = list(instantiate(config.data, "data")().train)
    torch.manual_seed(config.seed)  # for a policy whose weights are initialised at random
    policy: Policy = instantiate(config.policy, "policy")() if model is None else load(model)
    policy = policy.to(device_type("auto"))
    kept = usable_prompts(policy, rollout, prompts, config)
    provenance = _provenance(model, config, policy, batch.samples, settings)
    output = Output(Path(settings.out).expanduser(), provenance)
    by_id = {prompt.id: prompt for prompt in kept[: settings.num_prompts]}
    missing = output.missing({key: _prompt_row(prompt) for key, prompt in by_id.items()})
    remaining = [by_id[key] for key in missing]
    bar = progress("sampling", batch.samples * len(remaining))
    with set_precision(policy, config, saved), bar as update:
        fit_engine(policy, rollout, [kept], config)
        rollout.sync(policy, iteration=0)
        for start in range(0, len(remaining), batch.prompts):
            chunk = remaining[start : start + batch.prompts]
            num_done = start * batch.samples
            if isinstance(rollout, ReportsTokens):
                rollout.on_tokens = lambda done, *_, before=num_done: update(before + done)
            responses = generate_in_order(rollout, chunk, samples=batch.samples, iteration=0)
            for i, prompt in enumerate(chunk):
                candidates, dropped = deduplicate(
                    responses[i * batch.samples : (i + 1) * batch.samples]
                )
                row = _prompt_row(prompt) | {
                    "candidates": list(map(_candidate, candidates)),
                    "dropped": {reason: dropped[reason] for reason in REASONS},
                }
                output.add(row, keep=len(candidates) >= settings.min_candidates)
            update(num_done + len(responses))
    summary = _summary(output)
    if len(kept) < len(prompts):
        summary["long_prompts"] = len(prompts) - len(kept)
    return summary


def deduplicate(responses: Sequence[Response]) -> tuple[list[Response], Counter[str]]:
    """Return the responses that are neither empty nor equal to an earlier one up to case and white
    space, and the number of the others by `REASONS`."""
    kept: dict[str, Response] = {}
    dropped: Counter[str] = Counter()
    for response in responses:
        text = " ".join(response.text.casefold().split())
        if not text:
            dropped["empty"] += 1
        elif text in kept:
            dropped["duplicate"] += 1
        else:
            kept[text] = response
    return list(kept.values()), dropped


def _provenance(
    model: str | Path | None,
    config: DictConfig,
    policy: Policy,
    samples: int,
    settings: CollectSettings,
) -> dict[str, Any]:
    """Return the settings that determine the candidates of a prompt."""
    saved = saved_form(config)  # without secrets, since every row holds it
    sampling = saved["rollout"] | {"samples": samples, "min_candidates": settings.min_candidates}
    sampling.pop("batch_size", None)  # changes the speed only
    name = dumps(saved["policy"])
    if model is not None:
        name = str(Path(model).resolve() if Path(model).exists() else model)
    data = saved["data"]
    return {"model": name, "weights": fingerprint(policy), "data": data, "sampling": sampling}


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
    command(lambda: collect(source, overrides), interrupt_message=INTERRUPTED)


if __name__ == "__main__":
    main(sys.argv[1:])
