"""Forwards that compute equal prefixes once and no padding, against forwards of padded rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.adapter import LoRA
from rlmods.ops import kl_divergence
from rlmods.policy import Policy, packing, row_attention
from rlmods.policy.base import DivergenceFrom
from rlmods.policy.gathering import Index, gather
from rlmods.policy.modes import set_dropout
from rlmods.policy.packing import IMPLEMENTATION, Packing
from rlmods.policy.row_attention import MIN_USED
from rlmods.policy.tiny import character_tokenizer
from tests.support.batches import few
from tests.support.models import llama
from tests.support.packed_rows import MODELS, PADDED, RAGGED, groups, policy
from tests.support.trees import forest, forests


def outputs(policy: Policy, tokens: Tensor, mask: Tensor, packs: bool) -> dict[str, Tensor]:
    """Return log-probabilities, entropies, values and the gradient of a weighted sum of them, with
    or without packing."""
    policy.packs = packs
    policy.zero_grad()
    torch.manual_seed(0)
    head = torch.nn.Linear(policy.model.config.hidden_size, 1).to(policy.model.dtype)
    found = policy(tokens, mask, temperature=0.7, entropy=True, value_head=head)
    weights = torch.linspace(-1, 2, tokens.numel()).view(tokens.shape)
    (weights * (found.logprobs + 0.3 * found.entropy + 0.1 * found.values)).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return {
        "logprobs": found.logprobs,
        "entropy": found.entropy,
        "values": found.values,
        "gradient": gradient,
    }


def check_equal(policy: Policy, tokens: Tensor, mask: Tensor, rtol: float = 2e-5) -> None:
    packed, padded = (outputs(policy, tokens, mask, packs) for packs in (True, False))
    assert padded["gradient"].norm() > 1e-3
    for name, expected in padded.items():
        torch.testing.assert_close(
            packed[name],
            expected,
            rtol=0,
            atol=rtol * float(expected.detach().abs().max()),
            msg=name,
        )


class TestEqualsPadded:
    @pytest.mark.parametrize("name", MODELS)
    def test_in_value_and_gradient(self, name: str) -> None:
        made = policy(MODELS[name]())
        assert made.packs
        check_equal(made, *RAGGED)

    @pytest.mark.parametrize("name", ["llama", "gpt2"])
    def test_with_whole_rows_as_queries(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on GPUs."""
        monkeypatch.setattr(row_attention, "attends_whole_rows", lambda device: True)
        assert all(chunk.visible is None for chunk in Packing.of(*RAGGED).attention.chunks)
        check_equal(policy(MODELS[name]()), *RAGGED)
        f = forest(3, num_prompts=4, vocabulary=100)
        check_equal(policy(MODELS[name]()), f.batch.tokens, f.mask)

    @pytest.mark.slow
    @few
    @given(forests)
    def test_of_any_trees(self, drawn: tuple[int, float]) -> None:
        f = forest(*drawn, unscored=0.0, vocabulary=100)
        if f.mask.any():
            check_equal(policy(llama().double()), f.batch.tokens, f.mask, rtol=1e-6)

    def test_log_probabilities_in_a_tree_are_those_of_each_path_alone(self) -> None:
        f, made = forest(3, num_prompts=4, vocabulary=100), policy()
        found = made(f.batch.tokens, f.mask).logprobs
        assert found.abs().max() > 1
        for i, length in enumerate(f.batch.lengths.tolist()):
            alone = made(f.batch.tokens[i : i + 1, :length], f.mask[i : i + 1, :length]).logprobs
            torch.testing.assert_close(found[i : i + 1, :length], alone, rtol=0, atol=1e-5)

    def test_with_the_divergence_from_another_model(self) -> None:
        f, made, other = forest(3, vocabulary=100), policy(), policy(llama(rope_theta=100.0))
        found = []
        for packs in (True, False):
            made.packs = other.packs = packs
            states = other(f.batch.tokens, f.mask, states=True).states
            found.append(
                made(
                    f.batch.tokens,
                    f.mask,
                    other=DivergenceFrom(states, other.output_layer(), kl_divergence),
                ).divergence
            )
        assert found[1].max() > 1e-3
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=2e-5)

    def test_another_model_may_have_seen_other_prompts(self) -> None:
        """As a teacher that is shown demonstrations: its states differ where the tokens of the
        policy do not."""
        tokens, mask = (x[:1].expand(2, -1) for x in RAGGED)
        made, other, found = policy(), policy(llama(rope_theta=100.0)), []
        states = torch.randn(int(mask.sum()), 32, generator=torch.Generator().manual_seed(0))
        for packs in (True, False):
            made.packs = packs
            found.append(
                made(
                    tokens, mask, other=DivergenceFrom(states, other.output_layer(), kl_divergence)
                ).divergence
            )
        assert (found[1][0] - found[1][1]).abs().max() > 1e-3
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=2e-5)

    def test_with_gradient_checkpointing(self) -> None:
        made = policy(gradient_checkpointing=True)
        expected = outputs(policy(), *RAGGED, packs=True)
        made.train()
        for name, x in outputs(made, *RAGGED, packs=True).items():
            torch.testing.assert_close(x, expected[name], rtol=0, atol=0)

    def test_with_an_adapter(self) -> None:
        made = LoRA(rank=4, targets="all-linear")(Policy(llama(), character_tokenizer()))
        for name, x in made.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(x, std=0.1, generator=torch.Generator().manual_seed(0))
        assert made.packs
        check_equal(made, *RAGGED)

    def test_under_autocast_it_is_as_exact(self) -> None:
        exact = outputs(policy(), *RAGGED, packs=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            packed, padded = (outputs(policy(), *RAGGED, packs=packs) for packs in (True, False))
        for name, expected in exact.items():
            errors = [
                float((x[name].float() - expected).detach().norm() / expected.detach().norm())
                for x in (packed, padded)
            ]
            assert errors[0] < 1.5 * errors[1], name

    def test_rows_without_a_scored_token(self) -> None:
        tokens, mask = RAGGED
        some = mask.clone()
        some[[0, 3, 4]] = False
        check_equal(policy(), tokens, some)
        made = policy()
        found = made(tokens, torch.zeros_like(mask)).logprobs
        assert not found.any()
        found.sum().backward()
        assert all(
            p.grad is not None and not p.grad.any() for p in made.model.model.layers.parameters()
        )

    def test_what_no_scored_token_depends_on_may_be_anything(self) -> None:
        tokens, mask = RAGGED
        made, changed = policy(), tokens.clone()
        last = torch.where(mask, torch.arange(mask.shape[1]), 0).amax(1)
        changed[torch.arange(mask.shape[1]) > last[:, None]] = 7
        assert torch.equal(made(tokens, mask).logprobs, made(changed, mask).logprobs)

    def test_the_order_of_the_rows_changes_nothing(self) -> None:
        tokens, mask = RAGGED
        made, order = policy(), torch.arange(len(tokens)).flip(0)
        torch.testing.assert_close(
            made(tokens[order], mask[order]).logprobs,
            made(tokens, mask).logprobs[order],
            rtol=0,
            atol=2e-6,
        )


class TestWork:
    def test_linear_layers_see_prompts_once_and_no_padding(self) -> None:
        made, seen = policy(), []
        made.model.model.layers[0].mlp.register_forward_hook(
            lambda module, args, output: seen.append(args[0].shape[:-1].numel())
        )
        made(*RAGGED)
        # the last token of a response is not read
        assert seen == [(5 + 2 + 8 + 1) + (2 + 8 + 0) + 3 + (1 + 1 + 11 + 5) + 6]

    @few
    @given(forests)
    def test_every_distinct_prefix_is_one_token(self, drawn: tuple[int, float]) -> None:
        """A tree of responses, with tokens of which some are equal by chance. Scored tokens are
        distinct if they end different prefixes."""
        f = forest(*drawn, vocabulary=3)
        tokens, mask = f.batch.tokens.tolist(), f.mask.tolist()
        ends = [max([t for t, scored in enumerate(row) if scored], default=0) for row in mask]
        prefixes = {
            tuple(row[: t + 1]) for row, end in zip(tokens, ends, strict=True) for t in range(end)
        }
        scored = [
            tuple(row[: t + 1])
            for row, at in zip(tokens, mask, strict=True)
            for t, x in enumerate(at)
            if x
        ]
        found = Packing.of(f.batch.tokens, f.mask)
        assert len(found) == max(1, len(prefixes))
        assert len(found.states.entries) == len(found.targets) == len(set(scored))
        prefix_of: dict[int, tuple[int, ...]] = {}
        for i, prefix in zip(found.scored.entries.tolist(), scored, strict=True):
            assert prefix_of.setdefault(i, prefix) == prefix
            assert int(found.targets[i]) == prefix[-1]

    def test_rows_of_similar_lengths_are_attended_together(self) -> None:
        tokens, mask = groups([(1, [length]) for length in (100, 90, 50, 20, 15, 3)])
        assert [
            tuple(chunk.keys.entries.shape) for chunk in Packing.of(tokens, mask).attention.chunks
        ] == [
            (3, 100),
            (2, 20),
            (1, 3),
        ]

    def test_queries_of_a_prompt_are_computed_once(self) -> None:
        chunks = Packing.of(*groups([(30, [11, 11, 11])])).attention.chunks
        assert [tuple(chunk.queries.entries.shape) for chunk in chunks] == [(1, 40), (2, 10)]
        assert [tuple(chunk.keys.entries.shape) for chunk in chunks] == [(1, 40), (2, 40)]

    @given(
        st.lists(
            st.tuples(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=6)),
            min_size=1,
            max_size=6,
        )
    )
    def test_most_queries_are_tokens_of_their_rows_alone(
        self, lengths: list[tuple[int, list[int]]]
    ) -> None:
        rows = Packing.of(*groups(lengths))
        assert MIN_USED * sum(
            chunk.queries.entries.numel() for chunk in rows.attention.chunks
        ) <= len(rows)

    @pytest.mark.parametrize(
        "lengths", [[(8, [2, 2, 12, 6])], [(5, [3, 9, 1]), (2, [4]), (7, [5, 5])]]
    )
    def test_a_query_sees_its_row_up_to_itself(self, lengths: list[tuple[int, list[int]]]) -> None:
        rows = Packing.of(*groups(lengths))
        for chunk in rows.attention.chunks:
            size = chunk.keys.entries.shape[1]
            visible = (
                torch.ones(size, size, dtype=torch.bool).tril()
                if chunk.visible is None
                else chunk.visible
            )
            queries = chunk.queries.entries
            assert torch.equal(queries, chunk.keys.entries[:, -queries.shape[1] :])
            for query, seen in zip(range(size - len(visible), size), visible, strict=True):
                assert seen.nonzero().squeeze(1).tolist() == list(range(query + 1))


class TestSupport:
    @pytest.mark.parametrize("name", PADDED)
    def test_other_architectures_forward_padded_rows(self, name: str) -> None:
        made = policy(PADDED[name]())
        assert not made.packs
        assert made.model.config._attn_implementation != IMPLEMENTATION
        assert made(*RAGGED).logprobs.isfinite().all()

    def test_eager_attention_forwards_padded_rows(self) -> None:
        assert not policy(llama(attn_implementation="eager")).packs

    def test_a_model_that_does_not_pass_the_packing_on_forwards_padded_rows(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = llama()
        forward = model.model.forward
        monkeypatch.setattr(
            model.model, "forward", lambda *args, packing=None, **kwargs: forward(*args, **kwargs)
        )
        made = policy(model)
        assert not made.packs
        assert model.config._attn_implementation == "sdpa"

    def test_dropout_is_drawn_for_every_row(self) -> None:
        made = policy()
        set_dropout(made, 0.5)
        made.train()
        seen: list[int] = []
        made.model.model.layers[0].mlp.register_forward_hook(
            lambda module, args, output: seen.append(args[0].shape[:-1].numel())
        )
        made(*RAGGED)
        assert seen == [RAGGED[0].numel()]

    def test_an_export_has_no_trace_of_it(self, tmp_path: Path) -> None:
        policy().export(tmp_path)
        assert IMPLEMENTATION not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


def index(entries: list[Any], size: int) -> Index:
    return Index.of(np.array(entries), size, torch.device("cpu"))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_gather_adds_the_gradients_of_an_entry(entries: list[int]) -> None:
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    found = gather(x, index([entries], 6))
    assert torch.equal(found, x[torch.tensor([entries])])
    weights = torch.randn(1, len(entries), 3, dtype=torch.float64)
    [actual] = torch.autograd.grad((found * weights).sum(), x)
    [expected] = torch.autograd.grad((x[torch.tensor([entries])] * weights).sum(), x)
    torch.testing.assert_close(actual, expected)


def test_gather_of_numbers() -> None:
    x = torch.arange(3.0, requires_grad=True)
    found = gather(x, index([2, 0, 2], 3))
    found.backward(torch.tensor([1.0, 2.0, 4.0]))
    assert found.tolist() == [2, 0, 2]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 5]


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_without_a_packing_is_that_of_transformers(
    queries: int, dtype: torch.dtype
) -> None:
    """The same attention samples."""
    module = llama().model.layers[0].self_attn
    q, k, v = (
        torch.randn(2, heads, tokens, 8).to(dtype)
        for heads, tokens in ((4, queries), (2, 5), (2, 5))
    )
    actual, expected = (
        f(module, q, k, v, None, scaling=0.3)[0]
        for f in (packing.packed_attention, packing.sdpa_attention_forward)
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=0 if dtype == torch.float32 else 2e-2)


class TestSharedHeads:
    """In float32 on a GPU, PyTorch's fast kernels need as many key heads as query heads."""

    def test_where_keys_are_repeated(self) -> None:
        fp32, bf16 = torch.float32, torch.bfloat16
        repeats = [("cuda", fp32)]
        shares = [("cuda", bf16), ("cuda", torch.float16), ("cpu", fp32), ("cpu", bf16)]
        assert not any(row_attention.shares_heads(*x) for x in repeats)
        assert all(row_attention.shares_heads(*x) for x in shares)

    @pytest.fixture
    def heads(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
        """Numbers of query and key heads of each call, in which keys are repeated."""
        seen: list[tuple[int, int]] = []
        attend = torch.nn.functional.scaled_dot_product_attention

        def record(q: Tensor, k: Tensor, *args: Any, **options: Any) -> Tensor:
            seen.append((q.shape[1], k.shape[1]))
            return attend(q, k, *args, **options)

        monkeypatch.setattr(row_attention, "shares_heads", lambda device, dtype: False)
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
        return seen

    @pytest.mark.parametrize("whole", [False, True])
    def test_packed_rows(
        self, whole: bool, heads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(row_attention, "attends_whole_rows", lambda device: whole)
        made = policy(llama())
        heads.clear()
        outputs(made, *RAGGED, packs=True)
        assert len(heads) >= 4
        assert set(heads) == {(4, 4)}
        check_equal(made, *RAGGED)

    @pytest.mark.parametrize("queries", [1, 5])
    def test_other_forwards(self, queries: int, heads: list[tuple[int, int]]) -> None:
        module = llama().model.layers[0].self_attn
        q, k, v = torch.randn(2, 4, queries, 8), *torch.randn(2, 2, 2, 5, 8)
        actual, expected = (
            f(module, q, k, v, None, scaling=0.3)[0]
            for f in (packing.packed_attention, packing.sdpa_attention_forward)
        )
        torch.testing.assert_close(actual, expected)
        assert heads == [(4, 4), (4, 2)]


def test_the_data_type_of_attention() -> None:
    """Autocast leaves queries with rotary positions in 32 bits, for which GPUs have no fast
    kernel."""
    bf16, fp32, fp64 = torch.bfloat16, torch.float32, torch.float64
    assert [
        packing.attention_dtype("cuda", *x) for x in ((fp32, bf16), (bf16, None), (fp32, None))
    ] == [bf16, bf16, fp32]
    assert [
        packing.attention_dtype("cpu", *x) for x in ((fp32, bf16), (bf16, None), (fp64, None))
    ] == [fp32, fp32, fp64]


def test_gradients_of_shared_tokens_are_sums_of_32_bits() -> None:
    x = torch.zeros(1, 8, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(512, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    (gather(x, index([0] * 512, 1)) * weights).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0].double(), weights.double().sum(0), rtol=2**-8, atol=0)


@pytest.mark.parametrize("lengths", [[(6, [4])], [(6, [4, 4, 4])]])
def test_rows_are_attended_in_32_bits_on_processors(
    lengths: list[tuple[int, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward in 16 bits is slow there."""
    seen, attend = [], torch.nn.functional.scaled_dot_product_attention

    def watched(query: Tensor, *rest: Any, **options: Any) -> Any:
        seen.append(query.dtype)
        return attend(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    rows = Packing.of(*groups(lengths))
    module = llama().model.layers[0].self_attn
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        seen.clear()
        q, k, v = (torch.randn(1, heads, len(rows), 8, dtype=dtype) for heads in (4, 2, 2))
        output, _ = packing.packed_attention(module, q, k, v, None, rows, scaling=0.3)
        assert output.dtype == dtype
        assert seen == [expected] * len(rows.attention.chunks)
