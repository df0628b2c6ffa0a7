"""The workloads that both sides run: model, prompts, group size, limits, precision and
optimizer."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlmods.data import Arithmetic
from rlmods.policy import SmolLM2, Tiny

QUESTIONS = (
    "A farmer has 17 sheep and buys 5 more. How many sheep does the farmer have?",
    "Name three fruits that are red, and say in one sentence what each tastes like.",
    "What is the capital of France, and which river flows through that city?",
    "Write a short poem about the sea, the wind and a small boat at night.",
)
"""Chat prompts: about 50 tokens each with the template of SmolLM2."""
PATTERN = "[02468acegikmoqsuwy][^0-9a-z]*$"
"""The reward is 1 if a response ends with one of half of the characters: it costs nothing and
differs within a group."""
LEARNING_RATE, BETAS, EPS, MAX_NORM, CLIP_LOW, CLIP_HIGH = 1e-6, (0.9, 0.99), 1e-8, 1.0, 0.2, 0.28
"""Settings of AdamW and of DAPO on both sides. With so small a learning rate responses keep their
length during the measurement."""


@dataclass(frozen=True)
class Workload:
    """One optimizer step on `prompts` x `samples` responses per iteration; every iteration samples
    from the same prompts."""

    name: str
    title: str
    model: Literal["tiny", "smollm2"]
    prompts: int
    """Prompts of an iteration."""
    samples: int
    """Responses to each prompt."""
    max_tokens: int
    """Limit of a response, tokens."""
    iterations: int
    """Measured iterations of one process."""
    warmup: int
    """Iterations before them."""
    bfloat16: bool = False
    """Automatic mixed precision with float32 weights, instead of float32."""
    token_budget: int | None = None
    """`batch.token_budget`."""

    @property
    def rows(self) -> int:
        """Number of responses of an iteration."""
        return self.prompts * self.samples


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "tiny",
            "embedded model, 32 x 8 rollouts of <= 16 tokens, float32",
            "tiny",
            32,
            8,
            16,
            30,
            5,
        ),
        Workload(
            "smollm2",
            "SmolLM2-135M, 4 x 8 rollouts of <= 64 tokens, float32",
            "smollm2",
            4,
            8,
            64,
            2,
            2,
            False,
            1280,
        ),
        Workload(
            "smollm2-bf16",
            "SmolLM2-135M, 4 x 8 rollouts of <= 64 tokens, bfloat16 autocast",
            "smollm2",
            4,
            8,
            64,
            2,
            2,
            True,
            1280,
        ),
        Workload(
            "mini",
            "embedded model, 2 x 2 rollouts of <= 4 tokens, float32, to try the command",
            "tiny",
            2,
            2,
            4,
            2,
            1,
        ),
    )
}


@dataclass(frozen=True)
class Inputs:
    """Files that both sides read."""

    model: Path
    """Hugging Face directory."""
    data: Path
    """JSON Lines with a column `prompt`: a text, or a list of chat messages."""


def prepare(workload: Workload, folder: Path) -> Inputs:
    """Write the model and the prompts of a workload to a folder; a model that is there already is
    kept."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(folder / workload.model, folder / f"{workload.name}.jsonl")
    if not (inputs.model / "config.json").exists():
        (Tiny() if workload.model == "tiny" else SmolLM2())().export(inputs.model)
    inputs.data.write_text(
        "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(workload))
    )
    return inputs


def prompts(workload: Workload) -> list[str | list[dict[str, str]]]:
    """Return the prompts of every iteration.

    Raises:
        ValueError: there are fewer prompts than the workload needs.
    """
    found: list[str | list[dict[str, str]]]
    if workload.model == "tiny":
        found = [
            str(prompt.text) for prompt in Arithmetic(num_train=workload.prompts, num_val=1)().train
        ]
    else:
        found = [
            [{"role": "user", "content": question}] for question in QUESTIONS[: workload.prompts]
        ]
    if len(found) < workload.prompts:
        raise ValueError(f"{workload.name}: only {len(found)} of {workload.prompts} prompts")
    return found


def reward(text: str) -> float:
    """Return the reward of a response, the same as that of `reward=regex
    reward.pattern=PATTERN`."""
    return float(re.search(PATTERN, text) is not None)
