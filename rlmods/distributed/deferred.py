"""Deferred loading: networks without weights, of which each rank reads its own shards from
safetensors files.

Inside `defer_loading`, a model is built on the meta device, and every module keeps the places of
its weights in the files. After the network is sharded, `read` replaces the weights by those of the
files. Copies of the network read the same files."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


@contextmanager
def opened() -> Iterator[Callable[[str], Any]]:
    """Return a function that opens a safetensors file. Inside the block a file is opened once, as
    its header is long."""
    from safetensors import safe_open

    files: dict[str, Any] = {}
    with ExitStack() as stack:

        def open_file(path: str) -> Any:
            if path not in files:
                files[path] = stack.enter_context(safe_open(path, "pt", device="cpu"))
            return files[path]

        yield open_file


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """Data type to which the values are rounded; None: the file's."""

    def read(self, file: Any, rows: slice | None = None) -> Tensor:
        """Return rows of the tensor of the opened file; None: all."""
        values: Tensor = (
            file.get_tensor(self.name) if rows is None else file.get_slice(self.name)[rows]
        )
        return values.to(dtype=self.dtype)

    def read_into(self, values: Tensor, start: int = 0) -> None:
        """Read the rows from `start` on into `values`, as many as it has."""
        rows = slice(start, start + len(values)) if values.ndim else None
        with opened() as files:
            values.copy_(self.read(files(self.file), rows))


@dataclass(frozen=True)
class StoredExperts:
    """A tensor [experts, ...] with one row for each expert, whose matrices are single tensors in
    safetensors files."""

    matrices: tuple[tuple[Stored, ...], ...]
    """The matrices of each expert, which are concatenated along their dimension `dim`."""
    dim: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """Data type to which the values are rounded; None: the file's."""

    def read_into(self, values: Tensor, start: int = 0) -> None:
        """Read the experts from `start` on into `values`, as many as it has, one matrix at a
        time."""
        experts = self.matrices[start : start + len(values)]
        with opened() as files:
            for expert, matrices in zip(values, experts, strict=True):
                sizes = [matrix.shape[self.dim] for matrix in matrices]
                for part, matrix in zip(expert.split(sizes, self.dim), matrices, strict=True):
                    part.copy_(matrix.read(files(matrix.file)).to(dtype=self.dtype))


Place = Stored | StoredExperts
"""Where the files have a weight."""


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
        CannotDeferError: transformers converts the weights of this model while it loads them, other
        than by merging experts, or they are not safetensors.
        OSError: the model does not exist.
    """
    from transformers import AutoModelForCausalLM

    formats = [key for key in OTHER_FORMATS if getattr(config, key, None)]
    formats += getattr(type(config), "extra_files", ())  # of transformers from 5.23 on
    if formats:
        raise CannotDeferError(f"its configuration has {formats[0]}")
    tensors = _stored_tensors(name, options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **settings)
    places = _convert(model, tensors)
    _find_weights(model, places)
    initialize_buffers(model)
    _read_buffers(model, places)
    model.generation_config = _generation_config(name, options)
    model.config.name_or_path = name
    return model


def _stored_tensors(name: str, options: Mapping[str, Any]) -> dict[str, Stored]:
    """Return the tensors in the files of a model, by name."""
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
    tensors: dict[str, Stored] = {}
    try:
        for path in files:
            with safe_open(path, "pt", device="cpu") as opened:
                for key in opened.keys():  # noqa: SIM118
                    tensors[key] = Stored(path, key, tuple(opened.get_slice(key).get_shape()))
    except SafetensorError as error:
        raise CannotDeferError(f"{path} is broken") from error
    return tensors


def _find_weights(model: PreTrainedModel, places: Mapping[str, Place]) -> None:
    """Give every module the places of its weights. Tied weights are in the files under one of their
    names."""
    if model._get_dtype_plan(model.dtype):
        raise CannotDeferError("some of its weights stay in float32")
    names: dict[int, list[str]] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, x in tensors.items():
        names.setdefault(id(x), []).append(name)
    found: dict[int, Place] = {}
    for key, tied in names.items():
        x = tensors[tied[0]]
        stored = [places[name] for name in tied if name in places]
        if len(stored) != 1 or stored[0].shape != tuple(x.shape):
            raise CannotDeferError(f"its files do not have {tied[0]} once in this shape")
        found[key] = replace(stored[0], dtype=x.dtype)
    for module in model.modules():
        own = {name: found[id(x)] for name, x in module._parameters.items() if x is not None}
        if own:
            setattr(module, ATTRIBUTE, own)


def _convert(model: PreTrainedModel, tensors: Mapping[str, Stored]) -> dict[str, Place]:
    """Return the places of weights by their names in the network: rename and merge the tensors of
    the files as `from_pretrained` does.

    Raises:
        CannotDeferError: transformers does more with a weight than to stack experts along a new
        first dimension and to concatenate their matrices.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    try:
        from transformers.core_model_loading import (
            Concatenate,
            MergeModulelist,
            WeightConverter,
            dot_natural_key,
            rename_source_key,
        )
    except ImportError as error:
        raise CannotDeferError("this version of transformers converts weights otherwise") from error
    names = model.state_dict().keys()
    conversions = get_model_conversion_mapping(model)
    converters = [x for x in conversions if isinstance(x, WeightConverter)]
    renamings = [x for x in conversions if not isinstance(x, WeightConverter)]
    sources: dict[str, dict[str | None, list[Stored]]] = {}
    for key in sorted(tensors, key=dot_natural_key):  # in this order experts are merged
        name, pattern = rename_source_key(key, renamings, converters)
        if name in names:
            sources.setdefault(name, {}).setdefault(pattern, []).append(tensors[key])
    # as in from_pretrained: files that are saved later get the same names
    model._weight_conversions = [x for x in conversions if x.was_used()]
    by_patterns = {frozenset(x.source_patterns): x for x in converters}
    places: dict[str, Place] = {}
    for name, groups in sources.items():
        if None in groups:
            if len(groups) == len(groups[None]) == 1:
                places[name] = groups[None][0]
            continue
        converter = by_patterns.get(frozenset(groups))
        operations = getattr(converter, "operations", ())
        # subclasses may do something else
        kinds = [type(operation) for operation in operations]
        dims = [getattr(operation, "dim", None) for operation in operations]
        expected = [MergeModulelist] if len(groups) == 1 else [MergeModulelist, Concatenate]
        if converter is None or kinds != expected or dims not in ([0], [0, 1], [0, 2]):
            raise CannotDeferError(f"transformers converts {name}")
        ordered = [groups[pattern] for pattern in converter.source_patterns]
        places[name] = _merge(name, ordered, dim=dims[-1] or 1)
    return places


def _merge(name: str, groups: Sequence[Sequence[Stored]], dim: int) -> StoredExperts:
    """Return the place of a weight: the tensors of each group, one for each expert, are stacked
    along a new first dimension, and then the groups are concatenated along dimension `dim`.

    Raises:
        CannotDeferError: the tensors do not fit together.
    """
    try:
        stacked = []
        for group in groups:
            matrices = [torch.empty(x.shape, device="meta") for x in group]
            stacked.append(torch.stack(matrices))
        shape = tuple(torch.cat(stacked, dim).shape)
    except (RuntimeError, IndexError) as error:
        raise CannotDeferError(f"its files do not have all experts of {name}") from error
    return StoredExperts(tuple(zip(*groups, strict=True)), dim - 1, shape)


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


def _read_buffers(model: PreTrainedModel, places: Mapping[str, Place]) -> None:
    """Read the buffers that are saved, such as biases of routers, which are small and not
    sharded."""
    saved = model.state_dict().keys()
    for name, buffer in list(model.named_buffers()):
        if name in saved:
            parent, _, own_name = name.rpartition(".")
            values = torch.empty_like(buffer, device="cpu")
            places[name].read_into(values)
            model.get_submodule(parent)._buffers[own_name] = values


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
    weights, and copy the buffers that are saved."""
    for name, module in network.named_modules():
        stored = {}
        for key, place in _places(module).items():
            parameter = module._parameters[key]
            assert parameter is not None
            stored[key] = replace(place, dtype=parameter.dtype)
        other = copy.get_submodule(name)
        if stored:
            setattr(other, ATTRIBUTE, stored)
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set:
                other._buffers[key] = buffer.to(getattr(other, key).dtype, copy=True)


def first_values(network: nn.Module, num: int) -> dict[int, Tensor]:
    """Return the first `num` values of each weight that has not been read, by the `id` of the
    parameter."""
    values = {}
    for key, (_, stored) in _unread(network).items():
        num_rows = -(-num // max(1, math.prod(stored.shape[1:])))
        shape = [min(num_rows, size) for size in stored.shape[:1]]
        rows = torch.empty((*shape, *stored.shape[1:]), dtype=stored.dtype, device="cpu")
        stored.read_into(rows)
        values[key] = rows.flatten()[:num]
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


def _unread(network: nn.Module) -> dict[int, tuple[nn.Parameter, Place]]:
    """Return the weights that have not been read, by `id`; tied weights are one parameter."""
    unread = {}
    for module in network.modules():
        for name, stored in _places(module).items():
            parameter = module._parameters[name]
            if parameter is not None:
                unread[id(parameter)] = (parameter, stored)
    return unread


def _places(module: nn.Module) -> dict[str, Place]:
    """Return the places of a module's own weights that have not been read, by name."""
    places: dict[str, Place] = vars(module).get(ATTRIBUTE, {})
    return places


def _load(parameter: nn.Parameter, stored: Place, device: torch.device | str) -> nn.Parameter:
    values = torch.empty_like(parameter, device=device, requires_grad=False)
    own = values
    start = 0
    if isinstance(values, DTensor):
        (chunk,) = values.__create_chunk_list__()  # type: ignore[no-untyped-call]
        own = values.to_local()
        start = chunk.offsets[0]
    if own.numel():
        stored.read_into(own, start)
    return nn.Parameter(values, requires_grad=parameter.requires_grad)
