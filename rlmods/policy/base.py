"""The policy: a causal language model that returns log-probabilities of given tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.deferred import is_deferred
from rlmods.distributed.sharding import device_of, full_state, full_tensor, shard_like
from rlmods.errors import UserError
from rlmods.ops import float32_linear, scatter
from rlmods.policy.cpu_linear import packed_linear, packed_weight, use_cpu_linear
from rlmods.policy.dropout import disable_dropout, original_dropout
from rlmods.policy.linear_logprobs import LogitTransform, linear_logprobs
from rlmods.policy.packing import (
    States,
    is_packed,
    packed_states,
    packing_agrees,
    padded_states,
    use_packed_attention,
    use_plain_attention,
)
from rlmods.policy.routers import ContextFn, Routers, RouterTrace
from rlmods.policy.text import TokenizerMixin, eos_ids
from rlmods.types import RoutedExperts, TokenFloats, TokenInts, TokenMask

LOGITS_PER_CHUNK = 2**26
"""Maximum number of logits in memory: 256 MiB of float32. More tokens are scored in chunks, which
backward recomputes."""


class PolicyOutput(NamedTuple):
    """Output of one forward at the masked tokens; 0 where the mask is False."""

    logprobs: TokenFloats
    """Natural log-probability, float32."""
    entropy: TokenFloats
    """Entropy of the distribution at each token, nats. Carries a gradient only with
    `entropy=True`."""
    values: TokenFloats | None = None
    """V(s_t) of a value head on this trunk: computed from the hidden state of token t - 1."""
    routed_experts: RoutedExperts | None = None
    """Each router's own choice of experts, int16, at every token, also where other experts were
    replayed; None for a dense model."""
    router_logits: tuple[Tensor, ...] | None = None
    """[N * T, E] of each of the L routers; None unless requested."""
    states: Float[Tensor, "n H"] | None = None
    """Last hidden state before each of the n masked tokens, row by row; None unless requested."""
    divergence: TokenFloats | None = None
    """Divergence from `other` over the whole vocabulary, float32; None without `other`."""


class Other(NamedTuple):
    """Another model at the same masked tokens, for a divergence of the two distributions over the
    whole vocabulary."""

    states: Float[Tensor, "n H"]
    """Its hidden states, in the order of `PolicyOutput.states`."""
    head: Callable[[Tensor], Tensor]
    """Its `output_layer()`."""
    divergence: Callable[[Tensor, Tensor], Tensor]
    """Maps log-probabilities of the policy and of the other model [m, V] to one number per token
    [m]."""


class Policy(TokenizerMixin, nn.Module):
    """A Hugging Face causal language model with its tokenizer.

    Old, new and reference log-probabilities all come from `forward`, so that they differ only in
    the parameters. Dropout is off in all of them (unless `set_dropout` turns it on for train mode):
    it is 0 in the live configuration, and has its original value in the exported one."""

    forward_methods: ClassVar[tuple[str, ...]] = ("next_logits", "check")
    """Methods other than `forward` that run the network; sharding registers them."""
    training_dropout: float = 0.0
    """Probability of dropout in train mode (`set_dropout`)."""
    in_files: bool = False
    """True if all weights are in safetensors files, of which a rank can read a part."""
    base_fingerprint: str | None = None
    """Fingerprint of the frozen weights under an adapter; None if every weight is trained."""

    def __init__(self, model: Any, tokenizer: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        disable_cudnn_attention()
        self.model = model
        self.tokenizer = tokenizer
        self.dropout = disable_dropout(model)
        self.eos_ids = eos_ids(model, tokenizer)
        self.context_length: int = getattr(model.config, "max_position_embeddings", None) or 1 << 20
        self.eval()
        self.routers = Routers(model)
        self.is_mixture = bool(self.routers)
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            checkpoint_activations(
                model, self.routers.checkpoint_contexts if self.is_mixture else None
            )
        use_cpu_linear(model, except_for=model.get_output_embeddings())
        self.packs = not self.is_mixture
        self.is_checked = False
        """True after `check`. With weights that are read later (`defer_loading`), the learner calls
        it."""
        if not is_deferred(model):
            self.check()

    @property
    def packs(self) -> bool:
        """True if forwards compute equal prefixes of rows once and no padding (`packing`). Setting
        it has no effect on a model that cannot."""
        return is_packed(self.model)

    @packs.setter
    def packs(self, value: bool) -> None:
        if value:
            use_packed_attention(self.model)
        elif is_packed(self.model):
            use_plain_attention(self.model)

    def check(self) -> None:
        """Check the architecture with the weights, and stop packing rows if it does not compute the
        same.

        Raises:
            UserError: logits are not those of `head`.
        """
        _check_head(self)
        self.packs = self.packs and packing_agrees(self.model, self.device)
        self.is_checked = True

    @property
    def device(self) -> torch.device:
        return device_of(self)

    @property
    def needs_train_mode(self) -> bool:
        """True if training needs train mode: for gradient checkpointing, or for dropout
        (`set_dropout`)."""
        return self.gradient_checkpointing or self.training_dropout > 0

    def forward(
        self,
        tokens: TokenInts,
        mask: TokenMask,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        value_head: nn.Module | None = None,
        routed_experts: RoutedExperts | None = None,
        router_logits: bool = False,
        states: bool = False,
        other: Other | None = None,
    ) -> PolicyOutput:
        """Return log-probabilities and entropies at the tokens where `mask` is True, from `logits /
        temperature`.

        Rows are right-padded; column t is conditioned on the columns before t, so column 0 has no
        score. Entropy carries a gradient only if `entropy` is True. `value_head` maps each hidden
        state to one number. `routed_experts`: experts to replay (-1: the router chooses), with
        gating weights from live logits; None: routers choose everywhere. `router_logits`: also
        return them. `states`: also return the hidden states. `other`: also return the divergence
        from this model, whose logits have no gradient; they are computed in the same chunks, so
        that logits of both exist for one chunk of tokens only."""
        device = tokens.device.type
        # Weights change between forwards of one training step, and a cast cached under no_grad has
        # no gradient: never cache casts.
        autocast = torch.autocast(
            device, enabled=torch.is_autocast_enabled(device), cache_enabled=False
        )
        recording: AbstractContextManager[RouterTrace | None] = nullcontext()
        if self.is_mixture:
            recording = self.routers.trace(routed_experts, logits=router_logits)
        with autocast, recording as trace:
            before = self._states(tokens, mask)
            # it may have seen other tokens before equal ones, as a teacher that is shown
            # demonstrations
            if other is not None:
                before = States(before.by_token(before.hidden))
            targets = before.distinct(tokens[:, 1:][mask[:, 1:]])
            outputs = self._score(before.hidden, targets, temperature, entropy, other)
            values = None if value_head is None else value_head(before.hidden).squeeze(-1).float()
        logprobs, entropies, *divergence = (scatter(before.by_token(x), mask) for x in outputs)
        output = PolicyOutput(
            logprobs,
            entropies,
            values=None if values is None else scatter(before.by_token(values), mask),
            states=before.by_token(before.hidden) if states else None,
            divergence=next(iter(divergence), None),
        )
        if trace is None:
            return output
        logits = (
            None
            if trace.logits is None
            else tuple(trace.logits[layer] for layer in sorted(trace.logits))
        )
        return output._replace(routed_experts=trace.stack_live(tokens), router_logits=logits)

    def _states(self, tokens: Tensor, mask: Tensor) -> States:
        """Return the last hidden state before each masked token."""
        forward = (
            padded_states
            if not self.packs or (self.training and self.training_dropout)
            else packed_states
        )
        return forward(self.model.base_model, tokens, mask)

    def _score(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        other: Other | None,
    ) -> tuple[Tensor, ...]:
        layer = self.model.get_output_embeddings()
        if other is None and is_plain_linear(layer):
            transform = replace(self.logit_transform, temperature=temperature)
            return linear_logprobs(
                hidden, layer.weight, layer.bias, targets, transform, entropy_gradient=entropy
            )
        chunk_size = max(
            1,
            LOGITS_PER_CHUNK
            // self.model.get_output_embeddings().weight.shape[0]
            // (1 if other is None else 2),
        )
        if len(targets) <= chunk_size:
            return self._score_chunk(hidden, targets, temperature, entropy, other)
        chunks = [
            checkpoint(
                self._score_chunk,
                hidden[rows],
                targets[rows],
                temperature,
                entropy,
                None if other is None else other._replace(states=other.states[rows]),
                use_reentrant=False,
            )
            for rows in (
                slice(start, start + chunk_size) for start in range(0, len(targets), chunk_size)
            )
        ]
        return tuple(torch.cat(x) for x in zip(*chunks, strict=True))

    def _score_chunk(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        other: Other | None,
    ) -> tuple[Tensor, ...]:
        logits = self.head(hidden).float() / temperature
        log_z = logits.logsumexp(-1)
        logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_z
        with torch.set_grad_enabled(entropy and torch.is_grad_enabled()):
            probabilities = (logits - log_z[:, None]).exp()
            entropies = log_z - (probabilities * logits).sum(-1)
        if other is None:
            return logprobs, entropies
        with torch.no_grad():
            other_logits = other.head(other.states).float() / temperature
        # models pad the same vocabulary to different sizes
        size = min(logits.shape[-1], other_logits.shape[-1])
        distributions = (x[:, :size].log_softmax(-1) for x in (logits, other_logits))
        return logprobs, entropies, other.divergence(*distributions)

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Return the logits of hidden states, with the scaling or capping that some architectures
        apply; float32 also under autocast."""
        layer = self.model.get_output_embeddings()
        packed = packed_weight(layer) if is_plain_linear(layer) else None
        return self.logit_transform.apply(
            float32_output(layer, hidden)
            if packed is None
            else packed_linear(hidden, packed, layer.bias)
        )

    def output_layer(self) -> Callable[[Tensor], Tensor]:
        """Return a function that equals `head` and can be called outside of this network's forward,
        by one rank alone. If the network is sharded, this gathers the weights of its output layer,
        whose hooks it does not call, and every rank must call it."""
        layer = self.model.get_output_embeddings()
        if not isinstance(getattr(layer, "weight", None), DTensor):
            return self.head
        parameters = [
            None if x is None else full_tensor(x.detach()) for x in (layer.weight, layer.bias)
        ]

        def gathered(hidden: Tensor) -> Tensor:
            # In the precision of the forward, which casts the float32 shards.
            parameters[:] = weight, bias = [None if x is None else x.to(hidden) for x in parameters]
            assert weight is not None
            return self.logit_transform.apply(float32_linear(hidden, weight, bias))

        return gathered

    @property
    def logit_transform(self) -> LogitTransform:
        """What the architecture applies to the outputs of its output layer."""
        config = self.model.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) / (
            getattr(config, "logits_scaling", None) or 1.0
        )
        return LogitTransform(scale, getattr(config, "final_logit_softcapping", None) or 0.0)

    def next_logits(self, ids: TokenInts, **context: Any) -> Float[Tensor, "N V"]:
        """Return the logits after the last column. `context`: attention mask, position ids and
        cache, passed on to transformers."""
        return self.head(self.model.base_model(input_ids=ids, **context).last_hidden_state[:, -1])

    @torch.no_grad()
    def gather(self) -> None:
        """Run one small forward, which gathers the weights of a sharded network."""
        self.next_logits(torch.zeros(1, 1, dtype=torch.long, device=self.device), use_cache=False)

    def frozen_copy(self) -> Policy:
        """Return a copy with the current weights that is not trained: a reference."""
        return copy.deepcopy(self).requires_grad_(False).eval()

    @property
    def shares_network(self) -> bool:
        """True if this is another policy's network with a different active adapter."""
        return False

    def trainable_tensors(self) -> dict[str, nn.Parameter]:
        """Return the trained tensors by name: every parameter, or those of the adapter. A frozen
        copy has its own set of them."""
        return dict(self.named_parameters())

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the given values, by the names of `trainable_tensors`, into the policy.

        Raises:
            ValueError: names or shapes differ.
        """
        current = self.trainable_tensors()
        if unmatched := sorted(current.keys() ^ tensors.keys()):
            raise ValueError(
                f"{unmatched[0]} is {'missing' if unmatched[0] in current else 'unexpected'}"
            )
        for name, x in current.items():
            if x.shape != tensors[name].shape:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)} here and {tuple(tensors[name].shape)} "
                    "in the given tensors"
                )
            x.copy_(shard_like(tensors[name], x))

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield full weights by their names in transformers. `state`: full state of `self.model`,
        for a sharded model."""
        yield from (self.model.state_dict() if state is None else state).items()

    def merged(self) -> Policy:
        """Return the policy without an adapter."""
        return self

    def export(self, folder: Path) -> None:
        """Write a Hugging Face directory: weights, configuration with the original dropout,
        generation config, tokenizer, chat template.

        Call it on every rank; rank 0 writes."""
        state = full_state(self.model)
        if is_first_rank():
            self.write(folder, state)

    def write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the directory, given the full state of `self.model`."""
        with original_dropout(self.model, self.dropout):
            self.model.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)


def disable_cudnn_attention() -> None:
    """Switch cuDNN's attention off in this process, which has no effect without a GPU. It builds a
    plan for each new shape, 0.1 to 0.4 s, and sampling has a new shape with every token. PyTorch's
    own kernels build none."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def checkpoint_activations(model: Any, context_fn: ContextFn | None = None) -> None:
    """Enable gradient checkpointing, which is active in train mode; `context_fn` as in
    `torch.utils.checkpoint`."""
    # transformers renames the method during 5.x and warns about the old name.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False} | ({} if context_fn is None else {"context_fn": context_fn}))


@torch.no_grad()
def _check_head(policy: Policy) -> None:
    """Raise UserError for an architecture whose logits are not `head(hidden)`: its
    log-probabilities would be silently wrong."""
    if policy.device.type == "meta":
        return
    ids = (
        torch.arange(4, device=policy.device)[None]
        % policy.model.config.get_text_config().vocab_size
    )
    expected = policy.model(input_ids=ids, use_cache=False).logits
    actual = policy.head(policy.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    # transformers rounds logits to 16 bits
    tolerance = 1e-3 if expected.dtype == torch.float32 else 2e-2
    if not torch.allclose(expected.float(), actual.float(), rtol=tolerance, atol=tolerance):
        name = type(policy.model).__name__
        raise UserError(
            f"policy: {name} transforms its logits after the output layer, which is not "
            "supported: choose another model"
        )


def is_plain_linear(layer: nn.Module) -> bool:
    """Return True for a linear layer whose output is `x W^T + b` and nothing else: no adapter, and
    no hooks that see or change it."""
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def float32_output(layer: nn.Module, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Return the layer's output for these hidden states without rounding it to 16 bits, as autocast
    and 16-bit weights do: a logit of 20 would be rounded to a multiple of 1/8. The layer runs as a
    module, with its hooks. One that is not a plain linear layer (an adapted one) computes as it
    does by itself."""
    with _Float32Linear(layer) if type(layer) is nn.Linear else nullcontext():
        output: Tensor = layer(hidden)
    return output


class _Float32Linear(TorchFunctionMode):
    """Compute the product with the weight of a linear layer by `float32_linear`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear and args[1] is self.layer.weight:
            return float32_linear(*args)
        return func(*args, **(kwargs or {}))


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put every submodule in eval mode inside the block, and restore each mode afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training
