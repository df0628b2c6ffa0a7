"""TRL's side: `GRPOTrainer` with the objective of DAPO and its fastest settings here, recording
iterations.

    python -m bench.trl_side WORKLOAD MODEL DATA RECORDS [KEY=VALUE ...]

WORKLOAD is a `Workload` in JSON. `KEY=VALUE` sets a field of `GRPOConfig` (VALUE in JSON), to try
whether another setting is faster."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.records import Record, append, device_bytes
from bench.workloads import (
    BETAS,
    CLIP_HIGH,
    CLIP_LOW,
    EPS,
    LEARNING_RATE,
    MAX_NORM,
    Workload,
    reward,
)


def config(workload: Workload, folder: str, **changes: Any) -> Any:
    """Return the settings. No gradient checkpointing, log, checkpoint, dropout, reference model or
    worker of the data loader; all responses of an iteration in one microbatch, unless
    `per_device_train_batch_size` is changed; AdamW is TRL's default, which is fused."""
    from trl import GRPOConfig

    rows = changes.setdefault("per_device_train_batch_size", workload.rows)
    settings: dict[str, Any] = {
        "output_dir": folder,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": workload.bfloat16,
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": workload.rows // rows,
        "max_steps": workload.warmup + workload.iterations,
        "num_generations": workload.samples,
        "num_iterations": 1,
        "max_completion_length": workload.max_tokens,
        "shuffle_dataset": False,
        "disable_dropout": True,
        "loss_type": "dapo",
        "beta": 0.0,
        "epsilon": CLIP_LOW,
        "epsilon_high": CLIP_HIGH,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "weight_decay": 0.0,
        "max_grad_norm": MAX_NORM,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }
    return GRPOConfig(**settings | changes)


def trainer_class() -> type[Any]:
    """Return `GRPOTrainer` with timers around its stages."""
    from trl import GRPOTrainer

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """Measures the seconds of rollout, reward and scoring, and keeps the lengths of prompts and
        responses."""

        stages: dict[str, float]
        lengths: tuple[list[int], list[int]]

        def _timed(self, stage: str, call: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.stages[stage] = self.stages.get(stage, 0.0) + time.perf_counter() - start
            return result

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            output = self._timed("rollout", super()._generate, *args, **kwargs)
            self.lengths = ([len(ids) for ids in output[0]], [len(ids) for ids in output[1]])
            return output

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            return self._timed("reward", super()._calculate_rewards, *args, **kwargs)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            stage = "update_forward" if torch.is_grad_enabled() else "score"
            return self._timed(stage, super()._get_per_token_logps_and_entropies, *args, **kwargs)

        def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
            return self._timed("sample", super()._generate_and_score_completions, *args, **kwargs)

    return Timed


def recorder(path: Path, samples: int) -> Any:
    """Return a callback that appends a `Record` after every optimizer step."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):  # type: ignore[misc]
        """Measures from the end of one step to the end of the next."""

        trainer: Any
        start = step_start = 0.0

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.trainer.stages = {}
            self.start = time.perf_counter()

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.step_start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            now, measured = time.perf_counter(), self.trainer.stages
            stages = {name: measured.get(name, 0.0) for name in ("rollout", "reward", "score")}
            stages["update"] = now - self.step_start - measured["sample"]
            stages["other"] = now - self.start - sum(stages.values())
            prompts, responses = self.trainer.lengths
            append(
                path,
                Record(now - self.start, stages, prompts[::samples], responses, device_bytes()),
            )
            self.trainer.stages = {}
            self.start = time.perf_counter()

    return Recorder()


def main(settings: str, model: str, data: str, records: str, *changes: str) -> None:
    """Train on a workload, `settings` in JSON, and record the iterations."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    workload = Workload(**json.loads(settings))
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]

    def rewards(completions: list[Any], **_: Any) -> list[float]:
        return [
            reward(text if isinstance(text, str) else text[0]["content"]) for text in completions
        ]

    clock = recorder(Path(records), workload.samples)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            key: json.loads(value) for key, value in (change.split("=", 1) for change in changes)
        }
        clock.trainer = trainer_class()(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model),
            args=config(workload, folder, **options),
            train_dataset=Dataset.from_list(rows),
            reward_funcs=rewards,
            callbacks=[clock],
        )
        clock.trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
