"""Evaluate a saved policy: `python -m rlmods.evaluate RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is evaluated, with the run's data, reward and rollout
settings unless overrides change them), a directory of a Hugging Face model, or a hub name. Of a
reward model it is `val/pair_accuracy` on held-out preferences (`data=preferences`). Prints each
metric with its 95 % bootstrap interval over prompts, where it differs between prompts. Validation
during training uses the same code.

    --json                  print one JSON object, with the intervals as `interval_95`
    validation.samples=8    also sample 8 responses to each prompt, for `val/mean@8`, `val/pass@8`
                            and `val/maj@8`
    trainer.precision=auto  the precision that a policy was trained with; without a run bf16-mixed,
                            if the model is large and the device fast at it
    reference=null          a run, directory or hub name: `val/kl_ref` is the KL divergence of the
                            evaluated policy from it at temperature 1, without top_p and top_k,
                            estimated from sampled responses in nats per token: it can be below 0 if
                            the two are close, and validation.samples=8 makes it more precise
"""

import sys
import warnings

from rlmods.errors import UserError, print_usage

print_usage(__name__, __doc__)

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from omegaconf import DictConfig, OmegaConf

from rlmods.cli.command import (
    TRUST,
    command,
    configuration,
    find_policy,
    fit_engine,
    set_precision,
    usable_prompts,
)
from rlmods.config.build import without_long_prompts
from rlmods.config.compose import read_validation
from rlmods.config.instantiate import instantiate
from rlmods.data.schema import warn_of_shared_prompts
from rlmods.distributed.collectives import Ranks
from rlmods.distributed.trainer import device_type
from rlmods.lab.statistics import bootstrap_interval
from rlmods.ops import pack
from rlmods.policy import Policy
from rlmods.policy.hf import exported, load
from rlmods.ranking.pairs import is_better, pair_correctness, pairwise_differences
from rlmods.reward import Neural
from rlmods.rollout.order import generate_in_order
from rlmods.rollout.turns import find_prompt_without_episode, over_turns
from rlmods.run.saved import read_config
from rlmods.run.settings import Override
from rlmods.training.collate import collate_unscored
from rlmods.training.evaluation import values_by_prompt, with_settings
from rlmods.training.segments import forward
from rlmods.training.settings import PADDED_BUDGET
from rlmods.types import Prompt, Response

JSON = "--json"
RUN_KEYS = ("data", "reward", "rollout", "environment", "validation", "seed")
"""Groups and settings taken from the run's configuration unless they are overridden."""


def evaluate(source: str, overrides: list[str]) -> dict[str, Any]:
    """Return the metrics of the policy at `source`.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = find_policy(source, overrides)
    # `reference` is also a group of the configuration, which evaluation does not use.
    names = [text for text in overrides if text.startswith("reference=")]
    reference_name = names[-1].removeprefix("reference=") if names else "null"
    own = [text for text in overrides if text not in names]
    config = configuration(own, saved=saved, run_keys=RUN_KEYS)
    splits = instantiate(config.data, "data")()
    if not splits.val:
        raise UserError("there are no held-out prompts: type data.val=FILE")
    if saved is not None and any(text.lstrip("+~").startswith("data") for text in own):
        _warn_of_trained_prompts(splits.val, saved, TRUST in own)
    token_budget = config.batch.token_budget or PADDED_BUDGET
    if is_reward_model(model):
        pairs = splits.val[: config.validation.max_prompts]
        return {"model": source} | pair_accuracy(model, pairs, token_budget)
    if saved is not None:
        _use_trained_reward_models(config, saved, Path(model), overrides)
    reward = instantiate(config.reward, "reward")
    environment = instantiate(config.environment, "environment")
    rollout = over_turns(instantiate(config.rollout, "rollout"), environment)
    validation = read_validation(config.validation)
    named = chain.from_iterable((validation.data or {}).values())
    problem = find_prompt_without_episode(rollout, (*splits.val, *named))
    if problem is not None:
        raise UserError(f"environment: no episode begins with {problem}")
    process = Ranks(LightningModule().to(device_type("auto")))
    policy = load(model).to(process.device)
    reference = None
    if reference_name != "null":
        reference = load(exported(reference_name)).to(process.device)
    kept = usable_prompts(policy, rollout, splits.val, config, validation.max_tokens)
    validation = without_long_prompts(validation, policy, config.validation)
    prompts = kept[: validation.max_prompts]
    with set_precision(policy, config, saved):
        sources = [prompts, *(validation.data or {}).values()]
        fit_engine(policy, rollout, sources, config, validation.max_tokens or 0)
        metrics, rows = validation(policy, rollout, reward, kept, process)
        if reference is not None:
            sampler = validation.sampler(rollout)
            samples = max(1, validation.samples)
            kl = kl_from(reference, policy, sampler, prompts, samples, token_budget)
            metrics["val/kl_ref"] = kl
    result = {"model": source, "prompts": len(prompts)}
    if len(kept) < len(splits.val):
        result["dropped_prompts"] = len(splits.val) - len(kept)
    by_prompt = values_by_prompt(rows, validation.samples, validation.pass_at)
    return result | dict(sorted(metrics.items())) | {"interval_95": _intervals(by_prompt)}


def _intervals(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the bounds of bootstrap intervals over prompts, where there are any."""
    bounds = {}
    for name, by_prompt in values.items():
        interval = bootstrap_interval(by_prompt)
        if interval.is_bounded:
            bounds[name] = [interval.low, interval.high]
    return bounds


def is_reward_model(model: str | Path) -> bool:
    """Return whether a directory holds a reward model; False for a hub name."""
    path = Path(model).expanduser() / "config.json"
    return path.is_file() and 'ForSequenceClassification"' in path.read_text()


def pair_accuracy(
    model: str | Path, prompts: Sequence[Prompt], token_budget: int
) -> dict[str, Any]:
    """Return the fraction of pairs of responses to a prompt, one ranked above the other, whose
    better response the reward model scores higher (ties count half), and its bootstrap interval
    over prompts if all have equally many pairs.

    Raises:
        UserError: the data has no such pairs, or the model is not a reward model.
    """
    reward = Neural(model=str(model), token_budget=token_budget)
    correct = list(filter(None, [_correct_pairs(reward, prompt) for prompt in prompts]))
    if not correct:
        raise UserError(
            "a reward model is evaluated on preferences, and the data has none: type "
            "data=preferences data.train=FILE"
        )
    sizes = set(map(len, correct))
    by_prompt = [sum(pairs) / len(pairs) for pairs in correct]
    num_pairs = sum(map(len, correct))
    intervals = _intervals({"val/pair_accuracy": by_prompt}) if len(sizes) == 1 else {}
    return {
        "prompts": len(correct),
        "pairs": num_pairs,
        "val/pair_accuracy": sum(map(sum, correct)) / num_pairs,
        "interval_95": intervals,
    }


def _correct_pairs(reward: Neural, prompt: Prompt) -> list[float]:
    """Return 1, 0.5 or 0 for each pair of responses to a prompt with different ranks."""
    texts = prompt.meta.get("candidates", ())
    if len(texts) < 2:
        return []
    finished = prompt.meta.get("finished") or [True] * len(texts)
    responses = []
    for text, is_finished in zip(texts, finished, strict=True):
        responses.append(Response(prompt, text=text, finish="stop" if is_finished else "length"))
    scores = torch.tensor([math.nan if score is None else score for score in reward(responses)])
    present = ~scores.isnan()[None]
    better = is_better(torch.tensor(prompt.meta.get("ranks", ()))[None], present)
    correct = pair_correctness(pairwise_differences(scores[None], present))
    pairs: list[float] = correct[better].tolist()
    return pairs


def _warn_of_trained_prompts(prompts: Sequence[Prompt], saved: Path, trust: bool) -> None:
    """Warn of prompts that the run was trained on."""
    try:
        config = configuration([TRUST] if trust else [], saved=saved, run_keys=("data",))
        trained_on = instantiate(config.data, "data")().train
    except UserError as error:
        warnings.warn(
            f"the data of the run cannot be compared with that of the evaluation: {error}",
            stacklevel=2,
        )
    else:
        warn_of_shared_prompts(prompts, trained_on)


def _use_trained_reward_models(
    config: DictConfig, saved: Path, export: Path, overrides: Sequence[str]
) -> None:
    """Set the reward models of the run, except models of weight 0, to the ones that it has trained
    further, in place. A model that is typed, by itself or with its term or the reward,
    stays as it is.

    Raises:
        UserError: there are fewer trained models than the run's reward has.
    """
    trained = sorted(map(str, export.glob("reward_model*")), key=lambda x: (len(x), x))
    typed = {Override.parse(text).key for text in overrides}
    if not trained or "reward" in typed:
        return
    for key, model in _reward_models(read_config(saved).get("reward"), "reward"):
        count = 1 if isinstance(model, str) else len(model)
        models = trained[:count]
        trained = trained[count:]
        if len(models) < count:
            raise UserError(
                f"{export}: fewer reward models than in the reward of the run: type reward=OPTION"
            )
        if not any(f"{key}.".startswith(f"{other}.") for other in typed):
            OmegaConf.update(config, key, models[0] if isinstance(model, str) else models)


def _reward_models(node: Any, key: str) -> Iterator[tuple[str, str | list[str]]]:
    """Yield key and name of each reward model in the settings of a reward, except models of
    terms of weight 0."""
    if not isinstance(node, dict) or ("reward" in node and not node.get("weight", 1.0)):
        return
    if node.get("_target_") == "rlmods.reward.Neural":
        yield f"{key}.model", node["model"]
    for name, inner in node.items():
        yield from _reward_models(inner, f"{key}.{name}")


@torch.no_grad()
def kl_from(
    reference: Policy,
    policy: Policy,
    rollout: Any,
    prompts: Sequence[Prompt],
    samples: int,
    token_budget: int,
) -> float:
    """Return KL(pi || pi_ref) at temperature 1 in nats per token: the mean of log pi - log pi_ref
    over the tokens of responses sampled from pi (k1), whatever the sampling settings of the
    rollout. The estimate can be negative.

    Raises:
        UserError: the two have different vocabularies.
    """
    if policy.tokenizer.get_vocab() != reference.tokenizer.get_vocab():
        raise UserError(
            "reference: its vocabulary is not the one of the evaluated model, so their "
            "KL is undefined; type another reference="
        )
    rollout = with_settings(rollout, temperature=1.0, top_p=1.0, top_k=0)
    rollout.sync(policy, iteration=0)
    responses = generate_in_order(rollout, prompts, samples=samples, iteration=0)
    rows = collate_unscored(responses, policy.pad_id).to(policy.device)
    total = 0.0
    for micro in rows.split(pack(rows.forward_tokens, token_budget)):
        logprobs = forward(policy, micro).logprobs
        ref_logprobs = forward(reference, micro).logprobs
        total += float((logprobs - ref_logprobs).double().sum())
    return total / max(1, int(rows.mask.sum()))


def table(result: Mapping[str, Any]) -> str:
    """Return a result of `evaluate` in lines: metric, value, and interval if there is one."""
    metrics = dict(result)
    intervals = metrics.pop("interval_95")
    width = max(map(len, metrics))
    lines = []
    for name, value in metrics.items():
        text = f"{value:.4f}" if isinstance(value, float) else str(value)
        if name in intervals:
            low, high = intervals[name]
            text += f"  95 % from {low:.4f} to {high:.4f}"
        lines.append(f"{name:<{width}}  {text}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    def action() -> dict[str, Any] | str:
        typed = [text for text in arguments if text != JSON]
        if not typed:
            raise UserError("type a run or a model: python -m rlmods.evaluate RUN_OR_MODEL")
        result = evaluate(typed[0], typed[1:])
        return result if JSON in arguments else table(result)

    command(action, indent=2)


if __name__ == "__main__":
    main(sys.argv[1:])
