"""What a run is about to do, before it does it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from rlmods.run import RunDir

if TYPE_CHECKING:
    from rlmods.config.plan import Plan


@rank_zero_only
def show_plan(plan: Plan, learner: Any, directory: RunDir, num_ranks: int = 1, console: Console | None = None) -> None:
    """Print one table: the parts, the arithmetic of an iteration, and which model is where."""
    batch, online = plan.batch, plan.algorithm.samples_responses
    rows = batch.prompts * (batch.samples if online else 1)
    size = f"{batch.prompts} prompts x {batch.samples} samples = {rows} responses" if online else f"{rows} rows"
    steps = batch.epochs * batch.minibatches
    alone = "; on fresh rows the ratio is 1 in a single step, whatever ratio= says" if steps == 1 and "ratio" in plan.parts else ""
    main, *others = learner.networks
    copied = list(learner.reference.policy.trainable_tensors().values()) if learner.reference else []
    sizes = {name: _millions(network.parameters(), without=copied) for name, network in learner.networks.items()}
    trained = _millions(p for p in learner.networks[main].parameters() if p.requires_grad)
    share = f", {trained:.2f}M of them trained" if trained < sizes[main] else ""
    dtype = str(next(learner.networks[main].parameters()).dtype).removeprefix("torch.")
    shown = (*plan.parts, "data", "policy", "adapter")
    copy = f"a frozen copy{' of what is trained' * bool(share)}, {_millions(copied):.2f}M more"
    freed = ", until it has scored the data once" if getattr(learner, "precompute", False) else ""
    length = plan.config.trainer.max_iterations
    passes = "" if online else f" = {length * batch.prompts / len(plan.splits.train):.2g} passes over the data"
    table = Table(title=Text(plan.label), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    lines = {
        "parts": "  ".join(f"{group}={choice}" for group, choice in plan.choices.items() if group in shown),
        main: f"{sizes[main]:.1f}M parameters{share}, {dtype}",
        **{name: f"{sizes[name]:.1f}M parameters more" for name in others},
        "reference": copy + freed if learner.reference else "none, as no KL is asked for",
        "data": f"{len(plan.splits.train)} prompts to train on, {len(plan.splits.val)} held out",
        **({"ptx": f"{len(plan.ptx)} rows to imitate, {plan.settings.ptx_rows} beside each optimizer step"} if plan.ptx else {}),
        "iteration": size,
        "optimizer": f"{steps} step{'s' * (steps > 1)} an iteration (epochs {batch.epochs} x minibatches {batch.minibatches} of "
        f"{rows // batch.minibatches}), microbatches of {batch.token_budget} tokens{alone}",
        "length": f"{length} iterations{passes}, validation every {plan.validation.every}",
        "run_dir": str(directory.path) + _origin(plan, directory),
    }
    if getattr(plan.parts.get("sampling"), "needs_group", False) and getattr(plan.settings, "surplus", "") == "keep":
        lines["iteration"] += "; surplus groups wait for the next one"
    if num_ranks > 1:
        lines["iteration"] += f"; {batch.prompts // num_ranks} prompts on each of {num_ranks} ranks"
    if not online and not learner.reference:
        del lines["reference"]
    for name, value in lines.items():
        table.add_row(f"[bold]{name}", value)
    (console or Console()).print(table)


def _millions(parameters: Iterable[nn.Parameter], without: Iterable[nn.Parameter] = ()) -> float:
    left_out = {id(p) for p in without}
    return sum(p.numel() for p in parameters if id(p) not in left_out) / 1e6


def _origin(plan: Plan, directory: RunDir) -> str:
    if directory.checkpoint:
        return f", resumed after iteration {directory.iteration}"
    return ", nothing to resume there: starts anew" if plan.config.resume == "auto" else ""
