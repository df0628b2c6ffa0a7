"""Tensors of the device, and what each operation on them does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.simulated_cuda import counts

CUDA = torch.device("cuda", 0)
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
    "equal",
    "bincount",
    "_linalg_check_errors",
}
"""Operations with a result whose value or shape the host needs."""
INDEXED = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
}
"""Operations that take indices on the host, and for which the host counts those of a mask."""
NO_KERNEL = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "set_",
    "resize_",
    "t_",
    "transpose_",
    "squeeze_",
    "unsqueeze_",
    "detach_",
    "_local_scalar_dense",
}
"""Operations, besides views, that start no kernel."""


class SimulatedTensor(torch.Tensor):
    """A tensor on `cuda:0` whose data are those of `held`, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CUDA,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SimulatedTensor({self.held!r})"

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    def tolist(self) -> Any:
        counts.wait("tolist")
        return self.held.tolist()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copied = SimulatedTensor(self.held.detach().clone())
            if isinstance(self, nn.Parameter):
                memo[id(self)] = nn.Parameter(copied, requires_grad=self.requires_grad)
            else:
                memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]


class SimulatedDevice(TorchDispatchMode):
    """Send operations that make a tensor on the device to `compute`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


def held(x: Any) -> Any:
    """Return the data of tensors of the device, also in lists; other values as they are."""
    if isinstance(x, SimulatedTensor):
        return x.held
    return type(x)(map(held, x)) if type(x) in (list, tuple) else x


def on_device(x: Any) -> Any:
    """Put results on the device."""
    if isinstance(x, Tensor):
        return x if isinstance(x, SimulatedTensor) else SimulatedTensor(x)
    return type(x)(map(on_device, x)) if type(x) in (list, tuple) else x


def tensors_of(x: Any) -> list[Tensor]:
    """Return the tensors among arguments, also in lists."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, list | tuple):
        found: list[Tensor] = []
        for item in x:
            found += tensors_of(item)
        return found
    return []


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU, count it, and return the result where a GPU has it.

    Raises:
        RuntimeError: the operands are on different devices.
    """
    name = func.overloadpacket.__name__
    operands = tensors_of([*args, *kwargs.values()])
    inputs = [x for x in operands if isinstance(x, SimulatedTensor)]
    options = dict(kwargs)
    makes_cuda = is_cuda(options.get("device"))
    if makes_cuda:
        options["device"] = torch.device("cpu")
    if options.get("pin_memory"):
        options["pin_memory"] = False
    if not inputs and not makes_cuda:
        return func(*args, **kwargs)
    if name == "_to_copy":
        return _converted(func, args, options, "device" not in kwargs or makes_cuda)
    if name == "copy_":
        return _copied(func, args, options)
    if name == "is_pinned":
        return False
    _check_devices(func, name, args, operands)
    if name in WAITS or (name == "repeat_interleave" and "output_size" not in kwargs):
        counts.wait(name)
    if name in INDEXED and any(x.dtype == torch.bool for x in tensors_of([args[1]])):
        counts.wait(f"{name} by a mask")
    data = held(list(args))
    if name == "histc" and not data[0].is_floating_point():
        data[0] = data[0].float()  # as only a GPU counts integers
    if name == "mm" and len(data) == 3:  # sums in another data type, which only a GPU has
        data = [x.to(data[2]) for x in data[:2]]
        func = torch.ops.aten.mm.default
    result = func(*data, **{key: held(x) for key, x in options.items()})
    if name not in NO_KERNEL and not is_view(func):
        counts.launch(name)
    return _returned(func, args, kwargs, result)


def is_view(func: Any) -> bool:
    """Return True for an operation whose results share the memory of its operands."""
    aliases = [x.alias_info for x in func._schema.returns]
    return any(x is not None and not x.is_write for x in aliases)


def _converted(func: Any, args: Sequence[Any], options: dict[str, Any], to_cuda: bool) -> Any:
    source = args[0]
    result = func(held(source), **options)
    if isinstance(source, SimulatedTensor):
        counts.launch("_to_copy") if to_cuda else counts.wait("copy to the host")
    elif source.device.type != "meta":
        counts.copy()
    return on_device(result) if to_cuda else result


def _copied(func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    target, source = args[:2]
    if not isinstance(source, SimulatedTensor):
        counts.copy()
    elif isinstance(target, SimulatedTensor):
        counts.launch("copy_")
    else:
        counts.wait("copy to the host")
    func(held(target), held(source), *args[2:], **options)
    return target


def _check_devices(func: Any, name: str, args: Sequence[Any], operands: Sequence[Tensor]) -> None:
    on_host = [x for x in operands if x.device.type == "cpu" and x.dim() > 0]
    if not on_host or not any(isinstance(x, SimulatedTensor) for x in operands):
        return
    indices = tensors_of([args[1]]) if name in INDEXED else []
    if isinstance(args[0], SimulatedTensor) and all(
        any(x is index for index in indices) for x in on_host
    ):
        counts.copy()
        return
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
        f"cpu! (in {func}, at {counts.place()})"
    )


def _returned(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Return the operands that an operation has changed, in place of their data, and put new
    results on the device."""
    if func.overloadpacket.__name__ == "_local_scalar_dense":
        return result
    schema = func._schema
    if not schema.is_mutable:
        return on_device(result)
    written = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written[frozenset(argument.alias_info.after_set)] = value
        for x in tensors_of(value):
            if isinstance(x, SimulatedTensor) and x.shape != x.held.shape:
                raise NotImplementedError(f"{func} changes the shape of its operand")
    if not schema.returns:
        return None
    results = result if len(schema.returns) > 1 else (result,)
    found = []
    for value, returned in zip(results, schema.returns, strict=True):
        aliases = returned.alias_info
        key = None if aliases is None else frozenset(aliases.after_set)
        found.append(written[key] if key in written else on_device(value))
    return tuple(found) if len(found) > 1 else found[0]
