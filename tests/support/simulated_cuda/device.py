"""The device in the process of a program."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.support.simulated_cuda.library import load

load()

import threading

import torch
import torch.cuda.nccl
import torch._dynamo  # before a GPU seems to be there
from torch import Tensor, nn
from torch.nn import functional

from tests.support.simulated_cuda.attention import attention
from tests.support.simulated_cuda.tensor import SimulatedDevice, SimulatedTensor

MEMORY = 80 << 30
PROPERTIES = SimpleNamespace(
    name="simulated H100",
    total_memory=MEMORY,
    major=9,
    minor=0,
    multi_processor_count=132,
    uuid="simulated",
)
ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "_is_compiled": True,
    "_is_in_bad_fork": False,
    "device_count": 1,
    "_device_count_nvml": 1,
    "current_device": 0,
    "get_device_name": PROPERTIES.name,
    "get_device_properties": PROPERTIES,
    "get_device_capability": (9, 0),
    "mem_get_info": (MEMORY, MEMORY),
    "memory_stats": {},
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    **dict.fromkeys(
        (
            "init",
            "_lazy_init",
            "set_device",
            "empty_cache",
            "synchronize",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "manual_seed",
            "manual_seed_all",
            "set_rng_state_all",
        )
    ),
}
"""Results of functions of `torch.cuda`."""


library = torch.library.Library("aten", "IMPL")


def fused_norm(*_: Any) -> Any:
    """Make `_fused_rms_norm` one operation of the device, which a build without CUDA takes apart
    before the device sees it."""
    raise AssertionError


def answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def install() -> SimulatedDevice:
    """Let a GPU be there in this process, and in this thread within the mode that is returned."""
    for name, value in ANSWERS.items():
        setattr(torch.cuda, name, answer(value))
    generator = torch.Generator()
    torch.cuda.get_rng_state = lambda device="cuda": generator.get_state()
    torch.cuda.get_rng_state_all = lambda: [generator.get_state()]
    torch.cuda.set_rng_state = lambda state, device="cuda": generator.set_state(state)
    torch.cuda.nccl.version = answer((2, 0, 0))
    functional.scaled_dot_product_attention = attention
    library.impl("_fused_rms_norm", fused_norm, "CUDA")
    nn.Module._apply = move  # type: ignore[method-assign]
    # torch.tensor(..., device="cuda") is made on the CPU first
    torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
    torch._C._cuda_clearCublasWorkspaces = lambda: None  # type: ignore[attr-defined]
    threading.Thread.run = run_with_device  # type: ignore[method-assign]
    return SimulatedDevice()


_run = threading.Thread.run


def run_with_device(thread: threading.Thread) -> None:
    """`Thread.run`: modes of torch are in force in one thread only."""
    with SimulatedDevice():
        _run(thread)


_apply = nn.Module._apply
_moved: dict[int, tuple[Tensor, nn.Parameter]] = {}
"""Parameters that a call of `move` has replaced, with the new ones: tied weights stay tied."""
_depth = 0


def move(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`Module._apply`, which cannot move a parameter into one of another class."""
    global _depth
    _depth += 1
    try:
        if recurse:
            for child in module.children():
                child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = _replaced(parameter, fn)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
    finally:
        _depth -= 1
        if not _depth:
            _moved.clear()
    return module


def _replaced(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> nn.Parameter:
    if id(parameter) in _moved:
        return _moved[id(parameter)][1]
    with torch.no_grad():
        changed = fn(parameter.detach())
    result = parameter
    if isinstance(changed, SimulatedTensor) and isinstance(parameter, SimulatedTensor):
        if changed.dtype != parameter.dtype:
            result = nn.Parameter(changed, parameter.requires_grad)
    elif (
        isinstance(changed, SimulatedTensor)
        or isinstance(parameter, SimulatedTensor)
        or changed.is_meta != parameter.is_meta
    ):
        result = nn.Parameter(changed, parameter.requires_grad)
    else:
        parameter.data = changed
    _moved[id(parameter)] = (parameter, result)
    return result
