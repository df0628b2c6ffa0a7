"""Causal language models that transformers can load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlmods.distributed import deferred
from rlmods.errors import UserError
from rlmods.policy.adapted import ADAPTER_CONFIG, base_model_name, load_adapter
from rlmods.policy.base import Policy
from rlmods.policy.chat_template import eos_ids, set_template_kwargs
from rlmods.policy.files import NO_CODE, NO_PICKLE, check_configs, explain, is_classifier
from rlmods.policy.quantization import quantization_config
from rlmods.policy.text import TokenizerMixin
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
        options = {} if self.revision is None else {"revision": self.revision}
        try:
            policy = load(
                exported(self.name),
                dtype=self.dtype,
                attention=self.attention,
                checkpointing=self.gradient_checkpointing,
                quantization=self.quantization,
                chat_template_kwargs=self.chat_template_kwargs,
                allow_pickle=self.allow_pickle,
                **options,
            )
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
    is_model = (run / "config.json").is_file()
    is_run = (run / "config.yaml").is_file()
    has_export = (run / "export").is_dir()
    if is_model or not (is_run or has_export):
        return source
    if not is_run:
        raise UserError(
            f"{source}: this run has no config.yaml: type {source}/export for its model "
            "alone, or give another run"
        )
    if not has_export:
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
    **options: str,
) -> Policy:
    """Load a `Policy` from a hub name or directory, with an adapter if the directory holds one.
    Inside `torch.device("meta")` weights are not read, and inside `defer_loading` they are read
    later, unless they are converted or quantized while they are loaded.

    Raises:
        UserError: the model does not exist, is not a causal language model, lacks weights, or does
        not support `attention`.
    """
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"policy.dtype={dtype}: type policy.dtype=float32 or policy.dtype=bfloat16")
    check_configs(name)
    check_hub(name)
    source = _Source(name, dtype, attention, checkpointing, quantization, allow_pickle, options)
    folder = Path(name).expanduser()
    if not (folder / ADAPTER_CONFIG).is_file():
        return source.load(chat_template_kwargs)
    # some trainers save the tokenizer with the adapter
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    base = replace(source, name=base_model_name(folder))
    check_configs(base.name)
    check_hub(base.name)
    policy = base.load(None if has_tokenizer else chat_template_kwargs)
    if has_tokenizer:
        policy.tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        set_template_kwargs(policy.tokenizer, chat_template_kwargs or {})
        policy.eos_ids = eos_ids(policy.model, policy.tokenizer)
    return load_adapter(folder, policy)


@dataclass(frozen=True)
class _Source:
    """A model in the files of transformers, and the settings of its network."""

    name: str | Path
    dtype: str
    attention: str | None
    checkpointing: bool
    quantization: str | None
    allow_pickle: bool
    options: Mapping[str, str]
    """Further arguments of `from_pretrained`."""

    def load(self, chat_template_kwargs: Mapping[str, Any] | None) -> Policy:
        """Load tokenizer and network.

        Raises:
            UserError: as `rlmods.policy.hf.load`.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.name, **NO_CODE, **self.options)
            config = AutoConfig.from_pretrained(self.name, **NO_CODE, **self.options)
            if is_classifier(config):
                raise UserError(
                    f"{str(self.name)!r} is a reward model, which cannot generate text; type a "
                    "policy's run or model"
                )
            set_template_kwargs(tokenizer, chat_template_kwargs or {})
            return self._network(config, tokenizer)
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"{str(self.name)!r} {self._problem(error)}") from error

    def _network(self, config: Any, tokenizer: Any) -> Policy:
        settings: dict[str, Any] = {
            "dtype": getattr(torch, self.dtype),
            "attn_implementation": self.attention,
        }
        quantized = dict(settings)
        if self.quantization is not None:
            quantized["quantization_config"] = quantization_config(
                self.quantization, settings["dtype"]
            )
        if torch.get_default_device().type == "meta":
            policy = self._policy(AutoModelForCausalLM.from_config(config, **quantized), tokenizer)
            policy.in_files = self.quantization is None and not policy.is_mixture
            return policy
        problem = ""
        if deferred.is_enabled():
            try:
                return self._deferred(config, tokenizer, settings)
            except deferred.CannotDeferError as error:
                problem = str(error)
        if not self.allow_pickle:
            quantized |= NO_PICKLE
        network, info = AutoModelForCausalLM.from_pretrained(
            self.name, output_loading_info=True, **quantized, **NO_CODE, **self.options
        )
        missing = sorted(info["missing_keys"])
        if missing:
            raise UserError(
                f"{str(self.name)!r} lacks weights ({', '.join(missing[:3])}), which would be "
                "random: type another model"
            )
        if problem:
            rank_zero_warn(
                f"{str(self.name)!r}: every rank loads all weights into CPU memory before it keeps "
                f"its shard ({problem})"
            )
        return self._policy(network, tokenizer)

    def _policy(self, network: Any, tokenizer: Any) -> Policy:
        return Policy(network, tokenizer, gradient_checkpointing=self.checkpointing)

    def _deferred(self, config: Any, tokenizer: Any, settings: Mapping[str, Any]) -> Policy:
        """Return the policy without weights, which are read after it is sharded.

        Raises:
            CannotDeferError: its weights cannot be read by shards.
        """
        if self.quantization is not None:
            raise deferred.CannotDeferError("policy.quantization is set")
        network = deferred.build(str(self.name), config, settings, self.options)
        policy = self._policy(network, tokenizer)
        if policy.is_mixture:
            raise deferred.CannotDeferError("it is a mixture of experts")
        policy.in_files = True
        return policy

    def _problem(self, error: Exception) -> str:
        """Return why the model cannot be loaded, and what to type instead."""
        reason = explain(error)
        if not self.allow_pickle and "safetensors" in reason:
            return "has no weights as safetensors: if you trust it, type policy.allow_pickle=true"
        if self.attention is not None and "attention" in reason.lower():
            why = reason.split(". ")[0]
            return (
                f"cannot run with policy.attention={self.attention} ({why}): type "
                "policy.attention=eager"
            )
        if "couldn't connect" in reason.lower():
            return (
                "cannot be loaded: the Hugging Face Hub cannot be reached, and its cache on this "
                "machine has no such model; connect, or type a directory or a run"
            )
        return f"cannot be loaded ({reason}); type a hub name, a directory or a run"


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """Base of parts that load a model that is not trained, from a name or by an option of the group
    `policy`."""

    name: str | None = None
    """Hub name, directory or run."""
    dtype: str = "float32"
    """Data type of the weights; bfloat16 halves their memory."""
    policy: Callable[[], Policy] | None = None
    """Option of the group `policy` that loads the model instead of `name`, with its own settings;
    null: none."""

    def load(self, student: Policy, group: str) -> Policy:
        """Load the model, with any adapter merged, for comparison with `student`.

        Args:
            group: configuration group of this part, for error messages.

        Raises:
            UserError: no model or two are given, it cannot be loaded, or its vocabulary is not the
            student's.
        """
        if (self.name is None) == (self.policy is None):
            raise UserError(
                f"{group}={type(self).__name__.lower()} needs one model: type "
                f"{group}.name=HUB_NAME_OR_DIRECTORY_OR_RUN, or +policy@{group}.policy=OPTION"
            )
        try:
            if self.policy is None:
                network = load(exported(str(self.name)), dtype=self.dtype)
            else:
                network = self.policy()
        except UserError as error:
            setting = f"name={self.name}" if self.policy is None else "policy"
            raise UserError(f"{group}.{setting}: {error}") from error
        check_vocabulary(network, student, group)
        return network.merged().requires_grad_(False).eval()


def check_vocabulary(model: TokenizerMixin, student: TokenizerMixin, group: str) -> None:
    """Check that a model has the tokens of `student`, so that log-probabilities of the same ids can
    be compared.

    Raises:
        UserError: it has others.
    """
    if model.tokenizer.get_vocab() != student.tokenizer.get_vocab():
        raise UserError(
            f"{group}: the model has another vocabulary than the policy, so their tokens "
            f"cannot be compared: type another {group}.name="
        )
