"""Models with random weights in the shapes of published ones, built on the device without a hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rlmods.policy import Policy
from rlmods.policy.random import Random
from rlmods.policy.tiny import character_tokenizer
from rlmods.types import Response


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and of the work that is measured with it."""

    name: str
    published: str
    """The model whose sizes these are."""
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    is_llama: bool = False
    """True for Llama, False for Qwen 2."""
    is_tied: bool = True
    """True if the output layer is the embedding."""
    is_moved: bool = False
    """Build the model on the processor and move it, instead of on the device."""
    lora: bool = False
    """Train an adapter on frozen bfloat16 weights, with gradient checkpointing."""
    decode_rows: Sequence[int] = (8, 64, 256)
    """Numbers of responses that are sampled at once."""
    decode_tokens: int = 128
    update_rows: int = 64
    prompts: int = 64
    """Prompts of an iteration, with `SAMPLES` responses each."""
    prompt_tokens: int = 256
    tokens: int = 512
    """Length of a response."""

    @property
    def rows(self) -> int:
        """Responses of an iteration."""
        return self.prompts * SAMPLES


SAMPLES = 8
"""Responses to a prompt."""
CONTEXT = 4096
TINY_WORK: dict[str, Any] = {
    "is_moved": True,
    "decode_rows": (8,),
    "decode_tokens": 6,
    "update_rows": 8,
    "prompts": 2,
    "prompt_tokens": 12,
    "tokens": 8,
}
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("135M", "SmolLM2-135M", 49152, 576, 1536, 30, 9, 3, is_llama=True),
        Shape("0.5B", "Qwen2.5-0.5B", 151936, 896, 4864, 24, 14, 2),
        Shape("1.5B", "Qwen2.5-1.5B", 151936, 1536, 8960, 28, 12, 2),
        Shape(
            "7B",
            "Qwen2.5-7B",
            152064,
            3584,
            18944,
            28,
            28,
            4,
            is_tied=False,
            lora=True,
            decode_rows=(8, 64),
            prompts=16,
        ),
    )
}
TINY_SHAPES = {
    "135M": Shape("135M", "tiny", 160, 48, 64, 2, 3, 1, is_llama=True, **TINY_WORK),
    "0.5B": Shape("0.5B", "tiny", 512, 64, 128, 2, 4, 2, **TINY_WORK),
    "1.5B": Shape("1.5B", "tiny", 512, 96, 128, 2, 6, 2, **TINY_WORK),
    "7B": Shape("7B", "tiny", 512, 64, 128, 3, 4, 4, is_tied=False, lora=True, **TINY_WORK),
}
"""Stand-ins with the same features, to try the command."""


def shapes(tiny: bool) -> dict[str, Shape]:
    """Return the shapes by name."""
    return TINY_SHAPES if tiny else SHAPES


def configuration(shape: Shape) -> Any:
    """Return the configuration of transformers."""
    from transformers import LlamaConfig, Qwen2Config

    make = LlamaConfig if shape.is_llama else partial(Qwen2Config, use_sliding_window=False)
    return make(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=shape.is_tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def network(shape: Shape, where: str | torch.device | None = None) -> Any:
    """Return the model with random weights, on its device: float32, or bfloat16 under an adapter."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    dtype = torch.bfloat16 if shape.lora else torch.float32
    with torch.device(where or ("cpu" if shape.is_moved else device())):
        return AutoModelForCausalLM.from_config(configuration(shape), dtype=dtype).eval()


def policy(
    shape: Shape, *, gradient_checkpointing: bool = False, where: str | None = None
) -> Policy:
    """Return a policy whose responses never end, on the device."""
    made = Policy(
        network(shape, where), character_tokenizer(), gradient_checkpointing=gradient_checkpointing
    )
    made.eos_ids = frozenset({-1})
    return made


def adapted(made: Policy) -> Policy:
    """Return the policy with an adapter of the default rank."""
    from rlmods.adapter import LoRA

    return LoRA()(made)


def with_flex_attention(made: Policy) -> Policy:
    """Return the policy with `policy.attention=flex_attention`."""
    made.packs = False
    made.flex_attention = True
    made.packs = True
    made.check()
    return made


def missing(shape: Shape) -> str:
    """Return why a shape cannot be measured here; an empty text if it can."""
    return "peft is not installed" if shape.lora and find_spec("peft") is None else ""


def device() -> torch.device:
    """Return the GPU, or the processor where there is none."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def questions(shape: Shape, num_prompts: int, length: int, seed: int = 0) -> Tensor:
    """Return random prompts [P, length]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, min(100, shape.vocabulary), (num_prompts, length), generator=generator)


def responses(shape: Shape, num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return tokens and mask [R, T] of groups of `SAMPLES` rows that share a prompt, with responses
    of half to all of `shape.tokens` tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompts = questions(shape, num_rows // SAMPLES, shape.prompt_tokens, seed)
    tokens = torch.randint(6, shape.vocabulary, (num_rows, shape.tokens), generator=generator)
    lengths = torch.randint(shape.tokens // 2, shape.tokens + 1, (num_rows,), generator=generator)
    mask = torch.arange(shape.tokens) < lengths[:, None]
    tokens = torch.cat([prompts.repeat_interleave(SAMPLES, 0), tokens.where(mask, 0)], 1)
    before = torch.zeros(num_rows, shape.prompt_tokens, dtype=torch.bool)
    return tokens, torch.cat([before, mask], 1)


def parity(responses: Sequence[Response]) -> list[float]:
    """Reward responses whose last token is odd: it costs nothing, and differs within a group."""
    return [float(response.tokens[-1] % 2) for response in responses]


@dataclass(frozen=True, kw_only=True)
class Shaped(Random):
    """`policy=random` with `policy.name` one of `SHAPES`, or `tiny NAME` of `TINY_SHAPES`, in the
    place where it is trained."""

    def __call__(self) -> Policy:
        kind, _, name = str(self.name).rpartition(" ")
        shape = shapes(kind == "tiny")[name]
        return policy(shape, gradient_checkpointing=self.gradient_checkpointing)
