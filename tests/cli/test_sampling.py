"""Commands that sample: the precision that they compute in, and what an engine is told of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.cli import command
from rlmods.cli.collect import collect
from rlmods.cli.evaluate import evaluate
from rlmods.distributed.trainer import Precision
from rlmods.errors import UserError
from rlmods.policy import Policy, Tiny
from rlmods.protocols import RunSize
from rlmods.rollout import Local

SMALL = (
    "data=arithmetic",
    "data.level=1",
    "data.num_train=2",
    "data.num_val=2",
    "rollout._target_=tests.cli.test_sampling.Engine",
    "rollout.max_tokens=3",
    "batch.samples=4",
)


seen: list[Any] = []
"""Sizes that an engine learns, and whether it then samples under autocast."""


@dataclass
class Engine(Local):
    """A rollout with weights of its own."""

    def fit_run(self, policy: Policy, run: RunSize) -> None:
        seen.append(run)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        super().sync(policy, iteration=iteration)
        seen.append(torch.is_autocast_enabled("cpu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random model."""
    Tiny(pretrained=False, hidden_size=32, num_layers=2)().export(tmp_path / "model")
    return tmp_path


def sample(name: str, folder: Path, *typed: str) -> None:
    if name == "evaluate":
        evaluate(str(folder / "model"), [*SMALL, *typed])
    else:
        collect(str(folder / "model"), [*SMALL, *typed, f"out={folder}/{len(typed)}.jsonl"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluate", "collect"])
def test_precision_and_sizes(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.clear()
    sample(name, folder)
    prompt = seen[0].longest_row - 3
    assert prompt > 1
    assert seen == [RunSize("32-true", 2 * 4, prompt + 3, 0), False]
    seen.clear()
    sample(name, folder, "trainer.precision=bf16-mixed")
    assert seen == [RunSize("bf16-mixed", 2 * 4, prompt + 3, 0), True]
    seen.clear()
    half = "trainer.precision=16-mixed"
    sample(name, folder, "data.seed=0", half)
    assert seen == [RunSize("16-mixed", 2 * 4, prompt + 3, 0), True]
    seen.clear()
    monkeypatch.setattr(command, "choose", lambda *_: Precision("bf16-mixed", "as on a GPU"))
    (folder / "0.jsonl").unlink(missing_ok=True)
    sample(name, folder)
    assert seen[1:] == [True]


def test_precision_is_the_recorded_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "choose", lambda *_: Precision("bf16-mixed", "as on a GPU"))
    config = command.configuration(SMALL)
    saved = folder / "config.yaml"
    saved.write_text("trainer: {precision: 32-true}")
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=2)()
    with command.set_precision(policy, config, saved):
        assert not torch.is_autocast_enabled("cpu")
    assert config.trainer.precision == "32-true"
    saved.write_text("trainer: {precision: 16-mixed}")
    with (
        pytest.warns(UserWarning, match="slow here: trainer.precision=32-true is faster"),
        command.set_precision(policy, command.configuration(SMALL), saved),
    ):
        assert torch.get_autocast_dtype("cpu") == torch.float16
    typed = command.configuration([*SMALL, "trainer.precision=16-mixed"])
    with command.set_precision(policy, typed, saved):  # warnings are errors
        assert torch.is_autocast_enabled("cpu")
    typed.trainer.precision = "bf16-true"
    with pytest.raises(UserError, match=r"bf16-true: type trainer\.precision=auto, trainer"):
        command.set_precision(policy, typed, saved)
