"""Compare parts on an iteration of a run: `python -m rlmods.whatif RUN ITERATION
[group=option,option] [step=N] [--prompt ID] [--json FILE]`.

The iteration is repeated from the newest checkpoint before it: responses depend on seed, prompt and
sample only, so they repeat exactly. At one optimizer step, the last one or `step=N`, the loss
and its gradient are computed with every combination of the options given, from `ratio`,
`advantage`, `aggregation`, `correction` and `tokens`, on the weights and rows of the run. Nothing
is written to RUN. Settings of a run that reach beyond the process, such as the `url` of a judge,
are used only if you type them too, or `--trust`.

    python -m rlmods.whatif runs/a 12 ratio=symmetric,clip_higher,sequence advantage=rloo,group_norm

`--prompt ID` also prints the responses to a prompt as `rlmods.show` does. Below each turn are
advantage and selected tokens with every combination, the run's own first. The selection is of the
optimizer step: responses that are not in it have none.

Columns: loss of the optimizer step, with all its terms; norm of the policy's gradient, not clipped;
its cosine to the run's own; fraction of tokens that the ratio clips, where it is below (low) and
above (high) its range; mean absolute advantage of a token; fraction of tokens whose advantage has
another sign than in the run."""

import sys

from rlmods.errors import Parser, UserError, counted, print_usage, suggest

print_usage(__name__, __doc__)

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import Tensor

from rlmods.algo import PolicyGradient
from rlmods.cli.command import TRUST, command, configuration
from rlmods.config import build, compose
from rlmods.config.instantiate import instantiate
from rlmods.config.rules import RULES, first_problem
from rlmods.config.run_spec import RunSpec
from rlmods.critic.loss import clip_range
from rlmods.lab.credit import TokenTexts
from rlmods.lab.show import whole_lines
from rlmods.lab.tree import groups
from rlmods.needs import AdvantageNeeds, RatioNeeds, needs_of
from rlmods.run import atomic_write, dumps
from rlmods.run.checkpoints import (
    find_fork,
    find_resume,
    list_checkpoints,
    read_iteration,
    verify,
)
from rlmods.run.resume import recorded_resume
from rlmods.run.saved import SavedRun, check_run, read_config
from rlmods.run.settings import REACHING, Override
from rlmods.training.credit import CreditAssignment
from rlmods.training.extensions.base import Extension
from rlmods.training.meter import Meter
from rlmods.training.parts import TokenSelection, controllers_in
from rlmods.types import Experience, Response, Scores, widen

GROUPS = ("ratio", "advantage", "aggregation", "correction", "tokens")
"""Groups whose parts can be compared on the responses and weights of a run."""
NOT_OF_RUN = ("callbacks", "logger", "run_dir", "resume", "fork")
RUN_KEYS = tuple(key for key in compose.TOP_LEVEL_KEYS if key not in NOT_OF_RUN)
"""Settings that are taken from the run."""
UNSCORED = "the run leaves out responses to prompts whose greedy response is unscored"
COLUMNS = {
    "loss": "loss",
    "grad_norm": "grad norm",
    "cosine": "cosine",
    "clipped_low": "clip low",
    "clipped_high": "clip high",
    "advantage": "|A|",
    "sign_changes": "sign changes",
}
"""Heading of each column."""


@dataclass(frozen=True)
class Combination:
    """Parts in place of the run's."""

    overrides: tuple[str, ...]
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Parts by group, without those that are equal to the run's."""
    reason: str | None = None
    """Why the parts do not fit the run; None: they do."""


class SampledEarlierError(Exception):
    """The iteration trains on responses that were sampled before the repeated iterations."""


class Comparison(Extension):
    """Computes loss and gradient of each combination at one optimizer step of an iteration, by the
    loop's own methods with other parts. The run's own combination is the first."""

    def __init__(
        self,
        combinations: Sequence[Combination],
        iteration: int,
        step: int,
        prompt: str | None = None,
    ) -> None:
        self.combinations = combinations
        self.iteration = iteration
        self.step = step
        self.prompt = prompt
        """Id of the prompt whose responses are shown."""
        self.num_steps = 0
        """Optimizer steps of the iteration so far."""
        usable = [x.parts for x in combinations if x.reason is None and "advantage" in x.parts]
        self.sampled: dict[int, list[Experience]] = {id(x["advantage"]): [] for x in usable}
        """Rows of each batch of prompts as another estimator gets them, by its identity."""
        self.estimators = {id(x["advantage"]): x["advantage"] for x in usable}
        self.refused: dict[int, str] = {}
        """Why an estimator, by its identity, does not fit what was sampled."""
        self.results: list[dict[str, Any]] = []
        self.grad_norm: float | None = None
        """Mean gradient norm of the iteration."""

    def attach(self, loop: Any) -> None:
        super().attach(loop)
        self.policy_gradient: PolicyGradient = loop
        self.train_step = loop.train_step
        loop.train_step = self.on_step

    def with_parts(self, parts: Mapping[str, Any]) -> PolicyGradient:
        """Return a shallow copy of the loop with these parts and metrics of its own. The loop stays
        as it is."""
        loop = copy.copy(self.policy_gradient)
        loop.trainer = self.policy_gradient.trainer  # which a copy of a LightningModule lacks
        loop.set_ratio(parts.get("ratio", loop.ratio))
        loop.aggregation = parts.get("aggregation", loop.aggregation)
        loop.correction = parts.get("correction", loop.correction)
        loop.tokens = TokenSelection(parts.get("tokens", loop.tokens.part))
        loop.credit = CreditAssignment(parts.get("advantage", loop.advantage))
        loop.reward_scale = copy.deepcopy(loop.reward_scale)
        loop.kl_stats = loop.kl_stats.clone()
        loop.meter = Meter(loop.device)
        loop.sample_log = self.policy_gradient.sample_log.of_prompt(self.prompt)
        return loop

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        prompts = [x.prompt for x in responses[:: self.policy_gradient.batch.samples]]
        for key, advantage in self.estimators.items():
            loop = self.with_parts({"advantage": advantage})
            rows = loop.build_batch(prompts, responses, scores)
            try:
                self.sampled[key].append(loop.estimate_advantages(rows, scores))
            except UserError as error:
                self.refused[key] = str(error)

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        if self.policy_gradient.iteration >= self.iteration:
            self.grad_norm = metrics.get("train/grad_norm")
            self.policy_gradient.trainer.should_stop = True
            if metrics.get("train/greedy_unscored_fraction"):
                # responses without a greedy baseline have no loss in the run
                for combination, row in zip(self.combinations, self.results, strict=False):
                    if "advantage" in combination.parts:
                        row["reason"] = combination.reason or UNSCORED

    def before_update(self, batch: Experience) -> Experience:
        self.fresh = batch
        return batch

    def on_step(self, rows: Experience, *more: Any) -> None:
        """Compare the combinations at the optimizer step that is about to be made with `rows`."""
        if self.policy_gradient.iteration + 1 == self.iteration:
            self.num_steps += 1
            if self.num_steps == self.step:
                self.compare(rows, *more)
        self.train_step(rows, *more)

    def compare(self, rows: Experience, *more: Any) -> None:
        """Compute the results of all combinations.

        Raises:
            UserError: loss or gradient of the run itself is not finite, no token has a loss, or
                there are no responses to the prompt.
        """
        known = {row["id"] for row in self.policy_gradient.samples}
        if self.prompt is not None and self.prompt not in known:
            raise UserError(f"--prompt {self.prompt}: {suggest(self.prompt, known)}")
        _, own_gradient = self.gradient(self.with_parts({}), rows, *more)
        for combination in self.combinations:
            columns: dict[str, Any] = {}
            reason = combination.reason
            if reason is None:
                try:
                    columns = self.columns(combination.parts, own_gradient, rows, *more)
                except UserError as error:
                    reason = str(error)
            overrides = list(combination.overrides)
            self.results.append({"overrides": overrides, "reason": reason} | columns)

    def columns(
        self, parts: Mapping[str, Any], own_gradient: Tensor, rows: Experience, *more: Any
    ) -> dict[str, Any]:
        """Return the columns of a combination; NaN for the cosine to a gradient of 0.

        Raises:
            UserError: the parts do not fit the rows, no token has a loss, or loss or gradient is
                not finite.
            SampledEarlierError: an estimator has not seen some rows.
        """
        loop = self.with_parts(parts)
        signs = rows.advantages.sign()
        fresh = self.fresh
        if "advantage" in parts:
            if id(parts["advantage"]) in self.refused:
                raise UserError(self.refused[id(parts["advantage"])])
            sampled = Experience.concat(self.sampled[id(parts["advantage"])])
            fresh = loop.normalize_advantages(with_credit(fresh, sampled))
            rows = with_credit(rows, fresh)
            if loop.critic is not None and fresh.returns is not None:
                clip = loop.critic_config.clip
                loop.value_clip = clip_range(fresh.returns, fresh.mask, clip)
        loop.credit.check(rows, loop.ratio_needs.level, loop.ranks)
        loop.sample_log.set_advantages(fresh, loop.credit.weights)
        loop.sample_log.add_selection(rows, rows.mask)  # unless `tokens` selects others
        loss, gradient = self.gradient(loop, rows, *more)
        loop.sample_log.set_trained()
        norm = gradient.norm()
        metrics = loop.meter.compute()
        mask = rows.mask
        return {
            "loss": loss,
            "grad_norm": float(norm),
            "cosine": float(gradient @ own_gradient / (norm * own_gradient.norm())),
            "distance": float((gradient - own_gradient).norm() / own_gradient.norm()),
            "clipped_low": metrics.get("train/clip_fraction/low"),
            "clipped_high": metrics.get("train/clip_fraction/high"),
            "advantage": float(rows.advantages[mask].abs().mean()),
            "sign_changes": float((rows.advantages.sign() != signs)[mask].double().mean()),
            "samples": loop.sample_log.rows,
        }

    def gradient(self, loop: PolicyGradient, rows: Experience, *more: Any) -> tuple[float, Tensor]:
        """Return loss and gradient of an optimizer step, which is not made.

        Raises:
            UserError: no token has a loss, or loss or gradient is not finite.
        """
        if not rows.mask.any():
            raise UserError("no token has a loss")
        step = self.policy_gradient.step
        loop.zero_grad()
        rows = loop.select_tokens(rows)
        with torch.random.fork_rng():
            losses = step.accumulate(step.sources((rows, loop.loss), *more))
        gradients = []
        for weight in loop.policy.parameters():
            if weight.requires_grad:
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                gradients.append(grad.flatten().double())
        gradient = torch.cat(gradients)
        if step.scaling is not None:
            gradient /= step.scaling.scale
        loop.zero_grad()
        loss = sum(float(micro.value) for micro in losses)
        if not torch.tensor([loss, float(gradient.norm())]).isfinite().all():
            raise UserError("loss or gradient is not finite")
        return loss, gradient


def with_credit(rows: Experience, other: Experience) -> Experience:
    """Return rows with the advantages, the returns and the tokens of the loss that other ones have
    for the same responses.

    Raises:
        SampledEarlierError: a response is not among the other ones.
    """
    position: dict[tuple[int, tuple[int, ...]], int] = {}
    has_loss = other.mask.any(1).tolist()
    for i, key in enumerate(_keys(other)):
        # of equal responses, `sampling` may have left out all but one
        if has_loss[i] or key not in position:
            position[key] = i
    keys = _keys(rows)
    if not set(keys) <= position.keys():
        raise SampledEarlierError
    other = other.select(torch.tensor([position[key] for key in keys]))
    width = rows.tokens.shape[1]
    return replace(
        rows,
        advantages=widen(other.advantages, width),
        mask=rows.mask & widen(other.mask, width),
        returns=widen(other.returns, width),
        term_advantages=widen(other.term_advantages, width),
    )


def _keys(rows: Experience) -> list[tuple[int, tuple[int, ...]]]:
    """Return the group and the tokens of each row. Equal responses of a group have equal rewards,
    and so equal advantages."""
    keys = []
    columns = (rows.group.tolist(), rows.tokens.tolist(), rows.lengths.tolist())
    for group, tokens, length in zip(*columns, strict=True):
        keys.append((group, tuple(tokens[:length])))
    return keys


def combinations(
    typed: Sequence[str], saved: Path, spec: RunSpec, of_run: Sequence[str]
) -> list[Combination]:
    """Return the run's own combination, and each combination of the options typed.

    Args:
        of_run: overrides of settings of the run (`_is_of_run`).

    Raises:
        UserError: an unknown option or setting, or another group than `GROUPS`.
    """
    for override in typed:
        group = Override.parse(override).top
        if group not in spec.config:
            raise UserError(f"{override}: no such group; {suggest(group, GROUPS)}")
        if group not in GROUPS:
            raise UserError(
                f"{override}: {group} cannot be compared on the responses of a run, only "
                f"{', '.join(GROUPS)}: to go on training with it, type "
                f"python train.py ... fork=RUN@ITERATION {override}"
            )
    members: list[list[str]] = []
    if typed:
        grid = OverridesParser.create().parse_overrides(list(typed))
        [members] = BasicSweeper.split_arguments(grid, max_batch_size=None)
    # the data have been checked with the run's own parts, so that a few rows are enough here
    num_rows = spec.batch.prompts
    few = replace(spec.splits, train=spec.splits.train[:num_rows], val=spec.splits.val[:num_rows])
    small = replace(spec, splits=few)
    rules = [rule for rule in RULES if first_problem(small, [rule]) is None]
    made: dict[str, Any] = {}
    found = [Combination(())]
    for overrides in members:
        config = configuration((*of_run, *overrides), saved=saved, run_keys=RUN_KEYS)
        parts = {}
        for group in GROUPS:
            node = config[group]
            if node != spec.config[group]:
                parts[group] = made.setdefault(f"{group}: {node}", instantiate(node, group))
        choices = dict(spec.choices)
        for option in map(Override.parse, overrides):
            choices[option.key] = str(option.value)
        candidate = replace(small, parts={**spec.parts, **parts}, choices=choices)
        reason = first_problem(candidate, rules) or _reason(parts, spec)
        found.append(Combination(tuple(overrides), parts, reason))
    return found


def _is_of_run(override: str) -> bool:
    """Return whether an override is of a setting of the run that reaches beyond the process, or
    trusts them all."""
    name = Override.parse(override).key.rpartition(".")[2]
    return override == TRUST or name in (*REACHING, "tools")


def _reason(parts: Mapping[str, Any], spec: RunSpec) -> str | None:
    """Return why parts that fit together cannot be used on the rows of the run, None if they
    can."""
    for group, part in parts.items():
        if controllers_in(part, group):
            return f"{group} has a state of earlier iterations, which the run did not keep"
    if needs_of(parts.get("advantage"), AdvantageNeeds).greedy:
        return "advantage needs greedy responses, which the run did not sample"
    if "advantage" in parts and spec.settings.replay_fraction:
        return "replayed rows have the advantages of the run's own estimator"
    if "ratio" in parts:
        sampled = spec.parts["rollout"].temperature
        own = needs_of(spec.parts["ratio"], RatioNeeds).temperature or sampled
        if (needs_of(parts["ratio"], RatioNeeds).temperature or sampled) != own:
            return "ratio needs log-probabilities of another temperature than the run's"
    return None


def whatif(
    run: Path,
    iteration: int,
    typed: Sequence[str],
    step: int | None = None,
    prompt: str | None = None,
) -> dict[str, Any]:
    """Return the comparison: `rows`, the run's own combination first, and how exactly the iteration
    was repeated. `samples` of a row are the responses to `prompt` with their credit.

    Raises:
        UserError: a user's mistake, or a run that cannot be repeated.
    """
    check_run(run)
    # the settings of an iteration: of the last time the run was resumed before it
    resumed = sorted(run.glob("config.resumed_*.yaml"))
    earlier = [path for path in resumed if int(path.stem.rpartition("_")[2]) < iteration]
    saved = [run / "config.yaml", *earlier][-1]
    for checkpoint in _starts(run, iteration):
        try:
            return _repeat(run, saved, checkpoint, iteration, typed, step, prompt)
        except SampledEarlierError:
            continue
    raise UserError(f"iteration {iteration} trains on responses sampled before the run began")


def _starts(run: Path, iteration: int) -> Iterator[Path | None]:
    """Yield the checkpoints that an iteration can be repeated from: the ones of the run, the newest
    first, and the one that the run was forked or resumed from. None: the run began from scratch.

    Raises:
        UserError: the run began after the iteration, or what it began from is gone.
    """
    for number, path in reversed(list_checkpoints(run / "checkpoints")):
        if number < iteration:
            yield path
    fork = read_config(run / "config.yaml").get("fork")
    origin = find_fork(str(fork)) if fork else find_resume(run, recorded_resume(run))
    if origin is not None and read_iteration(origin) >= iteration:
        raise UserError(
            f"iteration {iteration}: the run began from {origin}: give a later iteration, or "
            f"{origin.parents[1]}"
        )
    yield origin


def _repeat(
    run: Path,
    saved: Path,
    checkpoint: Path | None,
    iteration: int,
    typed: Sequence[str],
    step: int | None,
    prompt: str | None,
) -> dict[str, Any]:
    """Repeat an iteration from a checkpoint, and return the comparison."""
    if checkpoint is not None:
        verify(checkpoint)
    of_run = [override for override in typed if _is_of_run(override)]
    options = [override for override in typed if override not in of_run]
    config = configuration(of_run, saved=saved, run_keys=RUN_KEYS)
    config.callbacks = {}
    config.logger = {}
    spec = compose.run_spec(config, SavedRun(run).parts)
    if not issubclass(spec.algorithm, PolicyGradient):
        raise UserError(f"algo={config.algo.name} samples no responses to compare parts on")
    length = config.trainer.max_iterations
    if not 1 <= iteration <= length:
        raise UserError(f"iteration {iteration}: the run has iterations 1 to {length}")
    num_steps = spec.batch.epochs * spec.batch.minibatches
    step = num_steps if step is None else step
    if not 1 <= step <= num_steps:
        raise UserError(f"step={step}: the iteration makes {counted(num_steps, 'optimizer step')}")
    found = combinations(options, saved, spec, of_run)
    comparison = Comparison(found, iteration, step, prompt)
    loaded = build.load(spec)
    ranks = build.num_ranks(spec, loaded.config)
    if ranks > 1:
        raise UserError(f"the run has {ranks} processes: only runs of one can be repeated")
    learner: Any = loaded.learner
    learner.extensions.insert(0, comparison)  # before those that add rows
    comparison.attach(learner)
    learner.validate = lambda: None
    trainer = build.trainer(loaded.config)
    with warnings.catch_warnings():
        # the callbacks of the run have nothing to do here
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`")
        trainer.fit(learner, datamodule=loaded.data(), ckpt_path=checkpoint, weights_only=True)
    if not comparison.results:
        raise UserError(
            f"iteration {iteration} made only {counted(comparison.num_steps, 'optimizer step')}"
        )
    recorded = dict(SavedRun(run).series("train/grad_norm"))
    return {
        "run": str(run),
        "iteration": iteration,
        "step": step,
        "num_steps": num_steps,
        "repeated_from": 0 if checkpoint is None else int(checkpoint.stem.split("_")[1]),
        "grad_norm": {"repeated": comparison.grad_norm, "run": recorded.get(iteration)},
        "rows": comparison.results,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the comparison as text."""
    repeated = result["grad_norm"]["repeated"]
    run = result["grad_norm"]["run"]
    lines = [
        f"{result['run']}, iteration {result['iteration']}, optimizer step {result['step']} of "
        f"{result['num_steps']}, repeated from iteration {result['repeated_from']}",
        f"mean gradient norm of the iteration {_number(repeated)}, of the run {_number(run)}",
    ]
    is_close = run is None or (repeated is not None and abs(repeated - run) <= 1e-6 * abs(run))
    if not is_close:
        lines.append(
            "this is not the run's iteration: code, versions or processor differ (python -m "
            "rlmods.diff says which)"
        )
    names = list(map(_name, result["rows"]))
    width = max(map(len, names))
    lines += ["", " " * width + "".join(f"{name:>14}" for name in COLUMNS.values())]
    for name, row in zip(names, result["rows"], strict=True):
        cells = f"  refused: {row['reason']}"
        if row["reason"] is None:
            cells = "".join(f"{_number(row[column]):>14}" for column in COLUMNS)
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines)


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(row["overrides"]) or "as in the run"


def drawing(result: Mapping[str, Any]) -> str:
    """Return the responses to the prompt with the credit of each combination that the run could
    train with."""
    decode = TokenTexts(Path(result["run"]))
    usable = [row for row in result["rows"] if row["reason"] is None]
    names = list(map(_name, usable))
    lines: list[str] = []
    for occurrence in zip(*[groups(row["samples"]) for row in usable], strict=True):
        lines += whole_lines(dict(zip(names, occurrence, strict=True)), decode)
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def main(arguments: Sequence[str]) -> None:
    command(lambda: _action(arguments))


def _action(arguments: Sequence[str]) -> str:
    parser = Parser("whatif", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("iteration", type=int, metavar="ITERATION")
    parser.add_argument("overrides", nargs="*", metavar="group=option,option")
    parser.add_argument("--prompt", metavar="ID")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(TRUST, action="store_true")
    parsed = parser.parse_intermixed_args(arguments)
    step = None
    typed = [TRUST] if parsed.trust else []
    for override in parsed.overrides:
        if not override.startswith("step="):
            typed.append(override)
        elif override.removeprefix("step=").isdecimal():
            step = int(override.removeprefix("step="))
        else:
            raise UserError(f"{override}: type step=N, the number of an optimizer step")
    result = whatif(parsed.run.expanduser(), parsed.iteration, typed, step, parsed.prompt)
    if parsed.json is not None:
        atomic_write(parsed.json.expanduser(), dumps(result) + "\n")
    shown = table(result)
    return shown if parsed.prompt is None else f"{shown}\n\n{drawing(result)}"


if __name__ == "__main__":
    main(sys.argv[1:])
