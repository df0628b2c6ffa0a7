"""A smaller model with random weights."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.hf import load_one


@dataclass(frozen=True, kw_only=True)
class Random:
    """A model with the architecture and tokenizer of another, random weights and, optionally, other
    sizes: a student for distillation, or a stand-in for a large model in a test.

    Raises: UserError, when the policy is loaded, if no model or two are given, it does not exist,
    or the sizes do not fit."""

    name: str | None = None
    """Hub name, directory or run of the model whose architecture and tokenizer are used. Its
    weights are not read."""
    policy: Callable[[], Policy] | None = None
    """Option of the group `policy` that provides them instead of `name`:
    +policy@policy.policy=smollm2."""
    hidden_size: int | None = None
    """Width; heads have the size of the model's, and the feed-forward layer its ratio to the width.
    null: the model's."""
    num_layers: int | None = None
    """Number of layers; null: the model's."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    compile: bool = False
    """Compile the transformer blocks with torch.compile in training: log-probabilities and updates.
    Sampling runs them as they are."""

    def __call__(self) -> Policy:
        """Initialise the policy, from the global generator."""
        with torch.device("meta"):
            model = load_one("policy=random", self.name, self.policy)
        try:
            network = AutoModelForCausalLM.from_config(
                self.resize(model.model.config), dtype=torch.float32
            )
        except ValueError as error:
            sizes = f"policy.hidden_size={self.hidden_size} policy.num_layers={self.num_layers}"
            raise UserError(
                f"{sizes} do not fit {type(model.model).__name__} ({error}): type other sizes"
            ) from error
        return Policy(
            network,
            model.tokenizer,
            gradient_checkpointing=self.gradient_checkpointing,
            compiles=self.compile,
        )

    def resize(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """Return a copy of a Hugging Face configuration with the sizes of this model."""
        config = copy.deepcopy(config)
        text = config.get_text_config()
        old = text.to_dict()
        if self.num_layers is not None:
            text.num_hidden_layers = self.num_layers
            if old.get("layer_types") is not None:
                text.layer_types = list(text.layer_types)[: self.num_layers]
        if self.hidden_size is not None:
            width = text.hidden_size
            heads = text.num_attention_heads
            head_size = old.get("head_dim") or width // heads
            heads_per_key = heads // (old.get("num_key_value_heads") or heads)
            num_keys = max(1, self.hidden_size // head_size // heads_per_key)
            text.hidden_size = self.hidden_size
            text.num_attention_heads = num_keys * heads_per_key
            text.num_key_value_heads = num_keys
            if old.get("intermediate_size") is not None:
                text.intermediate_size = text.intermediate_size * self.hidden_size // width
            text.head_dim = head_size
        return config
