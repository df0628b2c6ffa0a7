"""What a part returns is checked where it is called. The loss with a selection of tokens, on responses of several turns with observations, cuts and
branches: against a loop over the tokens of each segment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.advantage import GroupNorm
from rlmods.aggregation import SequenceMean, TokenMean
from rlmods.algo import Batch
from rlmods.branching import Entropy
from rlmods.correction import Truncated
from rlmods.errors import UserError
from rlmods.needs import TokenNeeds
from rlmods.ratio import Unclipped
from rlmods.reward import EnvironmentReward, WeightedSum
from rlmods.rollout import Local, MultiTurn
from rlmods.sampling import Dynamic
from rlmods.tokens import ClipCov, HighEntropy, KLCov, OffPolicy
from rlmods.training.parts import controllers_in, token_draws
from rlmods.types import Credit, Experience, Response
from tests.support.environments import Chat, forgetful
from tests.support.fake_engine import FakeEngine
from tests.support.reference import (
    Field,
    aggregate,
    covariances,
    highest_entropy,
    near_the_sampler,
    true_slots,
)
from tests.support.tiny_setup import (
    close,
    collected,
    fit,
    gradients,
    half_flat,
    learner,
    policy,
)


class Part:
    """A part that returns something wrong."""

    coefficient = 0.1
    where = "loss"

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, x: Any, *more: Any, **options: Any) -> Any:
        return self.make(x)


CASES = [
    ("advantage", lambda x: x, "advantage Part returned Tensor, which has no `advantages`"),
    ("advantage", lambda x: Credit(x[:, :1]), r"advantages must be a float tensor of shape \[16"),
    ("advantage", lambda x: Credit(x / 0.0), "advantages is NaN or infinite on"),
    (
        "advantage",
        lambda x: SimpleNamespace(advantages=x, returns=x[0]),
        "returns must be a float tensor",
    ),
    ("ratio", lambda x: x, "ratio Part returned Tensor, which has no `objective`"),
    ("ratio", lambda x: SimpleNamespace(objective=x, clipped=x), "clipped must be a bool tensor"),
    ("kl", lambda x: x.mean(), "kl Part: the divergence must be a float tensor"),
    ("aggregation", lambda x: x, r"aggregation Part: the loss must be .* shape \[\]"),
    ("aggregation", lambda x: float(x.detach().sum()), "the loss must be .* not float"),
    ("sampling", lambda x: x, "sampling Part: the selection must be a bool tensor"),
    ("sampling", lambda x: None, "not NoneType"),
]


@pytest.mark.parametrize(("group", "make", "message"), CASES)
def test_one_line_names_part_and_field(group: str, make: Any, message: str) -> None:
    with pytest.raises((UserError, TypeError), match=message):
        fit(learner(**{group: Part(make)}), 1)


PARTS = (HighEntropy(0.3), ClipCov(0.2, -0.1, 0.1), KLCov(0.2, 0.7), OffPolicy(0.02))


def moved(tokens: Any, branching: Any = None, **parts: Any) -> tuple[Any, Experience]:
    """Return a learner and rows whose policy has moved since they were sampled."""
    rollout = MultiTurn(Local(max_tokens=16, seed=3), Chat(least=3), branching)
    made = learner(
        policy=forgetful(policy()),
        rollout=rollout,
        reward=EnvironmentReward(),
        batch=Batch(prompts=4, samples=4, token_budget=256),
        advantage=GroupNorm(),
        ratio=Unclipped(),
        tokens=tokens,
        **parts,
    )
    rows = collected(made)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in made.policy.parameters():
            p.add_(torch.randn_like(p) * 0.03)
    return made, rows


def distributions(made: Any, rows: Experience) -> Tensor:
    """log pi [N, T, V] in float64, each segment alone in a forward."""
    out = []
    for i in range(len(rows)):
        cuts = [] if rows.cuts is None else rows.cuts[i].nonzero().flatten().tolist()
        edges = [0, *cuts, int(rows.lengths[i])]
        parts = []
        for begin, end in pairwise(edges):
            logits = made.policy.model(input_ids=rows.tokens[i : i + 1, begin:end]).logits[0]
            before = torch.cat([torch.zeros_like(logits[:1]), logits[:-1]])
            parts.append(before.double().log_softmax(-1))
        missing = rows.tokens.shape[1] - edges[-1]
        parts.append(torch.zeros(missing, parts[0].shape[1], dtype=torch.float64))
        out.append(torch.cat(parts))
    return torch.stack(out)


def slots_of(mask: Tensor) -> set[tuple[int, int]]:
    return {(i, t) for i, ts in enumerate(true_slots(mask)) for t in ts}


def expected_tokens(part: Any, every: Tensor, rows: Experience, step: int) -> set[tuple[int, int]]:
    """The selection, token by token, of an optimizer step with these distributions."""
    logprobs = every.gather(-1, rows.tokens[..., None]).squeeze(-1)
    advantages = rows.advantages.double()
    slots = slots_of(rows.mask)
    if isinstance(part, HighEntropy):
        entropy = -(every.exp() * every).sum(-1)
        return highest_entropy(entropy, rows.mask, part.fraction)
    if isinstance(part, OffPolicy):
        behavior = rows.behavior_logprobs
        return near_the_sampler(logprobs, behavior, advantages, rows.mask, part.threshold)
    of_slots = covariances(logprobs, advantages, rows.mask)
    order = {slot: float(c) for slot, c in of_slots.items() if c > 1e-5}
    if isinstance(part, ClipCov):
        within = [slot for slot, c in of_slots.items() if part.low <= c <= part.high]
        draws = token_draws(rows, step)
        order = {slot: float(draws[slot]) for slot in within}
    count = max(1, int(part.fraction * len(slots)))
    largest = sorted(order.values(), reverse=True)[:count]
    # equal responses have equal numbers
    return slots - {slot for slot, x in order.items() if x >= min(largest) - 1e-5}


def expected_loss(made: Any, rows: Experience, part: Any) -> Tensor:
    """The loss, token by token."""
    every = distributions(made, rows)
    logprobs = every.gather(-1, rows.tokens[..., None]).squeeze(-1)
    slots = slots_of(rows.mask)
    advantages = rows.advantages.double()
    trained = expected_tokens(part, every.detach(), rows, 0)
    assert trained < slots
    objective: Field = {}
    for slot in slots:
        log_ratio = logprobs[slot] - rows.old_logprobs[slot].double()
        full = log_ratio.exp() * advantages[slot]
        if slot in trained:
            objective[slot] = full
        elif isinstance(part, KLCov):
            objective[slot] = full - part.coefficient * log_ratio.abs()
        else:
            objective[slot] = 0 * log_ratio
    num_rows = float(rows.mask.any(1).sum())
    kind = "sequence_mean" if isinstance(made.aggregation, SequenceMean) else "token_mean"
    return -aggregate(kind, objective, float(len(slots)), num_rows)


@pytest.mark.parametrize(
    ("aggregation", "branches"),
    [(TokenMean(), True), pytest.param(SequenceMean(), False, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_equals_the_loop(part: Any, aggregation: Any, branches: bool) -> None:
    """Values of the selection, and gradients of the loss; in several microbatches."""
    rule = Entropy(num_initial=2, tau=-100) if branches else None
    made, rows = moved(part, rule, aggregation=aggregation)
    assert rows.cuts is not None
    assert rows.cuts.any()
    assert (rows.origin is not None) == branches
    found = gradients(made, rows)
    made.policy.zero_grad()
    expected_loss(made, rows, part).backward()
    expected = torch.cat([p.grad.flatten() for p in made.policy.parameters()])
    close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_old_rows_are_selected_by_the_current_policy_and_their_own_sampler(part: Any) -> None:
    """Replayed rows, surplus groups of dynamic sampling, and rows that were sampled ahead."""
    made = learner(
        tokens=part,
        ratio=Unclipped(),
        rollout=FakeEngine(ahead=1),
        sampling=Dynamic(),
        reward=half_flat,
        batch=Batch(prompts=6, samples=2, epochs=2, minibatches=2),
        replay_fraction=0.5,
    )
    step = made.train_step
    ages: set[tuple[int, int]] = set()
    left_out = 0

    def spy(minibatch: Experience, *more: Any) -> None:
        nonlocal left_out
        rows = made.select_tokens(minibatch)
        found = made.tokens(rows, made.scorer.score(rows, made.policy))
        every = distributions(made, rows).detach()
        expected = expected_tokens(part, every, rows, made.optimizer_steps)
        assert {tuple(x) for x in found.nonzero().tolist()} == expected
        left_out += int((rows.mask & ~found).sum())
        versions = zip(rows.policy_version.tolist(), rows.sampler_version.tolist(), strict=True)
        ages.update((made.iteration - graded, graded - sampled) for graded, sampled in versions)
        step(minibatch, *more)

    made.train_step = spy
    fit(made, 4)
    assert left_out > 10
    assert {(0, 1), (1, 1), (2, 1)} <= ages


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_is_the_same_for_packed_and_padded_rows(part: Any) -> None:
    made, rows = moved(part)
    assert made.policy.packs
    packed = gradients(made, rows)
    made.policy.packs = False
    close(gradients(made, rows), packed)


def test_corrections_and_other_terms_are_not_selected() -> None:
    """The correction weighs what is left; entropy bonus and KL are of all tokens."""

    class Nothing:
        def __call__(self, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
            return torch.zeros_like(mask)

    made, rows = moved(Nothing(), entropy_coefficient=0.1, correction=Truncated())
    found = gradients(made, rows)
    flat, _ = moved(None, entropy_coefficient=0.1)
    close(found, gradients(flat, replace(rows, advantages=torch.zeros_like(rows.advantages))))


def test_a_selection_of_the_step_sees_all_its_rows_once() -> None:
    made, rows = moved(None)
    seen = []

    class Spy:
        needs = TokenNeeds(step=True, entropy=True)

        def __call__(
            self, logprobs: Tensor, advantages: Tensor, mask: Tensor, entropy: Tensor
        ) -> Tensor:
            seen.append((logprobs, mask, entropy))
            return mask

    made, rows = moved(Spy())
    gradients(made, rows)
    [(logprobs, mask, entropy)] = seen
    assert torch.equal(mask, rows.mask)
    assert not logprobs.requires_grad
    assert (entropy[mask] > 0).all()


def columns_of(rows: Experience) -> Tensor:
    return torch.arange(rows.tokens.shape[1]).expand_as(rows.tokens)


class TestDraws:
    def test_depend_on_the_row_and_the_step_alone(self) -> None:
        _, rows = moved(None)
        draws = token_draws(rows, 3)
        order = torch.randperm(len(rows))
        assert torch.equal(token_draws(rows.select(order), 3), draws[order])
        garbage = torch.where(columns_of(rows) < rows.lengths[:, None], rows.tokens, 7)
        used = columns_of(rows) < rows.lengths[:, None]
        with_garbage = token_draws(replace(rows, tokens=garbage), 3)
        assert torch.equal(with_garbage[used], draws[used])
        narrow = rows.select(rows.lengths < rows.tokens.shape[1]).trim()
        rest = draws[rows.lengths < rows.tokens.shape[1]]
        assert torch.equal(token_draws(narrow, 3), rest[:, : narrow.tokens.shape[1]])
        other = token_draws(rows, 4)
        assert (other != draws).double().mean() > 0.99

    def test_are_uniform(self) -> None:
        _, rows = moved(None)
        many = torch.cat([token_draws(rows, step).flatten() for step in range(50)])
        counts = torch.histc(many, 10, 0, 1) / len(many)
        assert ((counts - 0.1).abs() < 0.01).all()
        assert abs(float(many[1:].double() @ many[:-1].double()) / len(many) - 0.25) < 0.01


@dataclass
class Running:
    """A part that changes while training."""

    count: int = 0

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]

    def __call__(self, responses: Sequence[Response]) -> list[float]:
        return [0.0] * len(responses)


def test_parts_of_parts_change_while_training_and_are_saved() -> None:
    """A reward of a plugin is always a term of a sum."""
    plain = learner(reward=WeightedSum({"mine": {"reward": Running()}}))
    name = "reward.terms.mine.reward"
    assert set(plain.controllers) == {"entropy_bonus", name}
    fit(plain, 2)
    assert plain.controllers[name].state_dict() == {"count": 2}
    assert plain.checkpoint.state()["parts"][name] == {"count": 2}


def test_parts_are_found_in_lists_and_mappings() -> None:
    part, other = Running(), Running()
    found = controllers_in([{"a": part}, (1, other), "text"], "key")
    assert list(found) == ["key.0.a", "key.1.1"]
    assert list(found.values()) == [part, other]


@dataclass
class Wrapper:
    """A part that keeps another one under a second name."""

    inner: Running
    kind: type = Running
    _bound: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._bound = self.inner


def test_a_part_is_found_once_and_a_class_is_none() -> None:
    assert list(controllers_in(Wrapper(Running()), "key")) == ["key.inner"]
