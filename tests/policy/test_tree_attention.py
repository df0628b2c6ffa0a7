"""Attention of all packed tokens in one call."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as torch_flex

from rlmods.adapter import LoRA
from rlmods.errors import UserError
from rlmods.policy import base, tree_attention
from rlmods.policy.packing import FLEX_IMPLEMENTATION, IMPLEMENTATION, Packing, implementation
from rlmods.policy.tree_attention import Tree, check_kernels, kernels
from tests.policy.test_packing import check_equal
from tests.support.batches import few
from tests.support.models import llama
from tests.support.packed_rows import MODELS, PADDED, RAGGED, groups, policy
from tests.support.trees import forest, forests

LENGTHS = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=6)),
    min_size=1,
    max_size=6,
)


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as it is written, with the backward that torch refuses on processors."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(tree_attention, "kernels", lambda: torch_flex.flex_attention)
    monkeypatch.setattr(base, "has_kernels", lambda device: True)


def tree(tokens: Tensor, mask: Tensor) -> tuple[Packing, Tree]:
    """Return packed rows, and their attention."""
    rows = Packing.of(tokens, mask, is_tree=True)
    assert isinstance(rows.attention, Tree)
    return rows, rows.attention


def visible(attention: Tree) -> Tensor:
    """Return for each query and key whether it is seen [S, S]."""
    ends = attention.ends
    place = torch.arange(len(ends))
    return (place <= place[:, None]) & (place[:, None] < ends)


class TestVisible:
    @few
    @given(forests)
    def test_each_token_sees_its_prefix(self, drawn: tuple[int, float]) -> None:
        f = forest(*drawn, vocabulary=3)
        packed, attention = tree(f.batch.tokens, f.mask)
        found = []
        for seen in visible(attention):
            positions = packed.positions[seen]
            assert sorted(positions.tolist()) == list(range(len(positions)))
            found.append(tuple(packed.tokens[seen][positions.argsort()].tolist()))
        expected = set()
        for row, scored in zip(f.batch.tokens.tolist(), f.mask.tolist(), strict=True):
            end = max((t for t, x in enumerate(scored) if x), default=0)
            expected |= {tuple(row[: t + 1]) for t in range(end)}
        if expected:
            assert len(found) == len(expected)
            assert set(found) == expected

    @given(LENGTHS)
    def test_blocks_are_left_out_if_nothing_in_them_is_visible(
        self, lengths: list[tuple[int, list[int]]]
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tree_attention, "BLOCK_SIZE", 4)
            _, attention = tree(*groups(lengths))
        num_tokens = len(attention.ends)
        num_blocks = -(-num_tokens // 4)
        seen = np.zeros((num_blocks * 4, num_blocks * 4), dtype=bool)
        seen[:num_tokens, :num_tokens] = visible(attention)
        exists = np.arange(num_blocks * 4) < num_tokens
        # queries that do not exist may see anything
        by_block = (seen | ~exists[:, None]).reshape(num_blocks, 4, num_blocks, 4)
        is_full = by_block.all((1, 3))
        is_seen = seen.reshape(num_blocks, 4, num_blocks, 4).any((1, 3))
        is_full &= ~np.eye(num_blocks, dtype=bool)
        blocks = attention.blocks
        assert blocks.full_kv_num_blocks is not None
        assert blocks.full_kv_indices is not None
        for counts, indices, expected in (
            (blocks.full_kv_num_blocks, blocks.full_kv_indices, is_full),
            (blocks.kv_num_blocks, blocks.kv_indices, is_seen & ~is_full),
            (blocks.full_q_num_blocks, blocks.full_q_indices, is_full.T),
            (blocks.q_num_blocks, blocks.q_indices, (is_seen & ~is_full).T),
        ):
            assert counts is not None
            assert indices is not None
            for count, row, wanted in zip(counts[0, 0], indices[0, 0], expected, strict=True):
                assert sorted(row[: int(count)].tolist()) == np.nonzero(wanted)[0].tolist()
                assert sorted(row.tolist()) == list(range(num_blocks))


@pytest.mark.usefixtures("backward")
class TestEqualsPadded:
    @pytest.mark.parametrize("name", MODELS)
    def test_in_value_and_gradient(self, name: str) -> None:
        made = policy(MODELS[name](), flex_attention=True)
        assert made.packs
        check_equal(made, *RAGGED)

    @few
    @given(forests)
    def test_of_any_trees(self, drawn: tuple[int, float]) -> None:
        f = forest(*drawn, unscored=0.0, vocabulary=100)
        if f.mask.any():
            made = policy(llama().double(), flex_attention=True)
            check_equal(made, f.batch.tokens, f.mask, rtol=1e-6)

    def test_with_several_blocks(self) -> None:
        rows = groups([(70, [90, 130, 40]), (5, [150, 3]), (200, [20, 1])])
        check_equal(policy(llama().double(), flex_attention=True), *rows, rtol=1e-6)

    def test_with_gradient_checkpointing(self) -> None:
        made = policy(llama(), flex_attention=True, gradient_checkpointing=True)
        made.train()
        check_equal(made, *RAGGED)

    def test_under_autocast(self) -> None:
        made = policy(llama(), flex_attention=True)
        other = policy(llama())
        with torch.autocast("cpu", torch.bfloat16):
            found = made(*RAGGED).logprobs
            expected = other(*RAGGED).logprobs
        torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def test_scale(backward: None) -> None:
    rows, attention = tree(*RAGGED)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(rows), 4, 8, generator=generator)
    k, v = torch.randn(2, len(rows), 4, 8, generator=generator)
    scores = 0.3 * torch.einsum("qhd,khd->hqk", q, k)
    weights = scores.masked_fill(~visible(attention), -torch.inf).softmax(2)
    expected = torch.einsum("hqk,khd->qhd", weights, v)
    torch.testing.assert_close(attention.attend(q, k, v, 0.3), expected)


def test_one_call_a_layer(backward: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def attend(query: Tensor, *rest: Tensor, **options: object) -> Tensor:
        calls.append(query.shape[2])
        output: Tensor = torch_flex.flex_attention(query, *rest, **options)  # type: ignore[arg-type, assignment]
        return output

    monkeypatch.setattr(tree_attention, "kernels", lambda: attend)
    made = policy(llama(), flex_attention=True)
    calls.clear()
    made(*RAGGED)
    assert calls == [len(Packing.of(*RAGGED))] * made.model.config.num_hidden_layers


@pytest.mark.slow
@pytest.mark.usefixtures("backward")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_numbers_of_tokens_are_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(torch_flex.flex_attention, dynamic=True, backend=counter)
    monkeypatch.setattr(tree_attention, "kernels", lambda: compiled)
    made = policy(llama(), flex_attention=True)
    shapes = [[(200, [130, 140])], [(7, [300, 20]), (9, [8])], [(90, [60])], [(400, [200])]]
    for _ in range(2):
        for shape in shapes:
            with torch.no_grad():
                made(*groups(shape))
            made(*groups(shape)).logprobs.sum().backward()
    torch._dynamo.reset()
    # in each check at load, and with and without gradients in one block and in any other number
    assert counter.frame_count <= 6


def attends(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return torch_flex.flex_attention(query, key, value, **options)  # type: ignore[return-value]


def grows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return attends(query, key, value, **options) * 1.05


def forgets(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Has no gradient of the values."""
    return attends(query, key, value.detach(), **options) + 0 * value.sum()


def fails(*tensors: Tensor, **options: Any) -> Tensor:
    raise RuntimeError("no kernel")


class TestKernels:
    def check(self, heads: int = 4, shared: int = 2) -> None:
        check_kernels(heads, shared, 8, torch.float32, torch.device("cpu"))

    @pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (6, 1)])
    def test_agree(self, heads: int, shared: int, backward: None) -> None:
        with torch.no_grad():
            self.check(heads, shared)

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [(grows, "something else"), (forgets, "something else"), (fails, r"not run .*no kernel")],
    )
    def test_others_are_refused(
        self, kernel: Any, message: str, backward: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tree_attention, "kernels", lambda: kernel)
        with pytest.raises(UserError, match=rf"{message}.*type policy\.attention=null"):
            self.check()

    @pytest.mark.slow
    def test_are_used_where_blocks_are_not_compiled(self) -> None:
        counter = CompileCounter()
        kernels.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch.compile, backend=counter))
            attend = kernels()
        kernels.cache_clear()
        _, attention = tree(*groups([(200, [130, 140])]))
        q = torch.randn(1, 2, len(attention.ends), 8)
        with torch.compiler.set_stance("force_eager"):
            attend(q, q, q, block_mask=attention.blocks)
        assert counter.frame_count == 1


class TestSupport:
    @pytest.mark.parametrize("name", PADDED)
    def test_other_architectures_are_refused(self, name: str) -> None:
        with pytest.raises(UserError, match=r"type policy\.attention=null"):
            policy(PADDED[name](), flex_attention=True)

    def test_processors_use_sdpa(self) -> None:
        with pytest.warns(UserWarning, match="is for GPUs: sdpa is used here"):
            made = policy(llama(), flex_attention=True)
        assert implementation(made.model) == IMPLEMENTATION
        assert not made.flex_attention
        made(*RAGGED).logprobs.sum().backward()

    def test_models_without_weights_are_planned(self) -> None:
        with torch.device("meta"):
            assert policy(llama(), flex_attention=True).flex_attention

    def test_adapters_keep_it(self, backward: None) -> None:
        made = LoRA()(policy(llama(), flex_attention=True))
        for found in (made, made.merged()):
            found.packs = False
            found.packs = True
            assert implementation(found.model) == FLEX_IMPLEMENTATION
            assert found.flex_attention

    def test_a_model_that_computes_something_else_is_refused(
        self, backward: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "packing_agrees", lambda model, device: False)
        with pytest.raises(UserError, match="do not allow"):
            policy(llama(), flex_attention=True)

    def test_samples_are_those_of_sdpa(self, backward: None) -> None:
        tokens = torch.randint(2, 102, (2, 7), generator=torch.Generator().manual_seed(0))
        found = policy(llama(), flex_attention=True).model(tokens).logits
        assert torch.equal(found, policy(llama()).model(tokens).logits)

    def test_a_copy_keeps_it(self, backward: None) -> None:
        made = deepcopy(policy(llama(), flex_attention=True))
        assert implementation(made.model) == FLEX_IMPLEMENTATION
