"""Causal language models that transformers can load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlmods.distributed import deferred
from rlmods.errors import UserError
from rlmods.policy.adapted import ADAPTER_CONFIG, base_model_name, load_adapter
from rlmods.policy.base import Policy
from rlmods.policy.chat_template import eos_ids, set_template_kwargs
from rlmods.policy.files import NO_CODE, NO_PICKLE, explain
from rlmods.policy.quantization import quantization_config
from rlmods.policy.text import TokenizerMixin
from rlmods.run.hub import check_hub
from rlmods.run.saved import check_run

WeightType = Literal["float32", "bfloat16", "float16"]


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
    dtype: WeightType = "float32"
    """Data type of the weights. Trained weights are float32; weights that are frozen under an
    adapter may be bfloat16."""
    attention: str | None = None
    """Attention implementation, the same for sampling and for old, new and reference
    log-probabilities, except flex_attention. null: sdpa if the model supports it, else eager.
    flex_attention, on GPUs: one call a layer for log-probabilities of rows without padding;
    sampling uses sdpa."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""
    compile: bool = False
    """Compile the transformer blocks with torch.compile in training: log-probabilities and updates.
    Sampling runs them as they are."""
    quantization: Literal["nf4", "int8"] | None = None
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

    @property
    def uses_flex(self) -> bool:
        """True if the attention of packed rows is FlexAttention."""
        return self.attention == "flex_attention"

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
        try:
            return replace(self, name=str(exported(self.name))).load()
        except UserError as error:
            raise UserError(f"policy.name={self.name}: {error}") from error

    def load(self) -> Policy:
        """Load the policy from a hub name or directory, with an adapter if the directory holds
        one. Inside `torch.device("meta")` weights are not read, and inside `defer_loading` they are
        read later, if they can be (`deferred.build`).

        Raises:
            UserError: the model does not exist, is not a causal language model, lacks weights, or
            does not support `attention`.
        """
        folder = Path(str(self.name)).expanduser()
        has_adapter = (folder / ADAPTER_CONFIG).is_file()
        policy = self._with_adapter(folder) if has_adapter else self._base()
        policy.control_tokens_in_data = self.control_tokens_in_data
        return policy

    def _with_adapter(self, folder: Path) -> Policy:
        base = replace(self, name=base_model_name(folder), chat_template_kwargs={})._base()
        # some trainers save the tokenizer with the adapter
        if (folder / "tokenizer_config.json").is_file():
            base.tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        set_template_kwargs(base.tokenizer, self.chat_template_kwargs)
        base.eos_ids = eos_ids(base.model, base.tokenizer)
        return load_adapter(folder, base)

    def _base(self) -> Policy:
        """Load tokenizer and network."""
        name = str(self.name)
        check_hub(name)
        source = {} if self.revision is None else {"revision": self.revision}
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **source, **NO_CODE)
            config = AutoConfig.from_pretrained(name, **source, **NO_CODE)
            if any(x.endswith("ForSequenceClassification") for x in config.architectures or ()):
                raise UserError(
                    f"{name!r} is a reward model, which cannot generate text; type a policy's run "
                    "or model"
                )
            set_template_kwargs(tokenizer, self.chat_template_kwargs)
            return self._network(config, tokenizer, source)
        except (torch.OutOfMemoryError, MemoryError, UserError):
            raise
        except Exception as error:  # transformers raises almost any for broken files
            raise UserError(f"{name!r} {self._problem(error)}") from error

    def _network(
        self,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        source: Mapping[str, str],
    ) -> Policy:
        name = str(self.name)
        dtype = getattr(torch, self.dtype)
        attention = "sdpa" if self.uses_flex else self.attention
        # Versions of transformers before 5.20 leave the cap out without a word.
        if getattr(config.get_text_config(), "attn_logit_softcapping", None):
            if attention == "sdpa":
                raise ValueError("its attention has capped scores")
            attention = attention or "eager"
        settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
        problem = "policy.quantization is set"
        if self.quantization is not None:
            settings["quantization_config"] = quantization_config(self.quantization, dtype)
        if torch.get_default_device().type == "meta":
            return self._policy(AutoModelForCausalLM.from_config(config, **settings), tokenizer)
        if deferred.is_enabled() and self.quantization is None:
            try:
                return self._policy(deferred.build(name, config, settings, source), tokenizer)
            except deferred.CannotDeferError as error:
                problem = str(error)
        if not self.allow_pickle:
            settings |= NO_PICKLE
        network, info = AutoModelForCausalLM.from_pretrained(
            name, output_loading_info=True, **settings, **source, **NO_CODE
        )
        missing = sorted(info["missing_keys"])
        if missing:
            raise UserError(
                f"{name!r} lacks weights ({', '.join(missing[:3])}), which would be random: type "
                "another model"
            )
        deferred.warn_of_whole_networks(problem, f"{name!r}: ")
        return self._policy(network, tokenizer)

    def _policy(self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Policy:
        return Policy(
            network,
            tokenizer,
            gradient_checkpointing=self.gradient_checkpointing,
            compiles=self.compile,
            flex_attention=self.uses_flex,
        )

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


def exported(source: str | Path) -> str | Path:
    """Return the `export/` of a run; any other source unchanged.

    Raises:
        UserError: a directory that does not exist, a run without an export, or a folder of runs or
        in a run.
    """
    run = Path(source).expanduser()
    if str(source).startswith(("/", "./", "../", "~")) and not run.exists():
        raise UserError(
            f"{str(source)!r}: no such directory; type a hub name, a directory or a run"
        )
    if (run / "config.json").is_file():
        return source
    if (run / "export").is_dir():
        return run / "export"
    if (run / "config.yaml").is_file():
        raise UserError(
            f"{source}: this run has no export/ yet: let it finish, or type the name of a model"
        )
    if run.exists() and not (run / ADAPTER_CONFIG).is_file():
        check_run(run, "a run or a model", "config.yaml or config.json")
    return source


def load(name: str | Path, **settings: Any) -> Policy:
    """Load a policy from a hub name or directory (`HuggingFace.load`, with its settings)."""
    return HuggingFace(str(name), **settings).load()


def load_one(
    option: str, name: str | None, policy: Callable[[], Policy] | None, **settings: Any
) -> Policy:
    """Load the model of a configuration group's `option` (group=option), by its name or by an
    option of the group `policy`.

    Raises:
        UserError: no model or two are given, or it cannot be loaded.
    """
    group = option.partition("=")[0]
    if (name is None) == (policy is None):
        raise UserError(
            f"{option} needs one model: type {group}.name=HUB_NAME_OR_DIRECTORY_OR_RUN, or "
            f"+policy@{group}.policy=OPTION"
        )
    try:
        return load(exported(str(name)), **settings) if policy is None else policy()
    except UserError as error:
        setting = f"name={name}" if policy is None else "policy"
        raise UserError(f"{group}.{setting}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """Base of parts that load a model that is not trained, from a name or by an option of the group
    `policy`."""

    name: str | None = None
    """Hub name, directory or run."""
    dtype: WeightType = "float32"
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
        option = f"{group}={type(self).__name__.lower()}"
        network = load_one(option, self.name, self.policy, dtype=self.dtype)
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
