"""Run directory: locked by one run, the same on all ranks."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlmods.distributed.collectives import is_first_rank
from rlmods.errors import UserError
from rlmods.run.checkpoints import find_fork, find_resume, list_checkpoints, read_iteration
from rlmods.run.files import atomic_write, dumps, wrap_write_errors
from rlmods.run.resume import check_same_run, recorded_precision, recorded_resume
from rlmods.run.secrets import as_yaml, clean_urls

RUN_DIR_VARIABLE = "RLMODS_RUN_DIR"
"""Environment variable that passes run directory and checkpoint from the first rank to the ranks
that it starts."""

PACKAGES = ("rlmods", "torch", "lightning", "transformers", "hydra-core", "numpy")

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""

_locks: dict[Path, FileLock] = {}
"""Locks of this process, by directory. Neither forks nor other programs inherit them."""
_open_calls = itertools.count()


@dataclass(frozen=True)
class RunDir:
    """Directory of a run and the checkpoint that it resumes from."""

    path: Path
    checkpoint: Path | None = None
    """Passed to `trainer.fit(ckpt_path=...)`; None: start from scratch."""
    iteration: int = -1
    """Completed iterations in `checkpoint`, -1 without one. Rows logged after it are deleted on
    resuming."""
    precision: str | None = None
    """`trainer.precision` of this run if it was chosen (`auto`), else None."""

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @classmethod
    def open(cls, config: DictConfig, automatic_precision: bool = False) -> RunDir:
        """Check `config.run_dir` and `config.resume`, set `config.run_dir` to the absolute path
        and, on the first rank, lock the directory and write configuration and versions. Called on
        every rank.

        Args:
            automatic_precision: `config.trainer.precision` was chosen for this machine (`auto`). It
                is replaced by the precision of the run that is resumed, and of the first rank.

        Raises:
            UserError: another process uses the directory, it holds a run that `resume` does not
                continue, settings have changed, no such checkpoint. Nothing is written then.
        """
        path = _set_absolute_paths(config)
        if is_first_rank():
            run = cls._create(path, config, automatic_precision)
            os.environ[RUN_DIR_VARIABLE] = dumps(vars(run))
        message = _from_first_rank()
        if not is_first_rank() and message:
            # all ranks resume from the same checkpoint, and only the first checks it
            fields = json.loads(message)
            checkpoint = Path(fields["checkpoint"]) if fields["checkpoint"] else None
            run = cls(Path(fields["path"]), checkpoint, fields["iteration"], fields["precision"])
        elif not is_first_rank():
            run = cls._find(path, config, automatic_precision)
        config.run_dir = str(run.path)
        if run.precision is not None:
            config.trainer.precision = run.precision
        return run

    @classmethod
    def check_settings(cls, config: DictConfig) -> None:
        """Check that the run in `config.run_dir` was started with these settings, apart from those
        that may change on resuming.

        Raises:
            UserError: a setting differs.
        """
        saved = _set_absolute_paths(config) / "config.yaml"
        if config.trainer.precision == "auto":
            config.trainer.precision = recorded_precision(saved) or "auto"
        check_same_run(saved, config)

    @classmethod
    def _create(cls, path: Path, config: DictConfig, automatic_precision: bool) -> RunDir:
        """Lock the directory until this process ends, check it and write the run's files."""
        try:
            with wrap_write_errors(path):
                if (path / LOCK_FILE).is_file():  # otherwise create nothing before the checks
                    acquire(path)
                run = cls._check(path, config, automatic_precision)
                path.mkdir(parents=True, exist_ok=True)
                acquire(path)
                write_owner(path)
                run._record(config)
        except UserError:
            release(path)
            raise
        return run

    @classmethod
    def _find(cls, path: Path, config: DictConfig, automatic_precision: bool) -> RunDir:
        fork = config.get("fork")
        checks = is_first_rank()  # strategies load the first rank's checkpoint on every rank
        checkpoint = find_resume(path, config.resume, checks=checks)
        if checkpoint is None and config.resume == "auto":  # no checkpoint of its own yet
            checkpoint = find_resume(path, recorded_resume(path), checks=checks)
        if fork and config.resume not in (None, "auto"):
            raise UserError(f"fork={fork} resume={config.resume}: two origins, drop one of them")
        if fork and checkpoint is None:
            checkpoint = find_fork(fork, checks=checks)
        iteration = -1 if checkpoint is None else read_iteration(checkpoint)
        precision = config.trainer.precision if automatic_precision else None
        if automatic_precision and (config.resume is not None or fork):
            precision = recorded_precision(_saved_config(path, checkpoint)) or precision
        return cls(path, checkpoint, iteration, precision)

    @classmethod
    def _check(cls, path: Path, config: DictConfig, automatic_precision: bool) -> RunDir:
        """Return the directory if a run with this configuration may write there."""
        run = cls._find(path, config, automatic_precision)
        files = (path / "config.yaml", run.metrics, run.checkpoints)
        holds_run = any(file.exists() for file in files)
        is_own = run.checkpoint is not None and run.checkpoint.is_relative_to(path)
        if holds_run and config.resume is None:
            raise UserError(
                f"run_dir={path} already holds a run: continue it with resume=auto or choose "
                "another run_dir=..."
            )
        if holds_run and config.resume != "auto":
            if not is_own:
                raise UserError(
                    f"run_dir={path} already holds a run other than resume={config.resume}: "
                    "choose another run_dir=..."
                )
            newest = list_checkpoints(run.checkpoints)[-1:]
            if newest and newest[0][0] > run.iteration:
                raise UserError(
                    f"{newest[0][1]} is newer than resume={config.resume}: type resume=auto, "
                    "or another run_dir=..."
                )
        if run.precision is not None:
            config.trainer.precision = run.precision
        is_fork = bool(config.get("fork")) and run.checkpoint is not None and not is_own
        if is_fork:
            # a fork that was interrupted before its first checkpoint
            check_same_run(path / "config.yaml", config)
        check_same_run(_saved_config(path, run.checkpoint), config, fork=is_fork)
        return run

    def _record(self, config: DictConfig) -> None:
        """Write `config.yaml` and `versions.txt`; a resumed run keeps them and writes its own with
        the suffix `.resumed_<iteration>`."""
        is_resumed = (self.path / "config.yaml").exists()
        suffix = f".resumed_{max(self.iteration, 0):06d}" if is_resumed else ""
        atomic_write(self.path / f"config{suffix}.yaml", as_yaml(config))
        atomic_write(self.path / f"versions{suffix}.txt", _versions())
        atomic_write(self.path / f"sources{suffix}.txt", _sources(config))


def _set_absolute_paths(config: DictConfig) -> Path:
    path = Path(config.run_dir).expanduser().absolute()
    if config.get("fork"):
        config.fork = str(Path(str(config.fork)).expanduser().absolute())
    config.run_dir = str(path)
    return path


def _saved_config(path: Path, checkpoint: Path | None) -> Path:
    """Return the path of the settings of the run that is resumed, to which the checkpoint
    belongs."""
    return (checkpoint.parents[1] if checkpoint else path) / "config.yaml"


def _from_first_rank() -> str:
    """Return `RUN_DIR_VARIABLE` of the first rank, "" if it is not passed on. Ranks of torchrun do
    not inherit it, and default directories differ by each rank's clock: they read it from
    torchrun's store."""
    message = os.environ.get(RUN_DIR_VARIABLE, "")
    is_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not is_torchrun or os.environ.get("WORLD_SIZE") == "1":
        return message
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(minutes=5),
    )
    key = f"rlmods/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_open_calls)}"
    if is_first_rank():
        store.set(key, message)
    sent: bytes = store.get(key)
    return sent.decode()


def _processor() -> str:
    """Return the name of the processor, on which rounding depends."""
    file = Path("/proc/cpuinfo")
    info = file.read_text() if file.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def changed_plugins(run: Path) -> list[str]:
    """Return the source files of plugins that have changed since a run began."""
    saved = run / "sources.txt"
    if not saved.is_file():
        return []
    then = set(saved.read_text().splitlines())
    now = _sources(OmegaConf.load(run / "config.yaml")).splitlines()  # type: ignore[arg-type]
    own = f"{Path(__file__).parents[1].name}/"
    names = [line.split(" ", 1)[1] for line in now if line not in then]
    return [name for name in names if not name.startswith(own)]


def _sources(config: DictConfig) -> str:
    """Return a line for each source file of this package, and of the plugins that the configuration
    names: digest and path."""
    folder = Path(__file__).parents[1]
    files = {path.relative_to(folder.parent): path for path in folder.rglob("*.py")}
    text = OmegaConf.to_yaml(config)
    targets = re.findall(r"^[\s-]*_target_: (\w+)\.", text, re.MULTILINE)
    for name in sorted({*targets} - {folder.name}):
        origin = Path(getattr(sys.modules.get(name), "__file__", None) or "/")
        if not origin.is_file() or "site-packages" in origin.parts:
            continue
        is_package = origin.name == "__init__.py"
        root = origin.parents[1] if is_package else origin.parent
        for path in origin.parent.rglob("*.py") if is_package else [origin]:
            files[path.relative_to(root)] = path
    lines = []
    for name, path in sorted(files.items()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        lines.append(f"{digest} {name.as_posix()}\n")
    return "".join(lines)


def _versions() -> str:
    lines = [
        f"command {shlex.join(['python', *map(clean_urls, sys.argv)])}",
        f"python {platform.python_version()}",
        f"platform {platform.platform()}",
        f"processor {_processor()}",
        f"threads {torch.get_num_threads()}",
    ]
    if torch.cuda.is_available():
        lines += _gpu()
    plugins = os.environ.get("RLMODS_PLUGINS")
    if plugins:
        lines.append(f"plugins {plugins}")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # rlmods itself need not be installed
            lines.append(f"{name} {version(name)}")
    commit = _commit()
    if commit:
        lines.append(f"git {commit}")
    return "\n".join(lines) + "\n"


def _gpu() -> list[str]:
    """Return lines about the GPUs of this machine and the libraries that compute on them. The first
    kernel of attention that supports a shape computes it."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    driver = Path("/proc/driver/nvidia/version")
    version_of_driver = re.search(r"\d+\.\d+[.\d]*", driver.read_text() if driver.exists() else "")
    cuda: Any = torch.cuda
    backends: Any = torch.backends
    kernels = {
        "cudnn": backends.cuda.cudnn_sdp_enabled(),
        "flash": backends.cuda.flash_sdp_enabled(),
        "efficient": backends.cuda.mem_efficient_sdp_enabled(),
        "math": backends.cuda.math_sdp_enabled(),
    }
    return [
        f"gpu {', '.join(f'{count} x {name}' for name, count in Counter(names).items())}",
        f"driver {version_of_driver[0] if version_of_driver else 'unknown'}",
        f"cuda {torch.version.cuda}",
        f"cudnn {backends.cudnn.version()}",
        f"nccl {'.'.join(map(str, cuda.nccl.version()))}",
        f"attention {', '.join(name for name, enabled in kernels.items() if enabled)}",
    ]


def _commit() -> str:
    """Return the commit of the repository, with `-dirty` if files have changed since; "" if the
    package is installed elsewhere."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        git = subprocess.run(
            ["git", "-C", str(root), *describe], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return git.stdout.strip()


def acquire(folder: Path) -> None:
    """Lock the existing `folder` for this process until it ends, also by `kill -9`; do nothing if
    this process has locked it already. On a file system without locks, warn instead.

    Raises:
        UserError: another process has locked it.
        OSError: the lock file cannot be written.
    """
    folder = folder.resolve()
    if is_locked(folder):
        return
    lock = FileLock(folder / LOCK_FILE, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = (folder / LOCK_FILE).read_text(errors="replace").strip() or "another process"
        raise UserError(
            f"run_dir={folder} is in use by {owner}: type another run_dir=..., or end that run "
            "first"
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn(
            f"{folder}: this file system has no locks ({error.strerror}): start no second run "
            "there",
            stacklevel=2,
        )
    _locks[folder] = lock


def is_locked(folder: Path) -> bool:
    """Return True if this process has locked `folder`."""
    lock = _locks.get(folder.resolve())
    return lock is not None and lock.is_locked


def write_owner(folder: Path) -> None:
    """Write host and process id of this process to the lock file, for the error message of
    others. A run that is refused writes nothing."""
    (folder / LOCK_FILE).write_text(f"process {os.getpid()} on {socket.gethostname()}\n")


def release(folder: Path) -> None:
    """Unlock `folder`; do nothing if this process has not locked it."""
    lock = _locks.pop(folder.resolve(), None)
    if lock is not None:
        lock.release()
