"""The default policy: a small character-level Llama whose weights ship with the package."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.hf import load

FOLDER = Path(__file__).parent / "weights"
WORDS = ("<pad>", "<eos>", "<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = (
    "0123456789+-*/=()., "
    ":\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?!'\"<>{}[]\\^_%$#&@;|~`"
)


@dataclass(frozen=True)
class Tiny:
    """A Hugging Face causal language model of 1.8 million parameters with a character tokenizer.

    Three sets of weights are shipped:

    ======== ============================================================ ====================
    weights  trained on                                                   by `experiment=`
    ======== ============================================================ ====================
    tiny     generated sums, a third of them wrong                        tiny_warm_start
    worked   written-out arithmetic, calls of a calculator, a game        worked_warm_start
    experts  written-out sums, by a mixture of experts, 0.6 million       experts_warm_start
    ======== ============================================================ ====================
    """

    weights: Literal["tiny", "worked", "experts"] = "tiny"
    """Name of the shipped weights."""
    pretrained: bool = True
    """Load the shipped weights; False: random weights, drawn from the run's seed."""
    hidden_size: int | None = None
    """Width of a model with random weights; null: 192, as in the shipped one."""
    num_layers: int | None = None
    """Number of layers of a model with random weights; null: 4."""
    num_experts: int | None = None
    """Number of experts in each layer of a model with random weights, of which each token uses two;
    at least 2. null: dense layers."""
    context_length: int | None = None
    """Context length of a model with random weights, tokens; null: 256."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    compile: bool = False
    """Compile the transformer blocks with torch.compile in training: log-probabilities and updates.
    Sampling runs them as they are."""

    def __call__(self) -> Policy:
        """Load the policy, or initialise it from the global generator.

        Raises:
            UserError: a size is given together with the shipped weights.
        """
        if self.pretrained:
            for name in ("hidden_size", "num_layers", "num_experts", "context_length"):
                value = getattr(self, name)
                if value is not None:
                    raise UserError(
                        f"policy.{name}={value} is for random weights: type "
                        "policy.pretrained=false, or remove it"
                    )
            return load(
                FOLDER / self.weights,
                gradient_checkpointing=self.gradient_checkpointing,
                compile=self.compile,
            )
        from transformers import (
            LlamaConfig,
            LlamaForCausalLM,
            MixtralConfig,
            MixtralForCausalLM,
        )

        tokenizer, hidden_size = character_tokenizer(), self.hidden_size or 192
        num_heads = max(1, hidden_size // 32)
        shape = {
            "vocab_size": len(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": 8 * hidden_size // 3,
            "num_hidden_layers": self.num_layers or 4,
            "num_attention_heads": num_heads,
            "max_position_embeddings": self.context_length or 256,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
        }
        if self.num_experts is None:
            model = LlamaForCausalLM(LlamaConfig(**shape))
        else:
            shape |= {"num_key_value_heads": num_heads, "num_local_experts": self.num_experts}
            # two thirds, and a multiple of 16: grouped products need aligned rows
            shape["intermediate_size"] = 16 * math.ceil(hidden_size / 24)
            model = MixtralForCausalLM(MixtralConfig(**shape))
        return Policy(
            model,
            tokenizer,
            gradient_checkpointing=self.gradient_checkpointing,
            compiles=self.compile,
        )


def character_tokenizer() -> "PreTrainedTokenizerFast":  # type: ignore[name-defined]
    """Return a tokenizer with one token per character, and one for each of the four answer-format
    tags."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate((*WORDS, *CHARACTERS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_tokens(list(WORDS[2:]))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
