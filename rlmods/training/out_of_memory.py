"""A failed allocation as one line that names the override that needs less memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from rlmods.errors import UserError

MESSAGES = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Parts of the messages of the allocators whose errors have no class of their own: the CPU's,
cuBLAS and the CUDA runtime."""
MAX_CHARACTERS = 160
"""Characters of the original message that the line keeps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an allocation that failed, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


@contextmanager
def explain_out_of_memory(stage: str, advise: Callable[[str], str]) -> Iterator[None]:
    """Replace the error of a failed allocation in the block.

    Args:
        stage: what the block does, the first word of the message.
        advise: returns the overrides to type, given the stage.

    Raises:
        UserError: memory is exhausted; with stage, device, advice and the original message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(stage, error, advise) from error


def out_of_memory(stage: str, error: BaseException, advise: Callable[[str], str]) -> UserError:
    """Return the error of `explain_out_of_memory` for a failed allocation."""
    try:
        advice = advise(stage)
    except (RuntimeError, MemoryError):
        # the memory is still exhausted, and the first error is the one to report
        advice = "a smaller batch.token_budget=..."
    text = " ".join(str(error).split())[:MAX_CHARACTERS]
    original = f" [{text}]" if text else ""
    return UserError(f"{stage}: out of memory on {_device(str(error))}: type {advice}{original}")


def _device(text: str) -> str:
    """Return the device that an allocator's message is about."""
    gpu = re.search(r"GPU (\d+)", text)
    if gpu is not None:
        return f"cuda:{gpu[1]}"
    is_cuda = "cuda" in text.lower() or "cublas" in text.lower()
    return "the GPU" if is_cuda else "the CPU"
