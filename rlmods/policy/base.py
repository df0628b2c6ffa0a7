"""A language model as the trainer sees it: token ids in, log-probabilities of the sampled tokens out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.sharding import device_of, full_state, shard_like
from rlmods.policy.dropout import dropout_restored, without_dropout
from rlmods.policy.routers import Contexts, Routers, stacked
from rlmods.policy.text import TokenizerMixin, eos_ids
from rlmods.types import UserError

LOGITS_PER_CHUNK = 2**26
"""Logits held at once: 256 MiB of float32. More tokens than fit are scored in chunks that backward recomputes."""


class PolicyOutput(NamedTuple):
    """What one forward says of the masked tokens; 0 where the mask is False."""

    logprobs: Float[Tensor, "N T"]
    """Natural log-probability, float32."""
    entropy: Float[Tensor, "N T"]
    """Of the distribution each token came from, nats. Carries a gradient only where asked for."""
    values: Float[Tensor, "N T"] | None = None
    """V(s_t) of a value head on this trunk: read at the token before t."""
    routes: Int[Tensor, "N T L k"] | None = None
    """The experts that each router chose by itself, int16, at every token and also where others were replayed; None of a dense model."""
    router_logits: tuple[Tensor, ...] | None = None
    """[N * T, E] of each of the L routers; None unless asked for."""


class Policy(TokenizerMixin, nn.Module):
    """A Hugging Face causal language model, its tokenizer, and the one function that scores tokens.

    Old, new and reference log-probabilities all come from `forward`, so they differ by parameters and by nothing else. Dropout is
    off in all of them: it is zeroed in the live configuration and put back into the one that is exported.
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("next_logits",)
    """Ways into the network beside `forward`, for those who shard it."""
    base: str | None = None
    """Fingerprint of the frozen weights under an adapter; None: every weight is trained."""

    def __init__(self, model: Any, tokenizer: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.dropout = without_dropout(model)
        self.eos_ids = eos_ids(model, tokenizer)
        self.context_length: int = getattr(model.config, "max_position_embeddings", None) or 1 << 20
        self.eval()
        self.routers = Routers(model)
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            checkpoint_activations(model, self.routers.contexts)
        _check_head(self)

    @property
    def device(self) -> torch.device:
        return device_of(self)

    def forward(
        self,
        tokens: Int[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        value_head: nn.Module | None = None,
        positions: Int[Tensor, "N T"] | None = None,
        routes: Int[Tensor, "N T L k"] | None = None,
        router_logits: bool = False,
    ) -> PolicyOutput:
        """Score the tokens where `mask` is True, from `logits / temperature`.

        Rows are right-padded; column t scores token t given those before it, so column 0 has no score. Entropy carries a gradient only if
        `entropy` is True. `value_head` maps hidden states to one number each. `positions`: of each token in its own text, where a row holds
        several of them, which do not see each other; None: one text a row. `routes`: the experts that the routers have to choose (-1: they
        choose), with gating weights from their live logits; None: they choose everywhere.
        """
        device = tokens.device.type
        # Weights change between forwards of one training step, and a cast cached under no_grad has no gradient: never cache casts.
        autocast = torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False)
        with autocast, self.routers.taped(routes, logits=router_logits) as tape:
            packed = {} if positions is None else {"position_ids": positions}
            hidden = self.model.base_model(input_ids=tokens, use_cache=False, **packed).last_hidden_state
            where = mask[:, 1:]
            picked, targets = hidden[:, :-1][where], tokens[:, 1:][where]
            scored = self._score(picked, targets, temperature, entropy)
            values = None if value_head is None else _scatter(value_head(picked).squeeze(-1).float(), mask)
        logprobs, entropies = (_scatter(x, mask) for x in scored)
        if not self.routers:
            return PolicyOutput(logprobs, entropies, values)
        logits = None if tape.logits is None else tuple(tape.logits[layer] for layer in sorted(tape.logits))
        return PolicyOutput(logprobs, entropies, values, stacked(tape, tokens), logits)

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        rows = max(1, LOGITS_PER_CHUNK // self.model.get_output_embeddings().weight.shape[0])
        if len(targets) <= rows:
            return self._score_chunk(hidden, targets, temperature, entropy)
        chunks = [
            checkpoint(self._score_chunk, h, t, temperature, entropy, use_reentrant=False)
            for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
        ]
        logprobs, entropies = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _score_chunk(self, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        logits = self.head(hidden).float() / temperature
        log_z = logits.logsumexp(-1)
        logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_z
        with torch.set_grad_enabled(entropy and torch.is_grad_enabled()):
            probabilities = (logits - log_z[:, None]).exp()
            entropies = log_z - (probabilities * logits).sum(-1)
        return logprobs, entropies

    def head(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Hidden states to logits, with the scaling or capping that some architectures apply."""
        config = self.model.config.get_text_config()
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if scale := getattr(config, "logit_scale", None):
            logits = logits * scale
        if scaling := getattr(config, "logits_scaling", None):
            logits = logits / scaling
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        return logits

    def next_logits(self, ids: Int[Tensor, "N T"], **context: Any) -> Float[Tensor, "N V"]:
        """What comes after the last column. `context`: attention mask, positions and cache, as transformers takes them."""
        logits: Tensor = self.model(input_ids=ids, logits_to_keep=1, **context).logits[:, -1]
        return logits

    @torch.no_grad()
    def gather(self) -> None:
        """Run once through every weight, which brings those of a sharded network together."""
        self.next_logits(torch.zeros(1, 1, dtype=torch.long, device=self.device), use_cache=False)

    def frozen_copy(self) -> Policy:
        """A reference: same weights now, no gradient ever."""
        twin = copy.deepcopy(self)
        return twin.requires_grad_(False).eval()

    @property
    def shares_network(self) -> bool:
        """Whether it is another policy's network with another adapter in force."""
        return False

    def trainable_tensors(self) -> dict[str, nn.Parameter]:
        """What a frozen copy has for itself: every parameter by name, or those of an adapter."""
        return dict(self.named_parameters())

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Become the policy whose `own` tensors these are.

        Raises:
            ValueError: other names or shapes.
        """
        own = self.trainable_tensors()
        if differ := sorted(own.keys() ^ tensors.keys()):
            raise ValueError(f"{differ[0]} is on one side only")
        for name, x in own.items():
            if x.shape != tensors[name].shape:
                raise ValueError(f"{name} has the shapes {tuple(x.shape)} and {tuple(tensors[name].shape)}")
            x.copy_(shard_like(tensors[name], x))

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full weights by the names that transformers gives them, for engines and exports. `state`: of `self.model`, where sharded."""
        yield from (self.model.state_dict() if state is None else state).items()

    def with_adapter(self, config: Any) -> Policy:
        """The same policy, of which only a new adapter (`peft.LoraConfig`) is trained. This one is used up."""
        from rlmods.policy.adapted import AdaptedPolicy

        return AdaptedPolicy(self, config)

    def merged(self) -> Policy:
        """The same policy without an adapter."""
        return self

    def export(self, folder: Path) -> None:
        """Write a plain Hugging Face directory: weights, configuration with its dropout, generation config, tokenizer, chat template.

        For every rank; the first one writes."""
        state = full_state(self.model)
        if is_first_rank():
            self.write(folder, state)

    def write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write it, given the full state of `self.model`."""
        with dropout_restored(self.model, self.dropout):
            self.model.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)


def _scatter(x: Tensor, mask: Tensor) -> Tensor:
    """Values of the true slots back into [N, T], 0 elsewhere."""
    where = mask.clone()
    where[:, 0] = False
    return torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_scatter(where, x)


def checkpoint_activations(model: Any, contexts: Contexts | None = None) -> None:
    """Recompute them in backward, while the model is in train mode; `contexts` makes those that a layer is run and run again in."""
    # transformers renames it during 5.x and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False} | ({} if contexts is None else {"context_fn": contexts}))


@torch.no_grad()
def _check_head(policy: Policy) -> None:
    """Refuse an architecture whose logits are not head(hidden): its log-probabilities would be silently wrong."""
    if policy.device.type == "meta":
        return
    ids = torch.arange(4, device=policy.device)[None] % policy.model.config.get_text_config().vocab_size
    want = policy.model(input_ids=ids, use_cache=False).logits
    have = policy.head(policy.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(want.float(), have.float(), rtol=1e-3, atol=1e-3):
        name = type(policy.model).__name__
        raise UserError(f"policy: {name} changes its logits after the output layer in a way that is not supported; choose another model")
