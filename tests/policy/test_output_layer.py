"""The output layer: its hooks, and its use outside of the forward of a sharded network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rlmods.distributed import sharding
from rlmods.policy import Tiny, linear, output_layer as module
from rlmods.policy.linear import float32_linear
from rlmods.policy.output_layer import (
    LogitTransform,
    float32_output,
    is_plain_linear,
    linear_logprobs,
)
from tests.support import ranks


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_hooks_are_called_and_logits_are_not_rounded(precision: str) -> None:
    """A hook in front changes the hidden states, one behind the logits, with a linear layer of its
    own that computes as usual."""
    torch.manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    layer, probe = (
        nn.Linear(16, 50).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        for _ in range(2)
    )
    hidden = torch.randn(2, 5, 16).to(dtype)
    kinds: list[torch.dtype] = []

    def behind(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        probed = probe(args[0])
        kinds.append(probed.dtype)
        return output + probed

    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"),
    ):
        plain, doubled = (float32_linear(x, layer.weight, layer.bias) for x in (hidden, 2 * hidden))
        assert torch.equal(float32_output(layer, hidden), plain)
        hooks = (
            layer.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
            layer.register_forward_hook(behind),
        )
        output = float32_output(layer, hidden)
        for hook in hooks:
            hook.remove()
        assert torch.equal(float32_output(layer, hidden), plain)
        assert torch.equal(output, doubled + probe(2 * hidden))
    assert plain.dtype == output.dtype == torch.float32
    assert kinds == [dtype]


class Rounded(nn.Linear):
    """An output layer that is not a plain linear layer: its logits are rounded to 16 bits."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden).bfloat16()


def test_probabilities_of_rounded_logits_add_up_to_one() -> None:
    policy = Tiny(pretrained=False)()
    old = policy.model.lm_head
    policy.model.lm_head = Rounded(old.in_features, old.out_features, bias=False)
    torch.nn.init.normal_(policy.model.lm_head.weight, generator=torch.Generator().manual_seed(0))
    hidden = (
        torch.randn(8, old.in_features, generator=torch.Generator().manual_seed(1))
        / old.in_features**0.5
    )
    vocabulary = torch.arange(old.out_features)
    for row in hidden:
        logprobs, _ = policy._score_chunk(
            row.expand(len(vocabulary), -1), vocabulary, 1.0, False, None
        )
        assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def _on_rank(rank: int) -> None:
    torch.manual_seed(0)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    policy.model.get_output_embeddings().weight.data *= 20  # logits that 16 bits round visibly
    sharding.shard(policy, init_device_mesh("cpu", (2,)), dtype=torch.bfloat16)
    tokens = torch.randint(5, 90, (3, 10))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :4] = False
    with torch.no_grad():
        output = policy(tokens, mask, states=True)
        layer = policy.output_layer()
        assert isinstance(policy.model.get_output_embeddings().weight, DTensor)
        logits = layer(output.states)
    assert output.states.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert (logits.bfloat16() - logits).abs().max() > 1e-2
    logprobs = logits.log_softmax(-1).gather(-1, tokens[mask][:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs, output.logprobs[mask], rtol=0, atol=1e-5)
    if rank == 0:  # by one rank alone
        torch.testing.assert_close(layer(output.states[:2]), logits[:2])


@pytest.mark.slow
def test_gathered_weights_give_the_logits_of_a_forward_in_16_bits() -> None:
    """Float32 shards are cast as in the forward, and logits are not rounded."""
    ranks.spawn(_on_rank)


N, H, V = 11, 6, 29


TRANSFORMS = [
    LogitTransform(),
    LogitTransform(temperature=0.6),
    LogitTransform(scale=0.3, temperature=1.7),
    LogitTransform(cap=2.0),
    LogitTransform(scale=1.5, cap=3.0, temperature=0.8),
]


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((N, H), (V, H), (V,))
    hidden, weight, bias = (
        torch.randn(*x, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for x in shapes
    )
    return hidden, weight, bias, torch.randint(V, (N,), generator=generator)


def slow(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, t: LogitTransform
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.t() + (0 if bias is None else bias)
    logits = t.scale * logits
    logits = (t.cap * torch.tanh(logits / t.cap) if t.cap else logits) / t.temperature
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)


@pytest.fixture(params=[1, 4, 100])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", request.param * V)
    return int(request.param)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_logits_are_transformed_by_the_formula(transform: LogitTransform) -> None:
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)
    expected = transform.scale * x
    if transform.cap:
        expected = transform.cap * torch.tanh(expected / transform.cap)
    expected = expected / transform.temperature
    torch.testing.assert_close(transform.apply(x), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gathered_head_is_the_layer(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DTensor", nn.Parameter)
    monkeypatch.setattr(module, "full_tensor", lambda x: x)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    layer = nn.Linear(32, 9, bias=bias)
    policy.model.set_output_embeddings(layer)
    hidden = torch.randn(3, 32)
    head = module.gathered_head(policy.model)
    assert head is not None
    torch.testing.assert_close(head(hidden), layer(hidden))
    torch.testing.assert_close(head(hidden[:1]), layer(hidden[:1]))


class TestEqualsAutograd:
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_in_value_and_gradient(
        self, transform: LogitTransform, with_bias: bool, chunk: int
    ) -> None:
        hidden, weight, bias, targets = inputs()
        parameters = [hidden, weight, *([bias] if with_bias else [])]
        results = []
        for function in (lambda *x: linear_logprobs(*x, entropy_gradient=True), slow):
            logprobs, entropy = function(
                hidden, weight, bias if with_bias else None, targets, transform
            )
            weights = torch.linspace(-1, 2, N, dtype=torch.float64)
            gradients = torch.autograd.grad(
                (weights * logprobs + weights.flip(0) * entropy).sum(), parameters
            )
            results.append([logprobs, entropy, *gradients])
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_in_the_gradient_of_logprobs_alone(self, transform: LogitTransform, chunk: int) -> None:
        hidden, weight, bias, targets = inputs()
        weights = torch.linspace(-1, 2, N, dtype=torch.float64)
        found, expected = (
            torch.autograd.grad(
                (weights * function(hidden, weight, bias, targets, transform)[0]).sum(),
                (hidden, weight, bias),
            )
            for function in (linear_logprobs, slow)
        )
        for actual, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)

    def test_the_entropy_has_no_gradient_unless_asked_for(self, chunk: int) -> None:
        hidden, weight, bias, targets = inputs()
        logprobs, entropy = linear_logprobs(hidden, weight, bias, targets, LogitTransform())
        assert not entropy.requires_grad
        [actual] = torch.autograd.grad(logprobs.sum(), weight)
        [expected] = torch.autograd.grad(
            slow(hidden, weight, bias, targets, LogitTransform())[0].sum(), weight
        )
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("trained", [0, 1, 2])
    def test_only_what_is_trained_gets_a_gradient(self, trained: int, chunk: int) -> None:
        *tensors, targets = inputs()
        for i, x in enumerate(tensors):
            x.requires_grad_(i == trained)
        linear_logprobs(*tensors, targets, LogitTransform()).logprobs.sum().backward()
        assert [x.grad is not None for x in tensors] == [i == trained for i in range(3)]

    def test_float32_is_as_exact_as_autograd(self) -> None:
        exact = slow(*inputs(), LogitTransform())[0]
        actual = linear_logprobs(*inputs(torch.float32), LogitTransform()).logprobs
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), exact, rtol=0, atol=2e-6)

    def test_no_logits_of_more_than_a_chunk(
        self, chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []
        logits, saved = module._logits, []

        def counted(*args: Any) -> Tensor:
            found = logits(*args)
            sizes.append(found.numel())
            return found

        monkeypatch.setattr(module, "_logits", counted)
        hidden, weight, bias, targets = inputs()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: saved.append(x.numel()) or x, lambda x: x
        ):
            linear_logprobs(
                hidden, weight, bias, targets, LogitTransform()
            ).logprobs.sum().backward()
        # at least one token in forward, one word in backward
        assert max(sizes) <= max(chunk * V, N)
        assert sum(sizes) == 2 * N * V
        assert len(sizes) > 2 or chunk == 100
        assert max(saved) <= V * H

    def test_no_tokens(self) -> None:
        hidden, weight, bias, _ = inputs()
        found = linear_logprobs(
            hidden[:0], weight, bias, torch.empty(0, dtype=torch.long), LogitTransform()
        )
        found.logprobs.sum().backward()
        assert not weight.grad.any()


class TestPrecision:
    def test_gradients_under_autocast_are_as_exact_as_their_factors(self) -> None:
        hidden, weight, bias, targets = (
            x.detach().bfloat16().float().requires_grad_() if x.is_floating_point() else x
            for x in inputs()
        )
        doubles = [x.detach().double().requires_grad_() for x in (hidden, weight, bias)]
        weights = torch.linspace(-1, 2, N)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = linear_logprobs(hidden, weight, bias, targets, LogitTransform()).logprobs
        actual = torch.autograd.grad((weights * found).sum(), (hidden, weight, bias))
        expected = torch.autograd.grad(
            (weights * slow(*doubles, targets, LogitTransform())[0]).sum(), doubles
        )
        for x, exact in zip(actual, expected, strict=True):
            assert x.dtype == torch.float32
            assert (x - exact).norm() < 4e-3 * exact.norm()  # bfloat16 has 8 bits

    def test_entropies_have_32_bits_under_autocast(self) -> None:
        """Of logits that are sums in float32 of products of 16-bit numbers, which every processor
        computes alike."""
        hidden, weight, _, targets = (
            x.detach().bfloat16().float() if x.is_floating_point() else x for x in inputs()
        )
        expected = slow(hidden.double(), weight.double(), None, targets, LogitTransform())[1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = linear_logprobs(hidden, weight, None, targets, LogitTransform()).entropy
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)

    def test_weights_of_16_bits_get_gradients_of_16_bits(self) -> None:
        hidden, weight, bias, targets = (
            x.detach().bfloat16().requires_grad_() if x.is_floating_point() else x for x in inputs()
        )
        found = linear_logprobs(hidden, weight, bias, targets, LogitTransform()).logprobs
        assert found.dtype == torch.float32
        found.sum().backward()
        assert {x.grad.dtype for x in (hidden, weight, bias)} == {torch.bfloat16}


def test_the_policy_calls_a_hook_of_its_output_layer() -> None:
    policy = Tiny(pretrained=False)()
    tokens = torch.tensor([[3, 4, 5, 6]])
    mask = torch.tensor([[False, True, True, True]])
    with torch.no_grad():
        logits = policy.model(tokens).logits[:, :-1]
        plain = policy(tokens, mask).logprobs
        policy.model.lm_head.register_forward_hook(lambda module, args, output: 2 * output)
        doubled = policy(tokens, mask).logprobs
    for factor, found in ((1, plain), (2, doubled)):
        expected = (factor * logits).log_softmax(-1).gather(-1, tokens[:, 1:, None])
        torch.testing.assert_close(found[:, 1:], expected.squeeze(-1), rtol=1e-4, atol=1e-5)


def test_a_layer_with_a_hook_or_another_class_is_not_plain() -> None:
    layer = nn.Linear(2, 3)
    assert is_plain_linear(layer)
    layer.register_forward_hook(lambda *_: None)
    assert not is_plain_linear(layer)
    assert not is_plain_linear(nn.Sequential(nn.Linear(2, 3)))


class TestSumsOfAGPU:
    """A GPU multiplies bfloat16 as it is, and returns float32."""

    @pytest.fixture(autouse=True)
    def products(self, monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
        """Let the processor do so too. Data types of the factors that it got."""
        seen: list[torch.dtype] = []
        mm = torch.mm

        def multiply(a: Tensor, b: Tensor, *, out_dtype: torch.dtype) -> Tensor:
            assert a.dtype == b.dtype
            seen.append(a.dtype)
            return mm(a.to(out_dtype), b.to(out_dtype))

        def has_sums(a: Tensor, b: Tensor) -> bool:
            return a.dtype == b.dtype == torch.bfloat16

        monkeypatch.setattr(torch, "mm", multiply)
        for place in (module, linear):
            monkeypatch.setattr(place, "has_float32_sums", has_sums)
        return seen

    @pytest.mark.parametrize("transform", TRANSFORMS)
    @pytest.mark.parametrize("entropy", [False, True])
    def test_of_scores(
        self, transform: LogitTransform, entropy: bool, chunk: int, products: list[torch.dtype]
    ) -> None:
        hidden, weight, bias, targets = (
            x.detach().bfloat16().requires_grad_() if x.is_floating_point() else x for x in inputs()
        )
        doubles = [x.detach().double().requires_grad_() for x in (hidden, weight, bias)]
        weights = torch.linspace(-1, 2, N)
        found = linear_logprobs(hidden, weight, bias, targets, transform, entropy_gradient=entropy)
        exact = slow(*doubles, targets, transform)
        for actual, expected in zip(found, exact, strict=True):
            assert actual.dtype == torch.float32
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
        losses = [weights * x[0] + entropy * weights.flip(0) * x[1] for x in (found, exact)]
        actuals = torch.autograd.grad(losses[0].sum(), (hidden, weight, bias))
        gradients = torch.autograd.grad(losses[1].sum(), doubles)
        for x, expected in zip(actuals, gradients, strict=True):
            assert x.dtype == torch.bfloat16
            assert (x - expected).norm() < 4e-3 * expected.norm()
        assert products
        assert set(products) == {torch.bfloat16}

    def test_of_logits(self, products: list[torch.dtype]) -> None:
        hidden, weight, bias, _ = (x.detach().bfloat16() for x in inputs())
        hidden = hidden[:10].reshape(2, 5, H).requires_grad_()
        weight.requires_grad_()
        doubles = [x.detach().double().requires_grad_() for x in (hidden, weight)]
        found = float32_linear(hidden, weight, bias)
        exact = doubles[0] @ doubles[1].t() + bias.double()
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
        assert products == [torch.bfloat16]
        actuals = torch.autograd.grad(found.sin().sum(), (hidden, weight))
        gradients = torch.autograd.grad(exact.sin().sum(), doubles)
        for x, expected in zip(actuals, gradients, strict=True):
            assert (x - expected).norm() < 4e-3 * expected.norm()
