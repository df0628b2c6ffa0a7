"""Table of a run's settings, printed before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from torch import nn

from rlmods.errors import counted
from rlmods.needs import RolloutNeeds, SamplingNeeds, needs_of
from rlmods.run.directory import RunDir

if TYPE_CHECKING:
    from rlmods.algo import Learner
    from rlmods.config.build import LoadedRun
    from rlmods.config.run_spec import RunSpec


@rank_zero_only
def show_run(
    run: LoadedRun,
    directory: RunDir,
    num_ranks: int = 1,
    console: Console | None = None,
    *,
    brief: bool = False,
) -> None:
    """Print the parts, the sizes of an iteration and its batches, the models and the precision of a
    run. `brief`: only its label and directory."""
    spec = run.spec
    console = console or Console()
    console.out(spec.label, style="bold", highlight=False)
    path = str(directory.path) + _origin(run, directory)
    if brief:
        console.out(f"run_dir  {path}", highlight=False)
        return
    shown = (*spec.parts, "data", "policy", "adapter")
    parts = [f"{group}={choice}" for group, choice in spec.choices.items() if group in shown]
    lines = {
        "parts": "  ".join(parts),
        **_models(spec, run.learner),
        **_data(run),
        "iteration": _iteration(spec, num_ranks),
        "optimizer": _optimizer(spec),
        **_forward(run.learner),
        "precision": _precision(run),
        "length": _length(run),
        "run_dir": path,
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        console.out(f"{name:<{width}}  {value}", highlight=False)


def _models(spec: RunSpec, learner: Learner) -> dict[str, str]:
    """Return a line for each trained network, the main one first, and for each frozen model."""
    # an adapter's frozen copy shares all other parameters with the policy
    frozen = {
        name: list(model.policy.trainable_tensors().values())
        for name, model in learner.frozen.items()
    }
    of_frozen = {id(p) for parameters in frozen.values() for p in parameters}
    lines: dict[str, str] = {}
    for name, network in learner.networks.items():
        own = [p for p in network.parameters() if id(p) not in of_frozen]
        size = _millions(own)
        if lines:
            lines[name] = f"{size:.1f}M parameters more"
            continue
        trained = _millions(p for p in own if p.requires_grad)
        part = f", {trained:.2f}M of them trained" if trained < size else ""
        dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
        lines[name] = f"{size:.1f}M parameters{part}, {dtype}"
    if spec.algorithm.samples_responses and "reference" not in frozen:
        lines["reference"] = "none (no KL term)"
    for name, parameters in frozen.items():
        is_copy = spec.choices.get(name) == "policy"
        kind = "moving" if learner.frozen[name].moves else "frozen"
        origin = f"a {kind} copy" if is_copy else f"{spec.choices.get(name)}, {kind}"
        lines[name] = f"{origin}, {_millions(parameters):.2f}M parameters more"
    return lines


def _millions(parameters: Iterable[nn.Parameter]) -> float:
    return sum(p.numel() for p in parameters) / 1e6


def _iteration(spec: RunSpec, num_ranks: int) -> str:
    batch = spec.batch
    line = counted(batch.prompts, "row")
    if spec.algorithm.samples_responses:
        rows = batch.prompts * batch.samples
        prompts = counted(batch.prompts, "prompt")
        samples = counted(batch.samples, "sample")
        line = f"{prompts} x {samples} = {counted(rows, 'response')}"
    filters_groups = needs_of(spec.parts.get("sampling"), SamplingNeeds).group
    if filters_groups and getattr(spec.settings, "surplus", "") == "keep":
        line += "; surplus groups are carried over to the next one"
    if needs_of(spec.parts.get("rollout"), RolloutNeeds).ahead:
        line += "; the next one is sampled while this one is trained on"
    if num_ranks > 1:
        line += f"; {counted(batch.prompts // num_ranks, 'prompt')} on each of {num_ranks} ranks"
    return line


def _optimizer(spec: RunSpec) -> str:
    batch = spec.batch
    rows = batch.prompts * spec.algorithm.rows_per_prompt(batch)
    steps = batch.epochs * batch.minibatches
    size = f"{batch.token_budget} tokens"
    if batch.token_budget is None:
        size = f"{batch.padded_budget} tokens with padding, on a GPU as many as fit"
    return (
        f"{counted(steps, 'step')} per iteration (epochs {batch.epochs} x minibatches "
        f"{batch.minibatches} of {rows // batch.minibatches}), microbatches of {size}"
    )


def _length(run: LoadedRun) -> str:
    iterations = run.config.trainer.max_iterations
    line = counted(iterations, "iteration")
    if not run.spec.algorithm.samples_responses:
        passes = iterations * run.spec.batch.prompts / len(run.splits.train)
        line += f", {passes:.2g} x the data"
    return f"{line}, validation every {run.spec.validation.every}"


def _forward(learner: Learner) -> dict[str, str]:
    """Return the line of the forwards of the policy, if it is trained."""
    if "policy" not in learner.networks:
        return {}
    if learner.policy.packs:
        return {"forward": "prefixes that rows share, such as prompts, once; no padding"}
    return {"forward": "padded rows: this model's attention or its experts cannot share a prompt"}


def _precision(run: LoadedRun) -> str:
    """Return the precision of the run, with the reason if it was chosen."""
    name = str(run.config.trainer.get("precision", "32-true"))
    chosen = run.precision
    if chosen is None:
        return name
    reason = chosen.reason if chosen.name == name else "as in the run that is resumed"
    return f"{name} (auto: {reason})"


def _data(run: LoadedRun) -> dict[str, str]:
    """Return the lines of the prompts and, if there is one, of the supervised loss."""
    splits = run.splits
    training = counted(len(splits.train), "training prompt")
    line = f"{training}, {counted(len(splits.val), 'validation prompt')}"
    if run.num_long_prompts:
        limit = run.config.data.max_prompt_tokens
        line += (
            f"; {counted(run.num_long_prompts, 'prompt')} longer than "
            f"data.max_prompt_tokens={limit} left out"
        )
    lines = {"data": line + _shares(splits.weights)}
    if splits.ptx:
        rows = counted(len(splits.ptx), "pretraining row")
        rows += f", {run.spec.settings.ptx_rows} per optimizer step"
        lines["ptx"] = rows + _shares(splits.ptx_weights)
    return lines


def _shares(weights: Mapping[str, float] | None) -> str:
    """Return the shares of the data sets of a mixture in words."""
    if not weights:
        return ""
    total = sum(weights.values())
    return "; " + ", ".join(f"{weight / total:.0%} {name}" for name, weight in weights.items())


def _origin(run: LoadedRun, directory: RunDir) -> str:
    fork = run.config.get("fork")
    if fork and directory.checkpoint and directory.checkpoint.parent != directory.checkpoints:
        return f", fork of {fork}"
    if directory.checkpoint:
        return f", resumed from iteration {directory.iteration}"
    return ", no checkpoint there: starts from scratch" if run.config.resume == "auto" else ""
