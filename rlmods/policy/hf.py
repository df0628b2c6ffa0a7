"""Any causal language model that transformers can load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlmods.policy.base import Policy
from rlmods.types import UserError


@dataclass(frozen=True)
class HuggingFace:
    """Load a policy by hub name or from a directory, an earlier run's `export/` among them."""

    name: str | None = None
    """Hub name or directory."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: str = "float32"
    """Of the weights that are trained. AdamW at the usual learning rates loses most updates in bfloat16."""
    attention: str = "sdpa"
    """Attention implementation: one for sampling's, old, new and reference log-probabilities."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""

    def __call__(self) -> Policy:
        """Load it.

        Raises:
            UserError: there is no such model, or it is not a causal language model.
        """
        if self.name is None:
            raise UserError("policy=hf needs a model: policy.name=HUB_NAME_OR_DIRECTORY")
        options = {} if self.revision is None else {"revision": self.revision}
        return load(self.name, dtype=self.dtype, attention=self.attention, checkpointing=self.gradient_checkpointing, **options)


def load(name: str | Path, *, dtype: str = "float32", attention: str = "sdpa", checkpointing: bool = False, **options: Any) -> Policy:
    """Model and tokenizer from a hub name or directory, as a `Policy`.

    Raises:
        UserError: there is none, it is no causal language model, or weights are missing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"policy.dtype={dtype}: type policy.dtype=float32 or policy.dtype=bfloat16")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        config = AutoConfig.from_pretrained(name, **options)
        if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
            raise UserError(f"policy: {str(name)!r} is a reward model, which cannot write; give a policy's run or model: policy.name=...")
        settings = {"dtype": getattr(torch, dtype), "attn_implementation": attention, "output_loading_info": True}
        model, info = AutoModelForCausalLM.from_pretrained(name, **settings, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"policy: cannot load {str(name)!r} ({reason}); give a hub name or a directory: policy.name=...") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise UserError(f"policy: {str(name)!r} lacks weights ({missing}), random numbers would stand in; give another policy.name=...")
    return Policy(model, tokenizer, gradient_checkpointing=checkpointing)
