"""A failed allocation as one line that names the override that needs less memory."""

import re

import torch

from rlmods.distributed.strategy import FSDP2
from rlmods.errors import UserError, in_one_line
from rlmods.policy.base import Policy
from rlmods.policy.scalar import ScalarModel
from rlmods.rollout.turns import MultiTurn
from rlmods.training.checkpoint import adapter_bases
from rlmods.training.views import LearnerView

MESSAGES = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Parts of the messages of the allocators whose errors have no class of their own: the CPU's,
cuBLAS and the CUDA runtime."""
COMPILERS = ("torch._dynamo", "torch._inductor")
"""Modules of errors in which compilation ends, as without a C++ compiler."""
MAX_CHARACTERS = 160
"""Characters of the original message that the line keeps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an allocation that failed, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


def out_of_memory(stage: str, error: BaseException, advice: str) -> UserError:
    """Return a line with stage, device, the overrides to type and the original message."""
    message = str(error)
    gpu = re.search(r"GPU (\d+)", message)
    device = "the CPU"
    if gpu is not None:
        device = f"cuda:{gpu[1]}"
    elif "cuda" in message.lower() or "cublas" in message.lower():
        device = "the GPU"
    text = " ".join(message.split())[:MAX_CHARACTERS]
    original = f" [{text}]" if text else ""
    return UserError(f"{stage}: out of memory on {device}: type {advice}{original}")


def explain(learner: LearnerView, stage: str, error: BaseException) -> UserError | None:
    """Return the error to raise if an allocation has failed in a stage, or torch could not compile
    a part of the network or did so too often (`limit_variants`), else None."""
    if type(error).__module__.startswith(COMPILERS):
        problem = f"torch cannot compile this model ({in_one_line(error)[:MAX_CHARACTERS]})"
        if type(error).__name__ == "FailOnRecompileLimitHit":
            problem = "torch compiles this model again and again"
        return UserError(f"{stage}: {problem}: type policy.compile=false policy.attention=null")
    return out_of_memory(stage, error, advise(learner, stage)) if is_out_of_memory(error) else None


def advise(learner: LearnerView, stage: str) -> str:
    """Return overrides that lower the memory of a stage, the cheapest first, at most two."""
    strategy = learner.trainer.strategy
    devices = f"trainer.devices={2 * learner.ranks.world_size}"
    advice = [f"trainer=fsdp {devices}"]
    if isinstance(strategy, FSDP2):
        advice = [f"more devices, {devices}"]
        if stage == "checkpoint" and not strategy._save_distributed_checkpoint:
            advice.insert(0, "trainer.strategy.sharded_checkpoints=true")
    if "adapter" in learner.config_groups and not adapter_bases(learner.networks):
        advice.append("adapter=lora")
    if stage in ("rollout", "validation") and learner.rollout is not None:
        limit = "environment" if isinstance(learner.rollout, MultiTurn) else "rollout"
        shorter = max(1, learner.rollout.max_tokens // 2)
        advice = ["a smaller rollout.batch_size", f"{limit}.max_tokens={shorter}"]
    elif stage in ("preflight", "score", "update", "validation"):
        trunks = [x for x in learner.networks.values() if isinstance(x, Policy | ScalarModel)]
        if not all(trunk.gradient_checkpointing for trunk in trunks):
            advice.insert(0, "policy.gradient_checkpointing=true")
        longest = learner.preflight.longest_row
        size = min(learner.microbatches.budget, longest * learner.preflight.rows_per_step)
        if size > longest:  # which has its own microbatch
            row = f"the longest row has {longest} tokens"
            advice.insert(0, f"batch.token_budget={max(longest, size // 2)} ({row})")
    return ", or ".join(advice[:2])
