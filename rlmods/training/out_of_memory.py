"""Errors of a device or process without memory, as one line that names the override that needs
less."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rlmods.errors import UserError
from rlmods.rollout.turns import MultiTurn

MESSAGES = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Parts of the messages of allocators whose error has no class of its own: those of the CPU, of
cuBLAS and of the CUDA runtime."""
MAX_CHARACTERS = 160
"""Characters of the original message that the line keeps."""
GIB = 2**30


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
        UserError: memory is exhausted; with the stage, the device, the size of the allocation, the
        advice and the original message.
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
    return UserError(f"{stage}: {describe(error)}: type {advice}" + (f" [{text}]" if text else ""))


def describe(error: BaseException) -> str:
    """Return device and size of a failed allocation in words, as far as the message has them."""
    text = str(error)
    gpu = re.search(r"GPU (\d+)", text)
    on_gpu = gpu is not None or "cuda" in text.lower() or "cublas" in text.lower()
    device = f"cuda:{gpu[1]}" if gpu else "the GPU" if on_gpu else "the CPU"
    needed, total = (
        re.search(pattern, text)
        for pattern in (r"ried to allocate ([\d.]+) ?(\w+)", r"total capacity of ([\d.]+) (\w+)")
    )
    sizes = [] if needed is None else [f"{_size(needed)} more were needed"]
    sizes += [] if total is None else [f"it has {_size(total)}"]
    return f"out of memory on {device}" + (f" ({', '.join(sizes)})" if sizes else "")


def _size(match: re.Match[str]) -> str:
    return f"{int(match[1]) / GIB:.2f} GiB" if match[2] == "bytes" else f"{match[1]} {match[2]}"


def advise(stage: str, learner: Any) -> str:
    """Return overrides that lower the memory of a stage of the learner, the cheapest first, at most
    two."""
    advisers = {
        "rollout": _less_sampling,
        "sync": _less_state,
        "reward": _less_grading,
        "checkpoint": _less_gathering,
        "start": _less_state,
    }
    adviser = advisers.get(stage, _less_training)
    if stage == "validation" and learner.rollout is not None:
        adviser = _less_validation
    return ", or ".join(list(adviser(learner))[:2])


def _less_training(learner: Any) -> Iterator[str]:
    longest, budget = (
        max((shape.tokens for shape in learner.shapes), default=1),
        learner.batch.token_budget,
    )
    size = min(budget, longest * learner.rows_per_step())
    if size > longest:
        yield (
            f"batch.token_budget={max(longest, size // 2)} (now {budget}, the longest row has "
            f"{longest} tokens)"
        )
    if not all(
        getattr(network, "gradient_checkpointing", True) for network in learner.networks.values()
    ):
        yield "policy.gradient_checkpointing=true"
    yield from _less_state(learner)
    if learner.samples_responses and getattr(learner.rollout, "max_tokens", 1) > 1:
        yield _shorter_responses(learner.rollout)


def _less_state(learner: Any) -> Iterator[str]:
    world_size = learner.ranks.world_size
    if not hasattr(learner.trainer.strategy, "shard"):
        yield f"trainer=fsdp trainer.devices={max(2, world_size)}"
    else:
        yield f"more devices, trainer.devices={2 * world_size} (now {world_size} ranks)"
    if "adapter" in learner.groups and not learner.adapter_bases:
        yield "adapter=lora"


def _less_sampling(learner: Any) -> Iterator[str]:
    return _less_decoding(learner, learner.batch.prompts, learner.batch.samples)


def _less_validation(learner: Any) -> Iterator[str]:
    return _less_decoding(
        learner,
        len(learner.splits.val[: learner.validation.max_prompts]),
        max(1, learner.validation.samples),
    )


def _less_decoding(learner: Any, prompts: int, samples: int) -> Iterator[str]:
    rollout, num_rows = learner.rollout, -(-prompts // learner.ranks.world_size) * samples
    batch_size = getattr(rollout, "batch_size", 1)
    if min(batch_size, num_rows) > samples:  # all samples of a prompt are decoded at once
        yield f"rollout.batch_size={max(samples, min(batch_size, num_rows) // 2)} (now {batch_size})"
    cache_gib = getattr(
        rollout.rollout if isinstance(rollout, MultiTurn) else rollout, "cache_gib", None
    )
    if cache_gib is not None:
        yield f"rollout.cache_gib={cache_gib / 2:g} (now {cache_gib:g})"
    yield _shorter_responses(rollout)
    yield from _less_state(learner)


def _shorter_responses(rollout: Any) -> str:
    """Return the override of the limit on whole responses, which `rollout.max_tokens` is without an
    environment."""
    name, max_tokens = (
        "environment" if isinstance(rollout, MultiTurn) else "rollout",
        getattr(rollout, "max_tokens", 1),
    )
    return f"{name}.max_tokens={max(1, max_tokens // 2)} (now {max_tokens})"


def _less_grading(learner: Any) -> Iterator[str]:
    rewards = getattr(learner.reward, "rewards", None)
    for name, reward in rewards.items() if isinstance(rewards, Mapping) else ():
        budget = getattr(reward, "token_budget", 1)
        if budget > 1:
            key = (
                f"reward.terms.{name}.reward"
                if hasattr(learner.reward, "weights")
                else f"reward.rewards.{name}"
            )
            yield f"{key}.token_budget={budget // 2} (now {budget})"
    yield from _less_state(learner)


def _less_gathering(learner: Any) -> Iterator[str]:
    if getattr(learner.trainer.strategy, "_save_distributed_checkpoint", True) is False:
        yield "trainer.strategy.sharded_checkpoints=true"
    yield from _less_state(learner)
