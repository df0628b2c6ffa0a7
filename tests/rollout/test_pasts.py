"""Keys and values of earlier turns are kept, and what is sampled stays the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from rlmods.branching import Entropy
from rlmods.policy import Policy
from rlmods.rollout import Local, MultiTurn
from rlmods.rollout.cache import GrowingLayer, Past
from rlmods.rollout.decode import Decoded, decode
from rlmods.types import Response
from tests.rollout.models import TinyPolicy, gpt2, llama, mistral
from tests.support.environments import Chat, Echo, forgetful
from tests.support.tiny_setup import SPLITS, policy

NONE: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
NEVER = TinyPolicy(llama(), eos=())


def uniforms(num_rows: int, steps: int, seed: int) -> torch.Tensor:
    return torch.rand(
        num_rows, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def run(
    model: Any,
    prompts: Sequence[list[int]],
    pasts: Sequence[Past | None] | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Decoded:
    """Sample up to 6 ids after each prompt."""
    options = (
        {"limits": [6] * len(prompts), "uniforms": uniforms(len(prompts), 6, seed)} | NONE | options
    )
    return decode(
        model.eval(),
        prompts,
        pasts=None if pasts is None else list(pasts),
        forward_cost=0,
        **options,
    )


def assert_equal(ours: Decoded, expected: Decoded) -> None:
    assert torch.equal(ours.lengths, expected.lengths)
    for row, length in enumerate(ours.lengths.tolist()):
        assert torch.equal(ours.tokens[row, :length], expected.tokens[row, :length])
        torch.testing.assert_close(
            ours.logprobs[row, :length], expected.logprobs[row, :length], atol=1e-5, rtol=0
        )


class Shapes:
    """Counts the ids that a model processes in forwards of more than one id."""

    def __init__(self, model: Any) -> None:
        self.num_ids = 0
        self.hook = model.model.base_model.register_forward_pre_hook(self.add, with_kwargs=True)

    def add(self, module: Any, args: Any, kwargs: Any) -> None:
        rows, width = kwargs["input_ids"].shape
        self.num_ids += rows * width * (width > 1)


@pytest.mark.parametrize("model", [llama, gpt2])
@pytest.mark.parametrize("seed", range(5))
class TestDecode:
    def test_goes_on_over_several_turns(self, model: Any, seed: int) -> None:
        """Rows of different lengths, which end at different steps and have padding between their
        ids."""
        random, made = Random(seed), TinyPolicy(model(), eos=range(40, 52))
        contexts = [
            [random.randrange(3, 40) for _ in range(random.randint(1, 9))] for _ in range(7)
        ]
        pasts: list[Past | None] = [None] * 7
        for turn in range(4):
            found = run(made, contexts, pasts, seed=turn, keep=[True] * 7)
            assert_equal(found, run(made, contexts, seed=turn))
            for row, context in enumerate(contexts):
                said = found.tokens[row, : found.lengths[row]].tolist()
                past = found.pasts[row]
                assert past is not None
                assert past.ids == [*context, *said[:-1]]
                context += [*said, *(random.randrange(3, 40) for _ in range(random.randint(0, 4)))]
            pasts = found.pasts

    def test_ids_in_common_are_enough(self, model: Any, seed: int) -> None:
        """As for a branch that leaves a response within a turn, for a response that was cut, and
        for one without keys and values."""
        random, made = Random(seed), TinyPolicy(model())
        contexts = [[random.randrange(3, 40) for _ in range(8)] for _ in range(6)]
        pasts = run(made, contexts, keep=[True] * 6).pasts
        others = [[*context[: random.randint(0, 8)], 50, *context[:2]] for context in contexts]
        pasts[3] = None
        assert_equal(run(made, others, pasts), run(made, others))

    def test_samples_of_a_prompt_go_on_from_their_own(self, model: Any, seed: int) -> None:
        made = TinyPolicy(model(), eos=())
        first = run(made, [[5, 6, 7], [8, 9]], keep=[True, False], uniforms=uniforms(6, 6, seed))
        assert [past is None for past in first.pasts] == [False] * 3 + [True] * 3
        contexts = [[5, 6, 7, *first.tokens[row].tolist(), 10] for row in range(3)]
        assert_equal(run(made, contexts, first.pasts[:3]), run(made, contexts))


class TestCost:
    def test_only_new_ids_are_processed(self) -> None:
        contexts = [[5, 6, 7, 8], [9, 10]]
        found = run(NEVER, contexts, keep=[True, True])
        contexts = [
            [*context, *found.tokens[row].tolist(), 11, 12] for row, context in enumerate(contexts)
        ]
        shapes = Shapes(NEVER)
        run(NEVER, contexts, found.pasts)
        shapes.hook.remove()
        # the last sampled one, which no forward has read, and two new ones
        assert shapes.num_ids == 2 * 3

    def test_a_row_with_a_longer_rest_than_equal_beginnings_leave_is_processed_anew(self) -> None:
        begin = list(range(5, 25))
        past = run(NEVER, [[5, 6]], keep=[True]).pasts[0]
        shapes = Shapes(NEVER)
        run(NEVER, [[*begin, 30], [*begin, 31]], [past, None], beginnings=[20, 20])
        shapes.hook.remove()
        assert shapes.num_ids == 20

    def test_the_memory_is_free_while_tokens_are_sampled(self) -> None:
        pasts = run(NEVER, [[5, 6], [7]], keep=[True, True]).pasts
        seen: list[int] = []
        decode(
            NEVER.eval(),
            [[5, 6, 7], [7, 8]],
            [3, 3],
            uniforms(2, 3, 0),
            pasts=pasts,
            on_step=lambda *_: seen.append(len(pasts)),
            **NONE,
        )
        assert seen == [0, 0, 0]

    def test_padding_is_finite(self) -> None:
        """Attention multiplies it by 0."""
        layer = GrowingLayer(9)
        layer.restore([(torch.ones(1, 3, 2), torch.ones(1, 3, 2)), None], [3, 0])
        assert layer.keys.shape == (2, 1, 3, 2)
        assert not layer.keys[1].any()
        assert torch.isfinite(layer.buffers[0]).all()


def test_models_with_sliding_windows_keep_nothing() -> None:
    assert run(TinyPolicy(mistral()), [[5, 6, 7]], keep=[True]).pasts == [None]


def sample(
    environment: Any, model: Policy, branching: Any = None, **settings: Any
) -> list[Response]:
    rollout = MultiTurn(
        Local(**{"max_tokens": 6, "temperature": 2.0} | settings), environment, branching
    )
    rollout.sync(model, iteration=0)
    return rollout.generate(SPLITS.train[:3], samples=4, iteration=0)


CASES = {
    "turns": (Echo(least=3, max_turns=4), False, None),
    "cuts": (Chat(), True, None),
    "branches": (Echo(least=2), False, Entropy(num_initial=1, tau=-math.inf)),
}


@pytest.mark.parametrize("case", CASES)
class TestTurns:
    def test_responses_are_those_without(self, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        environment, forgets, rule = CASES[case]
        model = forgetful(policy()) if forgets else policy()
        ours = sample(environment, model, rule)
        kept, keep = [], Local._decode_batch

        def forget(self: Local, made: Policy, batch: Any, *args: Any) -> Any:
            kept.extend(context.past for context in batch)
            for context in batch:
                context.past = None
            return keep(self, made, batch, *args)

        monkeypatch.setattr(Local, "_decode_batch", forget)
        expected = sample(environment, model, rule)
        assert [r.tokens for r in ours] == [r.tokens for r in expected]
        assert [r.cuts for r in ours] == [r.cuts for r in expected]
        for r, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(
                r.behavior_logprobs, other.behavior_logprobs, atol=1e-4, rtol=0
            )
        assert any(past is not None for past in kept)
        assert any(r.cuts for r in ours) == forgets
        assert any(r.branch for r in ours) == (rule is not None)

    @pytest.mark.parametrize("batch_size", [2, 4, 256])
    def test_are_kept_of_as_many_rows_as_are_sampled_at_once(
        self, case: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment, forgets, rule = CASES[case]
        most, contexts = [], MultiTurn._contexts

        def count(self: MultiTurn, batch: Any, active: Any) -> Any:
            before = sum(row.past is not None for row in active)
            made = contexts(self, batch, active)
            after = sum(row.past is not None for row in active)
            most.append(
                (before, after + sum(len(context.samples) for context in made if context.keep))
            )
            return made

        monkeypatch.setattr(MultiTurn, "_contexts", count)
        sample(
            environment, forgetful(policy()) if forgets else policy(), rule, batch_size=batch_size
        )
        assert max(after for _, after in most) <= batch_size
        if rule is None:
            assert max(before for before, _ in most) <= batch_size


def test_nothing_is_kept_of_last_turns_and_of_responses_that_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: dict[int, Any] = {}
    contexts = MultiTurn._contexts

    def watch(self: MultiTurn, batch: Any, active: Any) -> Any:
        rows.update((id(row), row) for row in active)
        made = contexts(self, batch, active)
        assert not any(
            context.keep and len(own[0].trajectory.turns) + 1 == self.environment.max_turns
            for own, context in zip(batch, made, strict=True)
        )
        assert not any(row.past is not None for row in rows.values() if row.done)
        return made

    monkeypatch.setattr(MultiTurn, "_contexts", watch)
    sample(Echo(least=1, max_turns=3), policy())
    assert len(rows) == 12
    assert not any(row.past is not None for row in rows.values())
