"""Table of a run's settings, printed before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from torch import nn

from rlmods.needs import RolloutNeeds, SamplingNeeds, needs_of
from rlmods.run.directory import RunDir

if TYPE_CHECKING:
    from rlmods.algo import Learner
    from rlmods.config.build import LoadedRun
    from rlmods.config.run_spec import RunSpec


@rank_zero_only
def show_run(
    run: LoadedRun, directory: RunDir, num_ranks: int = 1, console: Console | None = None
) -> None:
    """Print the parts, the sizes of an iteration and its batches, the models and the precision of a
    run."""
    spec = run.spec
    learner = run.learner
    length = f"{run.config.trainer.max_iterations} iterations{_passes(run)}"
    lines = {
        "parts": _parts(spec),
        **_models(learner),
        **_reference(spec, learner),
        **_teacher(spec, learner),
        **_data(run),
        "iteration": _iteration(spec, num_ranks),
        "optimizer": _optimizer(spec),
        **_forward(learner),
        "precision": _precision(run),
        "length": f"{length}, validation every {spec.validation.every}",
        "run_dir": str(directory.path) + _origin(run, directory),
    }
    width = max(map(len, lines))
    console = console or Console()
    console.out(spec.label, style="bold", highlight=False)
    for name, value in lines.items():
        console.out(f"{name:<{width}}  {value}", highlight=False)


def _parts(spec: RunSpec) -> str:
    shown = (*spec.parts, "data", "policy", "adapter")
    return "  ".join(
        f"{group}={choice}" for group, choice in spec.choices.items() if group in shown
    )


def _models(learner: Learner) -> dict[str, str]:
    """Return a line for each trained network, the main one first."""
    lines: dict[str, str] = {}
    reference = _reference_parameters(learner)
    for name, network in learner.networks.items():
        size = _millions(network.parameters(), without=reference)
        if lines:
            lines[name] = f"{size:.1f}M parameters more"
            continue
        trained = _millions(p for p in network.parameters() if p.requires_grad)
        part = f", {trained:.2f}M of them trained" if trained < size else ""
        dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
        lines[name] = f"{size:.1f}M parameters{part}, {dtype}"
    return lines


def _reference(spec: RunSpec, learner: Learner) -> dict[str, str]:
    """Return the line of the reference; offline algorithms without one have no line."""
    if learner.reference is None:
        return {"reference": "none (no KL term)"} if spec.algorithm.samples_responses else {}
    origin = "another model"
    if spec.choices.get("reference") == "policy":
        main = next(iter(learner.networks.values()))
        has_adapter = not all(p.requires_grad for p in main.parameters())
        origin = f"a frozen copy{' of the trained weights' if has_adapter else ''}"
    line = f"{origin}, {_millions(_reference_parameters(learner)):.2f}M more"
    if getattr(learner, "precompute", False):
        line += ", freed after scoring the data"
    return {"reference": line}


def _reference_parameters(learner: Learner) -> list[nn.Parameter]:
    if learner.reference is None:
        return []
    tensors: Mapping[str, nn.Parameter] = learner.reference.policy.trainable_tensors()
    return list(tensors.values())


def _iteration(spec: RunSpec, num_ranks: int) -> str:
    batch = spec.batch
    line = f"{batch.prompts} rows"
    if spec.algorithm.samples_responses:
        rows = batch.prompts * batch.samples
        line = f"{batch.prompts} prompts x {batch.samples} samples = {rows} responses"
    filters_groups = needs_of(spec.parts.get("sampling"), SamplingNeeds).group
    if filters_groups and getattr(spec.settings, "surplus", "") == "keep":
        line += "; surplus groups are carried over to the next one"
    if needs_of(spec.parts.get("rollout"), RolloutNeeds).ahead:
        line += "; the next one is sampled while this one is trained on"
    if num_ranks > 1:
        line += f"; {batch.prompts // num_ranks} prompts on each of {num_ranks} ranks"
    return line


def _optimizer(spec: RunSpec) -> str:
    batch = spec.batch
    rows = batch.prompts * (batch.samples if spec.algorithm.samples_responses else 1)
    steps = batch.epochs * batch.minibatches
    return (
        f"{steps} step{'s' * (steps > 1)} per iteration (epochs {batch.epochs} x minibatches "
        f"{batch.minibatches} of {rows // batch.minibatches}), microbatches of "
        f"{batch.token_budget} tokens"
    )


def _passes(run: LoadedRun) -> str:
    if run.spec.algorithm.samples_responses:
        return ""
    rows = run.config.trainer.max_iterations * run.spec.batch.prompts
    return f" = {rows / len(run.splits.train):.2g} passes over the data"


def _forward(learner: Learner) -> dict[str, str]:
    """Return the line of the forwards of the policy, if it is trained."""
    if "policy" not in learner.networks:
        return {}
    if learner.policy.packs:
        return {"forward": "prefixes that rows share, such as prompts, once; no padding"}
    if learner.policy.is_mixture:
        reason = "routers of a mixture of experts are recorded row by row"
    else:
        reason = "this model's attention cannot share a prompt"
    return {"forward": f"padded rows: {reason}"}


def _precision(run: LoadedRun) -> str:
    """Return the precision of the run, with the reason if it was chosen."""
    name = str(run.config.trainer.get("precision", "32-true"))
    chosen = run.precision
    if chosen is None:
        return name
    reason = chosen.reason if chosen.name == name else "as in the run that is resumed"
    return f"{name} (auto: {reason})"


def _teacher(spec: RunSpec, learner: Learner) -> dict[str, str]:
    """Return the line of the teacher, if there is one."""
    part = spec.parts.get("teacher")
    if part is None:
        return {}
    line = spec.choices["teacher"]
    model = learner.frozen.get("teacher")
    if model is not None:
        line += f", {_millions(model.policy.parameters()):.1f}M parameters, frozen"
    if part.demonstration:
        line += f", which sees {part.demonstration}"
    return {"teacher": line}


def _millions(parameters: Iterable[nn.Parameter], without: Iterable[nn.Parameter] = ()) -> float:
    excluded = {id(p) for p in without}
    return sum(p.numel() for p in parameters if id(p) not in excluded) / 1e6


def _data(run: LoadedRun) -> dict[str, str]:
    """Return the lines of the prompts and, if there is one, of the supervised loss."""
    counts = f"{len(run.splits.train)} training prompts, {len(run.splits.val)} validation prompts"
    lines = {"data": counts + _left_out(run) + _shares(run.splits.weights)}
    if run.splits.ptx:
        num_rows = len(run.splits.ptx)
        rows = f"{num_rows} pretraining rows, {run.spec.settings.ptx_rows} per optimizer step"
        lines["ptx"] = rows + _shares(run.splits.ptx_weights)
    return lines


def _shares(weights: Mapping[str, float] | None) -> str:
    """Return the shares of the data sets of a mixture in words."""
    if not weights:
        return ""
    total = sum(weights.values())
    return "; " + ", ".join(f"{weight / total:.0%} {name}" for name, weight in weights.items())


def _left_out(run: LoadedRun) -> str:
    count = run.num_long_prompts
    if not count:
        return ""
    limit = run.config.data.max_prompt_tokens
    return f"; {count} prompts longer than data.max_prompt_tokens={limit} are left out"


def _origin(run: LoadedRun, directory: RunDir) -> str:
    fork = run.config.get("fork")
    if fork and directory.checkpoint and directory.checkpoint.parent != directory.checkpoints:
        return f", fork of {fork}"
    if directory.checkpoint:
        return f", resumed from iteration {directory.iteration}"
    return ", no checkpoint there: starts from scratch" if run.config.resume == "auto" else ""
