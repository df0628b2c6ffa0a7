"""The policy: a causal language model that returns log-probabilities of given tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.deferred import is_checked_later
from rlmods.distributed.sharding import device_of, full_state, shard_like
from rlmods.errors import UserError, in_one_line
from rlmods.ops import scatter
from rlmods.policy.chat_template import eos_ids
from rlmods.policy.linear import use_cpu_linear
from rlmods.policy.modes import (
    checkpoint_activations,
    context_length,
    disable_cudnn_attention,
    disable_dropout,
    original_dropout,
    uncompiled,
)
from rlmods.policy.output_layer import (
    Head,
    check_head,
    gathered_head,
    is_plain_linear,
    linear_logprobs,
    logit_transform,
    output_logits,
)
from rlmods.policy.packing import (
    FLEX_IMPLEMENTATION,
    IMPLEMENTATION,
    States,
    check_flex,
    is_packed,
    packed_states,
    packing_agrees,
    padded_states,
    use_packed_attention,
)
from rlmods.policy.routers import Routers
from rlmods.policy.text import TokenizerMixin
from rlmods.policy.tree_attention import has_kernels
from rlmods.types import RoutedExperts, TokenFloats, TokenInts, TokenMask

LOGITS_PER_CHUNK = 2**26
"""Maximum number of logits in memory: 256 MiB of float32. More tokens are scored in chunks, which
backward recomputes."""


class PolicyOutput(NamedTuple):
    """Output of one forward at the masked tokens; 0 where the mask is False."""

    logprobs: TokenFloats
    """Natural log-probability, float32."""
    entropy: TokenFloats
    """Entropy of the distribution at each token, nats. Carries a gradient only with `entropy=True`
    (`Extension.needs_entropy`, `PolicyGradient.needs_entropy`)."""
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


class DivergenceFrom(NamedTuple):
    """Another model at the same masked tokens, for a divergence of the two distributions over the
    whole vocabulary."""

    states: Float[Tensor, "n H"]
    """Its hidden states, in the order of `PolicyOutput.states`."""
    head: Head
    """Its `output_layer()`."""
    divergence: Callable[[Tensor, Tensor], Tensor]
    """Maps log-probabilities of the policy and of the other model [m, V] to numbers [m]."""


class Policy(TokenizerMixin, nn.Module):
    """A Hugging Face causal language model with its tokenizer.

    Old, new and reference log-probabilities all come from `forward`, so that they differ only in
    the parameters. Dropout is off in all of them (unless `set_dropout` turns it on for train mode):
    it is 0 in the live configuration, and has its original value in the exported one."""

    forward_methods: ClassVar[tuple[str, ...]] = ("next_logits", "check")
    """Methods other than `forward` that run the network; sharding registers them."""
    training_dropout: float = 0.0
    """Probability of dropout in train mode (`set_dropout`)."""
    sampling_trunk: Callable[..., Any] | None = None
    """Computes the last hidden states while responses are sampled (`fused`); None: the network
    itself does."""
    shares_network: bool = False
    """True if this is another policy's network with a different active adapter."""
    base_fingerprint: str | None = None
    """Fingerprint of the frozen weights under an adapter; None if every weight is trained."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        gradient_checkpointing: bool = False,
        compiles: bool = False,
        flex_attention: bool = False,
    ) -> None:
        """
        Args:
            compiles: let the learner compile the blocks (`compile_blocks`) for `forward`.
            flex_attention: compute the attention of packed rows with FlexAttention (`Tree`).
        """
        super().__init__()
        self.compiles = compiles
        self.flex_attention = flex_attention
        disable_cudnn_attention()
        self.model = model
        self.tokenizer = tokenizer
        self.dropout = disable_dropout(model)
        self.eos_ids = eos_ids(model, tokenizer)
        self.context_length = context_length(model)
        self.eval()
        self.routers = Routers(model)
        self.is_mixture = bool(self.routers)
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            checkpoint_activations(
                model, self.routers.checkpoint_contexts if self.is_mixture else noop_context_fn
            )
        use_cpu_linear(model, except_for=model.get_output_embeddings())
        self.packs = not self.is_mixture
        self._check_packs()
        self.is_checked = False
        """True after `check`, which the learner may call later (`is_checked_later`)."""
        if not is_checked_later(model):
            self.check()

    @property
    def packs(self) -> bool:
        """True if forwards compute equal prefixes of rows once and no padding (`packing`). Setting
        it has no effect on a model that cannot."""
        return is_packed(self.model)

    @packs.setter
    def packs(self, value: bool) -> None:
        if value:
            name = FLEX_IMPLEMENTATION if self.flex_attention else IMPLEMENTATION
            use_packed_attention(self.model, name)
        elif is_packed(self.model):
            self.model.set_attn_implementation("sdpa")

    def check(self) -> None:
        """Check the architecture with the weights, and stop packing rows if it does not compute the
        same.

        Raises:
            UserError: the architecture changes its logits after the output layer, or its attention
            does not run on this device or in this precision.
        """
        try:
            check_head(self.model, self.device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            name = str(self.model.config.get_text_config()._attn_implementation)
            if self.packs or name in ("sdpa", "eager"):
                raise
            reason = in_one_line(error, 160)
            raise UserError(
                f"policy.attention={name} does not run on {self.device.type} in this precision "
                f"({reason}): type trainer.precision=bf16-mixed, or policy.attention=sdpa"
            ) from error
        if self.flex_attention and not has_kernels(self.device):
            self.packs = self.flex_attention = False
            self.packs = True
            rank_zero_warn("policy.attention=flex_attention is for GPUs: sdpa is used here")
        elif self.flex_attention:
            check_flex(self.model, self.device)
        self.packs = self.packs and packing_agrees(self.model, self.device)
        self._check_packs()
        self.is_checked = True

    def _check_packs(self) -> None:
        if self.flex_attention and not self.packs and self.device.type != "meta":
            raise UserError(
                "policy.attention=flex_attention computes rows without padding, which this "
                "model's attention or its experts do not allow: type policy.attention=null"
            )

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
        other: DivergenceFrom | None = None,
    ) -> PolicyOutput:
        """Return log-probabilities and entropies at the tokens where `mask` is True, from `logits /
        temperature`. Rows are right-padded; column t is conditioned on the columns before t, so
        column 0 has no score.

        Args:
            entropy: let the entropy carry a gradient.
            value_head: maps each hidden state to one number.
            routed_experts: experts to replay (-1: the router chooses), with gating weights from
                live logits; None: routers choose everywhere.
            router_logits, states: also return them.
            other: also return the divergence from this model, whose logits have no gradient. They
                are computed in the same chunks of tokens."""
        device = tokens.device.type
        # Weights change between forwards of one training step, and a cast cached under no_grad has
        # no gradient: never cache casts.
        autocast = torch.autocast(
            device, enabled=torch.is_autocast_enabled(device), cache_enabled=False
        )
        # dropout differs from row to row, so equal prefixes do not have equal states
        is_noisy = self.training and self.training_dropout > 0
        states_of = packed_states if self.packs and not is_noisy else padded_states
        with autocast, self.routers.trace(routed_experts, logits=router_logits) as trace:
            before = states_of(self.model, tokens, mask)
            # a teacher that is shown demonstrations has another prompt, so its prefixes are not
            # shared as the policy's are
            if other is not None:
                before = States(before.by_token(before.hidden))
            targets = before.targets(tokens, mask)
            outputs = self._score(before.hidden, targets, temperature, entropy, other)
            values = None if value_head is None else value_head(before.hidden).squeeze(-1).float()

        def by_token(x: Tensor) -> TokenFloats:
            return scatter(before.by_token(x), mask)

        logprobs, entropies, *divergence = map(by_token, outputs)
        output = PolicyOutput(
            logprobs,
            entropies,
            values=None if values is None else by_token(values),
            states=before.by_token(before.hidden) if states else None,
            divergence=divergence[0] if divergence else None,
        )
        if not self.is_mixture:
            return output
        return output._replace(
            routed_experts=trace.stack_live(tokens), router_logits=trace.stack_logits()
        )

    def _score(
        self,
        hidden: Float[Tensor, "m H"],
        targets: Tensor,
        temperature: float,
        entropy: bool,
        other: DivergenceFrom | None,
    ) -> tuple[Tensor, ...]:
        layer = self.model.get_output_embeddings()
        if other is None and is_plain_linear(layer):
            transform = logit_transform(self.model.config, temperature)
            return linear_logprobs(
                hidden, layer.weight, layer.bias, targets, transform, entropy_gradient=entropy
            )
        logits_per_token = layer.weight.shape[0] * (1 if other is None else 2)
        size = max(1, LOGITS_PER_CHUNK // logits_per_token)
        if len(targets) <= size:
            return self._score_chunk(hidden, targets, temperature, entropy, other)
        chunks = []
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            chunk = checkpoint(
                self._score_chunk,
                hidden[rows],
                targets[rows],
                temperature,
                entropy,
                None if other is None else other._replace(states=other.states[rows]),
                use_reentrant=False,
            )
            chunks.append(chunk)
        return tuple(map(torch.cat, zip(*chunks, strict=True)))

    def _score_chunk(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        other: DivergenceFrom | None,
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
        own = logits[:, :size].log_softmax(-1)
        others = other_logits[:, :size].log_softmax(-1)
        return logprobs, entropies, other.divergence(own, others)

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Return the logits of hidden states, float32 also under autocast."""
        return output_logits(self.model, hidden)

    def output_layer(self) -> Head:
        """Return a function that equals `head` and can be called outside of this network's forward,
        by one rank alone. If the network is sharded, this gathers the weights of its output layer,
        and every rank must call it."""
        return gathered_head(self.model) or self.head

    def next_logits(self, ids: TokenInts, **context: Any) -> Float[Tensor, "N V"]:
        """Return the logits after the last column. `context`: attention mask, position ids and
        cache, passed on to transformers."""
        trunk = self.sampling_trunk or self.model.base_model
        with uncompiled(self.compiles):  # each kind of cache would be compiled
            states = trunk(input_ids=ids, **context).last_hidden_state
        return self.head(states[:, -1])

    @torch.no_grad()
    def gather(self) -> None:
        """Run one small forward, which gathers the weights of a sharded network."""
        self.next_logits(torch.zeros(1, 1, dtype=torch.long, device=self.device), use_cache=False)

    def frozen_copy(self) -> Policy:
        """Return a copy with the current weights that is not trained: a reference."""
        return copy.deepcopy(self).requires_grad_(False).eval()

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
        here = {name: tuple(x.shape) for name, x in current.items()}
        given = {name: tuple(x.shape) for name, x in tensors.items()}
        if here != given:
            name = min(here.items() ^ given.items())[0]
            raise ValueError(f"{name} has shape {here.get(name)} here, and {given.get(name)} there")
        for name, x in current.items():
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
        generation = self.model.generation_config
        self.model.generation_config = GenerationConfig()
        try:
            with original_dropout(self.model, self.dropout):
                self.model.save_pretrained(folder, state_dict=state)
        finally:
            self.model.generation_config = generation
        # as it is: transformers refuses some, which have a temperature without `do_sample`
        generation.to_json_file(folder / "generation_config.json")
        self.tokenizer.save_pretrained(folder)
