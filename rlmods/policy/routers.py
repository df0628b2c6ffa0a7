"""Which experts a mixture-of-experts model sends each token to: read from its routers, and told to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Tape:
    """What the routers of one forward are told, and what they say, by layer: a layer that backward recomputes says the same again."""

    def __init__(self, routes: Tensor | None, logits: bool) -> None:
        self.routes = routes
        """[tokens, L, k] to be replayed; -1: choose afresh."""
        self.live: dict[int, Tensor] = {}
        """What each router chose by itself [tokens, k]."""
        self.used: dict[int, tuple[Tensor, Tensor]] = {}
        """Gating weights and experts [tokens, k] where a choice was replayed."""
        self.logits: dict[int, Tensor] | None = {} if logits else None
        """[tokens, E]."""


class Routers:
    """The routers of a model by layer: modules that return logits [tokens, E], gating weights and experts [tokens, k], as most of those in
    transformers do (Qwen, Mixtral, OLMoE, GPT-OSS, DeepSeek-V3 and others). None in a dense model, and none where one of them returns
    something else or cannot be told what to choose.

    They are reached by forward hooks, which say and do nothing outside `taped`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tape: Tape | None = None
        self.num_experts, self.num_chosen = 0, 0
        """E and k."""
        self.modules = [module for module in model.modules() if isinstance(module, _kinds(model))]
        hooks = [module.register_forward_hook(partial(self._route, layer)) for layer, module in enumerate(self.modules)]
        if self.modules and not self._probe(model):
            name = type(self.modules[0]).__name__
            warnings.warn(f"policy: nobody can read or tell what {name} chooses: no router metrics, only router=free", stacklevel=2)
            self.modules = []
            for hook in hooks:
                hook.remove()

    def __bool__(self) -> bool:
        return bool(self.modules)

    def blank(self, tokens: Int[Tensor, "N T"]) -> Int[Tensor, "N T L k"] | None:
        """Routes of tokens for which none are recorded yet: -1."""
        shape = (*tokens.shape, len(self.modules), self.num_chosen)
        return torch.full(shape, -1, dtype=torch.int16, device=tokens.device) if self.modules else None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the routers alone, not of the experts."""
        for module in self.modules:
            yield from module.parameters()

    @contextmanager
    def taped(self, routes: Int[Tensor, "N T L k"] | None = None, *, logits: bool = False) -> Iterator[Tape]:
        """In this block the routers choose `routes` where those are not -1; what they would choose themselves is on the tape."""
        tape = Tape(None if routes is None else routes.flatten(0, 1).long(), logits)
        with Playing(self, tape):
            yield tape

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Of a checkpointed layer's forward, and of recomputing it, perhaps after other forwards: `context_fn` of torch's checkpoint."""
        return nullcontext(), Playing(self, self.tape)

    def _route(self, layer: int, router: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        tape = self.tape
        if tape is None or not _readable(output):
            return None
        logits, _, live = output
        tape.live.setdefault(layer, live)
        if tape.logits is not None:
            tape.logits.setdefault(layer, logits)
        if tape.routes is None:
            return None
        told = tape.routes[:, layer]
        with Told(torch.where(told < 0, live, told), logits.shape[-1]):
            _, weights, used = router.forward(*args)
        tape.used.setdefault(layer, (weights, used))
        return logits, weights, used

    @torch.no_grad()
    def _probe(self, model: Any) -> bool:
        """Whether every router can be read and told: other experts than its own are used, at weights above 0."""
        ids = torch.arange(4, device=next(model.parameters()).device)[None] % model.config.get_text_config().vocab_size
        if ids.is_meta:  # they choose by numbers, and there are none
            return True

        def run(routes: Tensor | None = None) -> Tape:
            with self.taped(routes, logits=True) as tape:
                model.base_model(input_ids=ids, use_cache=False)
            return tape

        own = run()
        if len(own.live) < len(self.modules) or not own.logits:
            return False
        self.num_experts, self.num_chosen = own.logits[0].shape[-1], own.live[0].shape[-1]
        routes = (stacked(own, ids) + 1) % self.num_experts
        used = run(routes).used
        return all(bool((used[i][1] == routes[0, :, i]).all() and (used[i][0] > 0).all()) for i in range(len(self.modules)))


class Playing:
    """A block in which routers go by this tape; it can be entered again, as backward may recompute a layer twice."""

    def __init__(self, routers: Routers, tape: Tape | None) -> None:
        self.routers, self.tape, self.before = routers, tape, list[Tape | None]()

    def __enter__(self) -> None:
        self.before.append(self.routers.tape)
        self.routers.tape = self.tape

    def __exit__(self, *_: object) -> None:
        self.routers.tape = self.before.pop()


def stacked(tape: Tape, tokens: Int[Tensor, "N T"]) -> Int[Tensor, "N T L k"]:
    """The live choices of all layers, int16."""
    return torch.stack([tape.live[layer] for layer in sorted(tape.live)], 1).to(torch.int16).view(*tokens.shape, len(tape.live), -1)


class Told(TorchFunctionMode):
    """In this block `topk` over the experts returns the given ones with their scores: everything that a router makes of its choice it makes
    of this one, by its own equations and with their gradient."""

    def __init__(self, experts: Int[Tensor, "S k"], num_experts: int) -> None:
        super().__init__()
        self.experts, self.num_experts = experts, num_experts

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, Tensor.topk):
            scores, k = args[0], args[1] if len(args) > 1 else kwargs["k"]
            if scores.shape == (len(self.experts), self.num_experts) and k == self.experts.shape[1]:
                return torch.return_types.topk((scores.gather(-1, self.experts), self.experts))
        return func(*args, **kwargs)


def _readable(output: Any) -> bool:
    if not (isinstance(output, tuple) and len(output) == 3 and all(isinstance(x, Tensor) and x.ndim == 2 for x in output)):
        return False
    logits, weights, experts = output
    return weights.shape == experts.shape and len(logits) == len(experts) and not experts.is_floating_point()


def _kinds(model: nn.Module) -> tuple[type, ...]:
    """Classes whose outputs transformers itself records as router logits."""
    found: set[type] = set()
    for module in model.modules():
        recorders = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits", ())
        for recorder in recorders if isinstance(recorders, list | tuple) else (recorders,):
            kind = getattr(recorder, "target_class", recorder)
            found |= {kind} if isinstance(kind, type) else set()
    return tuple(found)


Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
"""Makes the contexts of a checkpointed layer's forward and of its recomputation."""
