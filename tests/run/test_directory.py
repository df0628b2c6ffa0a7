import importlib
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from rlmods.errors import UserError
from rlmods.run import lock
from rlmods.run.directory import RUN_DIR_VARIABLE, RunDir
from tests.run.test_lock import start_owner
from tests.support.processes import Process

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RUN_DIR_VARIABLE, "")


def config(run_dir: Path, **changes: Any) -> DictConfig:
    defaults = {
        "seed": 1,
        "ratio": {"low": 0.2},
        "trainer": {"max_iterations": 5},
        "export": "${run_dir}/export",
        "resume": None,
    }
    return OmegaConf.create({**defaults, "run_dir": str(run_dir), **changes})


def checkpoint(path: Path, iteration: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"iteration": iteration, "loops": {}}, path)
    return path


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def test_new_run_writes_config_and_versions(tmp_path: Path) -> None:
    run = RunDir.open(config(tmp_path / "run"))
    assert (run.checkpoint, run.iteration) == (None, -1)
    assert sorted(files(run.path)) == [".lock", "config.yaml", "sources.txt", "versions.txt"]
    saved = OmegaConf.load(run.path / "config.yaml")
    assert (saved.ratio.low, saved.export) == (0.2, f"{run.path}/export")
    assert dict(
        line.split(" ", 1) for line in (run.path / "versions.txt").read_text().splitlines()
    ).keys() >= {
        "command",
        "python",
        "platform",
        "rlmods",
        "torch",
        "lightning",
        "transformers",
        "hydra-core",
    }


def test_relative_directory_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = config(Path("runs/a"))
    assert RunDir.open(settings).path == tmp_path / "runs/a"
    assert (
        settings.run_dir
        == json.loads(os.environ[RUN_DIR_VARIABLE])["path"]
        == str(tmp_path / "runs/a")
    )


def test_directory_with_a_run_is_rejected_and_unchanged(tmp_path: Path) -> None:
    RunDir.open(config(tmp_path))
    before = files(tmp_path)
    with pytest.raises(
        UserError,
        match=r"already holds a run: continue it with resume=auto or choose another run_dir=\.\.\.$",
    ):
        RunDir.open(config(tmp_path))
    assert files(tmp_path) == before


def test_resuming_overwrites_nothing(tmp_path: Path) -> None:
    RunDir.open(config(tmp_path))
    before = files(tmp_path)
    newest = checkpoint(tmp_path / "checkpoints/iteration_000004.ckpt", 4)
    run = RunDir.open(config(tmp_path, resume="auto", trainer={"max_iterations": 9}))
    assert (run.checkpoint, run.iteration) == (newest, 4)
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert {"config.resumed_000004.yaml", "versions.resumed_000004.txt"} < after.keys()


def test_auto_without_a_checkpoint_starts_from_scratch(tmp_path: Path) -> None:
    assert RunDir.open(config(tmp_path, resume="auto")).iteration == -1
    assert RunDir.open(config(tmp_path, resume="auto")).iteration == -1


def test_changed_settings_are_rejected(tmp_path: Path) -> None:
    RunDir.open(config(tmp_path))
    changed = config(
        tmp_path, resume="auto", ratio={"low": 0.3, "high": 1}, trainer={}, logger={"csv": 1}
    )
    with pytest.raises(
        UserError, match=r"was started with ratio.high=unset \(now 1\), ratio.low=0.2 \(now 0.3\): "
    ) as error:
        RunDir.open(changed)
    assert "\n" not in str(error.value)


COMPUTED = (
    "algo",
    "advantage",
    "batch",
    "data",
    "optimizer",
    "policy",
    "reward",
    "rollout",
    "sampling",
    "schedule",
    "validation",
)
REPORTED = ("callbacks", "logger")


@pytest.mark.parametrize("group", [*COMPUTED, *REPORTED])
def test_only_what_reports_may_change(tmp_path: Path, group: str) -> None:
    RunDir.open(config(tmp_path, **{group: {"value": 1}}))
    with (
        pytest.raises(UserError, match=f"was started with {group}.value=1")
        if group in COMPUTED
        else nullcontext()
    ):
        RunDir.open(config(tmp_path, resume="auto", **{group: {"value": 2}}))


@pytest.mark.parametrize(
    "key",
    [
        "batch.token_budget",
        "batch.preflight",
        "policy.gradient_checkpointing",
        "rollout.timeout_s",
        "rollout.batch_size",
        "rollout.cache_gib",
        "rollout.urls",
        "rollout.ahead",
        "reward.terms.a.reward.token_budget",
    ],
)
def test_memory_and_speed_may_change(tmp_path: Path, key: str) -> None:
    """Single settings of groups whose other settings may not."""
    before, after = config(tmp_path), config(tmp_path, resume="auto")
    OmegaConf.update(before, key, 1, force_add=True)
    OmegaConf.update(after, key, 2, force_add=True)
    RunDir.open(before)
    RunDir.open(after)
    OmegaConf.update(after, key.rpartition(".")[0] + ".value", 2, force_add=True)
    with pytest.raises(UserError, match=r"was started with \S+\.value=unset \(now 2\): "):
        RunDir.open(after)


def test_run_may_start_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    RunDir.open(config(tmp_path / "a"))
    start = checkpoint(tmp_path / "a/checkpoints/iteration_000002.ckpt", 2)
    run = RunDir.open(config(tmp_path / "b", resume=str(start)))
    assert (run.checkpoint, run.iteration) == (start, 2)
    with pytest.raises(UserError, match="was started with seed=1"):
        RunDir.open(config(tmp_path / "c", resume=str(start), seed=2))
    assert not (tmp_path / "c").exists()


def test_resuming_rejects_another_run_and_an_older_checkpoint(tmp_path: Path) -> None:
    for name in "ab":
        RunDir.open(config(tmp_path / name))
    old, _ = (checkpoint(tmp_path / f"a/checkpoints/iteration_00000{n}.ckpt", n) for n in (2, 3))
    with pytest.raises(UserError, match="holds a run other than"):
        RunDir.open(config(tmp_path / "b", resume=str(old)))
    with pytest.raises(UserError, match=r"iteration_000003.ckpt is newer than"):
        RunDir.open(config(tmp_path / "a", resume=str(old)))


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_impossible_directory_gives_a_one_line_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"choose another run_dir=\.\.\.$"):
        RunDir.open(config(tmp_path / path))


def test_other_ranks_use_the_first_ranks_directory_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunDir.open(config(tmp_path / "12-00-01"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    settings = config(tmp_path / "12-00-02")
    assert RunDir.open(settings) == first
    assert settings.run_dir == str(first.path)
    assert os.listdir(tmp_path) == ["12-00-01"]


@pytest.mark.slow
def test_torchrun_ranks_use_one_directory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nfrom omegaconf import OmegaConf\nfrom rlmods.run.directory import RunDir\n"
        "for job in 'ab':\n"
        "    run = RunDir.open(OmegaConf.create({'run_dir': f'{sys.argv[1]}/{job}' + "
        "os.environ['RANK'], 'resume': None}))\n"
        "    open(sys.argv[1] + '/out' + job + os.environ['RANK'], 'w').write(run.path.name)\n"
    )
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
        str(tmp_path),
    ]
    run = Process(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    _, error = run.communicate(timeout=120)
    assert run.returncode == 0, error
    assert [(tmp_path / f"out{job}{rank}").read_text() for job in "ab" for rank in "01"] == [
        "a0",
        "a0",
        "b0",
        "b0",
    ]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a0", "b0"]


def test_directory_in_use_is_rejected_and_unchanged(tmp_path: Path) -> None:
    """Also if both resume: the second writes nothing."""
    RunDir.open(config(tmp_path))
    lock.release(tmp_path)
    other, children = start_owner(tmp_path)
    before = files(tmp_path)
    try:
        with pytest.raises(UserError, match=f"in use by process {other.pid}"):
            RunDir.open(config(tmp_path, resume="auto"))
        assert files(tmp_path) == before
    finally:
        other.kill()
        for child in children:
            os.kill(child, 9)
        other.communicate()
    assert RunDir.open(config(tmp_path, resume="auto")).path == tmp_path


def test_rejected_directory_is_unlocked(tmp_path: Path) -> None:
    RunDir.open(config(tmp_path))
    lock.release(tmp_path)
    (tmp_path / lock.LOCK_FILE).write_text("process 1 on another host\n")
    before = files(tmp_path)
    with pytest.raises(UserError, match="already holds a run"):
        RunDir.open(config(tmp_path))
    assert files(tmp_path) == before
    other, children = start_owner(tmp_path)
    assert len(children) == 2, "it could not lock the directory"
    other.kill()
    for child in children:
        os.kill(child, 9)
    other.communicate()


def test_sources_have_a_digest_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "mine_of_sources.py"
    plugin.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "mine_of_sources", importlib.import_module("mine_of_sources"))

    def sources(name: str) -> dict[str, str]:
        run = RunDir.open(
            config(tmp_path / name, ratio={"_target_": "mine_of_sources.Ratio", "low": 0.2})
        )
        lines = (run.path / "sources.txt").read_text().splitlines()
        return {line.split()[1]: line.split()[0] for line in lines}

    before = sources("a")
    assert {"rlmods/run/directory.py", "rlmods/ratio/clipped.py"} <= before.keys()
    plugin.write_text("x = 2\n")
    after = sources("b")
    assert {name for name in before if before[name] != after[name]} == {"mine_of_sources.py"}
