"""A fork goes on from a checkpoint of another run, with other parts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlmods.errors import UserError
from rlmods.run.directory import RUN_DIR_VARIABLE, RunDir
from tests.run.test_directory import checkpoint, config, files
from tests.support.processes import Process

COMMAND = (
    "train.py",
    "data.num_train=16",
    "data.num_val=2",
    "batch.prompts=4",
    "batch.samples=4",
    "rollout.max_tokens=8",
    "validation.every=100",
    "trainer.accelerator=cpu",
    "callbacks.checkpoint.every=1",
    "callbacks.checkpoint.keep=0",
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RUN_DIR_VARIABLE, "")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A run with checkpoints of iterations 2 and 4."""
    run = RunDir.open(config(tmp_path / "a"))
    for iteration in (2, 4):
        checkpoint(run.checkpoints / f"iteration_{iteration:06d}.ckpt", iteration)
    return run.path


def test_starts_from_the_named_checkpoint_with_another_part(origin: Path, tmp_path: Path) -> None:
    before = files(origin)
    run = RunDir.open(config(tmp_path / "b", fork=f"{origin}@2", ratio={"low": 0.1}))
    assert (run.iteration, run.checkpoint) == (2, origin / "checkpoints/iteration_000002.ckpt")
    assert OmegaConf.load(run.path / "config.yaml").fork == f"{origin}@2"
    assert files(origin) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": 2},
            r"started with seed=1 \(now 2\): restore these settings of the run; a fork may "
            r"change ratio, advantage",
        ),
        ({"fork": "@3"}, r"no checkpoint of this iteration, there are: 2, 4"),
        ({"fork": "@last"}, r"type a run directory and an iteration"),
        ({"fork": "/nowhere@2"}, r"is not a run directory"),
        ({"resume": "PATH"}, r"two origins, drop one of them"),
    ],
)
def test_other_origins_and_settings_are_refused(
    changes: dict[str, Any], message: str, origin: Path, tmp_path: Path
) -> None:
    changes = {"fork": "@2", **changes}
    changes["fork"] = f"{origin}{changes['fork']}"
    if "resume" in changes:
        changes["resume"] = str(origin)
    with pytest.raises(UserError, match=message):
        RunDir.open(config(tmp_path / "b", **changes))
    assert not (tmp_path / "b").exists()


def test_interrupted_fork_resumes_from_its_own_checkpoint(origin: Path, tmp_path: Path) -> None:
    fork = {"fork": f"{origin}@2", "ratio": {"low": 0.1}}
    run = RunDir.open(config(tmp_path / "b", **fork))
    # no checkpoint of its own yet
    assert RunDir.open(config(tmp_path / "b", resume="auto", **fork)).iteration == 2
    checkpoint(run.checkpoints / "iteration_000003.ckpt", 3)
    assert RunDir.open(config(tmp_path / "b", resume="auto", **fork)).iteration == 3
    with pytest.raises(UserError, match=r"ratio.low=0.1 \(now 0.3\)"):
        RunDir.open(config(tmp_path / "b", resume="auto", **{**fork, "ratio": {"low": 0.3}}))


@pytest.mark.slow
def test_unchanged_it_is_bitwise_the_same_run(tmp_path: Path) -> None:
    def train(name: str, *overrides: str) -> dict[str, torch.Tensor]:
        process = Process(
            [*COMMAND, f"run_dir={tmp_path / name}", "trainer.max_iterations=2", *overrides]
        )
        _, error = process.communicate(timeout=100)
        assert process.returncode == 0, error
        state: dict[str, torch.Tensor] = torch.load(
            tmp_path / name / "checkpoints/iteration_000002.ckpt", weights_only=True
        )["state_dict"]
        return state

    original, fork = train("a"), train("b", f"fork={tmp_path / 'a'}@1")
    assert all(torch.equal(original[name], fork[name]) for name in original)
    other = train("c", f"fork={tmp_path / 'a'}@1", "advantage=group_mean")
    assert any(not torch.equal(original[name], other[name]) for name in original)
    summary = json.loads((tmp_path / "c/summary.json").read_text())
    assert (summary["label"], summary["fork"]) == (
        "dapo[advantage=group_mean,fork=a@1]",
        f"{tmp_path / 'a'}@1",
    )
