"""Predict the memory of a run: `python -m rlmods.plan [group=option] [key=value]`, with the
overrides of `train.py`.

Loads configuration, data and tokenizer, but no weights. Prints GiB on one device by part and stage,
the stage with the peak, and the overrides that lower it.

    num_gpus=8              number of devices on all nodes, if trainer.devices is auto gpu_gib=80
    memory of one device trainer.accelerator=cpu predicts the memory of a process instead
    (`perf/peak_memory_mb` without a GPU)

`trainer.precision=auto` stands for its choice on GPUs with bfloat16, or for that of this machine
with trainer.accelerator=cpu.

    python -m rlmods.plan --table

prints bytes per parameter of the policy, by algorithm and strategy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlmods.adapter import NoAdapter
from rlmods.cli.command import command, compose_run, configuration
from rlmods.config import compose
from rlmods.config.plan import Plan
from rlmods.distributed.precision import choose
from rlmods.errors import UserError
from rlmods.memory.footprint import SHARDED, Footprint, footprint, persistent
from rlmods.memory.inputs import Devices, build_networks, num_bytes, optimizer_copies

USABLE = 0.9
"""Fraction of GPU memory for tensors; the rest is for the CUDA context, NCCL buffers and
fragmentation."""
GIB = 2**30


@dataclass(frozen=True)
class Settings:
    """Options of this command, described in the module's docstring."""

    num_gpus: int = 8
    gpu_gib: float = 80

    def __post_init__(self) -> None:
        if (
            not isinstance(self.num_gpus, int)
            or isinstance(self.num_gpus, bool)
            or self.num_gpus < 1
        ):
            raise UserError(f"num_gpus={self.num_gpus}: must be a whole number of at least 1")
        if (
            isinstance(self.gpu_gib, bool)
            or not isinstance(self.gpu_gib, int | float)
            or self.gpu_gib <= 0
        ):
            raise UserError(f"gpu_gib={self.gpu_gib}: must be a number above 0")


@dataclass(frozen=True)
class Prediction:
    """Memory prediction for one run."""

    plan: Plan
    devices: Devices
    settings: Settings
    footprint: Footprint


def predict(overrides: Sequence[str]) -> Prediction:
    """Compose the run and predict its memory.

    Raises:
        UserError: an invalid override, or a run that would not start.
    """
    plan, config, settings = compose_run(overrides, Settings)
    if config.policy.get("quantization") is not None:
        raise UserError(
            "policy.quantization: quantized weights are not predicted; type "
            "policy.quantization=null for an upper bound"
        )
    devices = Devices.from_config(config.trainer, settings.num_gpus)
    if devices.ranks != settings.num_gpus and any(
        override.startswith("num_gpus=") for override in overrides
    ):
        raise UserError(
            f"num_gpus={settings.num_gpus}, but this trainer has {devices.ranks}: type "
            "trainer=fsdp or trainer=ddp"
        )
    plan.batch.check_ranks(devices.ranks, plan.algorithm.rows_per_prompt(plan.batch))
    networks = build_networks(plan)
    if devices.precision == "auto":
        trained = next(iter(networks.trained.values()))
        chosen = choose(trained, "cpu") if devices.on_cpu else choose(trained, "cuda", is_fast=True)
        devices = replace(devices, precision=chosen.name)
    return Prediction(plan, devices, settings, footprint(plan, networks, devices))


def report(prediction: Prediction) -> str:
    """Return the table of parts and stages, the peak, and overrides that lower it."""
    memory, devices, gpu_gib = prediction.footprint, prediction.devices, prediction.settings.gpu_gib
    parts = dict.fromkeys(part for stage in memory.device.values() for part in stage)
    sizes = {part: [stage.get(part, 0) / GIB for stage in memory.device.values()] for part in parts}
    lines = [[part, *(f"{x:.2f}" for x in row)] for part, row in sizes.items() if max(row) >= 0.005]
    lines.append(["**all**", *(f"**{memory.total(stage) / GIB:.2f}**" for stage in memory.device)])
    text = [
        _markdown([f"GiB on a {'process' if devices.on_cpu else 'device'}", *memory.device], lines),
        "",
    ]
    text.append(f"precision: {devices.precision}")
    peak, usable = (
        f"peak: {memory.peak / GIB:.2f} GiB ({memory.peak / 2**20:.0f} MiB) in {memory.peak_stage}",
        USABLE * gpu_gib,
    )
    fits = not devices.on_cpu and memory.peak <= usable * GIB
    if not devices.on_cpu:
        peak += (
            f"; {'fits' if fits else 'does not fit'} {devices.ranks} x {gpu_gib:g} GiB, of which "
            f"{usable:g} GiB are usable"
        )
    text.append(peak)
    if memory.host:
        text.append(
            "CPU memory: GiB of rank 0: "
            + ", ".join(f"{stage} {size / GIB:.2f}" for stage, size in memory.host.items())
        )
    if overrides := advise(prediction)[:3]:
        text.append(f"to lower it, type {', then '.join(overrides)}")
    return "\n".join(text)


def advise(prediction: Prediction) -> list[str]:
    """Return overrides that lower the peak, those that affect the most bytes first."""
    plan, devices, memory = prediction.plan, prediction.devices, prediction.footprint
    stage, batch_size = memory.device[memory.peak_stage], plan.config.rollout.get("batch_size", 1)
    generates, trainable = (
        "key-value cache" in stage,
        "adapter" in plan.algorithm.groups and isinstance(plan.adapter, NoAdapter),
    )
    activations = stage.get("activations", 0)
    state = sum(stage[part] for part in (*SHARDED, "gradient buckets"))
    options = [
        (
            stage.get("key-value cache", 0) + activations,
            generates and batch_size > 1,
            f"rollout.batch_size={batch_size // 2}",
        ),
        (stage.get("sampling engine", 0), True, "rollout=vllm_server"),
        (
            activations,
            not generates and memory.microbatch.num > 1,
            f"batch.token_budget={plan.batch.token_budget // 2}",
        ),
        (
            activations,
            not plan.config.policy.get("gradient_checkpointing", True),
            "policy.gradient_checkpointing=true",
        ),
        (
            state + stage.get("cast weights", 0),
            not devices.fsdp and not devices.on_cpu,
            "trainer=fsdp",
        ),
        (state, devices.shards < devices.ranks and devices.fsdp, "trainer.strategy.replicas=1"),
        (state, trainable, "adapter=lora"),
        (
            state,
            devices.fsdp and not devices.offload and not devices.on_cpu,
            "trainer.strategy.offload=true",
        ),
        (stage.get("gathered weights", 0), not devices.autocast, "trainer.precision=bf16-mixed"),
        (stage.get("gathered checkpoint", 0), True, "trainer.strategy.sharded_checkpoints=true"),
    ]
    return [
        override
        for size, useful, override in sorted(options, key=lambda option: -option[0])
        if useful and size > 0
    ]


ALGORITHMS = ("sft", "dpo", "dapo", "grpo", "ppo", "ppo critic=shared", "grpo adapter=lora")
STRATEGIES = {
    "one device": "default",
    "DDP": "ddp",
    "FSDP, 8 ranks": "fsdp trainer.devices=8",
    "FSDP, 32 ranks": "fsdp trainer.devices=32",
    "FSDP, 32 ranks, 4 replicas": "fsdp trainer.devices=32 trainer.strategy.replicas=4",
}
LARGE = (
    "policy=tiny",
    "policy.pretrained=false",
    "policy.hidden_size=2048",
    "policy.num_layers=2",
    "batch.prompts=32",
    "data.level=1",
)
"""A policy whose heads and adapters are small relative to its trunk, as in a large model, on the
smallest data set."""


def table() -> str:
    """Return the table of bytes per parameter of the policy that a rank holds in every stage."""
    trainers = [
        configuration([f"trainer={name}", "trainer.precision=32-true", *more]).trainer
        for name, *more in map(str.split, STRATEGIES.values())
    ]
    lines = []
    for algorithm in ALGORITHMS:
        overrides = [*f"algo={algorithm}".split(), *LARGE]
        plan = compose.plan(configuration(overrides), {}, overrides)
        networks, copies = build_networks(plan), optimizer_copies(plan.config.optimizer)
        per_rank = [
            sum(persistent(networks, Devices.from_config(trainer, 8), copies).values())
            for trainer in trainers
        ]
        lines.append(
            [
                f"`algo={algorithm}`",
                *(f"{4 * size / num_bytes(networks.trained['policy']):.1f}" for size in per_rank),
            ]
        )
    return _markdown(["bytes per parameter", *STRATEGIES], lines)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def main(arguments: list[str]) -> None:
    def action() -> str:
        if "--table" not in arguments:
            return report(predict(arguments))
        if len(arguments) > 1:
            raise UserError("--table takes no overrides")
        return table()

    command(arguments, __doc__, action)


if __name__ == "__main__":
    main(sys.argv[1:])
