"""Sweeps (`train.py -m`): all members are checked before the first starts, and the same command
again runs those that are not finished.

The directory of a member is named by the overrides in which members differ, and by default the
directory of the sweep by the overrides that they share."""

import copy
import io
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from rlmods.cli.console import (
    as_user_error,
    plain_errors,
    print_traceback,
    silence_libraries,
)
from rlmods.errors import UserError, counted
from rlmods.run.name import SWEPT
from rlmods.run.saved import NOT_FINISHED, SavedRun
from rlmods.run.secrets import clean, clean_urls
from rlmods.run.settings import leaves

AGAIN = "type the same command again to run the members that are not finished"


class MemberError(UserError):
    """A member of a sweep failed; its reason has been printed."""


@dataclass
class Sweep:
    """The members of the sweep that this process started."""

    folder: Path | None = None
    """Directory of the sweep; None: there is no sweep."""
    members: list[Path] = field(default_factory=list)
    """Directory of each member, in the order of the runs. Empty if the sweeper chooses them
    while it runs (Optuna)."""
    gpu: str | None = None
    """The GPU of all members that this process runs beside other processes."""
    lock: Any = None
    """Held as long as this process has the GPU."""


_sweep = Sweep()


class CheckMembers(Callback):
    """Hydra callback that composes and checks every member of a grid before the first starts."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """
        Raises:
            SystemExit: a member is refused; the message names it.
        """
        with plain_errors():
            check_typed(config)
            grid = read_grid(config)
            keys = [part.get_key_element() for part in grid if part.is_sweep_override()]
            os.environ[SWEPT] = " ".join(keys)
            _sweep.folder = Path(config.hydra.sweep.dir)
            if config.hydra.sweeper._target_.rpartition(".")[2] == BasicSweeper.__name__:
                _sweep.members = check_members(config, grid)


def read_grid(config: DictConfig) -> list[Override]:
    """Return the overrides of a sweep, and the overrides of its sweeper."""
    loader = GlobalHydra.instance().config_loader()
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    typed = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    return OverridesParser.create(config_loader=loader).parse_overrides([*params, *typed])


def check_members(config: DictConfig, grid: list[Override]) -> list[Path]:
    """Compose and check the members of a grid, and return their directories.

    Raises:
        UserError: a member is refused.
    """
    loader = GlobalHydra.instance().config_loader()
    [members] = BasicSweeper.split_arguments(grid, max_batch_size=None)
    print(f"checking {counted(len(members), 'member')} of the sweep", flush=True)
    from rlmods.config import compose  # seconds

    silence_libraries()
    folders: list[Path] = []
    started = HydraConfig.instance().cfg
    try:
        for overrides in members:
            member = loader.load_sweep_config(config, list(overrides))
            with open_dict(member):
                member.hydra.job.num = member.hydra.job.id = len(folders)
            HydraConfig.instance().set_config(copy.deepcopy(member))
            folders.append(Path(member.hydra.sweep.dir) / member.hydra.sweep.subdir)
            choices = dict(member.hydra.runtime.choices)
            with open_dict(member):
                del member["hydra"]
            try:
                compose.run_spec(member, choices, list(overrides))
            except UserError as error:
                raise UserError(f"member {' '.join(overrides)}: {error}") from error
    finally:
        HydraConfig.instance().cfg = started
    return folders


def check_typed(config: DictConfig) -> None:
    """
    Raises:
        UserError: `run_dir` is the same for all members, or a URL has a user or a query, which
            Hydra would write to `multirun.yaml`.
    """
    for override in config.hydra.overrides.task:
        if override.startswith("run_dir=") and "," not in override and "${" not in override:
            folder = override.removeprefix("run_dir=")
            raise UserError(
                f"{override} is one directory for all members of the sweep: type "
                f"hydra.sweep.dir={folder}"
            )
    settings = OmegaConf.to_container(config, resolve=False)
    for _, value in leaves(settings, lists=True):
        if isinstance(value, str) and clean_urls(value) != value:
            raise UserError(
                f"{clean_urls(value)}: a sweep saves what is typed, and this URL has a user or a "
                "query: export JUDGE_URL=... and type judge.url='${oc.env:JUDGE_URL}'"
            )


def run_member(
    config: DictConfig, checked: Callable[[], DictConfig], train: Callable[[], int]
) -> float:
    """Run a member of a sweep unless it is finished, and return its best `val/accuracy`, NaN
    without validation.

    Args:
        checked: checks the configuration and returns it completed.
        train: trains; returns the exit status of a run that a signal ended, 0 of others.

    Raises:
        MemberError: it failed, or is finished with other settings. The reason has been printed; the
        sweep goes on.
        SystemExit: a signal ended it, and with it the sweep, if members run one after the other.
    """
    folder = Path(config.run_dir)
    if runs_in_turn():
        return _run_member(config, folder, checked, train)
    out = PrefixedLines(sys.stdout, f"{folder.name}  ")
    error = PrefixedLines(sys.stderr, f"{folder.name}  ")
    with redirect_stdout(out), redirect_stderr(error):
        return _run_member(config, folder, checked, train)


def _run_member(
    config: DictConfig,
    folder: Path,
    checked: Callable[[], DictConfig],
    train: Callable[[], int],
) -> float:
    from rlmods.run.directory import RunDir  # torch

    try:
        if SavedRun(folder).exit == "finished":
            RunDir.check_settings(checked())
            print(f"{folder}: finished already", flush=True)
            return best_accuracy(folder)
        if config.resume is None and (folder / "config.yaml").exists():
            config.resume = "auto"
        if config.trainer.get("devices") == 1 and not runs_in_turn():
            take_gpu()
        status = train()
    except Exception as error:
        user_error = as_user_error(error)
        if user_error is None:
            print_traceback(error)
        reason = clean(str(user_error or f"{type(error).__name__}: {error}"))
        print(f"error: {folder}: {reason}", file=sys.stderr, flush=True)
        raise MemberError(f"{folder} failed: {reason}; {AGAIN}") from error
    if status:
        if runs_in_turn():
            print(f"the sweep is interrupted: {AGAIN}", file=sys.stderr, flush=True)
            sys.exit(status)
        raise MemberError(f"{folder} was interrupted: {AGAIN}")
    return best_accuracy(folder)


def take_gpu() -> None:
    """Let this process, which runs members beside other processes, see one GPU: the first that no
    other process of the sweep has, until it ends. With more processes than GPUs they share."""
    import torch
    from filelock import FileLock, Timeout

    if _sweep.gpu is not None:
        return
    typed = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = typed.split(",") if typed else list(map(str, range(torch.cuda.device_count())))
    if len(visible) < 2:
        return
    folder = Path(HydraConfig.get().sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    gpu = visible[HydraConfig.get().job.num % len(visible)]
    for name in visible:
        lock = FileLock(folder / f".gpu_{socket.gethostname()}_{name}", thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        gpu = name
        _sweep.lock = lock
        break
    # before CUDA starts in this process
    _sweep.gpu = os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def runs_in_turn() -> bool:
    """Return whether members run one after the other in this process."""
    launcher: str = HydraConfig.get().launcher._target_
    return launcher.rpartition(".")[2] == BasicLauncher.__name__


class PrefixedLines(io.TextIOBase):
    """Writes whole lines, each with a prefix, to a stream that several processes share."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._prefix}{line}\n" for line in lines))
            self._stream.flush()
        return len(text)


def best_accuracy(folder: Path) -> float:
    """Return a run's best `val/accuracy`, NaN if there is none."""
    best = SavedRun(folder).summary.get("val/accuracy", {}).get("best")
    return float("nan") if best is None else float(best)


@contextmanager
def summary() -> Iterator[None]:
    """After the block, print a line for each member of the sweep that ran in it, if one did."""
    try:
        yield
    finally:
        folder = _sweep.folder
        if folder is not None:
            members = [x for x in _sweep.members or sorted(folder.glob("*")) if x.is_dir()]
            if members:
                print("\n".join([f"{folder}:", *member_lines(members)]), flush=True)


def member_lines(members: Sequence[Path]) -> list[str]:
    """Return a line for each member: its directory, how it ended, iterations, and the first, best
    and last validation."""
    width = max(len(member.name) for member in members)
    lines = []
    for member in members:
        summary = SavedRun(member).summary
        end = summary.get("exit", NOT_FINISHED)
        line = (
            f"  {member.name:<{width}}  {end}, {counted(summary.get('iterations', 0), 'iteration')}"
        )
        accuracy = summary.get("val/accuracy", {})
        if accuracy.get("best") is not None:
            values = " ".join(f"{key} {accuracy[key]:.3f}" for key in ("first", "best", "last"))
            line += f", val/accuracy {values}"
        lines.append(line)
    return lines
