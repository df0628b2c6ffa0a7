"""The directory of a run: one a run, never reused, the same on all ranks."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omegaconf import DictConfig
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlmods.distributed.collectives import is_first_rank
from rlmods.run import lock
from rlmods.run.files import atomic_write, dumps
from rlmods.run.resume import as_yaml, check_same_run, find_resume, numbered, read_iteration, recorded_resume
from rlmods.types import UserError

HANDOVER = "RLMODS_RUN_DIR"
"""Environment variable in which the first rank tells processes that it starts where to run, and from which checkpoint."""

PACKAGES = ("rlmods", "torch", "lightning", "transformers", "hydra-core", "numpy")

_opened = itertools.count()


@dataclass(frozen=True)
class RunDir:
    """Where a run writes, and what it goes on from. Files: `config.yaml`, `versions.txt` and those that the properties name."""

    path: Path
    checkpoint: Path | None = None
    """What to resume from: `trainer.fit(ckpt_path=...)`."""
    iteration: int = -1
    """Iterations completed in `checkpoint`, -1 without one. What was logged after it did not happen."""

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @classmethod
    def open(cls, config: DictConfig) -> RunDir:
        """Checks `config.run_dir` and `config.resume`, sets `config.run_dir` to the absolute path, and (on the first rank) writes what
        identifies the run. Every rank calls it.

        Raises:
            UserError: another process runs there, the directory holds a run and `resume` does not continue it, settings changed since,
                no such checkpoint. Nothing is written then.
        """
        path = Path(config.run_dir).expanduser().absolute()
        config.run_dir = str(path)
        if is_first_rank():
            run = cls._own(path, config)
            os.environ[HANDOVER] = run._told()
        told = os.environ.get(HANDOVER)
        if store := _torchrun_store():
            key = f"rlmods/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_opened)}"
            if is_first_rank():
                store.set(key, run._told())
            told = store.get(key).decode()
        if not is_first_rank():
            run = cls._heard(told) if told else cls._found(path, config)
        config.run_dir = str(run.path)
        return run

    def _told(self) -> str:
        return dumps({"path": self.path, "checkpoint": self.checkpoint, "iteration": self.iteration})

    @classmethod
    def _heard(cls, told: str) -> RunDir:
        """All ranks go on from the same checkpoint, and only the first reads it twice."""
        found = json.loads(told)
        return cls(Path(found["path"]), Path(found["checkpoint"]) if found["checkpoint"] else None, found["iteration"])

    @classmethod
    def _own(cls, path: Path, config: DictConfig) -> RunDir:
        """Locked until this process ends, checked, and recorded."""
        locked = False
        try:
            if (path / lock.NAME).is_file():  # otherwise a mistake leaves nothing behind
                locked = lock.hold(path)
            run = cls._checked(path, config)
            path.mkdir(parents=True, exist_ok=True)
            locked = lock.hold(path) or locked
            lock.sign(path)
            run._record(config)
        except (UserError, OSError) as error:
            if locked:
                lock.release(path)
            if isinstance(error, FileExistsError):
                raise _holds_run(path) from error
            if isinstance(error, OSError):
                raise UserError(f"run_dir={path}: cannot write there ({error.strerror}), choose another run_dir=...") from error
            raise
        return run

    @classmethod
    def _found(cls, path: Path, config: DictConfig) -> RunDir:
        checkpoint = find_resume(path, config.resume)
        if checkpoint is None and config.resume == "auto":
            checkpoint = find_resume(path, recorded_resume(path))  # it has saved nothing of its own yet
        return cls(path, checkpoint, -1 if checkpoint is None else read_iteration(checkpoint))

    @classmethod
    def _checked(cls, path: Path, config: DictConfig) -> RunDir:
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={path} is a file, choose another run_dir=...")
        run = cls._found(path, config)
        holds_run = (path / "config.yaml").exists() or run.metrics.exists() or run.checkpoints.exists()
        own = run.checkpoint is not None and run.checkpoint.is_relative_to(path)
        if holds_run and config.resume is None:
            raise _holds_run(path)
        if holds_run and config.resume != "auto":
            if not own:
                raise UserError(f"run_dir={path} already holds another run than resume={config.resume}: choose another run_dir=...")
            if (newest := numbered(run.checkpoints)[-1:]) and newest[0][0] > run.iteration:
                raise UserError(f"{newest[0][1]} is newer than resume={config.resume}: take resume=auto or go on in another run_dir=...")
        check_same_run((run.checkpoint.parents[1] if run.checkpoint else path) / "config.yaml", config)
        return run

    def _record(self, config: DictConfig) -> None:
        """`config.yaml` and `versions.txt`; a run that goes on keeps those and adds its own under the iteration's name."""
        going_on = (self.path / "config.yaml").exists()
        suffix = f".resumed_{max(self.iteration, 0):06d}" if going_on else ""
        with (self.path / f"config{suffix}.yaml").open("w" if going_on else "x") as file:  # "x": of two at once, one wins
            file.write(as_yaml(config))
        atomic_write(self.path / f"versions{suffix}.txt", _versions())


def _holds_run(path: Path) -> UserError:
    return UserError(f"run_dir={path} already holds a run: continue it with resume=auto or choose another run_dir=...")


def _torchrun_store() -> TCPStore | None:
    """torchrun's ranks have no parent of ours to hand over the directory, and each reads its own clock; its store is open to all."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("WORLD_SIZE") == "1":
        return None
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(minutes=5))


def _versions() -> str:
    lines = [f"python {platform.python_version()}", f"platform {platform.platform()}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} not installed")
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        try:
            git = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            git = None
        if git is not None and git.returncode == 0:
            lines.append(f"git {git.stdout.strip()}")
    return "\n".join(lines) + "\n"
