"""Equal beginnings of contexts are processed once, and what is sampled stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.rollout.agreement import sampler_gap
from rlmods.rollout.cache import shared_levels
from rlmods.rollout.decode import Decoded, decode
from rlmods.rollout.encoding import Context
from tests.rollout.models import TinyPolicy, gpt2, llama, mistral
from tests.support.tiny_setup import policy as tiny_policy

A, B = [5, 6, 7, 8, 9, 10], [11, 12, 13]
PROMPTS = [[*A, 20], [*B, 21, 22, 23], [*A, 24, 25, 26, 27], [*B, 28], [*A, 29, 30]]
BEGINNINGS = [6, 3, 6, 3, 6]
STEPS = 6


def run(policy: Any, beginnings: Sequence[int] | None, samples: int = 1) -> tuple[Decoded, int]:
    """Return what is sampled, and the number of ids that were processed before the first token."""
    shapes: list[tuple[int, int]] = []
    base = policy.model.base_model
    hook = base.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    uniforms = torch.rand(
        len(PROMPTS) * samples,
        STEPS,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(3),
    )
    decoded = decode(
        policy.eval(),
        PROMPTS,
        [STEPS] * len(PROMPTS),
        uniforms,
        beginnings=beginnings,
        forward_cost=0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
    )
    hook.remove()
    return decoded, sum(rows * width for rows, width in shapes if width > 1)


@pytest.mark.parametrize("model", [llama, gpt2])
@pytest.mark.parametrize("samples", [1, 3])
class TestDecode:
    def test_samples_are_those_of_whole_prompts(self, model: Any, samples: int) -> None:
        policy = TinyPolicy(model())
        (ours, _), (whole, _) = run(policy, BEGINNINGS, samples), run(policy, None, samples)
        assert torch.equal(ours.lengths, whole.lengths)
        for row, length in enumerate(ours.lengths.tolist()):
            assert torch.equal(ours.tokens[row, :length], whole.tokens[row, :length])
            torch.testing.assert_close(
                ours.logprobs[row, :length], whole.logprobs[row, :length], atol=1e-5, rtol=0
            )

    def test_beginnings_are_processed_once(self, model: Any, samples: int) -> None:
        policy = TinyPolicy(model())
        assert run(policy, None, samples)[1] == 5 * 10
        assert run(policy, BEGINNINGS, samples)[1] == 2 * 6 + 5 * 4


class TestFallback:
    def test_models_with_sliding_windows_process_whole_prompts(self) -> None:
        policy = TinyPolicy(mistral())
        (ours, size), (whole, _) = run(policy, BEGINNINGS), run(policy, None)
        assert size == 5 * 10
        assert torch.equal(ours.tokens, whole.tokens)

    def test_nothing_to_share(self) -> None:
        assert run(TinyPolicy(llama()), [6, 4, 7, 3, 2])[1] == 5 * 10


class TestLevels:
    """What is processed once."""

    def test_nothing_of_a_single_prompt(self) -> None:
        assert shared_levels([[1, 2, 3]], [2], 0) == []

    def test_what_all_prompts_begin_with(self) -> None:
        assert shared_levels([[1, 2, 3, 4], [1, 2, 5]], [0, 0], 0) == [[2, 2]]

    def test_an_id_of_every_prompt_is_left(self) -> None:
        assert shared_levels([[1, 2, 3], [1, 2, 3, 4]], [0, 0], 0) == [[2, 2]]

    def test_what_some_prompts_begin_with(self) -> None:
        assert shared_levels(PROMPTS, BEGINNINGS, 0) == [BEGINNINGS]

    def test_both(self) -> None:
        system = list(range(30, 60))
        prompts = [[*system, *prompt] for prompt in PROMPTS]
        lengths = [30 + length for length in BEGINNINGS]
        assert shared_levels(prompts, lengths, 0) == [[30] * 5, lengths]

    def test_few_ids_are_not_worth_a_forward(self) -> None:
        assert shared_levels(PROMPTS, BEGINNINGS, 30) == []
        assert shared_levels(PROMPTS, BEGINNINGS) == []

    @pytest.mark.parametrize("seed", range(20))
    def test_samples_of_random_trees(self, seed: int) -> None:
        random = Random(seed)
        tree = [[random.randrange(20, 60)] * random.randint(0, 3)]
        for _ in range(12):
            tree.append(
                [
                    *random.choice(tree),
                    *(random.randrange(20, 60) for _ in range(random.randint(1, 4))),
                ]
            )
        prompts = [prompt for prompt in random.choices(tree, k=7) if prompt] or [[20]]
        beginnings = [random.randint(0, len(prompt)) for prompt in prompts]
        assert_as_alone(prompts, beginnings, seed)

    def test_whole_prompts_that_others_begin_with(self) -> None:
        assert_as_alone([A, B, [*A, 20], [*B, 21]], [6, 3, 6, 3])


def assert_as_alone(prompts: Sequence[list[int]], beginnings: Sequence[int], seed: int = 0) -> None:
    """Check that what follows each prompt is what follows it in a batch of its own."""
    policy = TinyPolicy(llama()).eval()
    uniforms = torch.rand(
        len(prompts), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    limits = [3] * len(prompts)
    ours = decode(
        policy,
        prompts,
        limits,
        uniforms,
        beginnings=beginnings,
        forward_cost=0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
    )
    for row, prompt in enumerate(prompts):
        alone = decode(
            policy, [prompt], [3], uniforms[row : row + 1], temperature=1.0, top_p=1.0, top_k=0
        )
        length = int(alone.lengths)
        assert int(ours.lengths[row]) == length
        assert torch.equal(ours.tokens[row, :length], alone.tokens[0, :length])
        torch.testing.assert_close(
            ours.logprobs[row, :length], alone.logprobs[0, :length], atol=1e-5, rtol=0
        )


def test_a_model_that_reads_the_padding_between_is_found() -> None:
    """Positions by slot, as of ALiBi in some models, are those of training without padding only."""
    policy = tiny_policy()
    assert sampler_gap(policy, PROMPTS, BEGINNINGS) < 5e-6
    forward = policy.model.base_model.forward

    def by_slot(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        first = 0 if cache is None else cache.get_seq_length()
        if first and kwargs["input_ids"].shape[1] > 1:
            kwargs["position_ids"] = torch.arange(first, first + kwargs["input_ids"].shape[1])[None]
        return forward(*args, **kwargs)

    policy.model.base_model.forward = by_slot
    assert sampler_gap(policy, PROMPTS, BEGINNINGS) > 2e-5


class TestShared:
    @pytest.mark.parametrize(
        ("tokens", "num_shared"),
        [([1, 2, 3], 2), ([1, 2, 3, 4], 3), ([1, 2, 9, 4], 2), ([9, 2, 3], 0), ([1, 2], 1)],
        ids=["the prompt", "a later turn", "after a cut", "another beginning", "shorter"],
    )
    def test_ids_of_the_prompt(self, tokens: list[int], num_shared: int) -> None:
        prompt: Any = SimpleNamespace(tokens=[1, 2, 3])
        assert Context(prompt, tokens, [0], 4).num_shared == num_shared
