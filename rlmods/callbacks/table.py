"""Table of a run's settings, printed before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import nn

from rlmods.needs import SamplingNeeds, needs_of
from rlmods.run import RunDir

if TYPE_CHECKING:
    from rlmods.config.plan import Plan


@rank_zero_only
def show_plan(
    plan: Plan, learner: Any, directory: RunDir, num_ranks: int = 1, console: Console | None = None
) -> None:
    """Print the parts, the sizes of an iteration and its batches, the models and the precision of a
    run."""
    batch, online = plan.batch, plan.algorithm.samples_responses
    rows = batch.prompts * (batch.samples if online else 1)
    size = (
        f"{batch.prompts} prompts x {batch.samples} samples = {rows} responses"
        if online
        else f"{rows} rows"
    )
    steps = batch.epochs * batch.minibatches
    note = (
        "; in a single step on new samples the importance ratio is 1"
        if steps == 1 and "ratio" in plan.parts
        else ""
    )
    main, *others = learner.networks
    ref_parameters = (
        list(learner.reference.policy.trainable_tensors().values()) if learner.reference else []
    )
    sizes = {
        name: _millions(network.parameters(), without=ref_parameters)
        for name, network in learner.networks.items()
    }
    trained = _millions(p for p in learner.networks[main].parameters() if p.requires_grad)
    trained_part = f", {trained:.2f}M of them trained" if trained < sizes[main] else ""
    dtype = str(next(learner.networks[main].parameters()).dtype).removeprefix("torch.")
    shown = (*plan.parts, "data", "policy", "adapter")
    origin = (
        f"a frozen copy{' of the trained weights' * bool(trained_part)}"
        if plan.choices.get("reference") == "policy"
        else "another model"
    )
    reference = f"{origin}, {_millions(ref_parameters):.2f}M more"
    release = ", freed after scoring the data" if getattr(learner, "precompute", False) else ""
    length = plan.config.trainer.max_iterations
    passes = (
        ""
        if online
        else f" = {length * batch.prompts / len(plan.kept.train):.2g} passes over the data"
    )
    lines = {
        "parts": "  ".join(
            f"{group}={choice}" for group, choice in plan.choices.items() if group in shown
        ),
        main: f"{sizes[main]:.1f}M parameters{trained_part}, {dtype}",
        **{name: f"{sizes[name]:.1f}M parameters more" for name in others},
        "reference": reference + release if learner.reference else "none (no KL term)",
        **_teacher(plan, learner),
        **_data(plan),
        "iteration": size,
        "optimizer": f"{steps} step{'s' * (steps > 1)} per iteration (epochs {batch.epochs} x minibatches "
        f"{batch.minibatches} of "
        f"{rows // batch.minibatches}), microbatches of {batch.token_budget} tokens{note}",
        **_forward(learner),
        "precision": _precision(plan),
        **_correction(plan),
        "length": f"{length} iterations{passes}, validation every {plan.validation.every}",
        "run_dir": str(directory.path) + _origin(plan, directory),
    }
    if (
        needs_of(plan.parts.get("sampling"), SamplingNeeds).group
        and getattr(plan.settings, "surplus", "") == "keep"
    ):
        lines["iteration"] += "; surplus groups are carried over to the next one"
    if getattr(plan.parts.get("rollout"), "ahead", 0):
        lines["iteration"] += "; the next one is sampled while this one is trained on"
    if num_ranks > 1:
        lines["iteration"] += f"; {batch.prompts // num_ranks} prompts on each of {num_ranks} ranks"
    if not online and not learner.reference:
        del lines["reference"]
    _print(plan.label, lines, console or Console())


def _print(title: str, lines: Mapping[str, str], console: Console) -> None:
    """Print aligned lines: wrapped to the width of a terminal, whole elsewhere."""
    if not console.is_terminal:
        width = max(map(len, lines))
        console.out(
            title,
            *(f"{name:<{width}}  {value}" for name, value in lines.items()),
            sep="\n",
            highlight=False,
        )
        return
    table = Table(
        Column(),
        Column(overflow="fold"),
        title=Text(title),
        title_justify="left",
        show_header=False,
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name, value in lines.items():
        table.add_row(Text(name, "bold"), Text(value))
    console.print(table)


def _forward(learner: Any) -> dict[str, str]:
    """Return the line of the forwards of the policy, if it is trained, and of a critic that
    differs."""
    if "policy" not in learner.networks:
        return {}
    policy, critic = learner.policy, learner.networks.get("critic")
    shared = "prefixes that rows share, such as prompts, once; no padding"
    padded = "padded rows: this model's attention cannot share a prompt"
    if policy.is_mixture:
        padded = "padded rows: routers of a mixture of experts are recorded row by row"
    lines = {"forward": shared if policy.packs else padded}
    if (packs := getattr(critic, "packs", policy.packs)) != policy.packs:
        lines["forward"] += f"; critic: {shared if packs else 'padded rows'}"
    return lines


def _precision(plan: Plan) -> str:
    """Return the precision of the run, with the reason if it was chosen."""
    name, chosen = (
        str(plan.config.trainer.get("precision", "32-true")),
        plan.automatic.get("trainer.precision"),
    )
    if chosen is None:
        return name
    return (
        f"{name} (auto: "
        f"{chosen.reason if chosen.name == name else 'as in the run that is resumed'})"
    )


def _teacher(plan: Plan, learner: Any) -> dict[str, str]:
    """Return the line of the teacher, if there is one."""
    if (part := plan.parts.get("teacher")) is None:
        return {}
    model = learner.frozen.get("teacher")
    size = (
        "" if model is None else f", {_millions(model.policy.parameters()):.1f}M parameters, frozen"
    )
    return {
        "teacher": f"{plan.choices['teacher']}{size}"
        + (f", which sees {part.demonstration}" if part.demonstration else "")
    }


def _correction(plan: Plan) -> dict[str, str]:
    """Return the line of the off-policy correction, if there is one."""
    option = plan.choices.get("correction", "none")
    return (
        {}
        if option == "none"
        else {
            "correction": f"{option}: the objective is weighted by pi_old (trainer) / pi_behavior (sampler)"
        }
    )


def _millions(parameters: Iterable[nn.Parameter], without: Iterable[nn.Parameter] = ()) -> float:
    excluded = {id(p) for p in without}
    return sum(p.numel() for p in parameters if id(p) not in excluded) / 1e6


def _data(plan: Plan) -> dict[str, str]:
    """Return the lines of the prompts and, if there is one, of the supervised loss."""
    counts = f"{len(plan.kept.train)} training prompts, {len(plan.kept.val)} validation prompts"
    lines = {"data": counts + _left_out(plan) + _shares(plan.splits.weights)}
    if plan.splits.ptx:
        rows = (
            f"{len(plan.splits.ptx)} pretraining rows, {plan.settings.ptx_rows} per optimizer step"
        )
        lines["ptx"] = rows + _shares(plan.splits.ptx_weights)
    return lines


def _shares(weights: Mapping[str, float] | None) -> str:
    """Return the shares of the data sets of a mixture in words."""
    weights = weights or {}
    return (
        "; "
        + ", ".join(
            f"{weight / sum(weights.values()):.0%} {name}" for name, weight in weights.items()
        )
        if weights
        else ""
    )


def _left_out(plan: Plan) -> str:
    count = len(plan.long_prompts)
    return (
        f"; {count} prompts longer than "
        f"data.max_prompt_tokens={plan.config.data.max_prompt_tokens} are left out"
        if count
        else ""
    )


def _origin(plan: Plan, directory: RunDir) -> str:
    fork = plan.config.get("fork")
    if fork and directory.checkpoint and directory.checkpoint.parent != directory.checkpoints:
        return f", fork of {fork}"
    if directory.checkpoint:
        return f", resumed from iteration {directory.iteration}"
    return ", no checkpoint there: starts from scratch" if plan.config.resume == "auto" else ""
