"""Linear layers by oneDNN, against float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from rlmods.policy import Policy, Tiny, linear
from rlmods.policy.linear import (
    CPULinear,
    packed_weight,
    packed_weights,
    use_cpu_linear,
    uses_onednn,
)
from tests.support.models import needs_onednn

M, K, N = 40, 96, 320
"""Enough products for oneDNN."""


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(K, N, bias=bias)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    output = module(x)
    (
        output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    ).sum().backward()
    return [output.detach(), x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(M,), (4, M // 4), (1, 2, M // 2)])
def test_equals_a_linear_layer_in_value_and_gradient(shape: tuple[int, ...], bias: bool) -> None:
    exact, fast = layer(bias).double(), layer(bias)
    use_cpu_linear(fast)
    assert type(fast) is CPULinear
    x = torch.randn(*shape, K)
    assert uses_onednn(x, fast.weight) == linear._has_onednn()
    for expected, actual in zip(gradients(exact, x.double()), gradients(fast, x), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(
            actual.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_gets_no_gradient(frozen: str) -> None:
    fast = layer()
    use_cpu_linear(fast)
    getattr(fast, frozen).requires_grad_(False)
    x = torch.randn(M, K)
    fast(x).sum().backward()
    assert {name for name, p in fast.named_parameters() if p.grad is not None} == {
        "weight",
        "bias",
    } - {frozen}


@pytest.mark.parametrize(
    "case", ["few products", "float64", "bfloat16", "autocast", "without oneDNN"]
)
def test_all_else_is_computed_by_pytorch(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(case, torch.float32)
    plain, fast = layer().to(dtype), layer().to(dtype)
    use_cpu_linear(fast)
    x = torch.randn(2 if case == "few products" else M, K, dtype=dtype)
    if case == "without oneDNN":
        monkeypatch.setattr(linear, "_has_onednn", lambda: False)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case == "autocast"):
        assert not uses_onednn(x, fast.weight)
        assert torch.equal(plain(x), fast(x))


class TestPackedWeights:
    @staticmethod
    def policy() -> Policy:
        torch.manual_seed(0)
        return Tiny(pretrained=False)()

    @needs_onednn
    @pytest.mark.parametrize("autocast", [False, True])
    def test_give_the_same_logits(self, autocast: bool) -> None:
        has_bfloat16 = linear._has_bfloat16()
        policy, tokens = self.policy(), torch.randint(5, 90, (3, 10))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            expected = policy.next_logits(tokens)
            with packed_weights(policy, policy.model.get_output_embeddings()):
                packed = packed_weight(policy.model.model.layers[0].mlp.up_proj)
                expected_dtype = (
                    torch.float32 if not autocast else torch.bfloat16 if has_bfloat16 else None
                )
                assert getattr(packed, "dtype", None) == expected_dtype
                assert packed_weight(policy.model.get_output_embeddings()).dtype == torch.float32
                actual = policy.next_logits(tokens)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=0, atol=5e-2 if autocast else 1e-4)

    @needs_onednn
    def test_are_those_of_now_and_gone_afterwards(self) -> None:
        policy, tokens = self.policy(), torch.randint(5, 90, (3, 10))
        results = []
        for _ in range(2):
            with torch.no_grad(), packed_weights(policy, policy.model.get_output_embeddings()):
                results.append(policy.next_logits(tokens))
            assert all("packed" not in module.__dict__ for module in policy.modules())
            for p in policy.parameters():
                p.data.mul_(1.5)
        assert (results[0] - results[1]).abs().max() > 0.1
        copy.deepcopy(policy)

    @needs_onednn
    def test_are_not_used_where_gradients_are_recorded(self) -> None:
        policy, tokens = self.policy(), torch.randint(5, 90, (3, 10))
        with packed_weights(policy, policy.model.get_output_embeddings()):
            policy.next_logits(tokens).sum().backward()
        assert all(p.grad is not None for p in policy.model.model.layers.parameters())

    @needs_onednn
    @pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
    def test_of_16_bits_are_left_to_pytorch_on_a_processor_without(
        self, weights: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with AVX2 alone, where oneDNN raises an error: ONEDNN_MAX_CPU_ISA=AVX2."""
        monkeypatch.setattr(linear, "_has_bfloat16", lambda: False)
        policy, tokens = self.policy().to(weights), torch.randint(5, 90, (3, 10))
        output_layer = policy.model.get_output_embeddings()
        with (
            torch.no_grad(),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32),
        ):
            expected = policy.next_logits(tokens)
            with packed_weights(policy, output_layer):
                assert [
                    layer for layer in policy.modules() if packed_weight(layer) is not None
                ] == [output_layer]
                actual = policy.next_logits(tokens)
        torch.testing.assert_close(actual, expected, rtol=0, atol=5e-2)

    def test_without_onednn_nothing_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linear, "_has_onednn", lambda: False)
        policy = self.policy()
        with torch.no_grad(), packed_weights(policy, policy.model.get_output_embeddings()):
            assert packed_weight(policy.model.get_output_embeddings()) is None
