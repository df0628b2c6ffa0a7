"""Recording and replay of the expert choices of a mixture-of-experts model's routers."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rlmods.distributed.deferred import CannotDeferError, is_deferred
from rlmods.types import RoutedExperts, TokenInts


class RouterTrace:
    """Inputs and outputs of the routers in one forward, by layer. The first record of a layer is
    kept, so that layers recomputed in backward do not change it."""

    def __init__(self, routed_experts: Tensor | None, logits: bool) -> None:
        self.routed_experts = routed_experts
        """[tokens, L, k] to be replayed; -1: the router chooses."""
        self.live: dict[int, Tensor] = {}
        """Each router's own choice [tokens, k]."""
        self.used: dict[int, tuple[Tensor, Tensor]] = {}
        """Gating weights and experts [tokens, k] where a choice was replayed."""
        self.logits: dict[int, Tensor] | None = {} if logits else None
        """[tokens, E]."""

    def stack_live(self, tokens: TokenInts) -> RoutedExperts:
        """Return the live choices of all layers, int16."""
        layers = torch.stack([self.live[layer] for layer in sorted(self.live)], 1)
        return layers.to(torch.int16).view(*tokens.shape, len(self.live), -1)

    def stack_logits(self) -> tuple[Tensor, ...] | None:
        """Return the logits of all layers, None if they were not recorded."""
        if self.logits is None:
            return None
        return tuple(self.logits[layer] for layer in sorted(self.logits))


class Routers:
    """The routers of a model, by layer: modules that return logits [tokens, E], gating weights and
    experts [tokens, k], as most of those in transformers do (Qwen, Mixtral, OLMoE, GPT-OSS,
    DeepSeek-V3 and others). Empty for a dense model, and for one with a router that returns
    something else or does not accept given experts.

    They are accessed by forward hooks, which do nothing outside `trace`.

    Raises:
        CannotDeferError: the model's weights have not been read, and the routers need more than
        hidden states.
    """

    def __init__(self, model: nn.Module) -> None:
        self.active_trace: RouterTrace | None = None
        self.num_experts = 0
        """E"""
        self.num_chosen = 0
        """k"""
        kinds = _router_classes(model)
        self.modules = [module for module in model.modules() if isinstance(module, kinds)]
        hooks = [
            module.register_forward_hook(partial(self._route, layer))
            for layer, module in enumerate(self.modules)
        ]
        if self.modules and not self._probe(model):
            if is_deferred(model):
                raise CannotDeferError("its routers cannot be tried without weights")
            name = type(self.modules[0]).__name__
            warnings.warn(
                f"policy: routers of type {name} are not supported: no router metrics, and "
                "only router=free works",
                stacklevel=2,
            )
            self.modules = []
            for hook in hooks:
                hook.remove()

    def __bool__(self) -> bool:
        return bool(self.modules)

    def unrecorded_experts(self, tokens: TokenInts) -> RoutedExperts | None:
        """Return -1 (not recorded) for every token, layer and choice; None for a dense model."""
        if not self.modules:
            return None
        shape = (*tokens.shape, len(self.modules), self.num_chosen)
        return torch.full(shape, -1, dtype=torch.int16, device=tokens.device)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the routers, without those of the experts."""
        for module in self.modules:
            yield from module.parameters()

    @contextmanager
    def trace(
        self, routed_experts: RoutedExperts | None = None, *, logits: bool = False
    ) -> Iterator[RouterTrace]:
        """Record the routers' own choices inside the block, and replay `routed_experts` other than
        -1. `logits`: also record logits."""
        trace = RouterTrace(
            None if routed_experts is None else routed_experts.flatten(0, 1).long(), logits
        )
        with RouterReplay(self, trace):
            yield trace

    def checkpoint_contexts(
        self,
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a checkpointed layer's forward and of its recomputation:
        `context_fn` of `torch.utils.checkpoint`.

        The recomputation uses the trace of its own forward, also after other forwards.
        """
        return nullcontext(), RouterReplay(self, self.active_trace)

    def _route(self, layer: int, router: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        trace = self.active_trace
        if trace is None or not _is_supported(output):
            return None
        logits, _, live = output
        trace.live.setdefault(layer, live)
        if trace.logits is not None:
            trace.logits.setdefault(layer, logits)
        if trace.routed_experts is None:
            return None
        experts = trace.routed_experts[:, layer]
        with ForceExperts(torch.where(experts < 0, live, experts), logits.shape[-1]):
            _, weights, used = router.forward(*args)
        trace.used.setdefault(layer, (weights, used))
        return logits, weights, used

    @torch.no_grad()
    def _probe(self, model: PreTrainedModel) -> bool:
        """Return True if every router can be recorded and replayed: it uses given experts instead
        of its own, with weights above 0. Routers whose weights have not been read run alone."""
        device = next(model.parameters()).device
        ids = torch.arange(4, device=device)[None] % model.config.get_text_config().vocab_size
        if ids.is_meta and not is_deferred(model):  # no values to compare
            return True

        def run(routed_experts: Tensor | None = None) -> RouterTrace:
            with self.trace(routed_experts, logits=True) as trace:
                if ids.is_meta:
                    self._run_alone(model)
                else:
                    model.base_model(input_ids=ids, use_cache=False)
            return trace

        live = run()
        if len(live.live) < len(self.modules) or not live.logits:
            return False
        self.num_experts = live.logits[0].shape[-1]
        self.num_chosen = live.live[0].shape[-1]
        routed_experts = (live.stack_live(ids) + 1) % self.num_experts
        used = run(routed_experts).used
        for i in range(len(self.modules)):
            weights, experts = used[i]
            if not bool((experts == routed_experts[0, :, i]).all() and (weights > 0).all()):
                return False
        return True

    def _run_alone(self, model: PreTrainedModel) -> None:
        """Run routers with random weights on the random hidden states of four tokens, until one is
        not supported."""
        generator = torch.Generator().manual_seed(0)
        size = model.config.get_text_config().hidden_size
        hidden = torch.randn(4, size, generator=generator).to(model.dtype)
        for module in self.modules:
            values = {}
            for name, x in module.state_dict().items():
                # logits near 1: gating weights must not underflow
                random = torch.randn(x.shape, generator=generator) / size**0.5
                values[name] = random.to(x.dtype)
            try:
                output = functional_call(module, values, (hidden,))
            except Exception:  # it may need anything else
                return
            if not _is_supported(output):
                return


class RouterReplay:
    """Make a trace the active one inside the block. Reentrant, as backward may recompute a layer
    twice."""

    def __init__(self, routers: Routers, trace: RouterTrace | None) -> None:
        self.routers = routers
        self.trace = trace
        self.previous: list[RouterTrace | None] = []

    def __enter__(self) -> None:
        self.previous.append(self.routers.active_trace)
        self.routers.active_trace = self.trace

    def __exit__(self, *_: object) -> None:
        self.routers.active_trace = self.previous.pop()


class ForceExperts(TorchFunctionMode):
    """Make `topk` over the experts return the given ones with their live scores: the router's own
    code computes the gating weights from them, with their gradient."""

    def __init__(self, experts: Int[Tensor, "S k"], num_experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.num_experts = num_experts

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, Tensor.topk):
            scores = args[0]
            k = args[1] if len(args) > 1 else kwargs["k"]
            if scores.shape == (len(self.experts), self.num_experts) and k == self.experts.shape[1]:
                return torch.return_types.topk((scores.gather(-1, self.experts), self.experts))
        return func(*args, **kwargs)


def _is_supported(output: Any) -> bool:
    """Return True for a router's output of the form (logits, weights, experts)."""
    match output:
        case (Tensor(ndim=2) as logits, Tensor(ndim=2) as weights, Tensor(ndim=2) as experts):
            is_int = not experts.is_floating_point()
            return weights.shape == experts.shape and len(logits) == len(experts) and is_int
    return False


def _router_classes(model: nn.Module) -> tuple[type, ...]:
    """Return the classes whose outputs transformers records as router logits. Versions before 5.20
    name none for DeepSeek-V3."""
    classes: set[type] = set()
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        recorders = (module._can_record_outputs or {}).get("router_logits", ())
        for recorder in recorders if isinstance(recorders, list | tuple) else (recorders,):
            kind = getattr(recorder, "target_class", recorder)
            if isinstance(kind, type):
                classes.add(kind)
    if not classes:
        classes = {type(x) for x in model.modules() if type(x).__name__.endswith("TopkRouter")}
    return tuple(classes)


ContextFn = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
"""Returns the contexts of a checkpointed layer's forward and of its recomputation."""
