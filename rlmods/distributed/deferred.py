"""Deferred loading: networks without weights, of which each rank reads its own shards from
safetensors files.

Inside `defer_loading`, a model is built on the meta device, and every module keeps the places of
its weights in the files. After the network is sharded, `read` replaces the weights by those of the
files. Copies of the network read the same files."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedConfig, PreTrainedModel

ATTRIBUTE = "stored_weights"
"""Attribute of a module: places of its own weights in the files, by name. Copies of the module have
it too, unlike those of a parameter."""
OTHER_FORMATS = ("quantization_config", "transformers_weights", "fusion_config")
"""Entries of a configuration with which transformers reads other files, or builds another
network."""
_enabled: ContextVar[bool] = ContextVar("defer_loading", default=False)
_shards: ContextVar[bool] = ContextVar("shards", default=False)
_checks_are_deferred: ContextVar[bool] = ContextVar("defer_checks", default=False)


class CannotDeferError(Exception):
    """The weights of a model cannot be read by shards; the message is the reason."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    file: str
    name: str
    dtype: torch.dtype
    """Data type to which the values are rounded."""

    def read(self, rows: slice | None = None) -> Tensor:
        """Return rows of the tensor; None: all."""
        from safetensors import safe_open

        with safe_open(self.file, "pt", device="cpu") as file:
            values: Tensor = (
                file.get_tensor(self.name) if rows is None else file.get_slice(self.name)[rows]
            )
            return values.to(self.dtype)


@contextmanager
def _set(variable: ContextVar[bool], enabled: bool) -> Iterator[None]:
    token = variable.set(enabled or variable.get())
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def defer_loading(enabled: bool = True, *, shards: bool = True) -> Iterator[None]:
    """Defer the loading of policies, references and teachers inside the block, if `enabled`;
    otherwise nothing changes.

    Args:
        shards: a rank will keep its shards only, so that you are told of weights that every rank
            loads in full.
    """
    with _set(_enabled, enabled), _set(_shards, enabled and shards):
        yield


def is_enabled() -> bool:
    """Return True inside `defer_loading`."""
    return _enabled.get()


def defer_checks(enabled: bool = True) -> AbstractContextManager[None]:
    """Defer the checks of networks that are built inside the block, if `enabled`, until the learner
    makes them on the device of the run: kernels differ, and a processor takes long."""
    return _set(_checks_are_deferred, enabled)


def is_checked_later(network: nn.Module) -> bool:
    """Return True if the learner checks this network, which was just built, when it is on the
    device of the run with its weights."""
    return _checks_are_deferred.get() or is_deferred(network)


def is_deferred(network: nn.Module) -> bool:
    """Return True if weights of the network have not been read."""
    return any(ATTRIBUTE in vars(module) for module in network.modules())


def build(
    name: str, config: PreTrainedConfig, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Return a causal language model of transformers without weights, as `from_pretrained` builds
    it.

    Args:
        name: hub name or directory.
        config: its configuration.
        settings: `dtype` and `attn_implementation`.
        options: revision on the hub.

    Raises:
        CannotDeferError: transformers converts the weights of this model while it loads them, or
        they are not safetensors.
        OSError: the model does not exist.
    """
    from transformers import AutoModelForCausalLM

    formats = [key for key in OTHER_FORMATS if getattr(config, key, None)]
    formats += getattr(type(config), "extra_files", ())  # of transformers from 5.23 on
    if formats:
        raise CannotDeferError(f"its configuration has {formats[0]}")
    shapes = _stored_shapes(name, options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **settings)
    _find_weights(model, shapes)
    initialize_buffers(model)
    model.generation_config = _generation_config(name, options)
    model.config.name_or_path = name
    return model


def _stored_shapes(name: str, options: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return file and shape of each tensor of a model, by its name in the files."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    def find(file: str) -> str | None:
        path: str | None = cached_file(
            name, file, _raise_exceptions_for_missing_entries=False, **options
        )
        return path

    if find("adapter_config.json"):
        raise CannotDeferError("it has an adapter")
    file = find("model.safetensors")
    index = find("model.safetensors.index.json")
    if file is not None:
        files = [file]
    elif index is not None:
        files, _ = get_checkpoint_shard_files(name, index, **options)
    else:
        raise CannotDeferError("its weights are not safetensors")
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        for path in files:
            with safe_open(path, "pt", device="cpu") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    shapes[key] = (path, tuple(tensors.get_slice(key).get_shape()))
    except SafetensorError as error:
        raise CannotDeferError(f"{path} is broken") from error
    return shapes


def _find_weights(
    model: PreTrainedModel, shapes: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    """Give every module the places of its weights. Tied weights are in the files under one of their
    names."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    for conversion in get_model_conversion_mapping(model):
        for key in shapes:
            if conversion.rename_source_key(key)[1] is not None:
                raise CannotDeferError(f"transformers converts {key}")
    if model._get_dtype_plan(model.dtype):
        raise CannotDeferError("some of its weights stay in float32")
    places: dict[int, list[str]] = {}
    for name, x in model.state_dict(keep_vars=True).items():
        if not isinstance(x, nn.Parameter):
            raise CannotDeferError(f"{name} is a buffer")
        places.setdefault(id(x), []).append(name)
    for module in model.modules():
        stored = {}
        for name, x in module._parameters.items():
            if x is None:
                continue
            names = [key for key in places[id(x)] if key in shapes]
            if len(names) != 1 or shapes[names[0]][1] != tuple(x.shape):
                raise CannotDeferError(
                    f"its files do not have {places[id(x)][0]} once in this shape"
                )
            stored[name] = Stored(shapes[names[0]][0], names[0], x.dtype)
        if stored:
            setattr(module, ATTRIBUTE, stored)


def initialize_buffers(model: PreTrainedModel) -> None:
    """Compute the buffers of a model on the meta device that are not saved, such as frequencies of
    rotary embeddings, on the CPU.

    Raises:
        CannotDeferError: transformers does not compute one of them.
    """
    saved = model.state_dict().keys()
    unsaved = [name for name, _ in model.named_buffers(remove_duplicate=False) if name not in saved]
    for name in unsaved:
        parent, _, own_name = name.rpartition(".")
        buffer = model.get_buffer(name)
        fill = torch.nan if buffer.is_floating_point() else 0
        filled = torch.full_like(buffer, fill, device="cpu")
        model.get_submodule(parent)._buffers[own_name] = filled
    # as in from_pretrained; weights on the meta device have no values, and draw no random numbers
    model.initialize_weights()
    if any(model.get_buffer(name).isnan().any() for name in unsaved):
        raise CannotDeferError("transformers does not compute its buffers")


def _generation_config(name: str, options: Mapping[str, Any]) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(name, **options)
    except OSError:  # an older model, with these settings in its config.json
        return GenerationConfig.from_pretrained(
            name, config_file_name="config.json", _from_model_config=True, **options
        )


def share_weights(network: nn.Module, copy: nn.Module) -> None:
    """Let `copy`, a network on the meta device with the modules of `network`, read the same
    weights."""
    for name, module in network.named_modules():
        stored = {}
        for key, place in _places(module).items():
            parameter = module._parameters[key]
            assert parameter is not None
            stored[key] = replace(place, dtype=parameter.dtype)
        if stored:
            setattr(copy.get_submodule(name), ATTRIBUTE, stored)


def first_values(network: nn.Module, num: int) -> dict[int, Tensor]:
    """Return the first `num` values of each weight that has not been read, by the `id` of the
    parameter."""
    values = {}
    for key, (parameter, stored) in _unread(network).items():
        rows = slice(-(-num // max(1, math.prod(parameter.shape[1:]))))
        values[key] = stored.read(rows).flatten()[:num]
    return values


@contextmanager
def cpu_placeholders(network: nn.Module) -> Iterator[None]:
    """Replace the weights that have not been read by CPU tensors of the same shape with a single
    element in memory, inside the block: for code that creates further weights on the device of
    these."""
    placeholders = {}
    for key, (parameter, _) in _unread(network).items():
        empty = torch.zeros((), dtype=parameter.dtype, device="cpu").expand(parameter.shape)
        placeholders[key] = nn.Parameter(empty, requires_grad=False)
    originals = []
    try:
        for module in network.modules():
            for name in _places(module):
                original = module._parameters[name]
                originals.append((module, name, original))
                module._parameters[name] = placeholders[id(original)]
        yield
    finally:
        for module, name, original in originals:
            module._parameters[name] = original


@torch.no_grad()
def read(network: nn.Module, device: torch.device | str = "cpu") -> None:
    """Read the weights of a deferred network: of a sharded one this rank's shards, otherwise all.
    Tied weights stay tied."""
    unread = _unread(network)  # keeps the parameters, whose ids are the keys
    weights = {}
    for key, (parameter, stored) in unread.items():
        weights[key] = _load(parameter, stored, device)
    for module in network.modules():
        for name in vars(module).pop(ATTRIBUTE, ()):
            module._parameters[name] = weights[id(module._parameters[name])]


def read_on_every_rank(network: nn.Module, reason: str) -> None:
    """Read all weights of a deferred network on every rank, and say so if it will keep its shards
    only; do nothing for another network."""
    if is_deferred(network):
        warn_of_whole_networks(reason)
        read(network)


def warn_of_whole_networks(reason: str, name: str = "") -> None:
    """Warn that each rank loads a whole network, if it will keep its shards only."""
    if _shards.get():
        rank_zero_warn(
            f"{name}every rank loads all weights into CPU memory before it keeps its shard "
            f"({reason})"
        )


def _unread(network: nn.Module) -> dict[int, tuple[nn.Parameter, Stored]]:
    """Return the weights that have not been read, by `id`; tied weights are one parameter."""
    unread = {}
    for module in network.modules():
        for name, stored in _places(module).items():
            parameter = module._parameters[name]
            if parameter is not None:
                unread[id(parameter)] = (parameter, stored)
    return unread


def _places(module: nn.Module) -> dict[str, Stored]:
    """Return the places of a module's own weights that have not been read, by name."""
    places: dict[str, Stored] = vars(module).get(ATTRIBUTE, {})
    return places


def _load(parameter: nn.Parameter, stored: Stored, device: torch.device | str) -> nn.Parameter:
    values = torch.empty_like(parameter, device=device, requires_grad=False)
    if isinstance(values, DTensor):
        (chunk,) = values.__create_chunk_list__()  # type: ignore[no-untyped-call]
        if chunk.sizes[0]:
            start = chunk.offsets[0]
            values.to_local().copy_(stored.read(slice(start, start + chunk.sizes[0])))
    else:
        values.copy_(stored.read())
    return nn.Parameter(values, requires_grad=parameter.requires_grad)
