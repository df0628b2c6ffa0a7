"""Sweeps (`train.py -m`): all members are checked before the first starts, and the same command
again runs those that are not finished.

The directory of a member is named by its overrides, so a larger grid keeps the members of a smaller
one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from rlmods.cli.console import as_user_error, plain_errors, silence_libraries
from rlmods.config import compose
from rlmods.errors import UserError
from rlmods.run.directory import RunDir
from rlmods.run.saved import SavedRun

AGAIN = "type the same command again to run the members that are not finished"


class MemberError(UserError):
    """A member of a sweep failed; its reason has been printed."""


@dataclass
class Sweep:
    """The members of the sweep that this process started."""

    folder: Path | None = None
    """Directory of the sweep; None: there is no sweep."""
    members: list[Path] = field(default_factory=list)
    """Directory of each member, in the order in which they run. Empty if the sweeper chooses them
    while it runs (Optuna)."""


_sweep = Sweep()


class CheckMembers(Callback):
    """Hydra callback that composes and checks every member of a grid before the first starts."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """
        Raises:
            SystemExit: a member is refused; the message names it.
        """
        with plain_errors():
            silence_libraries()
            _sweep.folder = Path(config.hydra.sweep.dir)
            _check_run_dir(config.hydra.overrides.task)
            if config.hydra.sweeper._target_.rpartition(".")[2] == BasicSweeper.__name__:
                _sweep.members = check_members(config)


def check_members(config: DictConfig) -> list[Path]:
    """Compose and check the members of a grid, and return their directories.

    Raises:
        UserError: a member is refused.
    """
    loader = GlobalHydra.instance().config_loader()
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    typed = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    grid = OverridesParser.create(config_loader=loader).parse_overrides([*params, *typed])
    [members] = BasicSweeper.split_arguments(grid, max_batch_size=None)
    print(f"checking {len(members)} members of the sweep", flush=True)
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


def _check_run_dir(overrides: Sequence[str]) -> None:
    """
    Raises:
        UserError: `run_dir` is the same for all members.
    """
    for override in overrides:
        if override.startswith("run_dir=") and "," not in override and "${" not in override:
            folder = override.removeprefix("run_dir=")
            raise UserError(
                f"{override} is one directory for all members of the sweep: type "
                f"hydra.sweep.dir={folder}"
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
    try:
        if is_finished(folder):
            RunDir.check_settings(checked())
            print(f"{folder}: finished already", flush=True)
            return best_accuracy(folder)
        if config.resume is None and (folder / "config.yaml").exists():
            config.resume = "auto"
        status = train()
    except Exception as error:
        user_error = as_user_error(error)
        if user_error is None:
            sys.excepthook(type(error), error, error.__traceback__)
        reason = str(user_error or f"{type(error).__name__}: {error}")
        print(f"error: {folder}: {reason}", file=sys.stderr, flush=True)
        raise MemberError(f"{folder} failed: {reason}; {AGAIN}") from error
    if status:
        if HydraConfig.get().launcher._target_.rpartition(".")[2] == BasicLauncher.__name__:
            print(f"the sweep is interrupted: {AGAIN}", file=sys.stderr, flush=True)
            sys.exit(status)
        raise MemberError(f"{folder} was interrupted: {AGAIN}")
    return best_accuracy(folder)


def is_finished(folder: Path) -> bool:
    """Return True if the run in this directory has trained all its iterations, or a callback ended
    it."""
    return SavedRun(folder).summary.get("exit") == "finished"


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
        end = summary.get("exit", "not finished")
        line = f"  {member.name:<{width}}  {end}, {summary.get('iterations', 0)} iterations"
        accuracy = summary.get("val/accuracy", {})
        if accuracy.get("best") is not None:
            values = " ".join(f"{key} {accuracy[key]:.3f}" for key in ("first", "best", "last"))
            line += f", val/accuracy {values}"
        lines.append(line)
    return lines
