"""Sweeps: names of directories, checks before the first member, and members that fail or are
finished."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rlmods.cli import sweep
from rlmods.cli.sweep import (
    MemberError,
    Sweep,
    member_lines,
    run_member,
)
from rlmods.errors import UserError
from rlmods.run.name import MAX_NAME_LENGTH, SWEPT, member_name, sweep_dir
from tests.cli.test_main import RANDOM, ROOT, SMALL, start, train


def check() -> None:
    """Stand for the composition of a member."""


BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
PLUGIN = """
class Flaky:
    def __init__(self, file):
        self.file = file

    def __call__(self, responses):
        from pathlib import Path
        if Path(self.file).exists():
            raise RuntimeError("no reward today")
        return [float(len(r.tokens)) for r in responses]
"""


class TestNames:
    def test_are_the_sorted_overrides(self) -> None:
        assert (
            member_name(["seed=1", "ratio=symmetric"])
            == member_name(["ratio=symmetric", "seed=1"])
            == "ratio=symmetric,seed=1"
        )
        assert member_name([]) == "default"

    @pytest.mark.parametrize(
        "overrides",
        [
            ["policy.name=/a/b"],
            ["policy.name=../../b"],
            ["a='x y'"],
            ["a=$(b)"],
            ["a=ü"],
            ["x=" + "y" * 300],
            [".a=1"],
        ],
    )
    def test_are_those_of_one_folder(self, overrides: list[str], tmp_path: Path) -> None:
        name = member_name(overrides)
        assert len(name) <= MAX_NAME_LENGTH
        assert Path(name).name == name
        assert not name.startswith(".")
        assert not set(name) & set(" '$()/\\")
        (tmp_path / name).mkdir()

    def test_are_different_where_overrides_are(self) -> None:
        typed = ["a=/x", "a=-x", "a= x", "a=" + "y" * 300, "a=" + "y" * 301]
        assert len({member_name([text]) for text in typed}) == len(typed)

    def test_hold_only_what_differs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What all members share names the directory of the sweep."""
        typed = ["ratio=symmetric", "algo=dapo", "seed=1", "+a.b=2"]
        assert sweep_dir(typed) == "runs/sweep"
        monkeypatch.setenv(SWEPT, "seed +a.b ratio")
        assert member_name(typed) == "+a.b=2,ratio=symmetric,seed=1"
        assert sweep_dir(typed) == "runs/sweep/algo=dapo"
        assert sweep_dir(typed[:1]) == "runs/sweep"


def write(folder: Path, **summary: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("seed: 1\ntrainer:\n  precision: 32-true\n")
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def accuracy(first: float | None, best: float | None, last: float | None) -> dict[str, Any]:
    return {"val/accuracy": {"first": first, "best": best, "last": last}}


def test_lines_of_summaries(tmp_path: Path) -> None:
    runs = [
        write(tmp_path / "seed=1", exit="finished", iterations=9, **accuracy(0.25, 0.75, 0.5)),
        write(
            tmp_path / "seed=10",
            exit="failed: x",
            iterations=3,
            **{"val/accuracy": {"first": None, "best": None, "last": None}},
        ),
        tmp_path / "seed=11",
    ]
    assert member_lines(runs) == [
        "  seed=1   finished, 9 iterations, val/accuracy first 0.250 best 0.750 last 0.500",
        "  seed=10  failed: x, 3 iterations",
        "  seed=11  not finished, 0 iterations",
    ]


class TestMember:
    @pytest.fixture(autouse=True)
    def launcher(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        launcher = SimpleNamespace(_target_=BASIC, num=0)
        hydra = SimpleNamespace(launcher=launcher, job=launcher, sweep=launcher)
        monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
        monkeypatch.setattr(sweep, "_sweep", Sweep())
        return launcher

    @staticmethod
    def config(folder: Path, **settings: Any) -> DictConfig:
        return OmegaConf.create(
            {
                "run_dir": str(folder),
                "resume": None,
                "seed": 1,
                "trainer": {"precision": "auto"},
                **settings,
            }
        )

    def test_a_finished_one_does_not_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = write(tmp_path / "a", exit="finished", **{"val/accuracy": {"best": 0.75}})
        config = self.config(folder)
        assert run_member(config, lambda: config, lambda: pytest.fail("trained")) == 0.75
        assert "finished already" in capsys.readouterr().out

    def test_a_finished_one_with_other_settings_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = write(tmp_path / "a", exit="finished", **{"val/accuracy": {"best": 0.75}})
        config = self.config(folder, seed=2)
        with pytest.raises(MemberError, match="was started with seed=1 \\(now 2\\)"):
            run_member(config, lambda: config, lambda: pytest.fail("trained"))
        assert "finished already" not in capsys.readouterr().out

    @pytest.mark.parametrize("exit", ["interrupted", "failed: x"])
    @pytest.mark.parametrize(("resume", "expected"), [(None, "auto"), ("a.ckpt", "a.ckpt")])
    def test_others_resume(
        self, exit: str, resume: str | None, expected: str, tmp_path: Path
    ) -> None:
        config = self.config(write(tmp_path / "a", exit=exit), resume=resume)
        run_member(config, check, lambda: 0)
        assert config.resume == expected

    @pytest.mark.parametrize("error", [UserError("no such file"), RuntimeError("no such file")])
    def test_a_failure_is_printed_and_named(
        self, error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> int:
            raise error

        with pytest.raises(MemberError, match="type the same command again"):
            run_member(self.config(tmp_path / "a"), check, fail)
        printed = capsys.readouterr().err
        assert f"error: {tmp_path / 'a'}: " in printed
        assert "no such file" in printed
        assert ("Traceback" in printed) == (type(error) is RuntimeError)

    def test_a_signal_ends_the_sweep(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit) as stop:
            run_member(self.config(tmp_path / "a"), check, lambda: 75)
        assert stop.value.code == 75

    def test_a_signal_ends_one_of_many_processes(
        self, launcher: SimpleNamespace, tmp_path: Path
    ) -> None:
        launcher._target_ = JOBLIB
        with pytest.raises(MemberError, match="was interrupted"):
            run_member(self.config(tmp_path / "a"), check, lambda: 75)

    @pytest.mark.parametrize(
        ("visible", "target", "devices", "expected"),
        [
            ("4,5", JOBLIB, 1, ["4", "4", "5", "5"]),
            (None, JOBLIB, 1, ["0", "0", "1", "0"]),
            ("4", JOBLIB, 1, ["4"] * 4),
            ("4,5", JOBLIB, 2, ["4,5"] * 4),
            ("4,5", BASIC, 1, ["4,5"] * 4),
        ],
    )
    def test_processes_do_not_share_a_gpu(
        self,
        visible: str | None,
        target: str,
        devices: int,
        expected: list[str],
        launcher: SimpleNamespace,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Two members of a process, and one of each of two others, where there are two GPUs."""
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        launcher._target_ = target
        launcher.dir = str(tmp_path)
        config = self.config(tmp_path / "a")
        config.trainer.devices = devices
        found = []
        held: dict[str, Sweep] = {}
        for process, num in (("a", 0), ("a", 4), ("b", 2), ("c", 6 if visible is None else 7)):
            launcher.num = num
            if process not in held:
                held[process] = Sweep()
                monkeypatch.setattr(sweep, "_sweep", held[process])
                monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
                if visible is not None:
                    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            run_member(config, check, lambda: 0)
            found.append(os.environ["CUDA_VISIBLE_DEVICES"])
        assert found == expected
        assert config.trainer.devices == devices

    def test_lines_of_several_processes_have_the_name_of_the_member(
        self,
        launcher: SimpleNamespace,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def train() -> int:
            print("iteration 1/2\niteration ", end="")
            print("warning: x", file=sys.stderr)
            print("2/2")
            return 0

        run_member(self.config(tmp_path / "seed=1"), check, train)
        assert capsys.readouterr().out == "iteration 1/2\niteration 2/2\n"
        launcher._target_ = JOBLIB
        run_member(self.config(tmp_path / "seed=1"), check, train)
        assert capsys.readouterr() == (
            "seed=1  iteration 1/2\nseed=1  iteration 2/2\n",
            "seed=1  warning: x\n",
        )


@pytest.mark.slow
class TestCommand:
    @pytest.fixture
    def plugins(self, tmp_path: Path) -> Path:
        folder = tmp_path / "plugins/flaky"
        (folder / "reward").mkdir(parents=True)
        (folder / "flaky.py").write_text(PLUGIN)
        (folder / "reward/flaky.yaml").write_text(f"_target_: flaky.Flaky\nfile: {tmp_path}/none\n")
        return tmp_path / "plugins"

    def test_a_member_that_is_refused_stops_all_before_the_first(self, tmp_path: Path) -> None:
        result = train(tmp_path, *RANDOM, "seed=1,2", "advantage=rloo,gae", "-m")
        assert result.code == 1
        assert result.err.count("\n") == 1
        assert "advantage=gae" in result.err
        assert "error: member " in result.err
        assert not list(tmp_path.glob("runs/sweep/*/*/config.yaml"))

    def test_a_failure_stops_no_other_and_the_same_command_runs_the_rest(
        self, plugins: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "fail"
        file.touch()
        fails = f"reward.file={tmp_path}/none,{file}"
        command = (
            *RANDOM,
            "trainer.max_iterations=1",
            "reward=flaky",
            fails,
            "seed=1,2",
            "hydra.sweep.dir=grid",
            "-m",
        )
        first = train(tmp_path, *command, plugins=plugins)
        assert first.code == 1
        assert first.err.count("RuntimeError: no reward today") >= 2
        summaries = {
            path: json.loads(path.read_text()) for path in tmp_path.glob("grid/*/summary.json")
        }
        assert sorted(x["exit"].split(":")[0] for x in summaries.values()) == [
            "failed",
            "failed",
            "finished",
            "finished",
        ]
        assert first.out.count("finished, 1 iteration") == 2
        file.unlink()
        times = {
            path: path.stat().st_mtime_ns
            for path, x in summaries.items()
            if x["exit"] == "finished"
        }
        second = train(tmp_path, *command, plugins=plugins)
        assert (second.code, second.err) == (0, "")
        assert second.out.count("finished already") == 2
        assert all(path.stat().st_mtime_ns == time for path, time in times.items())
        assert {
            json.loads(path.read_text())["exit"] for path in tmp_path.glob("grid/*/summary.json")
        } == {"finished"}

    def test_ctrl_c_saves_and_the_same_command_goes_on(self, tmp_path: Path) -> None:
        command = (*RANDOM, "trainer.max_iterations=40", "seed=1,2", "-m")
        process = start(tmp_path, *command)
        deadline = time.monotonic() + 120
        while not any(
            '"iteration": 1,' in path.read_text()
            for path in tmp_path.glob("runs/sweep/*/*/metrics.jsonl")
        ):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "the sweep is interrupted: type the same command again" in err
        assert "Traceback" not in err
        [member] = tmp_path.glob("runs/sweep/*/*/summary.json")
        assert json.loads(member.read_text())["exit"] == "interrupted"
        result = train(tmp_path, *command)
        assert result.code == 0, result.err
        assert "resumed from iteration" in result.out
        summaries = [
            json.loads(path.read_text()) for path in tmp_path.glob("runs/sweep/*/*/summary.json")
        ]
        assert [(x["exit"], x["iterations"]) for x in summaries] == [("finished", 40)] * 2

    def test_members_in_several_processes(self, tmp_path: Path) -> None:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the extra sweep")
        grid = ("trainer.max_iterations=1", "seed=1,2", "-m")
        command = [
            sys.executable,
            str(ROOT / "train.py"),
            "hydra/launcher=joblib",
            "hydra.launcher.n_jobs=2",
            *SMALL,
            *RANDOM,
            *grid,
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("finished, 1 iteration") == 2
        assert result.stdout.count("\nseed=1  iteration 1/1  reward") == 1
        assert result.stdout.count("\nseed=2  iteration 1/1  reward") == 1
        assert len(re.findall("^seed=.  parts ", result.stdout, re.MULTILINE)) == 1
        assert train(tmp_path, *RANDOM, *grid).out.count("finished already") == 2
