"""Which checkpoint a run goes on from, and whether that would still be the same run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlmods.run.integrity import flaw
from rlmods.types import UserError

FREE = ("trainer", "resume", "run_dir", "logger", "callbacks")
"""Settings that may differ when a run goes on: they decide how long and how visibly it runs, not what it computes."""
NAME = "iteration_{:06d}.ckpt"
"""Of a checkpoint, by its iteration."""


def find_resume(run_dir: Path, resume: str | None) -> Path | None:
    """The checkpoint to go on from.

    None: no resuming. "auto": the newest complete checkpoint of `run_dir`, None where there is none yet. Otherwise a checkpoint, or a
    folder (a run's, or of checkpoints) of which the newest complete one is taken.

    Raises:
        UserError: the path does not exist, holds no checkpoint, or cannot be read as one.
    """
    if resume is None:
        return None
    if resume == "auto":
        return _newest(run_dir / "checkpoints")
    path = Path(resume).expanduser().absolute()
    if not path.exists():
        raise UserError(f"resume={resume}: no such file or folder, give a checkpoint or resume=auto")
    if path.is_dir() and not _is_sharded(path):
        found = _newest(path) or _newest(path / "checkpoints")
        if found is None:
            raise UserError(f"resume={resume}: no iteration_*.ckpt in this folder")
        return found
    verify(path)
    return path


def recorded_resume(run_dir: Path) -> str | None:
    """What the run in this directory itself went on from when it began, if that was another's checkpoint."""
    path = run_dir / "config.yaml"
    resume = OmegaConf.select(OmegaConf.load(path), "resume") if path.is_file() else None
    return None if resume in (None, "auto") else str(resume)


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in `folder` with their iterations, oldest first."""
    found = ((re.fullmatch(r"iteration_(\d+)\.ckpt", path.name), path) for path in folder.glob("iteration_*.ckpt"))
    return sorted((int(match[1]), path) for match, path in found if match)


def verify(path: Path) -> int:
    """Iterations completed when the checkpoint was written, once every byte of it was read.

    Raises:
        UserError: truncated, damaged, or not a checkpoint of a training run.
    """
    if reason := flaw(path):
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}), choose another with resume=PATH")
    return read_iteration(path)


def read_iteration(path: Path) -> int:
    """Iterations completed when the checkpoint was written.

    Raises:
        UserError: unreadable, or not a checkpoint of a training run.
    """
    try:
        content = torch.load(path / "meta.pt" if path.is_dir() else path, map_location="cpu", weights_only=True, mmap=path.is_file())
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}), choose another with resume=PATH") from error
    if not isinstance(content, dict) or not {"iteration", "loops"} <= content.keys():
        raise UserError(f"{path}: not a checkpoint of a training run, choose another with resume=PATH")
    return int(content["iteration"])


def check_same_run(saved: Path, config: Any) -> None:
    """
    Raises:
        UserError: `config` differs from the one that was `saved`, in more than `FREE`.
    """
    if not saved.is_file():
        return
    before, now = (dict(_leaves(OmegaConf.to_container(OmegaConf.create(text)))) for text in (saved.read_text(), as_yaml(config)))
    changes = [f"{key}={_show(before, key)} (now {_show(now, key)})" for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if changes:
        more = f" and {len(changes) - 6} more" if len(changes) > 6 else ""
        advice = "resuming takes the same settings; a new run takes another run_dir= and no resume="
        raise UserError(f"{saved.parent} began with {', '.join(changes[:6])}{more}: {advice}")


def as_yaml(config: Any) -> str:
    """The resolved configuration."""
    return OmegaConf.to_yaml(config, resolve=True)


def _newest(folder: Path) -> Path | None:
    """The newest that is whole, with a warning that names those that are not."""
    candidates = [path for _, path in reversed(numbered(folder))]
    broken = []
    for path in candidates:
        try:
            iteration = verify(path)
        except UserError as error:
            broken.append(str(error).removesuffix(", choose another with resume=PATH"))
        else:
            if broken:
                warnings.warn(f"{'; '.join(broken)}: goes on from iteration {iteration}, what came after is repeated", stacklevel=2)
            return path
    if broken:
        raise UserError(f"{folder}: none of its {len(broken)} checkpoints can be read, start anew with another run_dir=...")
    return None


def _is_sharded(path: Path) -> bool:
    return (path / "meta.pt").is_file()


def _leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, with the run's own folder spelled ${run_dir} wherever it occurs, less `FREE`."""
    run_dir = str(config.get("run_dir") or "${run_dir}")

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        if isinstance(node, Mapping) and node:
            for key, value in node.items():
                yield from walk(value, f"{prefix}{key}.")
        else:
            yield prefix[:-1], node.replace(run_dir, "${run_dir}") if isinstance(node, str) else node

    kept = {key: value for key, value in config.items() if key not in FREE}
    trainer = config.get("trainer") or {}
    # What decides numbers is not free: precision, and the length that a decaying learning rate is stretched over.
    decays = (config.get("schedule") or {}).get("decay", "constant") != "constant"
    kept["trainer"] = {key: trainer.get(key) for key in ("precision", *(("max_iterations",) if decays else ()))}
    return walk(kept, "")


def _show(leaves: Mapping[str, Any], key: str) -> str:
    return str(leaves[key]) if key in leaves else "unset"
