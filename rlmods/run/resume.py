"""Selection and checks of the checkpoint that a run resumes from."""

from __future__ import annotations

import re
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf

from rlmods.distributed.sharded_checkpoint import read_metadata
from rlmods.distributed.trainer import PRECISIONS
from rlmods.errors import UserError
from rlmods.run.integrity import find_damage
from rlmods.run.saved import LOADER, read_config
from rlmods.run.saved_form import saved_form
from rlmods.run.settings import leaves

CHANGEABLE = ("trainer", "resume", "run_dir", "logger", "callbacks")
"""Groups of settings that may change on resuming: they decide how long a run takes and what it
reports, not what it computes."""
CHANGEABLE_KEYS = (
    "batch.token_budget",
    "batch.preflight",
    "environment.workers",
    "reward.*token_budget",
    "policy.gradient_checkpointing",
    "rollout.urls",
    "rollout.folder",
    "rollout.timeout_s",
    "rollout.retries",
    "rollout.backoff_s",
    "rollout.concurrency",
    "rollout.batch_size",
    "rollout.cache_gib",
    "rollout.ahead",
    "rollout.key_variable",
)
"""Patterns of single settings of other groups that may change on resuming: memory, speed and
addresses. They change results by rounding, and `rollout.ahead` the age of the policy that
samples."""
FORKABLE = ("ratio", "advantage", "aggregation", "correction", "sampling", "reward", "validation")
"""Groups of settings that may change in a fork, besides those that may change on resuming. A
checkpoint holds nothing that depends on them, or the state of a part, which is checked on
loading."""
CHECKPOINT_NAME = "iteration_{:06d}.ckpt"
ADVICE = ", choose another with resume=PATH"


def find_resume(run_dir: Path, resume: str | None) -> Path | None:
    """Return the checkpoint to resume from.

    `resume` is None: do not resume; "auto": the newest intact checkpoint of `run_dir`, None if
    there is none yet; otherwise the path of a checkpoint, or of a folder (a run directory or its
    `checkpoints/`), whose newest intact checkpoint is taken.

    Raises:
        UserError: the path does not exist, holds no checkpoint, or cannot be read as one.
    """
    if resume is None:
        return None
    if resume == "auto":
        return _newest(run_dir / "checkpoints")
    path = Path(str(resume)).expanduser().absolute()
    if not path.exists():
        raise UserError(
            f"resume={resume}: no such file or folder, give a checkpoint or resume=auto"
        )
    is_sharded = (path / "meta.pt").is_file()
    if path.is_dir() and not is_sharded:
        checkpoint = _newest(path) or _newest(path / "checkpoints")
        if checkpoint is None:
            raise UserError(f"resume={resume}: no iteration_*.ckpt in this folder")
        return checkpoint
    verify(path)
    return path


def find_fork(fork: str) -> Path:
    """Return the checkpoint that `fork`, RUN@ITERATION, names.

    Raises:
        UserError: another form, no such run, or no such intact checkpoint.
    """
    name, _, iteration = fork.rpartition("@")
    if not name or not iteration.isdecimal():
        raise UserError(
            f"fork={fork}: type a run directory and an iteration, such as fork=runs/a@60"
        )
    run = Path(name).expanduser().absolute()
    if not (run / "config.yaml").is_file():
        raise UserError(f"fork={fork}: {run} is not a run directory, it has no config.yaml")
    checkpoints = dict(list_checkpoints(run / "checkpoints"))
    checkpoint = checkpoints.get(int(iteration))
    if checkpoint is None:
        found = ", ".join(map(str, checkpoints)) or "none"
        raise UserError(
            f"fork={fork}: no checkpoint of this iteration, there are: {found}; "
            "callbacks.checkpoint.keep=0 keeps all of a run"
        )
    verify(checkpoint)
    return checkpoint


def recorded_precision(saved: Path) -> str | None:
    """Return `trainer.precision` in a run's `config.yaml`, None if there is none that is
    supported."""
    if not saved.is_file():
        return None
    precision = dict(leaves(read_config(saved))).get("trainer.precision")
    return str(precision) if str(precision) in PRECISIONS else None


def recorded_resume(run_dir: Path) -> str | None:
    """Return the checkpoint path that the run in this directory was started from, None if it
    started from scratch."""
    path = run_dir / "config.yaml"
    resume = read_config(path).get("resume") if path.is_file() else None
    return None if resume in (None, "auto") else str(resume)


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in `folder` as (iteration, path), oldest first."""
    found = []
    for path in folder.glob("iteration_*.ckpt"):
        match = re.fullmatch(r"iteration_(\d+)\.ckpt", path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found)


def verify(path: Path) -> int:
    """Check every byte of a checkpoint and return its number of completed iterations.

    Raises:
        UserError: truncated, damaged, not a checkpoint of a training run, or a sharded one that
            would execute code.
    """
    reason = find_damage(path)
    if reason:
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}){ADVICE}")
    if path.is_dir():
        read_metadata(path)
    return read_iteration(path)


def read_iteration(path: Path) -> int:
    """Return the number of completed iterations in a checkpoint.

    Raises:
        UserError: unreadable, or not a checkpoint of a training run.
    """
    file = path / "meta.pt" if path.is_dir() else path
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=path.is_file())
    except Exception as error:  # torch raises many kinds
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}){ADVICE}") from error
    if not isinstance(content, dict) or not {"iteration", "loops"} <= content.keys():
        raise UserError(f"{path}: not a checkpoint of a training run{ADVICE}")
    return int(content["iteration"])


def check_same_run(saved: Path, config: Any, *, fork: bool = False) -> None:
    """Check that `config` equals the `saved` one, apart from `CHANGEABLE` groups and
    `CHANGEABLE_KEYS`. In a fork, `FORKABLE` groups may differ too.

    Raises:
        UserError: another setting differs.
    """
    if not saved.is_file():
        return
    old = _computing_settings(read_config(saved))
    new = _computing_settings(yaml.load(as_yaml(config), Loader=LOADER))
    free = ("fork", *FORKABLE) if fork else ()
    changes = [
        f"{key}={old.get(key, 'unset')} (now {new.get(key, 'unset')})"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key.split(".")[0] not in free
    ]
    if not changes:
        return
    more = f" and {len(changes) - 6} more" if len(changes) > 6 else ""
    advice = (
        f"restore these settings of the run; a fork may change {', '.join(FORKABLE)}"
        if fork
        else "a resumed run needs the same settings; for a new run, type another run_dir= and no "
        "resume="
    )
    raise UserError(f"{saved.parent} was started with {', '.join(changes[:6])}{more}: {advice}")


def _newest(folder: Path) -> Path | None:
    """Return the newest intact checkpoint; warn about newer ones that are damaged."""
    damaged = []
    for _, path in reversed(list_checkpoints(folder)):
        try:
            iteration = verify(path)
        except UserError as error:
            damaged.append(str(error).removesuffix(ADVICE))
            continue
        if damaged:
            warnings.warn(
                f"{'; '.join(damaged)}: resuming from iteration {iteration}, later iterations are "
                "repeated",
                stacklevel=2,
            )
        return path
    if damaged:
        raise UserError(
            f"{folder}: none of its {len(damaged)} checkpoints can be read, start a new run "
            "with another run_dir=..."
        )
    return None


def _computing_settings(config: Any) -> dict[str, Any]:
    """Return the settings that decide what a run computes, by dotted key: without `CHANGEABLE` and
    `CHANGEABLE_KEYS`, but with the precision, and with the number of iterations if the learning
    rate decays over it. The path of the run directory is replaced by ${run_dir} in values."""
    settings = dict(leaves(config))
    kept = {"trainer.precision": settings.get("trainer.precision")}
    if settings.get("schedule.decay", "constant") != "constant":
        kept["trainer.max_iterations"] = settings.get("trainer.max_iterations")
    run_dir = str(settings.get("run_dir") or "${run_dir}")
    for key, value in settings.items():
        is_free = any(fnmatchcase(key, pattern) for pattern in CHANGEABLE_KEYS)
        if key.split(".")[0] not in CHANGEABLE and not is_free:
            kept[key] = value.replace(run_dir, "${run_dir}") if isinstance(value, str) else value
    return kept


def as_yaml(config: Any) -> str:
    """Return the configuration as YAML, resolved but for what depends on the environment, and
    without the secrets in URLs (`saved_form`)."""
    return OmegaConf.to_yaml(OmegaConf.create(saved_form(config)))
