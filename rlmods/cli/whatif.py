"""Compare parts on an iteration of a run: `python -m rlmods.whatif RUN ITERATION
[group=option,option] [step=N] [--json FILE]`.

The iteration is repeated from the newest checkpoint before it: responses depend on seed, prompt and
sample only, so they are those of the run. At one optimizer step, the last one or `step=N`, the loss
and its gradient are computed with every combination of the options given, from `ratio`,
`advantage`, `aggregation` and `correction`, on the weights and rows of the run. Nothing is written
to RUN. Settings of a run that reach beyond the process, such as the `url` of a judge, are used only
if they are typed too.

    python -m rlmods.whatif runs/a 12 ratio=symmetric,clip_higher,sequence advantage=rloo,group_norm

Columns: loss of the optimizer step, with all its terms; norm of the policy's gradient, not clipped;
its cosine to the run's own; fraction of tokens that the ratio clips, where it is below (low) and
above (high) its range; mean absolute advantage of a token; fraction of tokens whose advantage has
another sign than in the run. `--json FILE` also holds the advantages of each response by token:
[begin, end, value] of each run of equal ones."""

from __future__ import annotations

import copy
import itertools
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from rlmods.run.jsonl import read_rows
from rlmods.run.resume import list_checkpoints, verify
from rlmods.run.saved import SavedRun
from rlmods.run.settings import Override
from rlmods.training.collate import collate
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
class Draw:
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
    draws: list[Draw] = field(default_factory=list)

    def rewards(self, scores: Scores, scaled: Sequence[float | None]) -> Scores:
        self.scaled.append(scaled)
        return super().rewards(scores, scaled)

    def estimate(self, batch: Experience, scores: Scores, penalty: Tensor) -> Experience:
        self.draws.append(Draw(batch, scores, self.scaled[-1], penalty))
        return super().estimate(batch, scores, penalty)


class SampledEarlierError(Exception):
    """The iteration trains on responses that were sampled before the repeated iterations."""


class GradientOnly:
    """Module for a `TrainStep` that keeps loss and gradient of the policy, and makes no step."""

    def __init__(self, learner: Any) -> None:
        self.learner, self.loss = learner, 0.0
        self.gradient: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def optimizers(self) -> GradientOnly:
        return self

    def zero_grad(self) -> None:
        self.learner.optimizers().zero_grad()

    def manual_backward(self, loss: Tensor) -> None:
        self.loss += float(loss.detach())
        self.learner.manual_backward(loss)

    def step(self) -> None:
        parameters = [p for p in self.learner.policy.parameters() if p.requires_grad]
        self.gradient = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).flatten().double().clone()
                for p in parameters
            ]
        )


class ObservedStep(TrainStep):
    """Optimizer step before which `observer` is called with its rows."""

    observer: Any = None

    def __call__(self, rows: Any, loss: Loss, *more: tuple[Any, Loss]) -> None:
        self.observer(rows, loss, *more)
        super().__call__(rows, loss, *more)


class Comparison(Extension):
    """Computes loss and gradient of each combination at one optimizer step of an iteration. The
    run's own combination is the first."""

    def __init__(
        self, combinations: Sequence[Combination], iteration: int, step: int | None
    ) -> None:
        self.combinations, self.iteration, self.step = combinations, iteration, step
        self.responses: list[Sequence[Response]] = []
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
        loop.credit = self.credit = RecordedCredit(loop.advantage)
        loop.step = ObservedStep(
            loop, loop.ranks, loop.microbatches, loop.meter, loop.timer, loop.batch
        )
        loop.step.observer = self.on_step

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        self.responses.append(responses)

    def before_update(self, batch: Experience) -> Experience:
        if self.loop.iteration + 1 == self.iteration:
            self.minibatches = self.loop.minibatches(len(batch))
            self.step = len(self.minibatches) if self.step is None else self.step
            if not 1 <= self.step <= len(self.minibatches):
                raise UserError(
                    f"step={self.step}: the iteration makes {len(self.minibatches)} optimizer steps"
                )
            self.batch = batch
        return batch

    def _estimate(self, advantage: Any) -> Experience:
        """Return the rows of the iteration with the advantages of another estimator.

        Raises:
            SampledEarlierError: the rewards of some rows have not been recorded.
        """
        credit, batch, draws = CreditAssignment(advantage), self.batch, []
        for draw, responses in zip(self.credit.draws, self.responses, strict=True):
            rewards = credit.rewards(draw.scores, draw.scaled)
            rows = collate(
                responses,
                rewards,
                draw.batch.group.cpu(),
                policy_version=0,
                pad_id=self.loop.policy.pad_id,
            )
            rows = rows.to(draw.batch.tokens.device)
            rows = replace(
                draw.batch, rewards=rows.rewards, mask=rows.mask & draw.batch.mask, steps=rows.steps
            )
            draws.append(credit.estimate(rows, draw.scores, draw.penalty))
        every = Experience.concat(draws)
        found = {key: i for i, key in enumerate(_keys(every))}
        if not all(key in found for key in _keys(batch)):
            raise SampledEarlierError
        rows, width = (
            every.select(torch.tensor([found[key] for key in _keys(batch)])),
            batch.tokens.shape[1],
        )
        returns = None if rows.returns is None else _widen(rows.returns, width)
        rows = replace(
            batch,
            advantages=_widen(rows.advantages, width),
            mask=batch.mask & _widen(rows.mask, width),
            returns=returns,
        )
        return credit.normalize(rows)

    def on_step(self, rows: Experience, loss: Loss, *more: tuple[Any, Loss]) -> None:
        """Called before each optimizer step."""
        if self.loop.iteration + 1 != self.iteration:
            return
        self.num_steps += 1
        if self.num_steps != self.step:
            return
        indices = self.minibatches[self.num_steps - 1]
        for combination in self.combinations:
            result: dict[str, Any] = {
                "overrides": list(combination.overrides),
                "reason": combination.reason,
            }
            if combination.reason is None:
                try:
                    result |= self._compare(combination, rows, indices, loss, *more)
                except UserError as error:
                    result["reason"] = str(error)
            self.results.append(result)
        keys = _keys(self.batch)
        self.rows = [{"group": keys[i][0], "response": keys[i][1]} for i in indices.tolist()]

    def _compare(
        self,
        combination: Combination,
        rows: Experience,
        indices: Tensor,
        loss: Loss,
        *more: Any,
    ) -> dict[str, Any]:
        """Return the columns of a combination. Cosine and distance are None if the run's own
        gradient is zero or not finite.

        Raises:
            UserError: the parts do not fit the rows, no token has a loss, or loss or gradient is
            not finite.
        """
        width, signs = rows.tokens.shape[1], rows.advantages.sign()
        if (advantage := combination.parts.get("advantage")) is not None:
            if id(advantage) not in self.estimates:
                self.estimates[id(advantage)] = self._estimate(advantage)
            other = self.estimates[id(advantage)].select(indices)
            returns = None if other.returns is None else _widen(other.returns, width)
            rows = replace(
                rows,
                advantages=_widen(other.advantages, width),
                mask=rows.mask & _widen(other.mask, width),
                returns=returns,
            )
            self.credit.check(
                rows, combination.parts.get("ratio", self.loop.ratio), self.loop.ranks
            )
        elif "ratio" in combination.parts:
            self.credit.check(rows, combination.parts["ratio"], self.loop.ranks)
        module, meter = GradientOnly(self.loop), Meter(self.loop.device)
        batch = replace(self.loop.batch, max_norm=torch.inf, max_nonfinite=2)
        with self._replaced(combination.parts, meter), torch.random.fork_rng(), torch.enable_grad():
            TrainStep(
                module, self.loop.ranks, self.loop.microbatches, meter, self.loop.timer, batch
            )(rows, loss, *more)
        metrics, mask = meter.compute(), rows.mask
        if module.gradient is None:
            raise UserError(
                "no token has a loss" if not mask.any() else "loss or gradient is not finite"
            )
        gradient = module.gradient
        if combination is self.combinations[0]:
            self.own_gradient = gradient
        own = torch.zeros_like(gradient) if self.own_gradient is None else self.own_gradient
        norms = gradient.norm() * own.norm()
        return {
            "loss": module.loss,
            "grad_norm": float(gradient.norm()),
            "cosine": float(gradient @ own / norms) if norms else None,
            "distance": float((gradient - own).norm() / own.norm()) if own.norm() else None,
            "clipped_low": metrics.get("train/clip_fraction/low"),
            "clipped_high": metrics.get("train/clip_fraction/high"),
            "advantage": float(rows.advantages[mask].abs().mean()),
            "sign_changes": float((rows.advantages.sign() != signs)[mask].double().mean()),
            "credit": [
                equal_runs(*row)
                for row in zip(rows.advantages.tolist(), mask.tolist(), strict=True)
            ],
        }

    @contextmanager
    def _replaced(self, parts: Mapping[str, Any], meter: Meter) -> Iterator[None]:
        """Replace parts and metrics of the loop inside the block."""
        new = {"meter": meter, "kl_stats": self.loop.kl_stats.clone()} | {
            group: parts[group] for group in parts if group != "advantage"
        }
        old = {name: getattr(self.loop, name) for name in new}
        try:
            for name, value in new.items():
                setattr(self.loop, name, value)
            yield
        finally:
            for name, value in old.items():
                setattr(self.loop, name, value)


class StopAfter(L.Callback):
    """Ends training after an iteration, and keeps its metrics and the rows of its sample log."""

    def __init__(self, iteration: int) -> None:
        self.iteration, self.metrics, self.samples = (
            iteration,
            dict[str, float](),
            list[dict[str, Any]](),
        )

    def on_iteration_end(
        self, trainer: L.Trainer, learner: Any, metrics: Mapping[str, float]
    ) -> None:
        if learner.iteration >= self.iteration:
            self.metrics, self.samples, trainer.should_stop = (
                dict(metrics),
                list(learner.samples),
                True,
            )


def _keys(batch: Experience) -> list[tuple[int, int]]:
    """Return the group and the index in the group of each row."""
    seen, keys = Counter[int](), []
    for group in batch.group.tolist():
        keys.append((group, seen[group]))
        seen[group] += 1
    return keys


def _widen(x: Tensor, width: int) -> Tensor:
    """Return the first `width` columns; those that are missing are 0. All columns that hold tokens
    are among them."""
    return pad(x, (0, width - x.shape[1]))


def _confirms(override: str) -> bool:
    """Return whether an override is of a setting of the run that reaches beyond the process, which
    is used only if it is typed."""
    key = Override.parse(override).key
    return override == TRUST or key.rpartition(".")[2] in (*REACHING, "tools")


def combinations(
    typed: Sequence[str], saved: Path, spec: RunSpec, confirmed: Sequence[str] = ()
) -> list[Combination]:
    """Return the run's own combination and those of the options typed.

    Args:
        confirmed: overrides of settings of the run that are used only if they are typed.

    Raises:
        UserError: an unknown option or setting, another group than `GROUPS`, too many combinations.
    """
    axes = [_values(override, spec) for override in typed]
    products = (
        list(itertools.islice(itertools.product(*axes), MAX_COMBINATIONS + 1)) if axes else []
    )
    if len(products) > MAX_COMBINATIONS:
        raise UserError(f"more than {MAX_COMBINATIONS} combinations: type fewer options")
    parts: dict[tuple[str, ...], tuple[DictConfig, Any]] = {}
    # The data have been checked with the run's own parts, so that a few rows are enough here.
    train, val = (split[: spec.batch.prompts] for split in (spec.splits.train, spec.splits.val))
    small = replace(spec, splits=replace(spec.splits, train=train, val=val))
    rules = [rule for rule in RULES if first_problem(small, [rule]) is None]
    found = [Combination(())]
    for overrides in products:
        config, new = copy.deepcopy(spec.config), dict[str, Any]()
        for group in GROUPS:
            own = tuple(override for override in overrides if _group(override) == group)
            if own and own not in parts:
                node = configuration((*confirmed, *own), saved=saved, run_keys=RUN_KEYS)[group]
                parts[own] = node, instantiate(node, group)
            if own and parts[own][0] != spec.config[group]:
                config[group], new[group] = parts[own]
        options = dict(
            override.lstrip("+").split("=", 1)
            for override in overrides
            if override.lstrip("+").split("=")[0] in GROUPS
        )
        candidate = replace(
            small, config=config, parts={**spec.parts, **new}, choices={**spec.choices, **options}
        )
        found.append(Combination(overrides, new, _reason(candidate, spec, new, rules)))
    return found


def _values(override: str, spec: RunSpec) -> list[str]:
    """Return `key=value` for each value of an override."""
    try:
        parsed = OverridesParser.create().parse_override(override)
        values = (
            list(itertools.islice(parsed.sweep_string_iterator(), MAX_COMBINATIONS + 1))
            if parsed.is_sweep_override()
            else None
        )
    except HydraException as error:
        raise UserError(
            f"{override}: {one_line(error)}: type group=option,option or key=value,value"
        ) from error
    if (group := _group(override)) not in GROUPS:
        if group not in spec.config:
            raise UserError(f"{override}: no such group; {suggest(group, GROUPS)}")
        raise UserError(
            f"{override}: {group} cannot be compared on the responses of a run, only "
            f"{', '.join(GROUPS)}: to go on training with it, type "
            f"python train.py ... fork=RUN@ITERATION {override}"
        )
    return [override] if values is None else [f"{parsed.key_or_group}={value}" for value in values]


def _group(override: str) -> str:
    return override.lstrip("+~").split("=")[0].split(".")[0]


def _reason(
    candidate: RunSpec, spec: RunSpec, parts: Mapping[str, Any], rules: Sequence[Rule]
) -> str | None:
    """Return why these parts cannot be used on the rows of the run, None if they can."""
    problem = first_problem(candidate, rules)
    if problem is not None:
        return problem
    for group, part in parts.items():
        if hasattr(part, "load_state_dict"):
            return f"{group} has a state of earlier iterations, which the run did not keep"
    own, other = spec.parts, parts
    if (
        needs_of(other.get("advantage"), AdvantageNeeds).greedy
        and not needs_of(own["advantage"], AdvantageNeeds).greedy
    ):
        return "advantage needs greedy responses, which the run did not sample"
    if "ratio" in other and (
        needs_of(other["ratio"], RatioNeeds).temperature
        != needs_of(own["ratio"], RatioNeeds).temperature
    ):
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
    starts = [
        *(
            path
            for number, path in reversed(list_checkpoints(run / "checkpoints"))
            if number < iteration
        ),
        None,
    ]
    for checkpoint in starts:
        try:
            return _repeat(run, saved, checkpoint, iteration, typed, step)
        except SampledEarlierError:
            continue
    raise UserError(f"iteration {iteration} trains on responses sampled before the run began")


def _config_file(run: Path, iteration: int) -> Path:
    """Return the file with the settings of an iteration: `config.yaml`, or that of the last time
    the run was resumed before it."""
    resumed = (
        (re.fullmatch(r"config\.resumed_(\d{6,9})\.yaml", path.name), path)
        for path in run.glob("config.resumed_*.yaml")
    )
    before = [
        (int(match[1]), path)
        for match, path in resumed
        if match and int(match[1]) < iteration and path.is_file()
    ]
    return max(before)[1] if before else run / "config.yaml"


def _repeat(
    run: Path,
    saved: Path,
    checkpoint: Path | None,
    iteration: int,
    typed: Sequence[str],
    step: int | None,
) -> dict[str, Any]:
    if checkpoint is not None:
        verify(checkpoint)
    confirmed = [override for override in typed if _confirms(override)]
    config = configuration(confirmed, saved=saved, run_keys=RUN_KEYS)
    config.callbacks, config.logger = {}, {}
    spec = compose.run_spec(config, {})
    if not issubclass(spec.algorithm, PolicyGradient):
        raise UserError(f"algo={config.algo.name} samples no responses to compare parts on")
    if not 1 <= iteration <= config.trainer.max_iterations:
        raise UserError(
            f"iteration {iteration}: the run has iterations 1 to {config.trainer.max_iterations}"
        )
    loaded = build.load(spec)
    ranks = build.num_ranks(spec, loaded.config)
    if ranks > 1:
        raise UserError(f"the run has {ranks} processes: only runs of one can be repeated")
    options = [override for override in typed if override not in confirmed]
    comparison, stop = (
        Comparison(combinations(options, saved, spec, confirmed), iteration, step),
        StopAfter(iteration),
    )
    learner = loaded.learner
    learner.add_extension(comparison)
    learner.validate = lambda: None  # type: ignore[method-assign]
    trainer = build.trainer(loaded.config, [stop])
    with warnings.catch_warnings():
        # the callbacks of the run have nothing to do here
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`")
        trainer.fit(learner, datamodule=loaded.data(), ckpt_path=checkpoint, weights_only=True)
    if not comparison.results:
        made = comparison.num_steps
        raise UserError(
            f"iteration {iteration} made {made} optimizer steps"
            + (f": type step={made}" if made else ", there is none to compare")
        )
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
    logged = [(row.get("id"), row.get("tokens"), row.get("reward")) for row in read_rows(path)]
    return sum(
        (x["id"], list(x["tokens"]), x["reward"]) == y
        for x, y in zip(samples, logged, strict=False)
    )


def table(result: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    equal, grad_norm = result["num_equal_responses"], result["grad_norm"]
    lines = [
        f"{result['run']}, iteration {result['iteration']}, optimizer step {result['step']} "
        f"of {result['num_steps']}, "
        f"repeated from iteration {result['repeated_from']}",
        "no sample log to compare with"
        if equal is None
        else f"{equal} of {result['num_responses']} responses are those of the sample log",
        f"mean gradient norm of the iteration {_number(grad_norm['repeated'])}, of the run "
        f"{_number(grad_norm['run'])}",
        "",
    ]
    if (equal is not None and equal < result["num_responses"]) or not _close(**grad_norm):
        lines[-1:] = [
            "this is not the run's iteration: code, versions or processor differ (python -m "
            "rlmods.diff says which)",
            "",
        ]
    names = [" ".join(row["overrides"]) or "as in the run" for row in result["rows"]]
    width = max(map(len, names))
    header = ("loss", "grad norm", "cosine", "clip low", "clip high", "|A|", "sign changes")
    lines.append(" " * width + "".join(f"{name:>14}" for name in header))
    for name, row in zip(names, result["rows"], strict=True):
        cells = (
            "".join(f"{_number(row[column]):>14}" for column in COLUMNS)
            if row["reason"] is None
            else f"  refused: {row['reason']}"
        )
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines)


def _close(repeated: float | None, run: float | None) -> bool:
    """Return whether two gradient norms are equal up to rounding; True if the run has logged
    none."""
    return run is None or (repeated is not None and abs(repeated - run) <= 1e-6 * abs(run))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def main(arguments: Sequence[str]) -> None:
    command(arguments, __doc__, lambda: _action(list(arguments)))


def _action(arguments: list[str]) -> str:
    usage = (
        "type: python -m rlmods.whatif RUN ITERATION [group=option,option] [step=N] [--json FILE]"
    )
    file: Path | None = None
    if "--json" in arguments:
        i = arguments.index("--json")
        if i + 1 == len(arguments):
            raise UserError(usage)
        file = Path(arguments[i + 1]).expanduser()
        del arguments[i : i + 2]
    steps = [x.removeprefix("step=") for x in arguments if x.startswith("step=")]
    if len(arguments) < 2 or not arguments[1].isdecimal() or not all(x.isdecimal() for x in steps):
        raise UserError(usage)
    typed = [x for x in arguments[2:] if not x.startswith("step=")]
    result = whatif(
        Path(arguments[0]).expanduser(), int(arguments[1]), typed, int(steps[-1]) if steps else None
    )
    if file is not None:
        atomic_write(file, dumps(result) + "\n")
    return table(result)


if __name__ == "__main__":
    main(sys.argv[1:])
