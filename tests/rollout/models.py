"""Tiny models to sample from, and their teacher-forced log-probabilities, one row at a time."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from rlmods.policy.base import Policy
from rlmods.rollout import Local
from rlmods.types import Prompt, Response

VOCAB = 64
PAD, EOS_A, EOS_B = 0, 1, 2


class TinyPolicy(Policy):
    """Token id i is the character chr(64 + i). Unlike `Policy`, it keeps the checkpoint's
    dropout."""

    pad_id = 0
    compiles = False

    def __init__(
        self, model: Any, *, eos: Sequence[int] = (EOS_A, EOS_B), pad: int = PAD, context: int = 128
    ) -> None:
        nn.Module.__init__(self)
        self.model = model
        self.eos_ids = frozenset(eos)
        self.pad_id = pad
        self.context_length = context

    def encode(self, prompt: Prompt, tools: Any = ()) -> list[int]:
        return [ord(c) - 64 for c in prompt.text or ""]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(64 + i) for i in tokens)


class Chain(nn.Module):
    """A language model that depends only on the last token: its logits are a row of a table [V,
    V]."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.config = LlamaConfig(vocab_size=len(table), num_hidden_layers=1)
        self.table = nn.Parameter(table)

    @property
    def base_model(self) -> Any:
        def forward(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=self.table[input_ids[:, -1:]])

        forward.forward = forward  # type: ignore[attr-defined]
        return forward

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()


def chain(*links: str) -> Chain:
    """`ABC`: B always follows A, and C follows B; every other token follows itself."""
    successors = {ord(a) - 64: ord(b) - 64 for text in links for a, b in pairwise(text)}
    table = torch.full((VOCAB, VOCAB), -torch.inf)
    for i in range(VOCAB):
        table[i, successors.get(i, i)] = 0.0
    return Chain(table)


def llama(**kwargs: Any) -> LlamaForCausalLM:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return _seeded(
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=VOCAB, max_position_embeddings=128, attention_dropout=0.5, **shape | kwargs
        ),
    )


def mistral() -> MistralForCausalLM:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return _seeded(MistralForCausalLM, MistralConfig(vocab_size=VOCAB, sliding_window=5, **shape))


def gpt2() -> GPT2LMHeadModel:
    dropout = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    return _seeded(
        GPT2LMHeadModel,
        GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=4, **dropout),
    )


def _seeded(kind: Any, config: Any) -> Any:
    """Weights large enough for distributions that are neither uniform nor deterministic, and that
    depend on positions."""
    config.eos_token_id, config.bos_token_id, config.pad_token_id = EOS_A, None, PAD
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
        for name, x in model.named_parameters():
            if x.ndim == 2:
                x.data.normal_(std=0.5 if "wpe" in name else 0.25)
    return model.eval()


def checkpointed(model: Any) -> Any:
    """Enable gradient checkpointing; transformers renamed the method."""
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False})
    return model


def with_generation_config(model: Any) -> Any:
    """Give a model a generation config that is near greedy and penalises repetition."""
    settings = {
        "do_sample": True,
        "top_k": 1,
        "top_p": 0.001,
        "temperature": 0.01,
        "repetition_penalty": 1.5,
    }
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


MODELS = {"llama": llama, "gpt2": gpt2, "mistral": mistral}
RAGGED = [
    Prompt(id=f"p{i}", text="".join(chr(67 + (5 * i + 3 * j) % 60) for j in range(length)))
    for i, length in enumerate([1, 9, 4, 17, 2, 9])
]


@torch.no_grad()
def teacher_forced(policy: Policy, response: Response, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [T] of a response's tokens, in eval mode, the row alone."""
    modes = [(m, m.training) for m in policy.modules()]
    policy.eval()
    start = len(response.prompt_tokens)
    ids = torch.tensor([[*response.prompt_tokens, *response.tokens]])
    logprobs = (policy.model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
    for m, training in modes:
        m.training = training
    return logprobs[start - 1 : -1].gather(-1, ids[0, start:, None]).squeeze(-1)


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] = RAGGED,
    samples: int = 4,
    iteration: int = 0,
    **fields: Any,
) -> list[Response]:
    rollout = Local(**{"max_tokens": 24, "seed": 7} | fields)
    rollout.sync(policy, iteration=iteration)
    return rollout.generate(prompts, samples=samples, iteration=iteration)


def outcomes(responses):
    return [(r.prompt.id, r.meta["sample"], tuple(r.tokens), r.finish) for r in responses]


def assert_agrees(policy, responses, temperature=1.0, atol=1e-4):
    assert sum(len(r.tokens) for r in responses) > 100
    for r in responses:
        torch.testing.assert_close(
            torch.tensor(r.behavior_logprobs),
            teacher_forced(policy, r, temperature),
            rtol=0,
            atol=atol,
        )


@torch.no_grad()
def gap(policy: Policy, responses: list[Response], temperature: float = 1.0) -> float:
    """Largest distance between the sampler's log-probabilities and those of the trainer's
    forward."""
    rows = [torch.tensor([*r.prompt_tokens, *r.tokens]) for r in responses]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, r in enumerate(responses):
        mask[i, len(r.prompt_tokens) : len(rows[i])] = True
    sampled = torch.tensor([x for r in responses for x in r.behavior_logprobs])
    return float(
        (policy(tokens, mask, temperature=temperature).logprobs[mask] - sampled).abs().max()
    )
