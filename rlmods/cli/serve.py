"""Start a vLLM server for `rollout=vllm_server`: `python -m rlmods.serve [policy=OPTION]
[key=value] [-- FLAG...]`.

Type the `policy` overrides of the training command. The trainer replaces
its weights before it samples.

    port=8000               port of the server, one for each server on a machine
    host=127.0.0.1          address to listen on; 0.0.0.0: all of the machine, which lets everybody
                            who reaches it change the model
    tensor_parallel=1       number of GPUs that share the model
    dtype=null              float32, bfloat16 or float16; null: bfloat16 where a trainer with
                            trainer.precision=auto computes in bfloat16 on this machine's GPU, else
                            the policy's
    max_length=null         maximum number of tokens of a prompt and its response; null: the
                            policy's context
    cache_gib=null          size of the key-value cache; null: vLLM chooses, or 1 without a GPU
    lora_rank=0             largest rank of an adapter, for rollout.adapter_only=true: 8, 16, 32,
                            64, 128, 256, ...; 0: none
    transfer=files          nccl: receive weights by NCCL, for rollout.transfer=nccl

What follows `--` is passed on to `vllm serve`. Stop it with Ctrl-C.
"""

import sys

from rlmods.errors import UserError, print_usage

print_usage(__name__, __doc__)

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from rlmods.cli.command import command, configuration, take_settings
from rlmods.config.instantiate import instantiate
from rlmods.distributed.trainer import choose
from rlmods.policy import Policy
from rlmods.policy.adapted import AdaptedPolicy
from rlmods.rollout.vllm import check_architecture

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Weights and adapters are replaced through addresses that only these settings open."""


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the command, described in the module docstring."""

    port: int = 8000
    host: str = "127.0.0.1"
    tensor_parallel: int = 1
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    max_length: int | None = None
    cache_gib: float | None = None
    lora_rank: int = 0
    transfer: Literal["files", "nccl"] = "files"


def data_type(settings: ServeSettings, policy: Policy) -> str:
    """Return the data type of the server's weights."""
    if settings.dtype is not None:
        return settings.dtype
    if torch.cuda.is_available() and choose(policy, "cuda").name == "bf16-mixed":
        return "bfloat16"
    return str(policy.model.dtype).removeprefix("torch.")


def flags(settings: ServeSettings, policy: Policy, folder: Path) -> list[str]:
    """Return the arguments of `vllm serve` for the policy that is saved in `folder`."""
    has_gpu = torch.cuda.is_available()
    cache_gib = settings.cache_gib or (None if has_gpu else 1.0)
    context = min(policy.context_length, settings.max_length or policy.context_length)
    named: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "tensor-parallel-size": settings.tensor_parallel,
        "dtype": data_type(settings, policy),
        "max-model-len": context,
        "logprobs-mode": "processed_logprobs",  # after temperature and truncation
        "generation-config": "vllm",  # not the checkpoint's
    }
    if cache_gib is not None:
        named["kv-cache-memory-bytes"] = int(cache_gib * 2**30)
    if settings.lora_rank:
        named["max-lora-rank"] = settings.lora_rank
    if settings.transfer == "nccl":
        named["weight-transfer-config"] = json.dumps({"backend": "nccl"})
    arguments = ["--model", str(folder)]
    for name, value in named.items():
        arguments += [f"--{name}", str(value)]
    arguments.append("--enable-scale-out")  # serves requests with token ids
    if settings.lora_rank:
        arguments.append("--enable-lora")
    if not has_gpu:
        arguments.append("--enforce-eager")
    return arguments


def serve(arguments: Sequence[str]) -> str:
    """Save the policy and run the server until it is stopped.

    Raises:
        UserError: vLLM is not installed or does not support the policy, or a setting is invalid.
    """
    own = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    more = list(arguments[len(own) + 1 :])
    config = configuration(own, settings=ServeSettings)
    settings = take_settings(config, ServeSettings)
    policy = instantiate(config.policy, "policy")()
    check_architecture(policy)
    if settings.lora_rank and isinstance(policy, AdaptedPolicy):
        raise UserError(
            "lora_rank serves the base of an adapter, and policy.name is an adapter: type "
            "policy.name=BASE"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # set by the check
    with TemporaryDirectory(prefix="rlmods-serve-") as folder:
        given = [*flags(settings, policy, Path(folder)), *more]
        if getattr(policy.model.config, "quantization_config", None) is None:
            policy.model.to(getattr(torch, data_type(settings, policy)))  # half of the files
        policy.export(Path(folder))
        del policy
        # `vllm serve` itself needs a package named vllm, which the CPU build is not
        from vllm.entrypoints.launchers.api_server.entry import main as run

        sys.argv = ["vllm", *given]
        run()
    return "stopped"


def main(arguments: list[str]) -> None:
    command(lambda: serve(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
