"""Causal language models that transformers can load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlmods.policy.adapted import ADAPTER_CONFIG, base_model_name, load_adapter
from rlmods.policy.base import Policy
from rlmods.policy.quantization import quantization_config
from rlmods.policy.text import eos_ids
from rlmods.types import UserError


@dataclass(frozen=True)
class HuggingFace:
    """Load a policy by hub name, from a directory, or from an earlier run (its export, with any adapter merged).

    For the directory of a peft adapter (such as `RUN/export/adapter`), the base is loaded too: adapter=lora continues to train the adapter,
    adapter=none merges it.
    """

    name: str | None = None
    """Hub name, directory or run."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: str = "float32"
    """Data type of the weights. Trained weights are float32; weights that are frozen under an adapter may be bfloat16."""
    attention: str = "sdpa"
    """Attention implementation, the same for sampling and for old, new and reference log-probabilities."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    quantization: str | None = None
    """Bits of the frozen weights under an adapter: nf4 (QLoRA, arXiv 2305.14314) or int8, through bitsandbytes. null: `dtype`."""

    def __call__(self) -> Policy:
        """Load the policy.

        Raises:
            UserError: there is no such model, or it is not a causal language model.
        """
        if self.name is None:
            raise UserError("policy=hf needs a model: policy.name=HUB_NAME, policy.name=DIRECTORY or policy.name=RUN")
        options: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        options |= {"dtype": self.dtype, "attention": self.attention, "checkpointing": self.gradient_checkpointing}
        try:
            return load(exported(self.name), quantization=self.quantization, **options)
        except UserError as error:
            raise UserError(f"policy.name={self.name}: {error}") from error


def exported(source: str | Path) -> str | Path:
    """Return the `export/` of a run; any other source unchanged.

    Raises:
        UserError: a directory that does not exist, or a run without an export.
    """
    run = Path(source).expanduser()
    if str(source).startswith(("/", "./", "../", "~")) and not run.is_dir():
        raise UserError(f"{str(source)!r}: no such directory; type a hub name, a directory or a run")
    if not (run / "config.yaml").is_file() or (run / "config.json").is_file():
        return source
    if not (run / "export").is_dir():
        raise UserError(f"{source}: this run has no export/ yet: let it finish, or type the name of a model")
    return run / "export"


def load(
    name: str | Path,
    *,
    dtype: str = "float32",
    attention: str = "sdpa",
    checkpointing: bool = False,
    quantization: str | None = None,
    **options: Any,
) -> Policy:
    """Load a `Policy` from a hub name or directory, with an adapter if the directory holds one. Inside `torch.device("meta")` weights are
    not read.

    Raises:
        UserError: the model does not exist, is not a causal language model, or lacks weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"policy.dtype={dtype}: type policy.dtype=float32 or policy.dtype=bfloat16")
    if (Path(name).expanduser() / ADAPTER_CONFIG).is_file():
        folder = Path(name).expanduser()
        base = load(
            base_model_name(folder), dtype=dtype, attention=attention, checkpointing=checkpointing, quantization=quantization, **options
        )
        if (folder / "tokenizer_config.json").is_file():  # some trainers save the tokenizer with the adapter
            base.tokenizer = AutoTokenizer.from_pretrained(folder)
            base.eos_ids = eos_ids(base.model, base.tokenizer)
        return load_adapter(folder, base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        config = AutoConfig.from_pretrained(name, **options)
        if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
            raise UserError(f"{str(name)!r} is a reward model, which cannot generate text; type a policy's run or model")
        settings: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": attention, "output_loading_info": True}
        if quantization is not None:
            settings["quantization_config"] = quantization_config(quantization, settings["dtype"])
        if torch.get_default_device().type == "meta":
            settings.pop("output_loading_info")
            return Policy(AutoModelForCausalLM.from_config(config, **settings), tokenizer, gradient_checkpointing=checkpointing)
        model, info = AutoModelForCausalLM.from_pretrained(name, **settings, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{str(name)!r} cannot be loaded ({reason}); type a hub name, a directory or a run") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise UserError(f"{str(name)!r} lacks weights ({missing}), which would be random: type another model")
    return Policy(model, tokenizer, gradient_checkpointing=checkpointing)
