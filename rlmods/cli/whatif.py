"""Compare parts on an iteration of a run: `python -m rlmods.whatif RUN ITERATION
[group=option,option] [step=N] [--json FILE]`.

The iteration is repeated from the newest checkpoint before it: responses depend on seed, prompt and
sample only, so they are those of the run. At one optimizer step, the last one or `step=N`, the loss
and its gradient are computed with every combination of the options given, from `ratio`,
`advantage`, `aggregation` and `correction`, on the weights and rows of the run. Nothing is written
to RUN. Settings of a run that reach beyond the process, such as the `url` of a judge, are used only
if you type them too, or `--trust`.

    python -m rlmods.whatif runs/a 12 ratio=symmetric,clip_higher,sequence advantage=rloo,group_norm

Columns: loss of the optimizer step, with all its terms; norm of the policy's gradient, not clipped;
its cosine to the run's own; fraction of tokens that the ratio clips, where it is below (low) and
above (high) its range; mean absolute advantage of a token; fraction of tokens whose advantage has
another sign than in the run. `--json FILE` also holds the advantages of each response by token:
[begin, end, value] of each run of equal ones."""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.functional import pad

from rlmods.algo import PolicyGradient
from rlmods.cli.command import TRUST, command, configuration
from rlmods.config import build, compose
from rlmods.config.instantiate import instantiate, one_line
from rlmods.config.received import REACHING
from rlmods.config.rules import RULES, Rule, first_problem
from rlmods.config.run_spec import RunSpec
from rlmods.errors import UserError, suggest
from rlmods.needs import AdvantageNeeds, RatioNeeds, needs_of
from rlmods.run import atomic_write, dumps
from rlmods.run.checkpoints import list_checkpoints, verify
from rlmods.run.files import read_rows
from rlmods.run.saved import SavedRun
from rlmods.run.settings import Override
from rlmods.training.checkpoint import Stateful
from rlmods.training.credit import CreditAssignment
from rlmods.training.extensions.base import Extension
from rlmods.training.meter import Meter
from rlmods.training.sample_log import equal_runs
from rlmods.training.train_step import Loss, TrainStep
from rlmods.types import Experience, Response, Scores

GROUPS = ("ratio", "advantage", "aggregation", "correction")
"""Groups whose parts can be compared on the responses and weights of a run."""
RUN_KEYS = tuple(
    key
    for key in compose.TOP_LEVEL_KEYS
    if key not in ("callbacks", "logger", "run_dir", "resume", "fork")
)
"""Settings that are taken from the run."""
MAX_COMBINATIONS = 1000
COLUMNS = (
    "loss",
    "grad_norm",
    "cosine",
    "clipped_low",
    "clipped_high",
    "advantage",
    "sign_changes",
)


@dataclass(frozen=True)
class Combination:
    """Parts in place of those of the run."""

    overrides: tuple[str, ...]
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Parts by group, without those that are equal to the run's."""
    reason: str | None = None
    """Why the parts do not fit the run; None: they do."""


@dataclass(frozen=True)
class SampledBatch:
    """One batch of sampled prompts as the advantage estimator gets it."""

    batch: Experience
    scores: Scores
    scaled: Sequence[float | None]
    """Rewards after their normalisation."""
    penalty: Tensor


@dataclass(frozen=True)
class RecordedCredit(CreditAssignment):
    """Credit assignment that keeps what it is called with."""

    scaled: list[Sequence[float | None]] = field(default_factory=list)
    batches: list[SampledBatch] = field(default_factory=list)

    def rewards(self, scores: Scores, scaled: Sequence[float | None]) -> Scores:
        self.scaled.append(scaled)
        return super().rewards(scores, scaled)

    def estimate(self, batch: Experience, scores: Scores, penalty: Tensor) -> Experience:
        self.batches.append(SampledBatch(batch, scores, self.scaled[-1], penalty))
        return super().estimate(batch, scores, penalty)


class SampledEarlierError(Exception):
    """The iteration trains on responses that were sampled before the repeated iterations."""


class GradientOnly:
    """Module for a `TrainStep` that keeps loss and gradient of the policy, and makes no step."""

    def __init__(self, loop: PolicyGradient) -> None:
        self.loop = loop
        self.iteration = loop.iteration
        self.networks = loop.networks
        self.trainer = loop.trainer
        self.notify = loop.notify
        optimizer: Any = loop.optimizers()
        self.zero_grad = optimizer.zero_grad
        self.loss = 0.0
        self.gradient: Tensor | None = None

    def optimizers(self) -> GradientOnly:
        return self

    def manual_backward(self, loss: Tensor) -> None:
        self.loss += float(loss.detach())
        self.loop.manual_backward(loss)

    def step(self) -> None:
        gradients = []
        for weight in self.loop.policy.parameters():
            if weight.requires_grad:
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                gradients.append(grad.flatten().double().clone())
        self.gradient = torch.cat(gradients)


class ObservedStep(TrainStep):
    """Optimizer step of the loop, before which `observer` is called with its rows."""

    def __init__(self, loop: PolicyGradient, observer: Callable[..., None]) -> None:
        super().__init__(loop, loop.ranks, loop.microbatches, loop.meter, loop.timer, loop.batch)
        self.observer = observer

    def __call__(self, rows: Any, loss: Loss, *more: tuple[Any, Loss]) -> None:
        self.observer(rows, *more)
        super().__call__(rows, loss, *more)


class Comparison(Extension):
    """Computes loss and gradient of each combination at one optimizer step of an iteration. The
    run's own combination is the first."""

    def __init__(
        self, combinations: Sequence[Combination], iteration: int, step: int | None
    ) -> None:
        self.combinations = combinations
        self.iteration = iteration
        self.step = step
        self.responses: list[Sequence[Response]] = []
        self.minibatches: Sequence[Tensor] = ()
        self.num_steps = 0
        self.estimates: dict[int, Experience] = {}
        """Rows of the iteration with the advantages of another estimator, by its identity."""
        self.results: list[dict[str, Any]] = []
        self.own_gradient: Tensor | None = None
        """Gradient of the run's own combination, None if it is not finite."""
        self.rows: list[dict[str, Any]] = []
        """Responses of the optimizer step."""

    def attach(self, loop: Any) -> None:
        super().attach(loop)
        self.policy_gradient: PolicyGradient = loop
        self.credit = loop.credit = RecordedCredit(loop.advantage)
        loop.step = ObservedStep(loop, self.on_step)

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        self.responses.append(responses)

    def before_update(self, batch: Experience) -> Experience:
        if self._is_compared():
            self.minibatches = self.policy_gradient.minibatches(len(batch))
            self.step = len(self.minibatches) if self.step is None else self.step
            if not 1 <= self.step <= len(self.minibatches):
                raise UserError(
                    f"step={self.step}: the iteration makes {len(self.minibatches)} optimizer steps"
                )
            self.batch = batch
        return batch

    def _is_compared(self) -> bool:
        return self.policy_gradient.iteration + 1 == self.iteration

    def on_step(self, rows: Experience, *more: tuple[Any, Loss]) -> None:
        """Compare the combinations at the optimizer step that is about to be made with `rows`."""
        if not self._is_compared():
            return
        self.num_steps += 1
        if self.num_steps != self.step:
            return
        indices = self.minibatches[self.num_steps - 1]
        for combination in self.combinations:
            columns: dict[str, Any] = {}
            reason = combination.reason
            if reason is None:
                try:
                    columns = self._compare(combination, rows, indices, *more)
                except UserError as error:
                    reason = str(error)
            overrides = list(combination.overrides)
            self.results.append({"overrides": overrides, "reason": reason} | columns)
        keys = _keys(self.batch)
        for i in indices.tolist():
            group, response = keys[i]
            self.rows.append({"group": group, "response": response})

    def _compare(
        self, combination: Combination, rows: Experience, indices: Tensor, *more: Any
    ) -> dict[str, Any]:
        """Return the columns of a combination. Cosine and distance are None if the run's own
        gradient is zero or not finite.

        Raises:
            UserError: the parts do not fit the rows, no token has a loss, or loss or gradient is
            not finite.
        """
        parts = combination.parts
        signs = rows.advantages.sign()
        if "advantage" in parts:
            rows = _with_credit(rows, self._estimate(parts["advantage"]).select(indices))
        if "advantage" in parts or "ratio" in parts:
            ratio = parts.get("ratio", self.policy_gradient.ratio)
            self.credit.check(rows, ratio, self.policy_gradient.ranks)
        meter = Meter(self.policy_gradient.device)
        loss, gradient = self._gradient(parts, meter, rows, *more)
        if combination is self.combinations[0]:
            self.own_gradient = gradient
        own = torch.zeros_like(gradient) if self.own_gradient is None else self.own_gradient
        norm = gradient.norm()
        norms = norm * own.norm()
        metrics = meter.compute()
        mask = rows.mask
        credit = zip(rows.advantages.tolist(), mask.tolist(), strict=True)
        return {
            "loss": loss,
            "grad_norm": float(norm),
            "cosine": float(gradient @ own / norms) if norms else None,
            "distance": float((gradient - own).norm() / own.norm()) if own.norm() else None,
            "clipped_low": metrics.get("train/clip_fraction/low"),
            "clipped_high": metrics.get("train/clip_fraction/high"),
            "advantage": float(rows.advantages[mask].abs().mean()),
            "sign_changes": float((rows.advantages.sign() != signs)[mask].double().mean()),
            "credit": [equal_runs(*row) for row in credit],
        }

    def _gradient(
        self, parts: Mapping[str, Any], meter: Meter, rows: Experience, *more: Any
    ) -> tuple[float, Tensor]:
        """Return loss and gradient of an optimizer step on `rows` with other parts. The loop stays
        as it is: a shallow copy of it has these parts and metrics of its own.

        Raises:
            UserError: no token has a loss, or loss or gradient is not finite.
        """
        loop = copy.copy(self.policy_gradient)
        loop.trainer = self.policy_gradient.trainer  # which a copy of a LightningModule lacks
        loop.ratio = parts.get("ratio", loop.ratio)
        loop.aggregation = parts.get("aggregation", loop.aggregation)
        loop.correction = parts.get("correction", loop.correction)
        loop.kl_stats = loop.kl_stats.clone()
        loop.meter = meter
        module = GradientOnly(loop)
        batch = replace(loop.batch, max_norm=torch.inf, max_nonfinite=2)
        step = TrainStep(module, loop.ranks, loop.microbatches, meter, loop.timer, batch)
        with torch.random.fork_rng(), torch.enable_grad():
            step(rows, loop.loss, *more)
        if module.gradient is None:
            raise UserError(
                "loss or gradient is not finite" if rows.mask.any() else "no token has a loss"
            )
        return module.loss, module.gradient

    def _estimate(self, advantage: Any) -> Experience:
        """Return the rows of the iteration with the advantages of another estimator.

        Raises:
            SampledEarlierError: the rewards of some rows have not been recorded.
        """
        if id(advantage) in self.estimates:
            return self.estimates[id(advantage)]
        credit = CreditAssignment(advantage)
        estimated = []
        for sampled, responses in zip(self.credit.batches, self.responses, strict=True):
            batch = sampled.batch
            rewards = credit.rewards(sampled.scores, sampled.scaled)
            rows = self.policy_gradient.as_rows(responses, rewards, batch.group.cpu())
            mask = rows.mask & batch.mask
            rows = replace(batch, rewards=rows.rewards, mask=mask, steps=rows.steps)
            estimated.append(credit.estimate(rows, sampled.scores, sampled.penalty))
        every = Experience.concat(estimated)
        position = {key: i for i, key in enumerate(_keys(every))}
        keys = _keys(self.batch)
        if not set(keys) <= position.keys():
            raise SampledEarlierError
        rows = every.select(torch.tensor([position[key] for key in keys]))
        self.estimates[id(advantage)] = credit.normalize(_with_credit(self.batch, rows))
        return self.estimates[id(advantage)]


class StopAfter(L.Callback):
    """Ends training after an iteration, and keeps its metrics and the rows of its sample log."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.metrics: dict[str, float] = {}
        self.samples: list[dict[str, Any]] = []

    def on_iteration_end(
        self, trainer: L.Trainer, learner: PolicyGradient, metrics: Mapping[str, float]
    ) -> None:
        if learner.iteration >= self.iteration:
            self.metrics = dict(metrics)
            self.samples = list(learner.samples)
            trainer.should_stop = True


def _keys(batch: Experience) -> list[tuple[int, int]]:
    """Return the group and the index in the group of each row."""
    seen = Counter[int]()
    keys = []
    for group in batch.group.tolist():
        keys.append((group, seen[group]))
        seen[group] += 1
    return keys


def _with_credit(rows: Experience, other: Experience) -> Experience:
    """Return rows with the advantages, the returns and the tokens of the loss of other ones, which
    are as wide as their longest row."""
    missing = rows.tokens.shape[1] - other.tokens.shape[1]

    def widen(x: Tensor) -> Tensor:
        return pad(x, (0, missing))

    return replace(
        rows,
        advantages=widen(other.advantages),
        mask=rows.mask & widen(other.mask),
        returns=None if other.returns is None else widen(other.returns),
    )


def combinations(
    typed: Sequence[str], saved: Path, spec: RunSpec, of_run: Sequence[str] = ()
) -> list[Combination]:
    """Return the run's own combination and those of the options typed.

    Args:
        of_run: overrides of settings of the run (`_is_of_run`).

    Raises:
        UserError: an unknown option or setting, another group than `GROUPS`, too many combinations.
    """
    axes = [_values(override, spec) for override in typed]
    products = list(itertools.islice(itertools.product(*axes), MAX_COMBINATIONS + 1))
    if len(products) > MAX_COMBINATIONS:
        raise UserError(f"more than {MAX_COMBINATIONS} combinations: type fewer options")
    parts: dict[tuple[str, ...], tuple[DictConfig, Any]] = {}
    # The data have been checked with the run's own parts, so that a few rows are enough here.
    num_rows = spec.batch.prompts
    splits = replace(
        spec.splits, train=spec.splits.train[:num_rows], val=spec.splits.val[:num_rows]
    )
    small = replace(spec, splits=splits)
    rules = [rule for rule in RULES if first_problem(small, [rule]) is None]
    found = [Combination(())]
    for overrides in products if axes else ():
        config = copy.deepcopy(spec.config)
        new: dict[str, Any] = {}
        options = dict(spec.choices)
        for group in GROUPS:
            own = tuple(text for text in overrides if Override.parse(text).top == group)
            if not own:
                continue
            if own not in parts:
                node = configuration((*of_run, *own), saved=saved, run_keys=RUN_KEYS)[group]
                parts[own] = node, instantiate(node, group)
            node, part = parts[own]
            if node != spec.config[group]:
                config[group] = node
                new[group] = part
            for override in map(Override.parse, own):
                if override.key == group:
                    options[group] = str(override.value)
        candidate = replace(small, config=config, parts={**spec.parts, **new}, choices=options)
        found.append(Combination(overrides, new, _reason(candidate, spec, new, rules)))
    return found


def _is_of_run(override: str) -> bool:
    """Return whether an override is of a setting of the run that reaches beyond the process, or
    trusts them all."""
    name = Override.parse(override).key.rpartition(".")[2]
    return override == TRUST or name in (*REACHING, "tools")


def _values(override: str, spec: RunSpec) -> list[str]:
    """Return `key=value` for each value of an override."""
    values = None
    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override():
            iterator = parsed.sweep_string_iterator()
            values = list(itertools.islice(iterator, MAX_COMBINATIONS + 1))
    except HydraException as error:
        raise UserError(
            f"{override}: {one_line(error)}: type group=option,option or key=value,value"
        ) from error
    group = Override.parse(override).top
    if group not in GROUPS:
        if group not in spec.config:
            raise UserError(f"{override}: no such group; {suggest(group, GROUPS)}")
        raise UserError(
            f"{override}: {group} cannot be compared on the responses of a run, only "
            f"{', '.join(GROUPS)}: to go on training with it, type "
            f"python train.py ... fork=RUN@ITERATION {override}"
        )
    return [override] if values is None else [f"{parsed.key_or_group}={value}" for value in values]


def _reason(
    candidate: RunSpec, spec: RunSpec, parts: Mapping[str, Any], rules: Sequence[Rule]
) -> str | None:
    """Return why these parts cannot be used on the rows of the run, None if they can."""
    problem = first_problem(candidate, rules)
    if problem is not None:
        return problem
    for group, part in parts.items():
        if isinstance(part, Stateful):
            return f"{group} has a state of earlier iterations, which the run did not keep"
    if "advantage" in parts:
        needs = needs_of(parts["advantage"], AdvantageNeeds)
        if needs.greedy and not needs_of(spec.parts["advantage"], AdvantageNeeds).greedy:
            return "advantage needs greedy responses, which the run did not sample"
    if "ratio" in parts:
        own = needs_of(spec.parts["ratio"], RatioNeeds)
        if needs_of(parts["ratio"], RatioNeeds).temperature != own.temperature:
            return "ratio needs log-probabilities of another temperature than the run's"
    return None


def whatif(
    run: Path, iteration: int, typed: Sequence[str], step: int | None = None
) -> dict[str, Any]:
    """Return the comparison: `rows`, the run's own combination first, and how exactly the iteration
    was repeated.

    Raises:
        UserError: a user's mistake, or a run that cannot be repeated.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is not a run directory, it has no config.yaml")
    saved = _config_file(run, iteration)
    checkpoints = reversed(list_checkpoints(run / "checkpoints"))
    starts = [path for number, path in checkpoints if number < iteration]
    for checkpoint in (*starts, None):
        try:
            return _repeat(run, saved, checkpoint, iteration, typed, step)
        except SampledEarlierError:
            continue
    raise UserError(f"iteration {iteration} trains on responses sampled before the run began")


def _config_file(run: Path, iteration: int) -> Path:
    """Return the file with the settings of an iteration: `config.yaml`, or that of the last time
    the run was resumed before it."""
    latest = run / "config.yaml"
    for path in sorted(run.glob("config.resumed_*.yaml")):
        number = path.stem.rpartition("_")[2]
        if number.isdecimal() and int(number) < iteration:
            latest = path
    return latest


def _repeat(
    run: Path,
    saved: Path,
    checkpoint: Path | None,
    iteration: int,
    typed: Sequence[str],
    step: int | None,
) -> dict[str, Any]:
    """Repeat an iteration from a checkpoint, and return the comparison."""
    if checkpoint is not None:
        verify(checkpoint)
    of_run = [override for override in typed if _is_of_run(override)]
    options = [override for override in typed if override not in of_run]
    config = configuration(of_run, saved=saved, run_keys=RUN_KEYS)
    config.callbacks = {}
    config.logger = {}
    spec = compose.run_spec(config, {})
    if not issubclass(spec.algorithm, PolicyGradient):
        raise UserError(f"algo={config.algo.name} samples no responses to compare parts on")
    length = config.trainer.max_iterations
    if not 1 <= iteration <= length:
        raise UserError(f"iteration {iteration}: the run has iterations 1 to {length}")
    loaded = build.load(spec)
    ranks = build.num_ranks(spec, loaded.config)
    if ranks > 1:
        raise UserError(f"the run has {ranks} processes: only runs of one can be repeated")
    comparison = Comparison(combinations(options, saved, spec, of_run), iteration, step)
    stop = StopAfter(iteration)
    learner: Any = loaded.learner
    learner.add_extension(comparison)
    learner.validate = lambda: None
    trainer = build.trainer(loaded.config, [stop])
    with warnings.catch_warnings():
        # the callbacks of the run have nothing to do here
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`")
        trainer.fit(learner, datamodule=loaded.data(), ckpt_path=checkpoint, weights_only=True)
    if not comparison.results:
        made = comparison.num_steps
        advice = f": type step={made}" if made else ", there is none to compare"
        raise UserError(f"iteration {iteration} made {made} optimizer steps{advice}")
    recorded = dict(SavedRun(run).series("train/grad_norm"))
    return {
        "run": str(run),
        "iteration": iteration,
        "step": comparison.step,
        "num_steps": len(comparison.minibatches),
        "repeated_from": 0 if checkpoint is None else int(checkpoint.stem.split("_")[1]),
        "num_responses": len(stop.samples),
        "num_equal_responses": _num_equal(
            stop.samples, run / "samples" / f"iteration_{iteration:06d}.jsonl"
        ),
        "grad_norm": {
            "repeated": stop.metrics.get("train/grad_norm"),
            "run": recorded.get(iteration),
        },
        "responses": comparison.rows,
        "rows": comparison.results,
    }


def _num_equal(samples: Sequence[Mapping[str, Any]], path: Path) -> int | None:
    """Return the number of responses with the tokens and the reward of the sample log, None without
    a log."""
    if not path.is_file():
        return None
    equal = 0
    for sample, logged in zip(samples, read_rows(path), strict=False):
        repeated = (sample["id"], list(sample["tokens"]), sample["reward"])
        equal += repeated == (logged.get("id"), logged.get("tokens"), logged.get("reward"))
    return equal


def table(result: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    equal = result["num_equal_responses"]
    grad_norm = result["grad_norm"]
    responses = "no sample log to compare with"
    if equal is not None:
        responses = f"{equal} of {result['num_responses']} responses are those of the sample log"
    lines = [
        f"{result['run']}, iteration {result['iteration']}, optimizer step {result['step']} of "
        f"{result['num_steps']}, repeated from iteration {result['repeated_from']}",
        responses,
        f"mean gradient norm of the iteration {_number(grad_norm['repeated'])}, of the run "
        f"{_number(grad_norm['run'])}",
    ]
    if (equal is not None and equal < result["num_responses"]) or not _close(**grad_norm):
        lines.append(
            "this is not the run's iteration: code, versions or processor differ (python -m "
            "rlmods.diff says which)"
        )
    names = [" ".join(row["overrides"]) or "as in the run" for row in result["rows"]]
    width = max(map(len, names))
    header = ("loss", "grad norm", "cosine", "clip low", "clip high", "|A|", "sign changes")
    lines += ["", " " * width + "".join(f"{name:>14}" for name in header)]
    for name, row in zip(names, result["rows"], strict=True):
        cells = f"  refused: {row['reason']}"
        if row["reason"] is None:
            cells = "".join(f"{_number(row[column]):>14}" for column in COLUMNS)
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines)


def _close(repeated: float | None, run: float | None) -> bool:
    """Return whether two gradient norms are equal up to rounding; True if the run has logged
    none."""
    return run is None or (repeated is not None and abs(repeated - run) <= 1e-6 * abs(run))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("rlmods whatif", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("iteration", type=int, metavar="ITERATION")
    parser.add_argument("overrides", nargs="*", metavar="group=option,option")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("--trust", action="store_true", help="use the run's settings unchecked")
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str]) -> None:
    command(arguments, __doc__, lambda: _action(arguments))


def _action(arguments: Sequence[str]) -> str:
    parsed = parse(arguments)
    step = None
    typed = [TRUST] if parsed.trust else []
    for override in parsed.overrides:
        if not override.startswith("step="):
            typed.append(override)
        elif override.removeprefix("step=").isdecimal():
            step = int(override.removeprefix("step="))
        else:
            raise UserError(f"{override}: type step=N, the number of an optimizer step")
    result = whatif(parsed.run.expanduser(), parsed.iteration, typed, step)
    if parsed.json is not None:
        atomic_write(parsed.json.expanduser(), dumps(result) + "\n")
    return table(result)


if __name__ == "__main__":
    main(sys.argv[1:])
