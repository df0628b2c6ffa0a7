"""The time that an iteration needs at least on this machine: operations and bytes of each stage,
over measured rates.

    python -m bench.limit MODEL ROWS TOKENS DTYPE [SECONDS]

measures the rates in a process with the settings of the training processes, and prints them as
JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlmods.policy.linear import cpu_linear

ADAMW_PASSES = 7
"""Tensors of the size of the parameters that one step of AdamW moves: it reads parameter, gradient
and two moments, and writes parameter and moments."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a causal language model that decide how much work it is."""

    linear: Sequence[tuple[int, int]]
    """Input and output size of every linear layer but the output layer."""
    head: tuple[int, int]
    """Input and output size of the output layer: width and vocabulary."""
    layers: int
    heads: int
    """Query heads of a layer."""
    key_heads: int
    """Key and value heads of a layer."""
    head_size: int
    parameters: int
    """Number of trained weights."""

    @classmethod
    def load(cls, model: str | Path) -> Architecture:
        """Read the sizes from a Hugging Face directory, without its weights."""
        from transformers import AutoConfig, AutoModelForCausalLM

        with torch.device("meta"):
            return cls.of(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)))

    @classmethod
    def of(cls, model: Any) -> Architecture:
        """Return the sizes of a model."""
        head, config = model.get_output_embeddings(), model.config.get_text_config()
        heads = config.num_attention_heads
        return cls(
            linear=[
                (m.in_features, m.out_features)
                for m in model.modules()
                if isinstance(m, nn.Linear) and m is not head
            ],
            head=(head.in_features, head.out_features),
            layers=config.num_hidden_layers,
            heads=heads,
            key_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
        )

    @property
    def linear_weights(self) -> int:
        """Number of weights of the linear layers, without the output layer."""
        return sum(inputs * outputs for inputs, outputs in self.linear)

    @property
    def head_weights(self) -> int:
        """Number of weights of the output layer."""
        return self.head[0] * self.head[1]


# Operations and bytes


def linear_flops(arch: Architecture, tokens: int, scored: int) -> int:
    """Return `2 (tokens W + scored W_head)`: a multiplication and an addition per weight and token;
    W linear weights, and the output layer only at `scored` tokens."""
    return 2 * (tokens * arch.linear_weights + scored * arch.head_weights)


def attention_flops(arch: Architecture, context: int) -> int:
    """Return `4 layers heads head_size context`: queries times keys, and probabilities times
    values. `context`: keys that a token attends to, itself included, summed over tokens."""
    return 4 * arch.layers * arch.heads * arch.head_size * context


def prompt_context(prompt: int) -> int:
    """Return `1 + 2 + ... + p`, the keys that the tokens of a prompt of p tokens attend to."""
    return prompt * (prompt + 1) // 2


def response_context(prompt: int, response: int) -> int:
    """Return `sum of p + t for t = 1 .. n - 1`, the keys that a response of n tokens attends to.
    Its last token is not forwarded."""
    return (response - 1) * prompt + prompt_context(response - 1)


def update_flops(arch: Architecture, prompts: Sequence[int], responses: Sequence[int]) -> int:
    """Return three times the operations of one forward (backward: gradients of inputs and of
    weights), in which the prompt of a group is forwarded once and only response tokens are
    scored."""
    samples = len(responses) // len(prompts)
    context = sum(map(prompt_context, prompts))
    context += sum(response_context(prompts[i // samples], n) for i, n in enumerate(responses))
    tokens = sum(prompts) + sum(n - 1 for n in responses)
    return 3 * (linear_flops(arch, tokens, sum(responses)) + attention_flops(arch, context))


def optimizer_bytes(arch: Architecture) -> int:
    """Return `7 * 4 parameters`: the passes of AdamW over float32 tensors."""
    return ADAMW_PASSES * 4 * arch.parameters


def prefill_flops(arch: Architecture, prompts: Sequence[int]) -> int:
    """Return the operations of one forward of every prompt, with the output layer at its last
    token."""
    return linear_flops(arch, sum(prompts), len(prompts)) + attention_flops(
        arch, sum(map(prompt_context, prompts))
    )


def decode_flops(arch: Architecture, context: Sequence[int]) -> int:
    """Return the operations of one decode step of rows that attend to `context` keys each, the new
    token included."""
    return linear_flops(arch, len(context), len(context)) + attention_flops(arch, sum(context))


def decode_bytes(arch: Architecture, context: Sequence[int], size: int) -> int:
    """Return the bytes that one decode step reads: every weight once, and keys and values of each
    row. `size`: bytes of a number."""
    cache = 2 * arch.layers * arch.key_heads * arch.head_size * sum(context)
    return size * (arch.linear_weights + arch.head_weights + cache)


def decode_steps(prompts: Sequence[int], responses: Sequence[int]) -> list[list[int]]:
    """Return the contexts of the unfinished rows at every decode step. The first token of a
    response comes from the prefill."""
    samples = len(responses) // len(prompts)
    rows = [(prompts[i // samples], n) for i, n in enumerate(responses)]
    return [[prompt + t for prompt, n in rows if n > t] for t in range(1, max(responses))]


# Rates


@dataclass(frozen=True)
class Rates:
    """What the machine does in one second."""

    update_flops: float
    """Matrix products of the update's shapes, FLOP/s."""
    decode_flops: float
    """Matrix products of a decode step's shapes, FLOP/s."""
    copy_bytes: float
    """Copying memory of the size of the weights, bytes read and written per second."""

    @classmethod
    def highest(cls, measured: Sequence[Rates]) -> Rates:
        """Return the highest of each rate."""
        return cls(
            *(
                max(values)
                for values in zip(*(asdict(rates).values() for rates in measured), strict=True)
            )
        )


def _synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Return the least seconds of a call, of those that fit into `seconds`; of three at least,
    after one that does not count."""
    times: list[float] = []
    call()
    while sum(times) < seconds or len(times) < 3:
        _synchronize()
        start = time.perf_counter()
        call()
        _synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def _onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return cpu_linear(a, b.T)


def matmul_rate(
    arch: Architecture, rows: int, dtype: torch.dtype, *, backward: bool, seconds: float = 0.2
) -> float:
    """Return FLOP/s of all linear layers and the output layer for `rows` tokens, each product timed
    by itself: `sum of flops / sum of seconds`. With `backward` also the products for the gradients
    of inputs and of weights. Of PyTorch's product and that of oneDNN (`cpu_linear`), the faster one
    counts."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flops = total = 0.0
    for (inputs, outputs), count in Counter([*arch.linear, arch.head]).items():
        x, weight, grad = (
            torch.randn(shape, device=device).to(dtype)
            for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
        )
        factors = [(x, weight.T), *([(grad, weight), (grad.T, x)] if backward else [])]
        flops += count * len(factors) * 2 * rows * inputs * outputs
        total += count * sum(
            min(fastest(partial(f, a, b), seconds) for f in (torch.mm, _onednn)) for a, b in factors
        )
    return flops / total


def copy_rate(num_bytes: int, seconds: float = 0.5) -> float:
    """Return bytes per second of copying a tensor of `num_bytes`, of which each byte is read once
    and written once: `2 num_bytes / s`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.zeros(max(1, num_bytes // 4), device=device)
    target = torch.ones_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), seconds)


def measure(
    arch: Architecture, rows: int, tokens: int, dtype: torch.dtype, seconds: float = 0.2
) -> Rates:
    """Measure the rates for decode steps of `rows` rows and an update of `tokens` tokens."""
    weights = (arch.linear_weights + arch.head_weights) * dtype.itemsize
    return Rates(
        update_flops=matmul_rate(arch, tokens, dtype, backward=True, seconds=seconds),
        decode_flops=matmul_rate(arch, rows, dtype, backward=False, seconds=seconds),
        copy_bytes=copy_rate(weights, seconds),
    )


# Limits


@dataclass(frozen=True)
class Need:
    """Least work of one stage of one iteration."""

    flops: float
    bytes: float
    seconds: float
    """Least time at the measured rates."""


def rollout_need(
    arch: Architecture, rates: Rates, prompts: Sequence[int], responses: Sequence[int], size: int
) -> Need:
    """Return the need of sampling: the prefill at the rate of matrix products, and for each decode
    step the longer of its products and its reads. `size`: bytes of a number."""
    flops = prefill_flops(arch, prompts)
    seconds, moved = flops / rates.update_flops, 0
    for context in decode_steps(prompts, responses):
        step_flops, step_bytes = decode_flops(arch, context), decode_bytes(arch, context, size)
        seconds += max(step_flops / rates.decode_flops, step_bytes / rates.copy_bytes)
        flops, moved = flops + step_flops, moved + step_bytes
    return Need(flops, moved, seconds)


def update_need(
    arch: Architecture, rates: Rates, prompts: Sequence[int], responses: Sequence[int]
) -> Need:
    """Return the need of forward and backward at the rate of matrix products, and of the optimizer
    at the rate of copies."""
    flops, moved = update_flops(arch, prompts, responses), optimizer_bytes(arch)
    return Need(flops, moved, flops / rates.update_flops + moved / rates.copy_bytes)


def main(model: str, rows: str, tokens: str, dtype: str, seconds: str = "0.2") -> None:
    """Print the rates as JSON."""
    print(
        json.dumps(
            asdict(
                measure(
                    Architecture.load(model),
                    int(rows),
                    int(tokens),
                    getattr(torch, dtype),
                    float(seconds),
                )
            )
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
