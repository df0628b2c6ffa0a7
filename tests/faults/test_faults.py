"""Fault injection, one test per row of docs/faults.md: `python train.py` in this process with a
fault."""

import json
import os
import re
import shutil
import signal
import sys
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
from tests.cli.test_main import RANDOM, SMALL, rows
from tests.faults.rows import ROWS, Row, table
from tests.run.test_directory import start_owner

pytestmark = pytest.mark.slow

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
GOOD = Row("", "", 0, "")
"""A run that ends well, with any warnings."""


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
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Start a run; exit status and standard error are compared with a row of the table."""

    def start_run(row: str, *overrides: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.showwarning = lambda *arguments: print(
                warnings.formatwarning(*arguments[:4]), end="", file=sys.stderr
            )
            capfd.readouterr()
            status = command(*SETTINGS, f"run_dir={tmp_path}/run", *overrides)
        stderr = capfd.readouterr().err
        expected = ROWS[row] if row else GOOD
        assert status == expected.status, stderr
        assert re.search(expected.pattern(), stderr, re.MULTILINE), stderr
        if not expected.message and row:
            assert stderr == ""
        if expected.message.startswith("error: "):
            num_lines = len(stderr.strip().splitlines())
            others = stderr.count("warning: ") + stderr.count(" is saved; to resume: ")
            assert num_lines == 1 + others, stderr

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


def ended(folder: Path) -> str:
    exit: str = json.loads((folder / "summary.json").read_text())["exit"]
    return exit


def values(folder: Path, metric: str) -> list[float]:
    return [row[metric] for row in rows(folder / "metrics.jsonl") if metric in row]


def iterations(folder: Path) -> list[int]:
    return [row["iteration"] for row in rows(folder / "metrics.jsonl") if "train/reward" in row]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


RESUME = ("resume=auto", "trainer.max_iterations=3")


def test_two_processes_in_one_run_directory(copied: Path, run: Run) -> None:
    other, children = start_owner(copied)
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    try:
        run("two_processes_in_one_run_directory", *RESUME)
        assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before
    finally:
        other.kill()
        for child in children:
            os.kill(child, signal.SIGKILL)
        other.communicate()


class TestCheckpoint:
    @pytest.mark.parametrize("row", ["truncated_checkpoint", "flipped_bit_in_checkpoint"])
    def test_damaged(self, row: str, copied: Path, run: Run) -> None:
        newest = copied / "checkpoints/iteration_000002.ckpt"
        content = bytearray(newest.read_bytes())
        if row == "truncated_checkpoint":
            del content[len(content) // 2 :]
        else:
            content[len(content) // 2] ^= 1
        newest.write_bytes(content)
        run(row, *RESUME)
        assert iterations(copied) == [1, 2, 3]
        assert ended(copied) == "finished"

    def test_all_broken(self, copied: Path, run: Run) -> None:
        for path in (copied / "checkpoints").iterdir():
            path.write_bytes(path.read_bytes()[:1000])
        run("all_checkpoints_broken", *RESUME)
        assert iterations(copied) == [1, 2]

    def test_kill_while_saving(self, copied: Path, run: Run) -> None:
        (copied / "checkpoints/.iteration_000003.ckpt.tmp").write_bytes(b"PK half")
        run("kill_while_saving", *RESUME)
        assert checkpoints(copied) == ["iteration_000002.ckpt", "iteration_000003.ckpt"]


class TestDisk:
    def test_full_once(self, tmp_path: Path, run: Run) -> None:
        more = ("trainer.max_iterations=3", "callbacks.checkpoint.keep=0")
        run("disk_full_once", *fault("DiskFull", iterations=[2]), *more)
        folder = tmp_path / "run"
        assert checkpoints(folder) == ["iteration_000001.ckpt", "iteration_000003.ckpt"]
        assert values(folder, "checkpoint/failures") == [1]

    def test_full_at_the_end(self, tmp_path: Path, run: Run) -> None:
        run("disk_full_at_the_end", *fault("DiskFull", iterations=[2]))
        folder = tmp_path / "run"
        assert checkpoints(folder) == ["iteration_000001.ckpt"]
        assert ended(folder).startswith("failed: UserError: iteration 2 was not saved")
        assert (folder / "export/model.safetensors").exists()
        run("", "resume=auto")
        assert iterations(folder) == [1, 2]

    def test_full_for_the_log(self, tmp_path: Path, run: Run) -> None:
        log = f"{tmp_path}/run/metrics.jsonl"
        run("disk_full_for_the_log", *fault("DiskFull", iterations=[2], path=log))
        assert checkpoints(tmp_path / "run") == ["iteration_000001.ckpt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "numbers", "duration_s", "saved"),
    [
        ("sigterm", [signal.SIGTERM], 0.0, 2),
        ("sigusr1", [signal.SIGUSR1], 0.0, 2),
        ("no_time_left", [signal.SIGUSR1], 1e4, 1),
        ("ctrl_c", [signal.SIGINT], 0.0, 2),
        ("ctrl_c_twice", [signal.SIGINT, signal.SIGINT], 0.0, 1),
    ],
)
def test_signals(
    row: str, numbers: list[int], duration_s: float, saved: int, tmp_path: Path, run: Run
) -> None:
    """Sent within iteration 2, then resumed to the end."""
    sent = fault("SendSignals", numbers=list(map(int, numbers)), duration_s=duration_s)
    run(row, *sent, "trainer.max_iterations=3")
    folder = tmp_path / "run"
    assert ended(folder) == "interrupted"
    assert checkpoints(folder)[-1] == f"iteration_{saved:06d}.ckpt"
    run("", *RESUME)
    assert iterations(folder) == [1, 2, 3]


class TestNumbers:
    def test_nan_once(self, tmp_path: Path, run: Run) -> None:
        run("nan_once", *fault("NaNLoss", steps=[1]))
        assert values(tmp_path / "run", "train/nonfinite_steps") == [1, 0]

    def test_nan_always(self, tmp_path: Path, run: Run) -> None:
        run("nan_always", *fault("NaNLoss", steps=list(range(99))), "trainer.max_iterations=9")
        report = torch.load(tmp_path / "run/nonfinite/iteration_000003.pt", weights_only=True)
        assert len(report["shares"][0]["tokens"]) == 16
        assert checkpoints(tmp_path / "run")[-1] == "iteration_000002.ckpt"

    @pytest.mark.slow
    def test_explosion(self, tmp_path: Path, run: Run) -> None:
        run(
            "explosion",
            "optimizer.lr=0.03",
            "batch.minibatches=4",
            "callbacks.monitor.max_ratio=2",
            "trainer.max_iterations=9",
        )
        assert checkpoints(tmp_path / "run")[-1] == "iteration_000003.ckpt"


class TestReward:
    def test_raises(self, tmp_path: Path, run: Run) -> None:
        run("reward_raises", *faulty_reward("raise"))
        reason = "failed: RuntimeError: reward fault raised LookupError"
        assert ended(tmp_path / "run").startswith(reason)

    @pytest.mark.slow
    def test_hangs(self, tmp_path: Path, run: Run) -> None:
        few = (
            "batch.prompts=1",
            "batch.samples=2",
            "validation.max_prompts=1",
            "trainer.max_iterations=1",
        )
        hangs = faulty_reward("hang", "+reward.terms.fault.timeout_s=0.3")
        run("reward_hangs", *hangs, *few)
        assert 2 in values(tmp_path / "run", "reward/fault/timeouts")


class TestResume:
    @pytest.mark.slow
    def test_data_changed(self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        data = tmp_path / "data.jsonl"
        lines = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(6)]
        data.write_text("\n".join(lines))
        settings = ("data=jsonl", f"data.train={data}", "data.num_val=0", "batch.prompts=2")
        kept = tuple(override for override in SETTINGS if override != "data.level=1")
        monkeypatch.setattr(sys.modules[__name__], "SETTINGS", kept)
        run("", *settings)
        data.write_text("\n".join([*lines[:-1], json.dumps({"prompt": "7+1=", "answer": "8"})]))
        run("data_changed", *settings, *RESUME)

    @pytest.mark.parametrize(
        ("row", "override"),
        [("settings_changed", "ratio.high=0.4"), ("another_model", "policy.hidden_size=64")],
    )
    def test_settings_changed(self, row: str, override: str, copied: Path, run: Run) -> None:
        run(row, *RESUME, override)


class TestTable:
    def test_every_row_has_a_test(self) -> None:
        text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
        assert set(re.findall(r'"(\w+)"', text)) >= set(ROWS)

    def test_docs_have_the_table(self) -> None:
        """`python -m tests.faults.rows`"""
        assert table() in (CONF.parent / "docs/faults.md").read_text()
