"""Language models with a scalar head: reward models, process reward models and critics."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.deferred import (
    initialize_buffers,
    is_deferred,
    read_on_every_rank,
    share_weights,
)
from rlmods.distributed.sharding import device_of, full_state
from rlmods.errors import UserError
from rlmods.ops import masked_mean, masked_sum, pack
from rlmods.policy.base import Policy
from rlmods.policy.chat_template import eos_ids
from rlmods.policy.files import (
    NO_CODE,
    NO_PICKLE,
    explain,
    read_config,
)
from rlmods.policy.linear import use_cpu_linear
from rlmods.policy.modes import (
    checkpoint_activations,
    context_length,
    disable_cudnn_attention,
    disable_dropout,
    original_dropout,
)
from rlmods.policy.text import TokenizerMixin
from rlmods.run.hub import check_hub
from rlmods.types import RowFloats, TokenFloats, TokenInts, TokenMask

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SHIPPED = {"proxy": Path(__file__).parent / "weights" / "proxy"}
"""Reward models in the package, by name: a small one that is easily deceived, by
`experiment=proxy_reward_model`."""


def weighted_sum(x: TokenFloats, mask: TokenMask) -> RowFloats:
    """Return sum_t w_t x_t over each row's true slots, with weights w_t = t / (1 + ... + n) that
    grow with the position t = 1 ... n and sum to 1: later tokens have seen more of the response
    (position-weighted mean of SGPT, arXiv:2202.08904, equation 2)."""
    position = mask.cumsum(1).to(x.dtype)
    return masked_sum(x * position, mask) / masked_sum(position, mask).clamp(min=1)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "last": lambda x, mask: masked_sum(x, mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))),
    "mean": masked_mean,
    "sum": masked_sum,
    "weighted_sum": weighted_sum,
    "max": lambda x, mask: torch.where(mask, x, -torch.inf).amax(1).masked_fill(~mask.any(1), 0.0),
    "min": lambda x, mask: torch.where(mask, x, torch.inf).amin(1).masked_fill(~mask.any(1), 0.0),
}
"""Reductions of the scores at a response's tokens to one per row; `last` is the end-of-text token,
if there is one. 0 without tokens."""


def find(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the location of a scalar model's files, and its `metadata` (empty for a model on the
    hub), without loading the model.

    `source` is a run directory (whose `export/` is used), a directory, a hub name, or one of
    `SHIPPED`.

    Raises:
        UserError: there is no such directory, or it holds no model with a scalar head.
    """
    folder = SHIPPED.get(str(source), Path(source).expanduser())
    if not folder.is_dir():
        # If the first part is a local directory, this is a mistyped run, not a hub name.
        if HUB_NAME.fullmatch(str(source)) and not folder.parent.is_dir():
            return str(source), {}
        raise UserError(
            f"no reward model at {str(source)!r}: type a run, a directory or a hub name "
            "(train one with algo=reward_model)"
        )
    for name in ("export", "reward_model"):  # a run, and one that also trained a policy
        if (folder / name).is_dir():
            folder = folder / name
    if not (folder / "config.json").is_file():
        raise UserError(
            f"no reward model at {str(source)!r}: no export/ or config.json there (has the "
            "run finished?)"
        )
    config = read_config(folder / "config.json")
    architectures = str(config.get("architectures"))
    metadata = config.get("rlmods") or {}
    if "ForSequenceClassification" not in architectures or not isinstance(metadata, dict):
        raise UserError(
            f"no reward model at {str(source)!r}: it holds {architectures}; train one with "
            "algo=reward_model"
        )
    return str(folder), metadata


def pool(x: TokenFloats, mask: TokenMask, how: str) -> RowFloats:
    """Reduce the masked tokens of each row to one number, by one of `POOLINGS`."""
    return POOLINGS[how](x, mask)


class ScalarModel(TokenizerMixin, nn.Module):
    """A causal trunk with a scalar head: the score at token t is `head(hidden_t)`, computed from
    the tokens up to t.

    On disk it is a Hugging Face directory of `AutoModelForSequenceClassification` with one label,
    whose `config.json` also holds `metadata` (pooling, offset). Dropout is off, as in a
    `Policy`."""

    training_dropout: float = 0.0
    """Probability of dropout in train mode (`set_dropout`)."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        disable_cudnn_attention()
        self.model = model
        self.tokenizer = tokenizer
        self.dropout = disable_dropout(model)
        self.eos_ids = eos_ids(model, tokenizer)
        self.context_length = context_length(model)
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            checkpoint_activations(model)
        head = getattr(model, "score", None)
        if not isinstance(head, nn.Linear) or head.out_features != 1:
            raise UserError(
                f"{type(model).__name__} has no linear head with one output: choose another model"
            )
        use_cpu_linear(model, except_for=model.score)
        self.eval()

    @property
    def device(self) -> torch.device:
        return device_of(self)

    @property
    def needs_train_mode(self) -> bool:
        """True if training needs train mode: for gradient checkpointing, or for dropout
        (`set_dropout`)."""
        return self.gradient_checkpointing or self.training_dropout > 0

    @property
    def metadata(self) -> dict[str, Any]:
        """Interpretation of the scores (pooling, offset, ...): plain values, stored in
        config.json."""
        metadata: dict[str, Any] = vars(self.model.config).setdefault("rlmods", {})
        return metadata

    def forward(self, tokens: TokenInts, attention: TokenMask | None = None) -> TokenFloats:
        """Return `head(hidden)` at every token, float32. Without `attention`, rows must be
        right-padded, which does not affect a causal model; with it (True on tokens, False on
        padding), padding may be on either side."""
        inputs: dict[str, Tensor] = {"input_ids": tokens}
        if attention is not None:
            inputs["attention_mask"] = attention.long()
            inputs["position_ids"] = (attention.long().cumsum(1) - 1).clamp(min=0)
        device = tokens.device.type
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
            hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        return self.head(hidden)

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "..."]:
        """Return the scores of hidden states, float32 also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            weight = self.model.score.weight.float()
            bias = None if self.model.score.bias is None else self.model.score.bias.float()
            return nn.functional.linear(hidden.float(), weight, bias).squeeze(-1)

    @torch.no_grad()
    def fold_offset(self) -> None:
        """Subtract the offset in the head's bias, so that `forward` returns scores from which it is
        subtracted already."""
        offset = float(self.metadata.get("offset", 0.0))
        head = self.model.score
        if offset:
            bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
            head.bias = nn.Parameter(bias - offset)
            self.metadata["offset"] = 0.0

    @torch.no_grad()
    def grade(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], token_budget: int = 8192
    ) -> TokenFloats:
        """Return the scores at the response tokens of each (prompt ids, response ids), right-padded
        with NaN to the longest response.

        Raises:
            UserError: a row is longer than the model's context.
        """
        if not rows:
            return torch.zeros(0, 1)
        lengths = torch.tensor([len(prompt) + len(response) for prompt, response in rows])
        longest = max(len(response) for _, response in rows)
        out = torch.full((len(rows), max(1, longest)), torch.nan)
        if int(lengths.max()) > self.context_length:
            raise UserError(
                f"a prompt and its response have {int(lengths.max())} tokens in the reward "
                "model's tokenizer, and its context is "
                f"{self.context_length}: type a smaller rollout.max_tokens, or choose another "
                "reward model"
            )
        for chunk in pack(lengths, token_budget):
            tokens = torch.full((len(chunk), int(lengths[chunk].max())), self.pad_id)
            for i, row in enumerate(chunk.tolist()):
                tokens[i, : lengths[row]] = torch.tensor([*rows[row][0], *rows[row][1]])
            scores = self(tokens.to(self.device)).cpu()
            for i, row in enumerate(chunk.tolist()):
                prompt, response = rows[row]
                out[row, : len(response)] = scores[i, len(prompt) : len(prompt) + len(response)]
        return out

    @staticmethod
    def from_policy(policy: Policy) -> ScalarModel:
        """Return a copy of the policy's trunk in float32 with a zero-initialised head: all scores
        are 0 at first.

        Raises:
            UserError: transformers has no sequence classifier for this architecture.
        """
        from transformers import AutoModelForSequenceClassification

        deferred = is_deferred(policy) and policy.base_fingerprint is None
        if not deferred:
            read_on_every_rank(
                policy, "the scalar model starts from weights with an adapter merged"
            )
        tokenizer, pad_id = _padding(policy)
        config = copy.deepcopy(policy.model.config)
        config.num_labels = 1
        config.eos_token_id = sorted(policy.eos_ids)
        try:
            # The policy's data type may be unsuitable for training.
            with torch.device("meta") if deferred else nullcontext():
                model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        except ValueError as error:
            raise UserError(
                f"{type(policy.model).__name__} does not support a scalar head: "
                f"{str(error).splitlines()[0]}"
            ) from error
        # Set after construction: an embedding layer built with a padding id does not train that id,
        # which may be the end of text.
        model.config.pad_token_id = pad_id
        if deferred:
            initialize_buffers(model)
            share_weights(policy.model.base_model, model.base_model)
            model.score.to_empty(device="cpu")
        else:
            prefix = f"{policy.model.base_model_prefix}."
            trunk = {}
            for name, x in policy.weights():
                if name.startswith(prefix):
                    trunk[name.removeprefix(prefix)] = x
            model.base_model.load_state_dict(trunk)
            model = model.to(policy.device)
        scalar = ScalarModel(model, tokenizer, gradient_checkpointing=policy.gradient_checkpointing)
        for parameter in model.score.parameters():
            nn.init.zeros_(parameter)
        scalar.dropout = copy.deepcopy(policy.dropout)
        return scalar

    def export(self, folder: Path) -> None:
        """Write the Hugging Face directory. Call it on every rank; rank 0 writes."""
        state = full_state(self.model)
        if is_first_rank():
            with original_dropout(self.model, self.dropout):
                self.model.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)

    @staticmethod
    def load(source: str | Path) -> ScalarModel:
        """Load from a run directory (its `export/`), a directory, or a hub name; frozen, in
        float32. Inside `torch.device("meta")` weights are not read.

        Raises:
            UserError: there is no such model, it cannot be loaded, or it has no head with one
            output.
        """
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        location, _ = find(source)
        check_hub(location)
        try:
            tokenizer = AutoTokenizer.from_pretrained(location, **NO_CODE)
            if torch.get_default_device().type == "meta":
                config = AutoConfig.from_pretrained(
                    location, num_labels=1, dtype=torch.float32, **NO_CODE
                )
                model = AutoModelForSequenceClassification.from_config(config)
                return ScalarModel(model, tokenizer).requires_grad_(False)
            model, info = AutoModelForSequenceClassification.from_pretrained(
                location,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **NO_CODE,
                **NO_PICKLE,
            )
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # transformers raises almost any for broken files
            raise UserError(
                f"cannot load a reward model from {str(source)!r} ({explain(error)}); train "
                "one with algo=reward_model"
            ) from error
        mismatched = {name for name, *_ in info["mismatched_keys"]}
        missing = sorted(mismatched.union(info["missing_keys"]))
        if missing:
            raise UserError(
                f"{str(source)!r} lacks weights ({', '.join(missing[:3])}): they would be "
                "random; train it again"
            )
        return ScalarModel(model, tokenizer).requires_grad_(False)


def _padding(policy: Policy) -> tuple[PreTrainedTokenizerBase, int]:
    """Return the tokenizer and the padding id of a scalar model on this policy. transformers scores
    the last token that is not padding, so an end-of-text token that pads is replaced by another
    special token, if there is one."""
    tokenizer = policy.tokenizer
    others = sorted(set(tokenizer.all_special_ids) - policy.eos_ids)
    if policy.pad_id not in policy.eos_ids or not others:
        return tokenizer, policy.pad_id
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(others[0])
    return tokenizer, int(others[0])
