"""Sample responses to compare: `python -m rlmods.collect RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` answers the train prompts of the run's own data, with its rollout and batch.samples, unless
overrides say otherwise), a directory of a Hugging Face model, or a hub name. Without it, the policy is that of policy=OPTION.

    out=candidates.jsonl    where the rows go; what is there already is not sampled again, so the same command goes on after an interruption
    num_prompts=null        only the first so many train prompts
    batch.samples=8         responses to each; also rollout.temperature, top_p, top_k, stop, max_tokens
    min_candidates=2        prompts with fewer different candidates go to <out>.dropped.jsonl instead
    near=1.0                leave out a candidate this similar to an earlier one: 1 means equal but for case and white space; below 1, too,
                            shared pairs of neighbouring words and signs / all pairs of the two. Answers that differ in one number are
                            similar, so keep 1 where one number decides

A row is a JSON object: `id`, `prompt` (text or messages), `answer`, `meta`, `candidates` (each `text`, `tokens`, their `num_tokens` and
`logprob` under the distribution that they were drawn from, and `finish`), `dropped` (`empty`, `duplicate`, `near_duplicate` responses), and
what decided it: `model`, `weights`, `data`, `sampling`. Prints one JSON object that sums up all the rows of `out`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Batch
from rlmods.cli.command import KEPT, Output, command, configuration, find_policy, progress
from rlmods.config.instantiate import instantiate, parse_settings
from rlmods.policy import Policy
from rlmods.policy.fingerprint import fingerprint
from rlmods.policy.hf import load
from rlmods.run import dumps
from rlmods.types import Prompt, Response, UserError

OF_THE_RUN = ("data", "rollout", "batch", "seed")
"""What is taken from a run's configuration where nothing is typed."""
REASONS = ("empty", "duplicate", "near_duplicate")
"""Why a response is no candidate."""


@dataclass(frozen=True)
class Settings:
    """What the module's docstring says of them."""

    out: str = "candidates.jsonl"
    num_prompts: int | None = None
    min_candidates: int = 2
    near: float = 1.0

    def __post_init__(self) -> None:
        rules = {
            "num_prompts": (self.num_prompts is None or _is_count(self.num_prompts), "null or a whole number of at least 1"),
            "min_candidates": (_is_count(self.min_candidates), "a whole number of at least 1"),
            "near": (isinstance(self.near, int | float) and 0 < self.near <= 1, "above 0 and at most 1"),
        }
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise UserError(f"{name}={getattr(self, name)}: must be {wanted}")


def collect(source: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Fill `out`; returns what the command prints.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = (None, None) if source is None else find_policy(source, overrides)
    config = configuration(overrides, saved=saved, of_the_run=OF_THE_RUN, settings=Settings)
    settings = Settings(**{f.name: config[f.name] for f in fields(Settings)})
    batch, rollout = parse_settings(config.batch, "batch", Batch), instantiate(config.rollout, "rollout")
    _check_variety(batch.samples, settings.min_candidates, getattr(rollout, "temperature", 1.0))
    prompts = list(instantiate(config.data, "data")().train)[: settings.num_prompts]
    policy = _policy(model, config)
    output = Output(Path(settings.out).expanduser(), _facts(model, config, policy, batch.samples, settings))
    left = _left(prompts, output)
    rollout.sync(policy, iteration=0)
    with progress("sampling", batch.samples * len(left)) as tell:
        for start in range(0, len(left), batch.prompts):
            asked = left[start : start + batch.prompts]
            if hasattr(rollout, "on_tokens"):
                rollout.on_tokens = lambda done, *_, before=start * batch.samples: tell(before + done)
            said = rollout.generate(asked, samples=batch.samples, iteration=0)
            for i, prompt in enumerate(asked):
                candidates, dropped = sift(said[i * batch.samples : (i + 1) * batch.samples], settings.near)
                row = _asked(prompt) | {"candidates": [_candidate(r) for r in candidates], "dropped": {r: dropped[r] for r in REASONS}}
                output.add(row, keep=len(candidates) >= settings.min_candidates)
            tell((start + len(asked)) * batch.samples)
    return _summary(output)


def sift(responses: Sequence[Response], near: float) -> tuple[list[Response], Counter[str]]:
    """The responses that say something which none before them says, and how many do not, by `REASONS`."""
    kept: list[Response] = []
    dropped: Counter[str] = Counter()
    for response in responses:
        text, others = response.text, [r.text for r in kept]
        if not text.strip():
            dropped["empty"] += 1
        elif text in others:
            dropped["duplicate"] += 1
        elif any(_plain(text) == _plain(other) or similarity(text, other) >= near < 1 for other in others):
            dropped["near_duplicate"] += 1
        else:
            kept.append(response)
    return kept, dropped


def similarity(first: str, second: str) -> float:
    """|P & Q| / |P | Q|, the Jaccard index of the pairs of neighbouring words and signs in each text, its ends included. Case does not
    count. 1 for equal texts, 0 for texts that share no pair; symmetric, and unlike an index of words it sees their order."""
    p, q = (set(pairwise(["", *re.findall(r"\w+|[^\w\s]", text.casefold()), ""])) for text in (first, second))
    return len(p & q) / len(p | q)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_variety(samples: int, least: int, temperature: float) -> None:
    if samples < least:
        raise UserError(f"batch.samples={samples} cannot give min_candidates={least}: type batch.samples={max(least, 8)}")
    if temperature == 0 and samples > 1:
        raise UserError("rollout.temperature=0 samples the same answer every time: type rollout.temperature=1")


def _policy(model: str | Path | None, config: DictConfig) -> Policy:
    torch.manual_seed(config.seed)  # decides the weights of a policy that has none yet
    policy: Policy = instantiate(config.policy, "policy")() if model is None else load(model)
    return policy.to("cuda" if torch.cuda.is_available() else "cpu")


def _facts(model: str | Path | None, config: DictConfig, policy: Policy, samples: int, settings: Settings) -> dict[str, Any]:
    """What decides a row."""
    named, data, rollout = (OmegaConf.to_container(config[group], resolve=True) for group in ("policy", "data", "rollout"))
    assert isinstance(rollout, dict)
    rollout.pop("batch_size", None)  # decides how fast, and nothing else
    if model is not None:
        named = str(Path(model).resolve() if Path(model).exists() else model)
    sampling = {**rollout, "samples": samples, "min_candidates": settings.min_candidates, "near": settings.near}
    return {"model": named if isinstance(named, str) else dumps(named), "weights": fingerprint(policy), "data": data, "sampling": sampling}


def _left(prompts: Sequence[Prompt], output: Output) -> list[Prompt]:
    """Those without a row. Raises: UserError where a row's prompt has changed."""
    done = output.rows
    for prompt in prompts:
        row = done.get(prompt.id)
        if row is not None and any(dumps(row[key]) != dumps(value) for key, value in _asked(prompt).items() if key != "meta"):
            raise UserError(f"{output.path}: prompt {prompt.id} has changed since its row was written: type another out=FILE")
    return [prompt for prompt in prompts if prompt.id not in done]


def _asked(prompt: Prompt) -> dict[str, Any]:
    text = prompt.text if prompt.messages is None else list(prompt.messages)
    return {"id": prompt.id, "prompt": text, "answer": prompt.answer, "meta": prompt.meta}


def _candidate(response: Response) -> dict[str, Any]:
    return {
        "text": response.text,
        "tokens": list(response.tokens),
        "logprob": sum(response.behavior_logprobs),
        "num_tokens": len(response.tokens),
        "finish": response.finish,
    }


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _summary(output: Output) -> dict[str, Any]:
    lengths = [candidate["num_tokens"] for row in output.kept.values() for candidate in row["candidates"]]
    return {
        "out": str(output.path),
        "prompts": len(output.rows),
        "dropped_prompts": len(output.dropped),
        "candidates": len(lengths),
        **{reason: sum(row["dropped"][reason] for row in output.rows.values()) for reason in REASONS},
        "mean_tokens": sum(lengths) / len(lengths) if lengths else None,
    }


def main(arguments: list[str]) -> None:
    named = bool(arguments) and ("=" not in arguments[0] or Path(arguments[0]).exists())  # a directory of a sweep may be called lr=1e-4
    command(arguments, __doc__, lambda: collect(arguments[0] if named else None, arguments[named:]), ended=KEPT)


if __name__ == "__main__":
    main(sys.argv[1:])
