"""Predict the memory of a run: `python -m rlmods.plan [group=option] [key=value]`, with the overrides of `train.py`.

Loads configurations and tokenizers and no weights. Prints GiB on one device by part and stage; the peak is that of the stage which needs
most. Then what to turn down first.

    num_gpus=8              devices on all nodes together, where trainer.devices is auto
    gpu_gib=80              memory of one of them
    trainer.accelerator=cpu predicts the memory of a process instead, as `perf/peak_memory_mb` has it without a GPU

    python -m rlmods.plan --table

prints bytes per parameter of the policy, by algorithm and strategy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from omegaconf import open_dict

from rlmods.algo import Learner
from rlmods.cli.command import command, configuration
from rlmods.config import compose
from rlmods.config.plan import Plan
from rlmods.memory import Devices, Footprint, footprint, persistent, size
from rlmods.memory.rehearsal import optimizer_step
from rlmods.memory.workload import workload
from rlmods.training.metrics import peak_memory_mb
from rlmods.types import UserError

USABLE = 0.9
"""Share of a GPU that tensors can take: the rest are the CUDA context, NCCL's buffers and gaps between blocks."""
GIB = 2**30


@dataclass(frozen=True)
class Settings:
    """What the module's docstring says of them."""

    num_gpus: int = 8
    gpu_gib: float = 80

    def __post_init__(self) -> None:
        if not isinstance(self.num_gpus, int) or isinstance(self.num_gpus, bool) or self.num_gpus < 1:
            raise UserError(f"num_gpus={self.num_gpus}: must be a whole number of at least 1")
        if isinstance(self.gpu_gib, bool) or not isinstance(self.gpu_gib, int | float) or self.gpu_gib <= 0:
            raise UserError(f"gpu_gib={self.gpu_gib}: must be a number above 0")


@dataclass(frozen=True)
class Prediction:
    """Of a run."""

    plan: Plan
    learner: Learner
    devices: Devices
    settings: Settings
    footprint: Footprint
    micro_rows: int
    """Rows of a microbatch."""


def predict(overrides: Sequence[str]) -> Prediction:
    """
    Raises:
        UserError: a user's mistake.
    """
    config = configuration(overrides, settings=Settings)
    settings = Settings(**{f.name: config[f.name] for f in fields(Settings)})
    with open_dict(config):
        for field in fields(Settings):
            del config[field.name]
    own = tuple(f"{f.name}=" for f in fields(Settings))
    plan = compose.plan(config, {}, [typed for typed in overrides if not typed.startswith(own)])
    if config.policy.get("quantization") is not None:
        raise UserError("policy.quantization: no prediction of quantized weights; type policy.quantization=null, and expect less")
    devices = Devices.of(config.trainer, settings.num_gpus)
    if devices.ranks != settings.num_gpus and any(typed.startswith("num_gpus=") for typed in overrides):
        raise UserError(f"num_gpus={settings.num_gpus}, and this trainer has {devices.ranks}: type trainer=fsdp or trainer=ddp")
    plan.batch.check_ranks(devices.ranks, plan.algorithm.rows_per_prompt(plan.batch))
    with torch.device("meta"):
        learner = plan.learner()
    base = int(peak_memory_mb(torch.device("cpu")) * 2**20)
    rows = workload(plan, learner, devices.ranks).micro.num
    return Prediction(plan, learner, devices, settings, footprint(plan, learner, devices, base), rows)


def report(prediction: Prediction) -> str:
    """The table, what decides, and what to do about it."""
    found, devices = prediction.footprint, prediction.devices
    stages = list(found.device)
    parts = list(dict.fromkeys(part for stage in stages for part in found.device[stage]))
    shown = [part for part in parts if max(found.device[stage].get(part, 0) for stage in stages) >= GIB / 200]
    lines = [[part, *(f"{found.device[stage].get(part, 0) / GIB:.2f}" for stage in stages)] for part in shown]
    lines.append(["**all**", *(f"**{found.total(stage) / GIB:.2f}**" for stage in stages)])
    where = "a process" if devices.on_cpu else "a device"
    said = [_markdown([f"GiB on {where}", *stages], lines), ""]
    verdict = f"peak: {found.peak / GIB:.2f} GiB ({found.peak / 2**20:.0f} MiB) in {found.decides}"
    fits = ""
    if not devices.on_cpu:
        room = USABLE * prediction.settings.gpu_gib
        fits = "fits" if found.peak <= room * GIB else "does not fit"
        verdict += f"; {fits} {devices.ranks} x {prediction.settings.gpu_gib:g} GiB, of which {room:g} can be used"
    said.append(verdict)
    if found.host:
        most = ", ".join(f"{stage} {size / GIB:.2f}" for stage, size in found.host.items())
        said.append(f"memory of the machine: GiB of the first rank: {most}; of each other rank: loading {found.host['loading'] / GIB:.2f}")
    if advice := advise(prediction)[:3]:
        said.append(f"{'would lower it' if fits == 'fits' else 'turn down first'}: {', then '.join(advice)}")
    return "\n".join(said)


def advise(prediction: Prediction) -> list[str]:
    """Overrides that lower the peak: those of the stage's largest part first."""
    plan, devices, found = prediction.plan, prediction.devices, prediction.footprint
    config, lora = plan.config, bool(prediction.learner.bases)
    decoded = found.decides in ("sampling", "validation")
    small_rollouts = (config.rollout.get("batch_size", 1) > 1, f"rollout.batch_size={max(1, config.rollout.get('batch_size', 1) // 2)}")
    adapter = ("adapter" in plan.algorithm.groups and not lora, "adapter=lora")
    model = [
        (not devices.sharded and not devices.on_cpu, "trainer=fsdp"),
        ((devices.replicas or 1) > 1, "trainer.strategy.replicas=1"),
        adapter,
        (devices.sharded and not devices.offload and not devices.on_cpu, "trainer.strategy.offload=true"),
    ]
    rows = [
        (prediction.micro_rows > 1, f"batch.token_budget={plan.batch.token_budget // 2}"),
        (not config.policy.get("gradient_checkpointing", True), "policy.gradient_checkpointing=true"),
    ]
    turns: dict[str, list[tuple[bool, str]]] = {
        "activations": [small_rollouts] if decoded else rows,
        "kept by the allocator": rows,
        "key-value cache": [small_rollouts],
        "gathered weights": [(devices.gathered is None, "trainer.precision=bf16-mixed")],
        "reference": [adapter, *model],
        "gathered optimizer state": [(devices.one_file, "trainer.strategy.sharded_checkpoints=true")],
        **dict.fromkeys(("weights", "gradients", "optimizer state", "gradient buckets"), model),
    }
    parts = found.device[found.decides]
    largest = sorted(turns, key=lambda part: -parts.get(part, 0))
    return list(dict.fromkeys(typed for part in largest if parts.get(part, 0) for useful, typed in turns[part] if useful))


ALGORITHMS = ("sft", "dpo", "dapo", "grpo", "ppo", "ppo critic=shared", "grpo adapter=lora")
STRATEGIES = {
    "one device": "default",
    "DDP": "ddp",
    "FSDP, 8 ranks": "fsdp trainer.devices=8",
    "FSDP, 32 ranks": "fsdp trainer.devices=32",
    "FSDP, 32 ranks, 4 replicas": "fsdp trainer.devices=32 trainer.strategy.replicas=4",
}
LARGE = ("policy=tiny", "policy.pretrained=false", "policy.hidden_size=2048", "policy.num_layers=2", "batch.prompts=32")
"""A policy whose heads and adapters are as small beside its trunk as those of a large model are."""


def table() -> str:
    """Bytes that a rank holds all along, by parameter of the policy."""
    lines = []
    for algorithm in ALGORITHMS:
        overrides = [*f"algo={algorithm}".split(), *LARGE]
        with torch.device("meta"):
            learner = compose.plan(configuration(overrides), {}, overrides).learner()
        state = optimizer_step(learner, foreach=False)[0].total
        spread = [
            Devices.of(configuration([f"trainer={strategy[0]}", *strategy[1:]]).trainer, 8)
            for strategy in map(str.split, STRATEGIES.values())
        ]
        shown = [4 * sum(persistent(learner, devices, state).values()) / size([learner.policy]) for devices in spread]
        lines.append([f"`algo={algorithm}`", *(f"{x:.1f}" for x in shown)])
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
