"""The in-place cache equals the stock cache bit for bit."""

from collections.abc import Sequence
from functools import wraps
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from rlmods.branching import Entropy
from rlmods.policy import Policy
from rlmods.rollout import Local, MultiTurn, cache
from rlmods.rollout.base import Context
from rlmods.rollout.cache import GrowingLayer, Past, new_cache, restore, shared_levels
from rlmods.rollout.local import Decoded, decode, sampler_gap
from rlmods.types import Response
from tests.rollout.models import TinyPolicy, gpt2, llama, mistral, sample
from tests.support.environments import Chat, Echo, forgetful
from tests.support.tiny_setup import SPLITS, policy as tiny_policy


def test_states_are_written_in_place():
    layer, addresses = GrowingLayer(1000), []
    for _ in range(64):
        keys, _ = layer.update(*torch.randn(2, 1, 1, 1, 2))
        addresses.append(keys.data_ptr())
    assert len(set(addresses)) <= 8  # one per doubling
    assert layer.buffers[0].shape[-2] < 2 * 64


def test_buffers_do_not_grow_beyond_slots():
    layer = GrowingLayer(11)
    for _ in range(11):
        layer.update(*torch.randn(2, 1, 1, 1, 2))
    assert layer.buffers[0].shape[-2] == 11


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("model", [llama, gpt2])
def test_samples_equal_those_of_the_stock_cache(model, autocast, monkeypatch):
    policy = TinyPolicy(model())
    with torch.autocast("cpu", enabled=autocast):
        compare_with_the_stock_cache(policy, monkeypatch)


def compare_with_the_stock_cache(policy, monkeypatch):
    ours = sample(policy)
    assert all(
        isinstance(layer, GrowingLayer) for layer in new_cache(policy.model.config, 8).layers
    )
    monkeypatch.setattr(cache, "new_cache", lambda config, _slots: DynamicCache(config=config))
    stock = sample(policy)
    assert [r.tokens for r in ours] == [r.tokens for r in stock]
    assert [r.behavior_logprobs for r in ours] == [r.behavior_logprobs for r in stock]


@pytest.mark.parametrize("autocast", [False, True])
def test_keys_and_values_have_autocasts_data_type(autocast, monkeypatch):
    """Attention reads them with every token. Keys with rotary positions come in float32."""
    made = []

    def record(config, slots):
        made.append(new_cache(config, slots))
        return made[-1]

    monkeypatch.setattr(cache, "new_cache", record)
    with torch.autocast("cpu", enabled=autocast):
        sample(TinyPolicy(llama()))
    dtypes = {x.dtype for layer in made[-1].layers for x in (layer.keys, layer.values)}
    assert dtypes == {torch.bfloat16 if autocast else torch.float32}


A, B = [5, 6, 7, 8, 9, 10], [11, 12, 13]
PROMPTS = [[*A, 20], [*B, 21, 22, 23], [*A, 24, 25, 26, 27], [*B, 28], [*A, 29, 30]]
BEGINNINGS = [6, 3, 6, 3, 6]


def uniforms(num_rows: int, steps: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_rows, steps, dtype=torch.float64, generator=generator)


def run(
    model: Any,
    prompts: Sequence[list[int]],
    pasts: Sequence[Past | None] | None = None,
    *,
    seed: int = 0,
    steps: int = 6,
    samples: int = 1,
    **options: Any,
) -> tuple[Decoded, int]:
    """Return what is sampled after each prompt, and the number of ids that were processed in
    forwards of more than one id."""
    sizes = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        rows, width = kwargs["input_ids"].shape
        sizes.append(rows * width * (width > 1))

    base = model.eval().model.base_model
    hook = base.register_forward_pre_hook(count, with_kwargs=True)
    decoded = decode(
        model,
        prompts,
        [steps] * len(prompts),
        uniforms(len(prompts) * samples, steps, seed),
        pasts=None if pasts is None else list(pasts),
        **{"forward_cost": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0} | options,
    )
    hook.remove()
    return decoded, sum(sizes)


def assert_equal(ours: Decoded, expected: Decoded) -> None:
    assert torch.equal(ours.lengths, expected.lengths)
    for row, length in enumerate(ours.lengths.tolist()):
        assert torch.equal(ours.tokens[row, :length], expected.tokens[row, :length])
        torch.testing.assert_close(
            ours.logprobs[row, :length], expected.logprobs[row, :length], atol=1e-5, rtol=0
        )


class TestBeginnings:
    @pytest.mark.parametrize("model", [llama, gpt2])
    @pytest.mark.parametrize("samples", [1, 3])
    def test_are_processed_once(self, model: Any, samples: int) -> None:
        made = TinyPolicy(model())
        ours, size = run(made, PROMPTS, samples=samples, beginnings=BEGINNINGS)
        whole, size_of_whole = run(made, PROMPTS, samples=samples)
        assert_equal(ours, whole)
        assert (size, size_of_whole) == (2 * 6 + 5 * 4, 5 * 10)

    def test_models_with_sliding_windows_process_whole_prompts(self) -> None:
        made = TinyPolicy(mistral())
        ours, size = run(made, PROMPTS, beginnings=BEGINNINGS)
        assert size == 5 * 10
        assert torch.equal(ours.tokens, run(made, PROMPTS)[0].tokens)

    def test_nothing_to_share(self) -> None:
        assert run(TinyPolicy(llama()), PROMPTS, beginnings=[6, 4, 7, 3, 2])[1] == 5 * 10


SYSTEM = list(range(30, 60))
LEVELS = {
    "nothing of a single prompt": ([[1, 2, 3]], [2], []),
    "what all prompts begin with": ([[1, 2, 3, 4], [1, 2, 5]], [0, 0], [[2, 2]]),
    "an id of every prompt is left": ([[1, 2, 3], [1, 2, 3, 4]], [0, 0], [[2, 2]]),
    "what some prompts begin with": (PROMPTS, BEGINNINGS, [BEGINNINGS]),
    "both": (
        [[*SYSTEM, *prompt] for prompt in PROMPTS],
        [36, 33, 36, 33, 36],
        [[30] * 5, [36, 33, 36, 33, 36]],
    ),
}


class TestLevels:
    """What is processed once."""

    @pytest.mark.parametrize("case", LEVELS)
    def test_levels(self, case: str) -> None:
        prompts, beginnings, expected = LEVELS[case]
        assert shared_levels(prompts, beginnings, 0) == expected

    def test_few_ids_are_not_worth_a_forward(self) -> None:
        assert shared_levels(PROMPTS, BEGINNINGS, 30) == []
        assert shared_levels(PROMPTS, BEGINNINGS) == []

    @pytest.mark.parametrize("seed", range(20))
    def test_samples_of_random_trees(self, seed: int) -> None:
        random = Random(seed)
        tree = [[random.randrange(20, 60)] * random.randint(0, 3)]
        for _ in range(12):
            more = [random.randrange(20, 60) for _ in range(random.randint(1, 4))]
            tree.append([*random.choice(tree), *more])
        prompts = [prompt for prompt in random.choices(tree, k=7) if prompt] or [[20]]
        beginnings = [random.randint(0, len(prompt)) for prompt in prompts]
        assert_as_alone(prompts, beginnings, seed)


def assert_as_alone(prompts: Sequence[list[int]], beginnings: Sequence[int], seed: int = 0) -> None:
    """Check that what follows each prompt is what follows it in a batch of its own."""
    model = TinyPolicy(llama())
    ours, _ = run(model, prompts, beginnings=beginnings, seed=seed, steps=3)
    numbers = uniforms(len(prompts), 3, seed)
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    for row, prompt in enumerate(prompts):
        alone = decode(model, [prompt], [3], numbers[row : row + 1], **settings)
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

    @wraps(forward)
    def by_slot(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        first = 0 if cache is None else cache.get_seq_length()
        if first and kwargs["input_ids"].shape[1] > 1:
            kwargs["position_ids"] = torch.arange(first, first + kwargs["input_ids"].shape[1])[None]
        return forward(*args, **kwargs)

    policy.model.base_model.forward = by_slot
    assert sampler_gap(policy, PROMPTS, BEGINNINGS) > 2e-5


@pytest.mark.parametrize(
    ("tokens", "num_shared"),
    [([1, 2, 3], 2), ([1, 2, 3, 4], 3), ([1, 2, 9, 4], 2), ([9, 2, 3], 0), ([1, 2], 1)],
    ids=["the prompt", "a later turn", "after a cut", "another beginning", "shorter"],
)
def test_shared_ids_of_the_prompt(tokens: list[int], num_shared: int) -> None:
    prompt: Any = SimpleNamespace(tokens=[1, 2, 3])
    assert Context(prompt, tokens, [0], 4).num_shared == num_shared


NEVER = TinyPolicy(llama(), eos=())


@pytest.mark.parametrize("model", [llama, gpt2])
@pytest.mark.parametrize("seed", range(5))
class TestPasts:
    def test_go_on_over_several_turns(self, model: Any, seed: int) -> None:
        """Rows of different lengths, which end at different steps and have padding between their
        ids."""
        random, made = Random(seed), TinyPolicy(model(), eos=range(40, 52))
        contexts = [random.choices(range(3, 40), k=random.randint(1, 9)) for _ in range(7)]
        pasts: list[Past | None] = [None] * 7
        for turn in range(4):
            found, _ = run(made, contexts, pasts, seed=turn, keep=[True] * 7)
            assert_equal(found, run(made, contexts, seed=turn)[0])
            for row, context in enumerate(contexts):
                said = found.tokens[row, : found.lengths[row]].tolist()
                past = found.pasts[row]
                assert past is not None
                assert past.ids == [*context, *said[:-1]]
                context += [*said, *random.choices(range(3, 40), k=random.randint(0, 4))]
            pasts = found.pasts

    def test_ids_in_common_are_enough(self, model: Any, seed: int) -> None:
        """As for a branch that leaves a response within a turn, for a response that was cut, and
        for one without keys and values."""
        random, made = Random(seed), TinyPolicy(model())
        contexts = [random.choices(range(3, 40), k=8) for _ in range(6)]
        pasts = run(made, contexts, keep=[True] * 6)[0].pasts
        others = [[*context[: random.randint(0, 8)], 50, *context[:2]] for context in contexts]
        pasts[3] = None
        assert_equal(run(made, others, pasts)[0], run(made, others)[0])

    def test_samples_of_a_prompt_go_on_from_their_own(self, model: Any, seed: int) -> None:
        made = TinyPolicy(model(), eos=())
        first, _ = run(made, [[5, 6, 7], [8, 9]], keep=[True, False], samples=3, seed=seed)
        assert [past is None for past in first.pasts] == [False] * 3 + [True] * 3
        contexts = [[5, 6, 7, *first.tokens[row].tolist(), 10] for row in range(3)]
        assert_equal(run(made, contexts, first.pasts[:3])[0], run(made, contexts)[0])


class TestCost:
    def test_only_new_ids_are_processed(self) -> None:
        contexts = [[5, 6, 7, 8], [9, 10]]
        found, _ = run(NEVER, contexts, keep=[True, True])
        for row, context in enumerate(contexts):
            context += [*found.tokens[row].tolist(), 11, 12]
        # the last sampled one, which no forward has read, and two new ones
        assert run(NEVER, contexts, found.pasts)[1] == 2 * 3

    def test_a_row_with_a_longer_rest_than_equal_beginnings_leave_is_processed_anew(self) -> None:
        begin = list(range(5, 25))
        [past] = run(NEVER, [[5, 6]], keep=[True])[0].pasts
        prompts = [[*begin, 30], [*begin, 31]]
        assert run(NEVER, prompts, [past, None], beginnings=[20, 20])[1] == 20

    def test_the_memory_is_free_while_tokens_are_sampled(self) -> None:
        pasts = run(NEVER, [[5, 6], [7]], keep=[True, True])[0].pasts
        seen: list[int] = []
        decode(
            NEVER.eval(),
            [[5, 6, 7], [7, 8]],
            [3, 3],
            uniforms(2, 3, 0),
            pasts=pasts,
            on_step=lambda *_: seen.append(len(pasts)),
            temperature=1.0,
            top_p=1.0,
            top_k=0,
        )
        assert seen == [0, 0, 0]

    def test_padding_is_finite(self) -> None:
        """Attention multiplies it by 0."""
        layer = GrowingLayer(9)
        restore(layer, [(torch.ones(1, 3, 2), torch.ones(1, 3, 2)), None], [3, 0])
        assert layer.keys.shape == (2, 1, 3, 2)
        assert not layer.keys[1].any()
        assert torch.isfinite(layer.buffers[0]).all()


def test_models_with_sliding_windows_keep_nothing() -> None:
    assert run(TinyPolicy(mistral()), [[5, 6, 7]], keep=[True])[0].pasts == [None]


def respond(
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
    "branches": (Echo(least=2), False, Entropy(num_initial=1, tau=-1e9)),
}


@pytest.mark.parametrize("case", CASES)
class TestTurns:
    def test_responses_are_those_without(self, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        environment, forgets, rule = CASES[case]
        model = forgetful(tiny_policy()) if forgets else tiny_policy()
        ours = respond(environment, model, rule)
        kept, keep = [], Local._decode_batch

        def forget(self: Local, made: Policy, batch: Any, *args: Any) -> Any:
            kept.extend(context.past for context in batch)
            for context in batch:
                context.past = None
            return keep(self, made, batch, *args)

        monkeypatch.setattr(Local, "_decode_batch", forget)
        expected = respond(environment, model, rule)
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
        respond(
            environment,
            forgetful(tiny_policy()) if forgets else tiny_policy(),
            rule,
            batch_size=batch_size,
        )
        assert max(after for _, after in most) <= batch_size
        if rule is None:
            assert max(before for before, _ in most) <= batch_size
