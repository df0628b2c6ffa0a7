"""Grade a saved policy: `python -m rlmods.evaluate RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is graded, on the run's own data, reward and rollout unless overrides say otherwise), a
directory of a Hugging Face model, or a hub name. Prints one JSON object; the same code validates during training.

    validation.samples=8    `val/mean@8` and `val/pass@8` of samples, beside greedy answers
    reference=null          a run, directory or hub name: `val/kl_ref` says how far the graded policy is from that one
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from rlmods.cli.command import command, configuration, find_policy
from rlmods.config.instantiate import instantiate, parse_settings
from rlmods.ops import pack
from rlmods.policy import Policy
from rlmods.policy.hf import exported, load
from rlmods.training.collate import collate
from rlmods.training.evaluation import Validation, with_settings
from rlmods.types import Prompt, Scores, UserError

OF_THE_RUN = ("data", "reward", "rollout", "validation", "seed")
"""What is taken from a run's configuration where nothing is typed."""


@dataclass(frozen=True)
class Settings:
    """What the module's docstring says of them."""

    reference: str | None = None


class Alone:
    """One process, no Trainer."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(source: str, overrides: list[str]) -> dict[str, Any]:
    """Metrics of the policy at `source`.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = find_policy(source, overrides)
    config = configuration(overrides, saved=saved, of_the_run=OF_THE_RUN, settings=Settings)
    splits = instantiate(config.data, "data")()
    if not splits.val:
        raise UserError("there are no held-out prompts: type data.num_val=200")
    if saved is not None and not any(typed.lstrip("+~").startswith("reward") for typed in overrides):
        _keep_up(config, Path(model))
    reward, rollout = instantiate(config.reward, "reward"), instantiate(config.rollout, "rollout")
    validation = parse_settings(config.validation, "validation", Validation)
    ranks = Alone()
    policy = load(model).to(ranks.device)
    reference = None if config.reference is None else _reference(config.reference).to(ranks.device)
    metrics, _ = validation(policy, rollout, reward, splits.val, ranks)
    if reference is not None:
        drawn = with_settings(rollout, temperature=validation.temperature, top_p=1.0, top_k=0, seed=validation.seed)
        prompts = splits.val[: validation.max_prompts]
        metrics["val/kl_ref"] = kl_from(reference, policy, drawn, prompts, max(1, validation.samples), config.batch.token_budget)
    return {"model": source, "prompts": len(splits.val[: validation.max_prompts]), **dict(sorted(metrics.items()))}


def _keep_up(config: DictConfig, export: Path) -> None:
    """Reward models that the run has trained on take the place of those that it began with, in the paid terms."""
    trained = [str(path) for path in sorted(export.glob("reward_model*"))]
    for term in config.reward.get("terms", {}).values() if trained else ():
        if term.reward.get("_target_") == "rlmods.reward.Neural" and term.get("weight", 1.0):
            count = 1 if isinstance(term.reward.model, str) else len(term.reward.model)
            term.reward.model, trained = trained[0] if count == 1 else trained[:count], trained[count:]


def _reference(source: str) -> Policy:
    try:
        return load(exported(source))
    except UserError as error:
        raise UserError(f"reference={source}: {error}") from error


@torch.no_grad()
def kl_from(reference: Policy, policy: Policy, rollout: Any, prompts: Sequence[Prompt], samples: int, token_budget: int) -> float:
    """KL(pi || pi_ref) in nats per token: the mean of log pi - log pi_ref over the tokens of responses drawn from pi (k1).

    Raises:
        UserError: the two do not read and write the same tokens.
    """
    if policy.tokenizer.get_vocab() != reference.tokenizer.get_vocab():
        raise UserError("reference: its tokens are not those of the graded model, so there is no KL between the two")
    rollout.sync(policy, iteration=0)
    responses = rollout.generate(prompts, samples=samples, iteration=0)
    scores, group = Scores([0.0] * len(responses)), torch.arange(len(responses))
    rows = collate(responses, scores, group, policy_version=0, pad_id=policy.pad_id).to(policy.device)
    total = 0.0
    for chosen in pack(rows.forward_tokens, token_budget):
        micro = rows.select(chosen).trim()
        own, other = (x(micro.tokens, micro.mask, temperature=rollout.temperature).logprobs for x in (policy, reference))
        total += float((own - other).double().sum())
    return total / max(1, int(rows.mask.sum()))


def main(arguments: list[str]) -> None:
    command(arguments, __doc__, lambda: evaluate(arguments[0], arguments[1:]), indent=2)


if __name__ == "__main__":
    main(sys.argv[1:])
