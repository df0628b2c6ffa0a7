"""Counters of operations and bytes agree with torch's counter, and limits with hand-made
figures."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from bench import limit
from bench.limit import Architecture, Rates

pytestmark = pytest.mark.slow

RATES = Rates(update_flops=1e9, decode_flops=1e8, copy_bytes=1e7)


def model() -> LlamaForCausalLM:
    """A model whose sizes all differ, with eager attention, whose products torch counts."""
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=101,
            head_dim=16,
            attn_implementation="eager",
            tie_word_embeddings=False,
            **sizes,
        )
    )


MODEL = model()
ARCH = Architecture.of(MODEL)


class TestFlops:
    def counted(self, rows: int, tokens: int, backward: bool) -> int:
        ids = torch.zeros(rows, tokens, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            logits = MODEL(input_ids=ids, use_cache=False).logits
            if backward:
                logits.sum().backward()
        return counter.get_total_flops()

    @pytest.mark.parametrize("backward", [False, True])
    def test_agree_with_the_counter_of_torch(self, backward: bool) -> None:
        """Torch also counts the product for rotary positions, a few parts in 100 000; its attention
        is not causal."""
        rows, tokens = 3, 24
        expected = limit.linear_flops(ARCH, rows * tokens, rows * tokens) + limit.attention_flops(
            ARCH, rows * tokens**2
        )
        assert self.counted(rows, tokens, backward) == pytest.approx(
            expected * (3 if backward else 1), rel=1e-4
        )

    def test_output_layer_only_where_scored(self) -> None:
        assert limit.linear_flops(ARCH, 10, 4) - limit.linear_flops(ARCH, 10, 3) == 2 * 48 * 101

    def test_update_of_single_samples_is_three_causal_forwards(self) -> None:
        """With one response to each prompt, all tokens but the last attend to themselves and those
        before."""
        prompts, responses = [5, 2], [4, 7]
        lengths = [p + n - 1 for p, n in zip(prompts, responses, strict=True)]
        context = sum(i + 1 for length in lengths for i in range(length))
        forward = limit.linear_flops(ARCH, sum(lengths), sum(responses)) + limit.attention_flops(
            ARCH, context
        )
        assert limit.update_flops(ARCH, prompts, responses) == 3 * forward

    def test_update_counts_the_prompt_of_a_group_once(self) -> None:
        one, two = limit.update_flops(ARCH, [9], [4]), limit.update_flops(ARCH, [9], [4, 4])
        assert two - one == 3 * (
            limit.linear_flops(ARCH, 3, 4) + limit.attention_flops(ARCH, 10 + 11 + 12)
        )

    def test_rollout_does_a_forward_of_every_token_but_the_last(self) -> None:
        """Prefill and decode steps together are the forward of the update, with the output layer
        once for each sampled token."""
        prompts, responses = [5, 3], [4, 1, 6, 2]
        need = limit.rollout_need(ARCH, RATES, prompts, responses, 4)
        # the prefill's logits serve the first token of a whole group
        first = limit.linear_flops(ARCH, 0, len(responses) - len(prompts))
        assert need.flops == limit.update_flops(ARCH, prompts, responses) / 3 - first


def test_parameters_of_the_architecture() -> None:
    norms, embedding = (2 * 3 + 1) * 48, 101 * 48
    assert ARCH.parameters == ARCH.linear_weights + ARCH.head_weights + norms + embedding
    assert ARCH.head == (48, 101)
    assert (ARCH.layers, ARCH.heads, ARCH.key_heads, ARCH.head_size) == (3, 4, 2, 16)


def test_decode_step_reads_weights_once_and_the_cache_of_each_row() -> None:
    weights = ARCH.linear_weights + ARCH.head_weights
    assert limit.decode_bytes(ARCH, [7, 8], 2) == 2 * (weights + 2 * 3 * 2 * 16 * 15)


class TestLimits:
    def test_contexts_of_decode_steps(self) -> None:
        assert limit.decode_steps([5, 2], [3, 1, 2, 4]) == [[6, 3, 3], [7, 4], [5]]

    def test_a_decode_step_takes_the_longer_of_products_and_reads(self) -> None:
        prefill = limit.prefill_flops(ARCH, [5]) / RATES.update_flops
        flops, moved = limit.decode_flops(ARCH, [6]), limit.decode_bytes(ARCH, [6], 4)
        for fast in ("decode_flops", "copy_bytes"):
            rates = replace(RATES, **{fast: 1e30})
            expected = (
                moved / RATES.copy_bytes if fast == "decode_flops" else flops / RATES.decode_flops
            )
            assert limit.rollout_need(ARCH, rates, [5], [2], 4).seconds == pytest.approx(
                prefill + expected
            )

    def test_update_adds_the_optimizer(self) -> None:
        need = limit.update_need(ARCH, RATES, [5], [3, 3])
        assert need.seconds == pytest.approx(need.flops / 1e9 + need.bytes / 1e7)
        assert need.bytes == limit.optimizer_bytes(ARCH)


class TestRates:
    def test_fastest_calls_three_times_and_warms_up(self) -> None:
        calls: list[int] = []
        assert limit.fastest(lambda: calls.append(1), 0.0) >= 0
        assert len(calls) == 4

    def test_matmul_rate_counts_every_product(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With one second for each product, the rate is the mean of their operations."""
        monkeypatch.setattr(limit, "fastest", lambda call, seconds: float(call() is not None))
        layers = len(ARCH.linear) + 1
        assert (
            limit.matmul_rate(ARCH, 6, torch.float32, backward=False)
            == limit.linear_flops(ARCH, 6, 6) / layers
        )
        assert (
            limit.matmul_rate(ARCH, 6, torch.float32, backward=True)
            == limit.linear_flops(ARCH, 6, 6) / layers
        )

    def test_copy_rate_counts_reads_and_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limit, "fastest", lambda call, seconds: float(call() is not None))
        assert limit.copy_rate(4000) == 8000
