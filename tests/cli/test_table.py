"""The table printed before training starts."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rlmods.advantage import GAE
from rlmods.cli.table import show_run
from rlmods.config import build
from rlmods.config.build import LoadedRun
from rlmods.critic import Separate
from rlmods.policy import Policy
from rlmods.policy.tiny import character_tokenizer
from rlmods.run.directory import RunDir
from tests.support.composed import composed
from tests.support.models import llama
from tests.support.tiny_setup import learner

TINY = ("policy.pretrained=false", "policy.hidden_size=32", "policy.num_layers=1")


def table(folder: Path, *overrides: str, num_ranks: int = 1) -> str:
    made = composed(*TINY, *overrides, f"run_dir={folder}")
    return shown(build.load(made), folder, num_ranks)


def shown(made: LoadedRun, folder: Path, num_ranks: int = 1) -> str:
    console = Console(file=io.StringIO(), width=300)
    show_run(made, RunDir(folder), num_ranks, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("epochs", "minibatches", "steps"),
    [
        (1, 1, "1 step per iteration (epochs 1 x minibatches 1 of 128)"),
        (3, 1, "3 steps per iteration (epochs 3 x minibatches 1 of 128)"),
        (3, 4, "12 steps per iteration (epochs 3 x minibatches 4 of 32)"),
    ],
)
def test_optimizer_steps_are_those_of_all_epochs(
    epochs: int, minibatches: int, steps: str, tmp_path: Path
) -> None:
    batch = (
        "batch.prompts=16",
        "batch.samples=8",
        f"batch.epochs={epochs}",
        f"batch.minibatches={minibatches}",
    )
    text = table(tmp_path, "algo=grpo", *batch)
    assert steps in text


def test_sizes_of_an_iteration(tmp_path: Path) -> None:
    assert "16 prompts x 8 samples = 128 responses; 8 prompts on each of 2 ranks" in table(
        tmp_path, "algo=grpo", "batch.prompts=16", "batch.samples=8", num_ranks=2
    )
    text = table(tmp_path, "algo=sft", "batch.prompts=32", "trainer.max_iterations=16")
    assert "iteration 32 rows" in text
    assert "16 iterations, 2 x the data" in text


def test_forwards(tmp_path: Path) -> None:
    assert "forward prefixes that rows share, such as prompts, once; no padding" in table(
        tmp_path, "algo=dapo"
    )
    assert "forward equal" not in table(tmp_path, "algo=reward_model")


def test_padded_forwards_have_a_reason(tmp_path: Path) -> None:
    made = build.load(composed(*TINY, "algo=ppo", "critic=separate", f"run_dir={tmp_path}"))
    critic = {"critic": Separate(), "advantage": GAE()}
    eager = learner(
        policy=Policy(llama(attn_implementation="eager"), character_tokenizer()), **critic
    )
    text = shown(replace(made, learner=eager), tmp_path)
    assert "forward padded rows: this model's attention or its experts cannot" in text


def test_networks(tmp_path: Path) -> None:
    text = table(tmp_path, "algo=ppo", "critic=separate")
    assert "critic 0.0M parameters more" in text
    assert "reference a frozen copy" in text
    assert "reference none (no KL term)" in table(tmp_path, "algo=dapo")


@pytest.mark.parametrize(("weights", "word"), [("start", "frozen"), ("ema", "moving")])
def test_a_teacher_that_moves_is_not_called_frozen(weights: str, word: str, tmp_path: Path) -> None:
    text = table(
        tmp_path,
        "algo=grpo",
        "advantage=teacher",
        "teacher=self",
        "teacher.sibling=true",
        f"teacher.weights={weights}",
    )
    assert f"teacher self, {word}" in text
