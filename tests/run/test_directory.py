"""Run directories: what is written, locks, resumed runs and forks."""

import errno
import fcntl
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from rlmods.errors import UserError
from rlmods.run import checkpoints, directory
from rlmods.run.directory import LOCK_FILE, RUN_DIR_VARIABLE, RunDir
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


def start_owner(folder: Path) -> tuple[Process, list[int]]:
    """Start another process that locks `folder`; return it and the ids of its children, a program
    and a fork."""
    process = Process(["-m", "tests.run.lock_owner", str(folder)])
    process.wait_for("\n")
    return process, [int(pid) for pid in process.files[1].read_text().split()]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Process]:
    """Another process with a run in `tmp_path / "run"`. Its children live on when it ends."""
    RunDir.open(config(tmp_path / "run"))
    directory.release(tmp_path / "run")
    process, children = start_owner(tmp_path / "run")
    yield process
    process.kill()
    for child in children:
        os.kill(child, signal.SIGKILL)
    process.communicate()


class TestNew:
    def test_writes_config_and_versions(self, tmp_path: Path) -> None:
        run = RunDir.open(config(tmp_path / "run"))
        assert (run.checkpoint, run.iteration) == (None, -1)
        assert sorted(files(run.path)) == [".lock", "config.yaml", "sources.txt", "versions.txt"]
        owner = f"process {os.getpid()} on {socket.gethostname()}\n"
        assert (run.path / LOCK_FILE).read_text() == owner
        saved = OmegaConf.load(run.path / "config.yaml")
        assert (saved.ratio.low, saved.export) == (0.2, f"{run.path}/export")
        lines = (run.path / "versions.txt").read_text().splitlines()
        names = {line.split()[0] for line in lines}
        assert names >= {"command", "python", "platform", *directory.PACKAGES}

    def test_versions_name_the_gpus_and_their_libraries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = ["NVIDIA H100", "NVIDIA H100", "NVIDIA A10"]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
        monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
        lines = (RunDir.open(config(tmp_path)).path / "versions.txt").read_text().splitlines()
        assert {
            "gpu 2 x NVIDIA H100, 1 x NVIDIA A10",
            "nccl 2.27.5",
            "cudnn 91900",
            "attention flash, efficient, math",
        } <= set(lines)
        assert {line.split()[0] for line in lines} >= {"driver", "cuda"}

    def test_relative_directory_becomes_absolute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        settings = config(Path("runs/a"))
        path = RunDir.open(settings).path
        assert path == tmp_path / "runs/a"
        assert settings.run_dir == str(path)
        assert json.loads(os.environ[RUN_DIR_VARIABLE])["path"] == str(path)

    def test_directory_with_a_run_is_rejected_unchanged_and_unlocked(self, tmp_path: Path) -> None:
        RunDir.open(config(tmp_path))
        directory.release(tmp_path)
        before = files(tmp_path)
        message = r"already holds a run: continue it with resume=auto or choose another run_dir="
        with pytest.raises(UserError, match=message):
            RunDir.open(config(tmp_path))
        assert files(tmp_path) == before
        assert not directory.is_locked(tmp_path)

    @pytest.mark.parametrize("path", ["file", "file/below"])
    def test_impossible_directory(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match=r"choose another run_dir="):
            RunDir.open(config(tmp_path / path))

    def test_sources_have_a_digest_of_each_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugin = tmp_path / "mine_of_sources.py"
        plugin.write_text("x = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module(plugin.stem)
        monkeypatch.setitem(sys.modules, plugin.stem, module)

        def sources(name: str) -> dict[str, str]:
            part = {"_target_": f"{plugin.stem}.Ratio", "low": 0.2}
            run = RunDir.open(config(tmp_path / name, ratio=part))
            lines = (run.path / "sources.txt").read_text().splitlines()
            return {line.split()[1]: line.split()[0] for line in lines}

        before = sources("a")
        assert directory.changed_plugins(tmp_path / "a") == []
        assert {"rlmods/run/directory.py", "rlmods/ratio/clipped.py"} <= before.keys()
        plugin.write_text("x = 2\n")
        after = sources("b")
        assert [name for name in before if before[name] != after[name]] == [plugin.name]
        assert directory.changed_plugins(tmp_path / "a") == [plugin.name]
        assert directory.changed_plugins(tmp_path) == []


class TestResume:
    def test_overwrites_nothing(self, tmp_path: Path) -> None:
        RunDir.open(config(tmp_path))
        assert RunDir.open(config(tmp_path, resume="auto")).iteration == -1  # from scratch
        before = files(tmp_path)
        newest = checkpoint(tmp_path / "checkpoints/iteration_000004.ckpt", 4)
        run = RunDir.open(config(tmp_path, resume="auto", trainer={"max_iterations": 9}))
        assert (run.checkpoint, run.iteration) == (newest, 4)
        after = files(tmp_path)
        assert {name: after[name] for name in before} == before
        assert {"config.resumed_000004.yaml", "versions.resumed_000004.txt"} < after.keys()

    def test_from_the_checkpoint_of_another_run(self, tmp_path: Path) -> None:
        RunDir.open(config(tmp_path / "a"))
        start = checkpoint(tmp_path / "a/checkpoints/iteration_000002.ckpt", 2)
        run = RunDir.open(config(tmp_path / "b", resume=str(start)))
        assert (run.checkpoint, run.iteration) == (start, 2)
        with pytest.raises(UserError, match="was started with seed=1"):
            RunDir.open(config(tmp_path / "c", resume=str(start), seed=2))
        assert not (tmp_path / "c").exists()

    def test_another_run_and_an_older_checkpoint_are_rejected(self, tmp_path: Path) -> None:
        for name in "ab":
            RunDir.open(config(tmp_path / name))
        for iteration in (3, 2):
            old = checkpoint(tmp_path / f"a/checkpoints/iteration_00000{iteration}.ckpt", iteration)
        with pytest.raises(UserError, match="holds a run other than"):
            RunDir.open(config(tmp_path / "b", resume=str(old)))
        with pytest.raises(UserError, match=r"iteration_000003.ckpt is newer than"):
            RunDir.open(config(tmp_path / "a", resume=str(old)))


class TestFork:
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Path:
        """A run with checkpoints of iterations 2 and 4."""
        run = RunDir.open(config(tmp_path / "a"))
        for iteration in (2, 4):
            checkpoint(run.checkpoints / f"iteration_{iteration:06d}.ckpt", iteration)
        return run.path

    def test_starts_from_the_named_checkpoint_with_another_part(
        self, origin: Path, tmp_path: Path
    ) -> None:
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
        self, changes: dict[str, Any], message: str, origin: Path, tmp_path: Path
    ) -> None:
        changes = {"fork": "@2", **changes}
        changes["fork"] = f"{origin}{changes['fork']}"
        if "resume" in changes:
            changes["resume"] = str(origin)
        with pytest.raises(UserError, match=message):
            RunDir.open(config(tmp_path / "b", **changes))
        assert not (tmp_path / "b").exists()

    def test_interrupted_one_resumes_from_its_own_checkpoint(
        self, origin: Path, tmp_path: Path
    ) -> None:
        fork = {"fork": f"{origin}@2", "ratio": {"low": 0.1}}
        run = RunDir.open(config(tmp_path / "b", **fork))
        # no checkpoint of its own yet
        assert RunDir.open(config(tmp_path / "b", resume="auto", **fork)).iteration == 2
        checkpoint(run.checkpoints / "iteration_000003.ckpt", 3)
        assert RunDir.open(config(tmp_path / "b", resume="auto", **fork)).iteration == 3
        with pytest.raises(UserError, match=r"ratio.low=0.1 \(now 0.3\)"):
            RunDir.open(config(tmp_path / "b", resume="auto", **{**fork, "ratio": {"low": 0.3}}))

    @pytest.mark.slow
    def test_unchanged_it_is_bitwise_the_same_run(self, tmp_path: Path) -> None:
        command = (
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
            "trainer.max_iterations=2",
        )

        def train(name: str, *overrides: str) -> dict[str, torch.Tensor]:
            process = Process([*command, f"run_dir={tmp_path / name}", *overrides])
            _, error = process.communicate(timeout=100)
            assert process.returncode == 0, error
            path = tmp_path / name / "checkpoints/iteration_000002.ckpt"
            state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
            return state

        original = train("a")
        fork = train("b", f"fork={tmp_path / 'a'}@1")
        assert all(torch.equal(original[name], fork[name]) for name in original)
        other = train("c", f"fork={tmp_path / 'a'}@1", "advantage=group_mean")
        assert any(not torch.equal(original[name], other[name]) for name in original)
        summary = json.loads((tmp_path / "c/summary.json").read_text())
        assert summary["label"] == "dapo[advantage=group_mean,fork=a@1]"
        assert summary["fork"] == f"{tmp_path / 'a'}@1"


class TestRanks:
    def test_others_use_the_first_ranks_directory_and_write_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = RunDir.open(config(tmp_path / "12-00-01"))
        monkeypatch.setenv("LOCAL_RANK", "1")
        settings = config(tmp_path / "12-00-02")
        assert RunDir.open(settings) == first
        assert settings.run_dir == str(first.path)
        assert os.listdir(tmp_path) == ["12-00-01"]

    @pytest.mark.slow
    @pytest.mark.parametrize("resume", ["auto", "PATH"])
    def test_others_do_not_read_the_bytes_of_a_checkpoint(
        self, resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under SLURM they find it by themselves. Reading 85 GB on each of 32 ranks takes long."""
        RunDir.open(config(tmp_path))
        saved = checkpoint(tmp_path / "checkpoints/iteration_000002.ckpt", 2)
        checked = []
        monkeypatch.setattr(checkpoints, "find_damage", checked.append)
        monkeypatch.setenv(RUN_DIR_VARIABLE, "")
        settings = config(tmp_path, resume=str(saved) if resume == "PATH" else resume)
        for rank, expected in (("1", []), ("0", [saved])):
            monkeypatch.setenv("SLURM_PROCID", rank)
            run = RunDir.open(settings)
            assert (run.checkpoint, run.iteration, checked) == (saved, 2, expected)

    @pytest.mark.slow
    def test_torchrun_ranks_use_one_directory(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, sys\nfrom omegaconf import OmegaConf\n"
            "from rlmods.run.directory import RunDir\n"
            "for job in 'ab':\n"
            "    run = RunDir.open(OmegaConf.create({'run_dir': f'{sys.argv[1]}/{job}' + "
            "os.environ['RANK'], 'resume': None}))\n"
            "    open(sys.argv[1] + '/out' + job + os.environ['RANK'], 'w').write(run.path.name)\n"
        )
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, str(script), str(tmp_path)]
        run = Process(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        _, error = run.communicate(timeout=120)
        assert run.returncode == 0, error
        for job in "ab":
            for rank in "01":
                assert (tmp_path / f"out{job}{rank}").read_text() == f"{job}0"
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a0", "b0"]


@pytest.mark.slow
class TestLock:
    def test_directory_in_use_is_rejected_and_unchanged(
        self, owner: Process, tmp_path: Path
    ) -> None:
        """Also if both resume: the second writes nothing. The lock ends with its process."""
        before = files(tmp_path)
        message = (
            rf"in use by process {owner.pid} on {socket.gethostname()}: type another "
            r"run_dir=\.\.\."
        )
        with pytest.raises(UserError, match=message) as error:
            RunDir.open(config(tmp_path / "run", resume="auto"))
        assert "\n" not in str(error.value)
        assert files(tmp_path) == before
        owner.kill()
        owner.wait()
        assert RunDir.open(config(tmp_path / "run", resume="auto")).path == tmp_path / "run"

    def test_is_acquired_once_per_process(self, tmp_path: Path) -> None:
        directory.acquire(tmp_path)
        directory.acquire(tmp_path / "." / "../" / tmp_path.name)
        directory.write_owner(tmp_path)
        owner = f"process {os.getpid()} on {socket.gethostname()}\n"
        assert (tmp_path / LOCK_FILE).read_text() == owner
        directory.release(tmp_path)
        assert not directory.is_locked(tmp_path)

    def test_file_system_without_locks_gives_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", unsupported)
        with pytest.warns(UserWarning, match="has no locks"):
            directory.acquire(tmp_path)
