"""TRL's side of `bench.learning`: `GRPOTrainer` on generated arithmetic, with this project's grader
as its reward.

    python -m bench.trl_learning TASK SEED MODEL FOLDER

TASK is a `Task` in JSON. Appends the fraction of right responses of each iteration to
FOLDER/accuracy.jsonl, and saves the trained model in FOLDER/export."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from bench.learning import Task
from bench.trl_side import config
from rlmods.reward import Accuracy
from rlmods.types import Prompt, Response


def settings(task: Task, seed: int) -> dict[str, Any]:
    """Return the fields of `GRPOConfig` that differ from those of the benchmark."""
    return {
        "learning_rate": task.learning_rate,
        "seed": seed,
        "per_device_train_batch_size": task.workload.rows // task.steps,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": task.steps,
        "max_steps": task.workload.iterations * task.steps,
    }


def main(text: str, seed: str, model: str, folder: str) -> None:
    """Train."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    task, grader, out = Task(**json.loads(text)), Accuracy(), Path(folder)

    def rewards(
        prompts: list[str], completions: list[str], answer: list[str], **_: Any
    ) -> list[float | None]:
        rows = zip(prompts, completions, answer, strict=True)
        values = grader(
            [
                Response(Prompt(id=prompt, text=prompt, answer=gold), text=text)
                for prompt, text, gold in rows
            ]
        ).values
        with (out / "accuracy.jsonl").open("a") as file:
            file.write(f"{sum(value or 0.0 for value in values) / len(values)}\n")
        return list(values)

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        args=config(task.workload, str(out / "trainer"), **settings(task, int(seed))),
        train_dataset=Dataset.from_list(
            [{"prompt": prompt.text, "answer": prompt.answer} for prompt in task.prompts(int(seed))]
        ),
        reward_funcs=rewards,
    )
    trainer.train()
    trainer.save_model(str(out / "export"))


if __name__ == "__main__":
    main(*sys.argv[1:])
