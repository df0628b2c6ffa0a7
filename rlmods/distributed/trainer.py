"""Lightning Trainer configured for iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from omegaconf import ListConfig
from torch import nn

from rlmods.distributed.collectives import local_rank
from rlmods.distributed.loss_scale import ScaledFloat16


def build(
    *,
    max_iterations: int,
    callbacks: Sequence[L.Callback] = (),
    loggers: Sequence[Logger] = (),
    **options: Any,
) -> L.Trainer:
    """Return a Trainer that runs until the learner has completed `max_iterations` iterations.

    Lightning's own progress bar, validation, checkpoints and distributed samplers, which count
    batches and epochs, are disabled: the callbacks of this package count iterations, and the prompt
    loader distributes prompts over ranks.

    Args:
        options: other arguments of `lightning.Trainer`: accelerator, devices, precision, strategy,
        ...
    """
    if options.get("accelerator") == "auto" and torch.backends.mps.is_available():
        options["accelerator"] = "cpu"  # MPS has no float64, in which counts are kept
    if str(options.get("precision")) in ("16-mixed", "16"):
        # Lightning's own plugin would clip scaled gradients, and compute in bfloat16 on the CPU
        del options["precision"]
        device = device_type(options.get("accelerator", "auto"))
        options["plugins"] = [ScaledFloat16(device), *(options.get("plugins") or ())]
    trainer = L.Trainer(
        max_epochs=-1,
        max_steps=-1,
        callbacks=list(callbacks),
        logger=list(loggers),
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        # Lightning's callbacks that monitor a metric look at it after our validation, not at the
        # end of a pass over the data.
        val_check_interval=1,
        check_val_every_n_epoch=None,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.max_iterations = max_iterations  # type: ignore[attr-defined]
    return trainer


MIXED: dict[str, Literal["bfloat16", "float16"]] = {
    "bf16-mixed": "bfloat16",
    "16-mixed": "float16",
}
"""Data type of products by the `trainer.precision` that casts their factors."""
PRECISIONS = ("32-true", "32", *MIXED)
"""Supported values of `trainer.precision` apart from `auto`. "32" is "32-true"."""
PRECISION_ADVICE = (
    "type trainer.precision=auto, trainer.precision=32-true, trainer.precision=bf16-mixed or "
    "trainer.precision=16-mixed"
)
"""What to type for a value that is not supported."""
MIN_PARAMETERS = 50_000_000
"""Smaller models compute in float32 on every machine: casts take a larger part of their time, and
their results do not depend on the processor."""


@dataclass(frozen=True)
class Precision:
    """A value of `trainer.precision`, and the reason for it."""

    name: str
    """`bf16-mixed`: products in bfloat16; weights, gradients, optimizer state, log-softmax and
    losses in float32. `16-mixed`: the same with float16 and scaled losses. `32-true`: float32."""
    reason: str


def choose(network: nn.Module, device: str, *, is_fast: bool | None = None) -> Precision:
    """Return `bf16-mixed` for a network of at least `MIN_PARAMETERS` parameters on a device that
    computes bfloat16 at speed, else `32-true`.

    Args:
        network: the trained network.
        device: type of the device: "cuda", "cpu", "mps", ...
        is_fast: True if the device computes bfloat16 at speed; None: as found on this machine.
    """
    size = sum(p.numel() for p in network.parameters())
    dtypes = {p.dtype for p in network.parameters() if p.is_floating_point()}
    if size < MIN_PARAMETERS:
        return Precision(
            "32-true", f"bfloat16 is for models of {MIN_PARAMETERS / 1e6:.0f}M parameters or more"
        )
    others = dtypes - {torch.float32, torch.bfloat16}
    if others:
        return Precision("32-true", f"the weights are {str(others.pop()).removeprefix('torch.')}")
    if is_fast is None:
        is_fast, reason = has_fast_bfloat16(device)
    else:
        reason = "GPUs compute bfloat16 at speed" if is_fast else "without fast bfloat16"
    return Precision("bf16-mixed" if is_fast else "32-true", reason)


def has_fast_bfloat16(device: str) -> tuple[bool, str]:
    """Return True if this machine's device computes products of bfloat16 several times as fast as
    those of float32, and the reason.

    On GPUs, tensor cores do. On processors, matrix units (AMX) do; vector instructions alone
    (AVX512_BF16) are about twice as fast (bench/RESULTS.md). Other devices count as slow; MPS is
    not used at all (`rlmods.distributed.trainer`)."""
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return True, "this GPU computes bfloat16 at speed"
        return False, "this GPU computes no bfloat16: trainer.precision=16-mixed is faster"
    if device == "cpu":
        if not hasattr(torch.cpu, "get_capabilities"):
            return False, "this version of PyTorch does not know about matrix units"
        capabilities: Mapping[str, object] = torch.cpu.get_capabilities()
        found = bool(capabilities.get("amx_bf16", False))
        return found, f"this processor has {'' if found else 'no '}matrix units for bfloat16 (AMX)"
    return False, f"no fast bfloat16 on {device}"


def device_type(accelerator: object) -> str:
    """Return the type of the device that `trainer.accelerator` selects on this machine."""
    if accelerator in ("auto", "gpu", "cuda"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(accelerator)


def select_device(accelerator: object, devices: object) -> None:
    """Make the GPU of this process the current one. Do so before a model is loaded: transformers
    puts quantized weights on the current GPU, which Lightning selects only when training starts.

    Args:
        accelerator, devices: `trainer.accelerator` and `trainer.devices`.
    """
    if device_type(accelerator) != "cuda":
        return
    rank = local_rank()
    indices = list(devices) if isinstance(devices, ListConfig) else range(torch.cuda.device_count())
    if rank < len(indices):  # else the number of processes is wrong, which is reported later
        torch.cuda.set_device(indices[rank])
