"""Evaluate a saved policy: `python -m rlmods.evaluate RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is evaluated, with the run's data, reward and rollout
settings unless overrides change them), a directory of a Hugging Face model, or a hub name. Of a
reward model it is `val/pair_accuracy` on held-out preferences (`data=preferences`). Prints one JSON
object. Validation during training uses the same code. `interval_95` has the bounds of bootstrap
intervals over prompts, for values that differ between prompts.

    validation.samples=8    also sample 8 responses to each prompt, for `val/mean@8`, `val/pass@8`
    and `val/maj@8` reference=null          a run, directory or hub name: `val/kl_ref` is the KL
    divergence of the evaluated policy from it,
                            estimated from sampled responses in nats per token: it can be below 0 if
                            the two are close, and validation.samples=8 makes it more precise
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlmods.cli.command import command, configuration, find_policy
from rlmods.config.instantiate import instantiate
from rlmods.config.lengths import max_prompt_tokens, short_prompts, without_long_prompts
from rlmods.config.validation import read_validation
from rlmods.errors import UserError
from rlmods.lab.statistics import bootstrap_interval
from rlmods.ops import pack
from rlmods.policy import Policy
from rlmods.policy.hf import exported, load
from rlmods.protocols import ChecksPolicy
from rlmods.ranking.pairs import is_better, pair_correctness, pairwise_differences
from rlmods.reward import Neural
from rlmods.rollout.turns import find_prompt_without_episode, over_turns
from rlmods.training.collate import collate_unscored, generate
from rlmods.training.evaluation import values_by_prompt
from rlmods.training.segments import forward
from rlmods.types import Prompt, Response

RUN_KEYS = ("data", "reward", "rollout", "environment", "validation", "seed")
"""Groups and settings taken from the run's configuration unless they are overridden."""


class SingleProcess:
    """Rank, iteration and device of a process without a Trainer."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(source: str, overrides: list[str]) -> dict[str, Any]:
    """Return the metrics of the policy at `source`.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = find_policy(source, overrides)
    # `reference` is also a group of the configuration, which evaluation does not use.
    names = [
        override.removeprefix("reference=")
        for override in overrides
        if override.startswith("reference=")
    ]
    reference_name = None if not names or names[-1] == "null" else names[-1]
    config = configuration(
        [x for x in overrides if not x.startswith("reference=")], saved=saved, run_keys=RUN_KEYS
    )
    splits = instantiate(config.data, "data")()
    if not splits.val:
        raise UserError("there are no held-out prompts: type data.num_val=200")
    if is_reward_model(model):
        return {
            "model": source,
            **pair_accuracy(
                model, splits.val[: config.validation.max_prompts], config.batch.token_budget
            ),
        }
    if saved is not None:
        _use_trained_reward_models(config, saved, Path(model), overrides)
    reward = instantiate(config.reward, "reward")
    rollout = over_turns(
        instantiate(config.rollout, "rollout"), instantiate(config.environment, "environment")
    )
    validation = read_validation(config.validation)
    named = chain.from_iterable((validation.data or {}).values())
    if (problem := find_prompt_without_episode(rollout, (*splits.val, *named))) is not None:
        raise UserError(f"environment: no episode begins with {problem}")
    process = SingleProcess()
    policy = load(model).to(process.device)
    if isinstance(rollout, ChecksPolicy):
        rollout.check_policy(policy)
    reference = (
        None if reference_name is None else _load_reference(reference_name).to(process.device)
    )
    kept = short_prompts(policy, splits.val, max_prompt_tokens(config, "data"))
    policy.warn_of_control_tokens((), kept)
    validation = without_long_prompts(validation, policy, config.validation)
    metrics, rows = validation(policy, rollout, reward, kept, process)
    by_prompt = values_by_prompt(rows, validation.samples, validation.pass_at)
    intervals = {name: bootstrap_interval(values) for name, values in by_prompt.items()}
    bounded = {name: [x.low, x.high] for name, x in intervals.items() if x.is_bounded}
    prompts = kept[: validation.max_prompts]
    if reference is not None:
        sampler, samples = validation.sampler(rollout), max(1, validation.samples)
        metrics["val/kl_ref"] = kl_from(
            reference, policy, sampler, prompts, samples, config.batch.token_budget
        )
    dropped = (
        {"dropped_prompts": len(splits.val) - len(kept)} if len(kept) < len(splits.val) else {}
    )
    return {
        "model": source,
        "prompts": len(prompts),
        **dropped,
        **dict(sorted(metrics.items())),
        "interval_95": bounded,
    }


def is_reward_model(model: str | Path) -> bool:
    """Return whether a directory holds a reward model; False for a hub name."""
    path = Path(model).expanduser() / "config.json"
    try:
        architectures = (
            json.loads(path.read_text()).get("architectures") if path.is_file() else None
        )
    except (ValueError, AttributeError, OSError, RecursionError):  # loading it has the message
        return False
    return isinstance(architectures, list) and any(
        str(x).endswith("ForSequenceClassification") for x in architectures
    )


def pair_accuracy(
    model: str | Path, prompts: Sequence[Prompt], token_budget: int
) -> dict[str, Any]:
    """Return the fraction of pairs of responses to a prompt, one ranked above the other, of which
    the reward model scores the better one higher (ties count half), and its bootstrap interval over
    prompts if all have equally many pairs.

    Raises:
        UserError: the data has no such pairs, or the model is none.
    """
    reward, correct = Neural(model=str(model), token_budget=token_budget), list[list[float]]()
    for prompt in prompts:
        texts, ranks = prompt.meta.get("candidates", ()), torch.tensor(prompt.meta.get("ranks", ()))
        finished = prompt.meta.get("finished") or [True] * len(texts)
        responses = [
            Response(prompt, text=x, finish="stop" if end else "length")
            for x, end in zip(texts, finished, strict=True)
        ]
        if len(responses) < 2:
            continue
        scores = torch.tensor(
            [math.nan if score is None else score for score in reward(responses)]
        )[None]
        present = ~scores.isnan()
        better = is_better(ranks[None], present)
        if better.any():
            correct.append(pair_correctness(pairwise_differences(scores, present))[better].tolist())
    if not correct:
        raise UserError(
            "a reward model is evaluated on preferences, and the data has none: type "
            "data=preferences data.train=FILE"
        )
    pairs = [x for prompt in correct for x in prompt]
    interval = bootstrap_interval([sum(x) / len(x) for x in correct])
    bounded = interval.is_bounded and len({len(x) for x in correct}) == 1
    found = {
        "prompts": len(correct),
        "pairs": len(pairs),
        "val/pair_accuracy": sum(pairs) / len(pairs),
    }
    return found | {
        "interval_95": {"val/pair_accuracy": [interval.low, interval.high]} if bounded else {}
    }


def _use_trained_reward_models(
    config: DictConfig, saved: Path, export: Path, overrides: Sequence[str]
) -> None:
    """Set the reward models of the run's terms with a nonzero weight to those that the run has
    trained further, in place. A model that the overrides set stays as it is, by itself or with the
    term or the reward that it belongs to."""
    trained = [
        str(path)
        for path in sorted(
            export.glob("reward_model*"), key=lambda path: (len(path.name), path.name)
        )
    ]
    typed = {override.lstrip("+~").split("=")[0].split("@")[-1] for override in overrides}
    if not trained or "reward" in typed:
        return
    terms = OmegaConf.load(saved).reward.get("terms")
    for name in map(str, terms if isinstance(terms, DictConfig) else ()):
        term = terms[name]
        reward = term.get("reward") if isinstance(term, DictConfig) else None
        if (
            isinstance(reward, DictConfig)
            and reward.get("_target_") == "rlmods.reward.Neural"
            and term.get("weight", 1.0)
        ):
            count = 1 if isinstance(reward.get("model"), str) else len(reward.get("model") or ())
            models, trained = trained[:count], trained[count:]
            if len(models) < count:
                raise UserError(
                    f"{export}: fewer reward models than in the reward of the run: type "
                    "reward=OPTION"
                )
            key = f"reward.terms.{name}.reward.model"
            if not any(key == other or key.startswith(f"{other}.") for other in typed):
                config.reward.terms[name].reward.model = models[0] if count == 1 else models


def _load_reference(source: str) -> Policy:
    try:
        return load(exported(source))
    except UserError as error:
        raise UserError(f"reference={source}: {error}") from error


@torch.no_grad()
def kl_from(
    reference: Policy,
    policy: Policy,
    rollout: Any,
    prompts: Sequence[Prompt],
    samples: int,
    token_budget: int,
) -> float:
    """Return KL(pi || pi_ref) in nats per token: the mean of log pi - log pi_ref over the tokens of
    responses sampled from pi (k1). The estimate can be negative.

    Raises:
        UserError: the two have different vocabularies.
    """
    if policy.tokenizer.get_vocab() != reference.tokenizer.get_vocab():
        raise UserError(
            "reference: its vocabulary differs from that of the evaluated model, so their KL "
            "is undefined; type another reference="
        )
    rollout.sync(policy, iteration=0)
    responses = generate(rollout, prompts, samples=samples, iteration=0)
    rows = collate_unscored(responses, policy.pad_id).to(policy.device)
    total = 0.0
    for indices in pack(rows.forward_tokens, token_budget):
        micro = rows.select(indices).trim()
        logprobs, ref_logprobs = (
            forward(x, micro, temperature=rollout.temperature).logprobs for x in (policy, reference)
        )
        total += float((logprobs - ref_logprobs).double().sum())
    return total / max(1, int(rows.mask.sum()))


def main(arguments: list[str]) -> None:
    command(arguments, __doc__, lambda: evaluate(arguments[0], arguments[1:]), indent=2)


if __name__ == "__main__":
    main(sys.argv[1:])
