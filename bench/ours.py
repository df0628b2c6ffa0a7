"""This project's side: the training command with a callback that records iterations."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning import Callback

from bench.records import STAGES, Record, append, device_bytes
from bench.workloads import (
    BETAS,
    CLIP_HIGH,
    CLIP_LOW,
    EPS,
    LEARNING_RATE,
    MAX_NORM,
    PATTERN,
    Inputs,
    Workload,
)


@dataclass
class Recorder(Callback):
    """Append a `Record` to a file after every iteration, each of which samples from all prompts of
    the data.

    Lightning's callbacks run in the order of the configuration: put it last."""

    path: str
    _start: float = field(default=0.0, init=False)
    _prompt_lengths: list[int] = field(default_factory=list, init=False)

    def on_train_start(self, trainer: Any, learner: Any) -> None:
        self._prompt_lengths = [
            len(learner.policy.encode(prompt)) for prompt in learner.splits.train
        ]
        self._start = time.perf_counter()

    def on_iteration_end(self, trainer: Any, learner: Any, metrics: Mapping[str, float]) -> None:
        now = time.perf_counter()
        named = [name for name in STAGES if name != "other"]
        stages = {name: metrics.get(f"time/{name}_s", 0.0) for name in named}
        stages["other"] = now - self._start - sum(stages.values())
        lengths = [len(row["tokens"]) for row in learner.samples]
        append(
            Path(self.path),
            Record(now - self._start, stages, self._prompt_lengths, lengths, device_bytes()),
        )
        self._start = time.perf_counter()


def settings(workload: Workload) -> dict[str, Any]:
    """Return the settings of the workload: sizes, objective, optimizer and precision, without
    checkpoints and validation."""
    return {
        "algo": "dapo",
        # dynamic sampling, which TRL does not have, would sample more than one batch
        "sampling": "fixed",
        "batch.prompts": workload.prompts,
        "batch.samples": workload.samples,
        "batch.minibatches": 1,
        "batch.token_budget": workload.token_budget or "null",
        "batch.max_norm": MAX_NORM,
        "rollout.max_tokens": workload.max_tokens,
        "ratio.low": CLIP_LOW,
        "ratio.high": CLIP_HIGH,
        "optimizer.lr": LEARNING_RATE,
        "optimizer.betas": f"[{','.join(str(beta) for beta in BETAS)}]",
        "optimizer.eps": EPS,
        "optimizer.weight_decay": 0.0,
        "validation.every": "null",
        "trainer.max_iterations": workload.warmup + workload.iterations,
        "trainer.precision": "bf16-mixed" if workload.bfloat16 else "32-true",
        "logger": "none",
    }


def command(settings: Mapping[str, Any]) -> list[str]:
    """Return the arguments of Python that train with these settings. TRL saves nothing while it
    trains, so neither does this side."""
    return [
        "train.py",
        *(f"{name}={value}" for name, value in settings.items()),
        "~callbacks.checkpoint",
    ]


def arguments(workload: Workload, inputs: Inputs, run_dir: Path, records: Path) -> list[str]:
    """Return the arguments of Python that train on the workload and record its iterations."""
    data = {
        "policy": "hf",
        "policy.name": inputs.model,
        "data": "jsonl",
        "data.train": inputs.data,
        "data.num_val": 0,
        "data.answer": "null",
        "reward": "regex",
        "reward.pattern": f"'{PATTERN}'",
    }
    recorder = {
        "+callbacks.recorder._target_": "bench.ours.Recorder",
        "+callbacks.recorder.path": records,
    }
    return command({**settings(workload), **data, "run_dir": run_dir, **recorder})
