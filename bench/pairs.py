"""Run every pair of options of different groups for two iterations and check what must hold:
`python -m bench.pairs OUT.json`.

    python -m bench.pairs OUT.json [--triples | --wide] [--only advantage ratio] [--jobs 1/2]

A pair is refused when composing (with its message), or trained on a random model and held against
these properties:

* trains: at least one optimizer step, and the weights move.
* flat: equal rewards in every group move no weight, if the advantage compares the responses to one
  prompt.
* sign: the first update with negated rewards has a negative inner product with the update itself.
* swap: the update differs from that with the group's default option.
* credit: exchanging the advantages of a response's tokens changes the update, if the advantage
  differs between tokens.

Without further options, the groups are those of the loss (`CORE`). `--wide` pairs each of them, and
each other, with the groups of `WIDE`, where a reward's own scores are kept and a number that
differs between responses is added to them. `--triples` runs sampling x advantage x kl. `--jobs I/N`
runs every N-th case, starting with the I-th. Cases in OUT.json are not run again."""

import argparse
import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlmods.cli.console import silence_libraries
from rlmods.config import build
from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds, needs_of
from rlmods.reward.scores import as_scores
from rlmods.types import Response, Scores
from tests.reward import models
from tests.support import tiny_setup
from tests.support.composed import CONF, composed

BASE = (
    "algo=policy_gradient",
    "policy.pretrained=false",
    "policy.hidden_size=16",
    "policy.num_layers=1",
    "rollout.max_tokens=6",
    "data.num_train=16",
    "data.num_val=2",
    "data.level=1",
    "batch.prompts=4",
    "batch.samples=4",
    "batch.minibatches=2",
    "batch.max_norm=inf",
    "validation.every=null",
    "sampling=fixed",
    "ratio=none",
    "kl=none",
    "advantage=group_norm",
    "aggregation=token_mean",
    "correction=none",
    "critic=none",
)
DEFAULTS = {
    "advantage": "group_norm",
    "ratio": "none",
    "kl": "none",
    "aggregation": "token_mean",
    "sampling": "fixed",
    "critic": "none",
    "correction": "none",
    "reward": "accuracy",
    "adapter": "none",
    "reference": "policy",
    "schedule": "constant",
}
"""Groups of the sweep, with the option that `swap` compares with."""
WIDE = ("reward", "adapter", "reference", "schedule")
CORE = ("advantage", "ratio", "kl", "correction", "aggregation", "sampling", "critic")
PROCESS = (
    "reward=process",
    "reward.terms.process.reward.model={process}",
    "reward.terms.process.reward.separator=a",
    "batch.prompts=16",
)
SHIFTED = ("rollout._target_=tests.correction.rollouts.Shifted",)
GYM = ("data=reasoning_gym", "data.chat=false", "data.num_train=16", "data.num_val=2")
ROWS = ("data=jsonl", "data.train={rows}", "data.num_val=2")
COMPANIONS: dict[str, tuple[str, ...]] = {
    "advantage=gae": ("critic=separate",),
    "advantage=gae_whitened": ("critic=separate",),
    "advantage=n_step": ("critic=separate",),
    "advantage=accept": ("ratio=log_likelihood",),
    "advantage=process": PROCESS,
    "advantage=process_outcome": (*PROCESS, "+reward@reward.terms.length.reward=length"),
    "ratio=dppo": ("ratio.low=0.0005", "ratio.high=0.0005"),
    "ratio=cispo": ("ratio.high=0.01",),
    **dict.fromkeys(("correction=none", "correction=truncated", "correction=masked"), SHIFTED),
    "critic=separate": ("advantage=gae",),
    "critic=shared": ("advantage=gae",),
    "aggregation=fixed_length": ("aggregation.length=6",),
    "sampling=best_of": ("batch.samples=4",),
    "reward=process": PROCESS,
    "reward=neural": ("reward.terms.neural.reward.model={neural}",),
    "reward=preference": ("+judge@reward.judge=rule",),
    "reward=ensemble": (
        "+reward@reward.rewards.length=length",
        "+reward@reward.rewards.accuracy=accuracy",
    ),
    "reward=regex": ("reward.pattern=a",),
    "reward=by_source": (
        "data=mixture",
        "+data@data.sources.sums=arithmetic",
        "+reward@reward.rewards.sums=accuracy",
        "data.sources.sums.num_train=16",
        "data.sources.sums.num_val=2",
    ),
    "reward=task": GYM,
    "reward=task_score": GYM,
    "reward=code": ROWS,
    "reward=json": ROWS,
    "reward=tool_call": ROWS,
    "reference=model": ("reference.name={policy}",),
}
"""Options without which an option is refused, by option; left out where the pair sets the group
itself."""
LARGE = 5.0
"""Learning rate of the updates that are compared: the second minibatch of an iteration has ratios
outside of every clip range."""
UNSIGNED = {
    "advantage=accept": "accepted responses are imitated, with either sign of the others",
    "advantage=max_rl": "negative rewards are refused",
    "sampling=best_of": "other responses are selected",
}
SAME_UPDATE = {
    "schedule": "schedules differ after the first iterations",
    "reward": "random text earns the same from many rewards",
    "reference": "without a KL divergence no reference is used",
}
"""Groups whose options make the same update here, with the reason."""
SAME_ROWS = {"advantage=process": "no group of a process reward is flat"}
"""Options with which `sampling=dynamic` selects the same rows as `sampling=fixed` here, with the
reason."""


def options(group: str) -> list[str]:
    return [path.stem for path in sorted((CONF / group).glob("*.yaml"))]


def pairs(groups: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the pairs of options of different groups as overrides."""
    for first, second in combinations(groups, 2):
        yield from (
            (f"{first}={a}", f"{second}={b}") for a, b in product(options(first), options(second))
        )


def overrides(pair: Sequence[str]) -> list[str]:
    """Return all overrides of a case: the base, the companions that the pair does not set itself,
    and the pair."""
    typed, groups = [], {option.split("=")[0] for option in pair}
    for option in pair:
        typed += [x for x in COMPANIONS.get(option, ()) if x.split("=")[0] not in groups]
    groups |= {x.split("=")[0] for x in typed}
    base = [
        x
        for x in BASE
        if x.split("=")[0] not in groups and not ("data" in groups and x.startswith("data."))
    ]
    return [x.format_map(Files()) if "{" in x else x for x in (*base, *typed, *pair)]


class Files(dict[str, str]):
    """Files that options name, by their names in `COMPANIONS`. Made when first used."""

    def __missing__(self, name: str) -> str:
        return file(name)


@cache
def file(name: str) -> str:
    """Return the path of a model with random weights ("policy", or a reward model: "neural",
    "process") or of a data set ("rows")."""
    folder = Path(tempfile.mkdtemp(prefix="pairs-"))
    if name == "policy":
        models.reader().export(folder)
        return str(folder)
    if name != "rows":
        kind = {"kind": name} if name == "process" else {}
        return str(models.save(folder, **kind))
    row = {
        "answer": "4",
        "tests": ["assert f(2) == 4"],
        "schema": {"type": "object"},
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ],
    }
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row | {"prompt": f"{i}+{i}="}) + "\n" for i in range(16))
    )
    return str(folder / "rows.jsonl")


def parity(responses: Sequence[Response], sign: float = 1.0) -> Scores:
    """Score 1 for an even first token, else 0, plus a little for each token, so that the score
    differs between most responses."""
    correct = [r.tokens[0] % 2 == 0 for r in responses]
    values = [
        float(c) + 0.01 * (sum(r.tokens) % 7) for c, r in zip(correct, responses, strict=True)
    ]
    return Scores(
        [sign * v for v in values], correct=correct if sign > 0 else [not c for c in correct]
    )


class Varied:
    """The configured reward with a number added to each score, so that scores differ between
    responses. Correctness is that of `parity`, if the reward reports it: random text is never
    correct."""

    def __init__(self, reward: Any, sign: float = 1.0) -> None:
        self.reward = reward
        self.sign = sign

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reward, name)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores = as_scores(self.reward(responses), len(responses), "reward")
        added = parity(responses, self.sign)
        values = [
            None if v is None or a is None else self.sign * v + a
            for v, a in zip(scores, added, strict=True)
        ]
        return replace(
            scores, values=values, correct=None if scores.correct is None else added.correct
        )


def constant(_: Any) -> Any:
    """Replace a reward by `flat`."""
    return flat


def varied(reward: Any, *, sign: float = 1.0, own: bool) -> Any:
    """Replace a reward by `parity`, or add it to the reward's `own` scores."""
    return Varied(reward, sign) if own else partial(parity, sign=sign)


def flat(responses: Sequence[Response]) -> Scores:
    """Score every response 1; half of them count as correct, so that filters keep the groups."""
    return Scores([1.0] * len(responses), correct=[i % 2 == 0 for i in range(len(responses))])


@cache
def cached(*typed: str) -> Any:
    """Return the checked configuration. Parts may have a state: copy it before use."""
    return composed(*typed)


def update(
    typed: Sequence[str],
    reward: Callable[[Any], Any] | None = None,
    *,
    lr: float = 0.05,
    iterations: int = 2,
    edit: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, int]:
    """Train with plain gradient descent. Returns the change of the weights and the number of
    optimizer steps.

    Args:
        reward: maps the configured reward to the one that is used.
        edit: maps advantages and mask [N, T] to other advantages before each optimizer step.
    """
    made = copy.deepcopy(cached(*typed))
    run = build.load(made)
    learner: Any = run.learner
    learner.optimizer = partial(torch.optim.SGD, lr=lr)
    learner.policy.eos_ids = frozenset(range(25))
    if reward is not None:
        learner.reward = reward(learner.reward)
    if edit is not None:
        step = learner.train_step
        learner.train_step = lambda rows, *more: step(
            replace(rows, advantages=edit(rows.advantages, rows.mask)), *more
        )
    before = torch.cat([p.detach().flatten().clone() for p in learner.policy.parameters()])
    tiny_setup.fit(learner, iterations, splits=made.splits)
    after = torch.cat([p.detach().flatten() for p in learner.policy.parameters()])
    return after - before, learner.optimizer_steps


def reverse_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """Exchange the advantages of a row's true slots, the first with the last and so on."""
    edited = advantages.clone()
    for row, slots in zip(edited, mask, strict=True):
        row[slots] = row[slots].flip(0)
    return edited


def check(pair: Sequence[str]) -> dict[str, Any]:
    """Return the result of one case: `refused` with the message, or a value by property: True,
    False, or why it does not apply."""
    typed = overrides(pair)
    try:
        cached(*typed)
    except UserError as error:
        return {"refused": str(error)}
    try:
        result = properties(pair, typed, LARGE)
    except UserError:  # a few combinations diverge
        result = {}
    if result and all(result.values()):
        return result
    try:  # and in a few, the first large step leaves nothing to learn
        return properties(pair, typed, LARGE / 10)
    except UserError as error:
        return result or {"refused while training": str(error)}


def properties(pair: Sequence[str], typed: Sequence[str], lr: float) -> dict[str, Any]:
    """Return the properties of one case, from updates with the learning rate `lr`."""
    by_step = "reward=process" in typed
    custom = (
        None
        if by_step
        else partial(varied, own=any(option.startswith("reward=") for option in typed))
    )
    change, num_steps = update(typed, custom, lr=lr)
    result: dict[str, Any] = {"trains": bool(num_steps > 0 and change.norm() > 0)}
    if not result["trains"]:
        return result
    advantage, groups = (
        cached(*typed).parts["advantage"],
        {option.split("=")[0] for option in pair},
    )
    needs = needs_of(advantage, AdvantageNeeds)
    if needs.group and not needs.steps:
        moved, _ = update(typed, constant)
        # A KL at its minimum has the gradient of rounded log-probabilities.
        result["flat"] = bool(moved.norm() <= (0.0 if "kl=none" in typed else 1e-6))
    if custom is not None:
        reason = next((UNSIGNED[x] for x in typed if x in UNSIGNED), None)
        if reason is None:
            first, negated = (
                update(typed, partial(custom, sign=sign), iterations=1)[0] for sign in (1.0, -1.0)
            )
        result["sign"] = reason or bool(torch.dot(first, negated) < 0)
    for group in sorted(groups & DEFAULTS.keys()):
        own = next(option for option in pair if option.split("=")[0] == group)
        default = f"{group}={DEFAULTS[group]}"
        if own == default:
            continue
        reasons = [
            SAME_UPDATE.get(group),
            *(SAME_ROWS.get(x) for x in pair if own == "sampling=dynamic"),
        ]
        if reason := next(filter(None, reasons), None):
            result[f"swap {group}"] = reason
            continue
        swapped = overrides([default if option == own else option for option in pair])
        try:
            cached(*swapped)
        except UserError as error:
            result[f"swap {group}"] = f"the default is refused: {error}"
        else:
            other, _ = update(swapped, custom, lr=lr)
            result[f"swap {group}"] = bool(
                other.shape != change.shape or (other - change).norm() > 1e-6 * change.norm()
            )
    differs = [False]

    def reverse(advantages: Tensor, mask: Tensor) -> Tensor:
        edited = reverse_tokens(advantages, mask)
        differs[0] |= bool((edited - advantages).abs().max() > 1e-4)
        return edited

    reversed_update, _ = update(typed, custom, lr=lr, edit=reverse)
    if differs[0]:
        result["credit"] = bool((reversed_update - change).norm() > 1e-6 * change.norm())
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--triples", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument(
        "--only",
        nargs="*",
        default=None,
        help="groups of which both options of a pair come, with --wide one",
    )
    parser.add_argument("--jobs", default="1/1")
    settings = parser.parse_args(arguments)
    index, num_jobs = map(int, settings.jobs.split("/"))
    if settings.triples:
        cases = [
            tuple(f"{g}={o}" for g, o in zip(("sampling", "advantage", "kl"), case, strict=True))
            for case in product(options("sampling"), options("advantage"), options("kl"))
        ]
    elif settings.wide:
        wide = set(settings.only or WIDE)
        cases = [
            case
            for case in pairs((*CORE, *WIDE))
            if any(option.split("=")[0] in wide for option in case)
        ]
    else:
        cases = list(pairs(settings.only or CORE))
    results: dict[str, Any] = json.loads(settings.out.read_text()) if settings.out.exists() else {}
    silence_libraries()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for number, case in enumerate(cases):
        name = " ".join(case)
        if number % num_jobs != index - 1 or name in results:
            continue
        results[name] = check(case)
        settings.out.write_text(json.dumps(results, indent=1))
        failed = [key for key, value in results[name].items() if value is False]
        outcome = next((key for key in results[name] if key.startswith("refused")), "right")
        if failed:
            outcome = f"WRONG {', '.join(failed)}"
        print(f"{number + 1}/{len(cases)} {name}: {outcome}", flush=True)
    refused = sum(any(key.startswith("refused") for key in result) for result in results.values())
    wrong = {
        name: [key for key, value in result.items() if value is False]
        for name, result in results.items()
    }
    wrong = {name: keys for name, keys in wrong.items() if keys}
    print(
        f"{len(results)} cases: {refused} refused, {len(results) - refused - len(wrong)} "
        f"right, {len(wrong)} wrong"
    )
    for name, keys in wrong.items():
        print(f"  {name}: {', '.join(keys)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
