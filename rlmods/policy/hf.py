"""Causal language models that transformers can load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from rlmods.distributed import deferred
from rlmods.errors import UserError
from rlmods.policy.adapted import ADAPTER_CONFIG, base_model_name, load_adapter
from rlmods.policy.base import Policy
from rlmods.policy.files import NO_CODE, NO_PICKLE, check_configs, explain
from rlmods.policy.quantization import quantization_config
from rlmods.policy.text import eos_ids, set_template_kwargs
from rlmods.run.hub import check_hub


@dataclass(frozen=True)
class HuggingFace:
    """Load a policy by hub name, from a directory, or from an earlier run (its export, with any
    adapter merged).

    For the directory of a peft adapter (such as `RUN/export/adapter`), the base is loaded too:
    adapter=lora continues to train the adapter, adapter=none merges it."""

    name: str | None = None
    """Hub name, directory or run."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: str = "float32"
    """Data type of the weights. Trained weights are float32; weights that are frozen under an
    adapter may be bfloat16."""
    attention: str | None = None
    """Attention implementation, the same for sampling and for old, new and reference
    log-probabilities. null: sdpa if the model supports it, else eager."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    quantization: str | None = None
    """Bits of the frozen weights under an adapter: nf4 (QLoRA, arXiv 2305.14314) or int8, through
    bitsandbytes. null: `dtype`."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template: '+policy.chat_template_kwargs.enable_thinking=false'. They
    are saved with the model."""

    allow_pickle: bool = False
    """Also load weights that are not safetensors, but torch's pickle files
    (`pytorch_model.bin`)."""
    control_tokens_in_data: bool = False
    """Encode control tokens that responses of the data and assistant messages spell as such, for
    example those of tool calls: for data that you trust. Other messages and reward models never
    do."""

    def __call__(self) -> Policy:
        """Load the policy.

        Raises:
            UserError: there is no such model, or it is not a causal language model.
        """
        if self.name is None:
            raise UserError(
                "policy=hf needs a model: policy.name=HUB_NAME, policy.name=DIRECTORY or "
                "policy.name=RUN"
            )
        options: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        options |= {
            "dtype": self.dtype,
            "attention": self.attention,
            "checkpointing": self.gradient_checkpointing,
        }
        options |= {
            "chat_template_kwargs": self.chat_template_kwargs,
            "allow_pickle": self.allow_pickle,
        }
        try:
            policy = load(exported(self.name), quantization=self.quantization, **options)
        except UserError as error:
            raise UserError(f"policy.name={self.name}: {error}") from error
        policy.control_tokens_in_data = self.control_tokens_in_data
        return policy


def exported(source: str | Path) -> str | Path:
    """Return the `export/` of a run; any other source unchanged.

    Raises:
        UserError: a directory that does not exist, or a run without an export or a configuration.
    """
    run = Path(source).expanduser()
    if str(source).startswith(("/", "./", "../", "~")) and not run.is_dir():
        raise UserError(
            f"{str(source)!r}: no such directory; type a hub name, a directory or a run"
        )
    if (
        (run / "export").is_dir()
        and not (run / "config.yaml").is_file()
        and not (run / "config.json").is_file()
    ):
        raise UserError(
            f"{source}: this run has no config.yaml: type {source}/export for its model "
            "alone, or give another run"
        )
    if not (run / "config.yaml").is_file() or (run / "config.json").is_file():
        return source
    if not (run / "export").is_dir():
        raise UserError(
            f"{source}: this run has no export/ yet: let it finish, or type the name of a model"
        )
    return run / "export"


def load(
    name: str | Path,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    checkpointing: bool = False,
    quantization: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    **options: Any,
) -> Policy:
    """Load a `Policy` from a hub name or directory, with an adapter if the directory holds one.
    Inside `torch.device("meta")` weights are not read, and inside `defer_loading` they are read
    later, unless they are converted or quantized while they are loaded.

    Raises:
        UserError: the model does not exist, is not a causal language model, lacks weights, or does
        not support `attention`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"policy.dtype={dtype}: type policy.dtype=float32 or policy.dtype=bfloat16")
    check_configs(name)
    check_hub(name)
    settings: dict[str, Any]
    if (Path(name).expanduser() / ADAPTER_CONFIG).is_file():
        settings = {
            "dtype": dtype,
            "attention": attention,
            "checkpointing": checkpointing,
            "quantization": quantization,
        }
        return _load_with_adapter(
            Path(name).expanduser(),
            chat_template_kwargs,
            **settings,
            allow_pickle=allow_pickle,
            **options,
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **NO_CODE, **options)
        config = AutoConfig.from_pretrained(name, **NO_CODE, **options)
        if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
            raise UserError(
                f"{str(name)!r} is a reward model, which cannot generate text; type a "
                "policy's run or model"
            )
        set_template_kwargs(tokenizer, chat_template_kwargs or {})
        settings = {
            "dtype": getattr(torch, dtype),
            "attn_implementation": attention,
            "output_loading_info": True,
        }
        weights = {} if allow_pickle else NO_PICKLE
        if quantization is not None:
            settings["quantization_config"] = quantization_config(quantization, settings["dtype"])
        if torch.get_default_device().type == "meta":
            settings.pop("output_loading_info")
            policy = Policy(
                AutoModelForCausalLM.from_config(config, **settings),
                tokenizer,
                gradient_checkpointing=checkpointing,
            )
            policy.in_files = quantization is None and not policy.is_mixture
            return policy
        whole = ""
        if deferred.is_enabled():
            try:
                return _build_deferred(
                    str(name), config, tokenizer, settings, options, checkpointing
                )
            except deferred.CannotDeferError as error:
                whole = str(error)
        model, info = AutoModelForCausalLM.from_pretrained(
            name, **settings, **weights, **NO_CODE, **options
        )
    except (OSError, ValueError, ImportError) as error:
        reason = explain(error)
        if not allow_pickle and "safetensors" in reason:
            raise UserError(
                f"{str(name)!r} has no weights as safetensors: if you trust it, type "
                "policy.allow_pickle=true"
            ) from error
        if attention is not None and "attention" in reason.lower():
            why = reason.split(". ")[0]
            raise UserError(
                f"{str(name)!r} cannot run with policy.attention={attention} ({why}): type "
                "policy.attention=eager"
            ) from error
        if "couldn't connect" in reason.lower():
            where = (
                "the Hugging Face Hub cannot be reached, and its cache on this machine has no "
                "such model"
            )
            raise UserError(
                f"{str(name)!r} cannot be loaded: {where}; connect, or type a directory or a run"
            ) from error
        raise UserError(
            f"{str(name)!r} cannot be loaded ({reason}); type a hub name, a directory or a run"
        ) from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise UserError(
            f"{str(name)!r} lacks weights ({missing}), which would be random: type another model"
        )
    if whole:
        rank_zero_warn(
            f"{str(name)!r}: every rank loads all weights into CPU memory before it keeps its "
            f"shard ({whole})"
        )
    return Policy(model, tokenizer, gradient_checkpointing=checkpointing)


def _load_with_adapter(
    folder: Path, chat_template_kwargs: Mapping[str, Any] | None, **settings: Any
) -> Policy:
    """Load the base model of an adapter, and the adapter. `settings`: those of `load` for the
    base."""
    from transformers import AutoTokenizer

    # some trainers save the tokenizer with the adapter
    own_tokenizer = (folder / "tokenizer_config.json").is_file()
    base = load(
        base_model_name(folder),
        chat_template_kwargs=None if own_tokenizer else chat_template_kwargs,
        **settings,
    )
    if own_tokenizer:
        base.tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        set_template_kwargs(base.tokenizer, chat_template_kwargs or {})
        base.eos_ids = eos_ids(base.model, base.tokenizer)
    return load_adapter(folder, base)


def _build_deferred(
    name: str,
    config: Any,
    tokenizer: Any,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    checkpointing: bool,
) -> Policy:
    """Return the policy without weights, which are read after it is sharded.

    Raises:
        CannotDeferError: its weights cannot be read by shards.
    """
    if "quantization_config" in settings:
        raise deferred.CannotDeferError("policy.quantization is set")
    network = {key: settings[key] for key in ("dtype", "attn_implementation")}
    policy = Policy(
        deferred.build(name, config, network, options),
        tokenizer,
        gradient_checkpointing=checkpointing,
    )
    if policy.is_mixture:
        raise deferred.CannotDeferError("it is a mixture of experts")
    policy.in_files = True
    return policy
