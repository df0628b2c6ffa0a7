"""Fault injection, one test per row of docs/faults.md: `python train.py` in this process with a
fault."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from rlmods.cli import job
from rlmods.cli.console import plain_errors
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.run import name
from rlmods.run.directory import release
from tests.cli.test_main import RANDOM, SMALL, rows, start
from tests.faults.rows import ROWS, table
from tests.run.test_directory import start_owner

SETTINGS = (
    *SMALL,
    *RANDOM,
    "callbacks.checkpoint.every=1",
    "validation.max_prompts=2",
    "validation.samples=0",
    "validation.every=null",
    "batch.minibatches=1",
)
Run = Callable[..., None]


def fault(kind: str, **settings: Any) -> list[str]:
    """Return the overrides that add a callback of `tests.faults.inject`."""
    typed = [f"+callbacks.fault.{key}={value}".replace(" ", "") for key, value in settings.items()]
    return [f"+callbacks.fault._target_=tests.faults.inject.{kind}", *typed]


def faulty_reward(fault: str, *more: str) -> list[str]:
    term = "+reward.terms.fault"
    return [
        f"{term}.reward._target_=tests.faults.rewards.Faulty",
        f"{term}.reward.fault={fault}",
        *more,
    ]


def command(*overrides: str) -> int:
    """Return the exit status of `python train.py`."""
    GlobalHydra.instance().clear()
    plugins.register()
    name.register()
    try:
        with plain_errors():
            with initialize_config_dir(str(CONF), version_base="1.3"):
                config = compose("train", list(overrides), return_hydra_config=True)
            HydraConfig.instance().set_config(config)
            with open_dict(config):
                del config["hydra"]
            job.run_job(config)
    except SystemExit as exit:
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
        return exit.code if isinstance(exit.code, int) else 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        HydraConfig.instance().cfg = None
    return 0


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLMODS_RUN_DIR", "")
        before = signal.getsignal(signal.SIGINT)
        yield
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Run:
    """Start a run; exit status and standard error are compared with the row that the test is named
    after."""

    def start_run(*overrides: str, expect: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.showwarning = lambda *arguments: print(
                warnings.formatwarning(*arguments[:4]), end="", file=sys.stderr
            )
            capfd.readouterr()
            status = command(*SETTINGS, f"run_dir={tmp_path}/run", *overrides)
        stderr = capfd.readouterr().err
        if not expect:
            assert status == 0, stderr
            return
        row = ROWS[request.node.name.removeprefix("test_")]
        assert status == row.status, stderr
        assert re.search(row.pattern(), stderr, re.MULTILINE), stderr
        if not row.message:
            assert stderr == ""
        if row.message.startswith("error: "):
            assert len(stderr.strip().splitlines()) == 1 + stderr.count("warning: ") + stderr.count(
                " is saved; to resume: "
            ), stderr

    return start_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run of two iterations with a checkpoint each."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert command(*SETTINGS, f"run_dir={folder}") == 0
    release(folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """Copy of the finished run to damage, with its own path in the saved configuration."""
    shutil.copytree(finished, tmp_path / "run")
    saved = tmp_path / "run/config.yaml"
    saved.write_text(saved.read_text().replace(str(finished), str(tmp_path / "run")))
    return tmp_path / "run"


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def iterations(folder: Path) -> list[int]:
    return [row["iteration"] for row in rows(folder / "metrics.jsonl") if "train/reward" in row]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


RESUME = ("resume=auto", "trainer.max_iterations=3")


def test_two_processes_in_one_run_directory(copied: Path, run: Run) -> None:
    other, children = start_owner(copied)
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    try:
        run(*RESUME)
        assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before
    finally:
        other.kill()
        for child in children:
            os.kill(child, signal.SIGKILL)
        other.communicate()


class TestCheckpoint:
    def test_truncated_checkpoint(self, copied: Path, run: Run) -> None:
        newest = copied / "checkpoints/iteration_000002.ckpt"
        newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
        run(*RESUME)
        assert iterations(copied) == [1, 2, 3]
        assert summary(copied)["exit"] == "finished"

    def test_flipped_bit_in_checkpoint(self, copied: Path, run: Run) -> None:
        newest = copied / "checkpoints/iteration_000002.ckpt"
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
        torch.load(newest, weights_only=True)  # accepts it
        run(*RESUME)
        assert iterations(copied) == [1, 2, 3]

    def test_all_checkpoints_broken(self, copied: Path, run: Run) -> None:
        for path in (copied / "checkpoints").iterdir():
            path.write_bytes(path.read_bytes()[:1000])
        run(*RESUME)
        assert iterations(copied) == [1, 2]

    def test_kill_while_saving(self, copied: Path, run: Run) -> None:
        (copied / "checkpoints/.iteration_000003.ckpt.tmp").write_bytes(b"PK half")
        run(*RESUME)
        assert checkpoints(copied) == ["iteration_000002.ckpt", "iteration_000003.ckpt"]


class TestDisk:
    def test_disk_full_once(self, tmp_path: Path, run: Run) -> None:
        run(
            *fault("DiskFull", iterations=[2]),
            "trainer.max_iterations=3",
            "callbacks.checkpoint.keep=0",
        )
        assert checkpoints(tmp_path / "run") == ["iteration_000001.ckpt", "iteration_000003.ckpt"]
        failures = [
            row["checkpoint/failures"]
            for row in rows(tmp_path / "run/metrics.jsonl")
            if "checkpoint/failures" in row
        ]
        assert failures == [1]

    def test_disk_full_at_the_end(self, tmp_path: Path, run: Run) -> None:
        run(*fault("DiskFull", iterations=[2]))
        assert checkpoints(tmp_path / "run") == ["iteration_000001.ckpt"]
        assert summary(tmp_path / "run")["exit"].startswith(
            "failed: UserError: iteration 2 was not saved"
        )
        assert (tmp_path / "run/export/model.safetensors").exists()
        run("resume=auto", expect=False)
        assert iterations(tmp_path / "run") == [1, 2]

    def test_disk_full_for_the_log(self, tmp_path: Path, run: Run) -> None:
        run(*fault("DiskFull", iterations=[2], path=f"{tmp_path}/run/metrics.jsonl"))
        assert checkpoints(tmp_path / "run") == ["iteration_000001.ckpt"]


class TestSignal:
    @pytest.fixture
    def interrupt(self, tmp_path: Path, run: Run) -> Callable[..., None]:
        """Send signals within iteration 2, then resume to the end."""

        def send(*numbers: int, saved: int = 2, **options: Any) -> None:
            run(
                *fault("SendSignals", numbers=[int(number) for number in numbers], **options),
                "trainer.max_iterations=3",
            )
            assert summary(tmp_path / "run")["exit"] == "interrupted"
            assert checkpoints(tmp_path / "run")[-1] == f"iteration_{saved:06d}.ckpt"
            run("resume=auto", "trainer.max_iterations=3", expect=False)
            assert iterations(tmp_path / "run") == [1, 2, 3]

        return send

    def test_sigterm(self, interrupt: Callable[..., None]) -> None:
        interrupt(signal.SIGTERM)

    def test_sigusr1(self, interrupt: Callable[..., None]) -> None:
        interrupt(signal.SIGUSR1)

    def test_no_time_left(self, interrupt: Callable[..., None]) -> None:
        interrupt(signal.SIGUSR1, duration_s=1e4, saved=1)

    def test_ctrl_c(self, interrupt: Callable[..., None]) -> None:
        interrupt(signal.SIGINT)

    def test_ctrl_c_twice(self, interrupt: Callable[..., None]) -> None:
        interrupt(signal.SIGINT, signal.SIGINT, saved=1)


class TestNumbers:
    def test_nan_once(self, tmp_path: Path, run: Run) -> None:
        run(*fault("NaNLoss", steps=[1]))
        steps = [
            row["train/nonfinite_steps"]
            for row in rows(tmp_path / "run/metrics.jsonl")
            if "train/nonfinite_steps" in row
        ]
        assert steps == [1, 0]

    def test_nan_always(self, tmp_path: Path, run: Run) -> None:
        run(*fault("NaNLoss", steps=list(range(99))), "trainer.max_iterations=9")
        report = torch.load(tmp_path / "run/nonfinite/iteration_000003.pt", weights_only=True)
        assert len(report["shares"][0]["tokens"]) == 16
        assert checkpoints(tmp_path / "run")[-1] == "iteration_000002.ckpt"

    @pytest.mark.slow
    def test_explosion(self, tmp_path: Path, run: Run) -> None:
        run(
            "optimizer.lr=0.03",
            "batch.minibatches=4",
            "callbacks.monitor.max_ratio=2",
            "trainer.max_iterations=9",
        )
        assert checkpoints(tmp_path / "run")[-1] == "iteration_000003.ckpt"


class TestReward:
    def test_reward_raises(self, tmp_path: Path, run: Run) -> None:
        run(*faulty_reward("raise"))
        assert summary(tmp_path / "run")["exit"].startswith(
            "failed: RuntimeError: reward fault raised LookupError"
        )

    @pytest.mark.slow
    def test_reward_hangs(self, tmp_path: Path, run: Run) -> None:
        few = (
            "batch.prompts=1",
            "batch.samples=2",
            "validation.max_prompts=1",
            "trainer.max_iterations=1",
        )
        run(*faulty_reward("hang", "+reward.terms.fault.timeout_s=0.3"), *few)
        [row] = [row for row in rows(tmp_path / "run/metrics.jsonl") if "train/reward" in row]
        assert row["reward/fault/timeouts"] == 2


class TestResume:
    @pytest.mark.slow
    def test_data_changed(self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        data = tmp_path / "data.jsonl"
        lines = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(6)]
        data.write_text("\n".join(lines))
        settings = ("data=jsonl", f"data.train={data}", "data.num_val=0", "batch.prompts=2")
        monkeypatch.setattr(
            sys.modules[__name__],
            "SETTINGS",
            tuple(override for override in SETTINGS if override != "data.level=1"),
        )
        run(*settings, expect=False)
        data.write_text("\n".join([*lines[:-1], json.dumps({"prompt": "7+1=", "answer": "8"})]))
        run(*settings, *RESUME)

    def test_settings_changed(self, copied: Path, run: Run) -> None:
        run(*RESUME, "ratio.high=0.4")

    def test_another_model(self, copied: Path, run: Run) -> None:
        run(*RESUME, "policy.hidden_size=64")


class TestTable:
    def test_every_row_has_a_test(self) -> None:
        text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
        assert set(re.findall(r"def test_(\w+)\(", text)) >= set(ROWS)
        assert len(ROWS) >= 15

    def test_docs_have_the_table(self) -> None:
        """`python -m tests.faults.rows`"""
        assert table() in (CONF.parent / "docs/faults.md").read_text()


@pytest.mark.slow
def test_real_processes(tmp_path: Path) -> None:
    """A second process in the same directory, SIGTERM to the first, and a quota smaller than a
    checkpoint."""
    settings = (*SETTINGS, "run_dir=run", "validation.samples=0")
    first = start(tmp_path, *settings, "trainer.max_iterations=100000", small=False)
    metrics, deadline = tmp_path / "run/metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and '"iteration": 2,' in metrics.read_text()):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = start(tmp_path, *settings, "resume=auto", "trainer.max_iterations=100000", small=False)
    _, stderr = second.communicate(timeout=120)
    assert (second.returncode, len(stderr.splitlines())) == (1, 1)
    assert f"is in use by process {first.pid} on" in stderr
    first.terminate()
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 75
    assert re.search(ROWS["sigterm"].pattern().replace("2", r"\d+"), stderr, re.MULTILINE), stderr
    num_iterations = summary(tmp_path / "run")["iterations"]
    assert (summary(tmp_path / "run")["exit"], checkpoints(tmp_path / "run")[-1]) == (
        "interrupted",
        f"iteration_{num_iterations:06d}.ckpt",
    )
    size = (tmp_path / f"run/checkpoints/iteration_{num_iterations:06d}.ckpt").stat().st_size
    limited = start(tmp_path, *SETTINGS, "run_dir=limited", "trainer.max_iterations=2", small=False)
    resource.prlimit(limited.pid, resource.RLIMIT_FSIZE, (size // 2, size // 2))
    _, stderr = limited.communicate(timeout=120)
    assert limited.returncode == 1, stderr
    first_warning, second_warning, error = stderr.splitlines()
    assert (
        first_warning
        == "warning: iteration 1 was not saved (File too large): training continues, there is "
        "no checkpoint"
    )
    assert second_warning.startswith("warning: iteration 2 was not saved (File too large)")
    assert error.startswith(
        "error: iteration 2 was not saved (File too large), there is no checkpoint: make room in"
    )
    assert checkpoints(tmp_path / "limited") == []
    assert (iterations(tmp_path / "limited"), summary(tmp_path / "limited")["iterations"]) == (
        [1, 2],
        2,
    )
