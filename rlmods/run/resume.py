"""Selection and checks of the checkpoint that a run resumes from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlmods.distributed.precision import PRECISIONS
from rlmods.distributed.sharded_checkpoint import read_metadata
from rlmods.errors import UserError
from rlmods.run.config_file import read_config
from rlmods.run.integrity import find_damage
from rlmods.run.secrets import saved_form

CHANGEABLE = ("trainer", "resume", "run_dir", "logger", "callbacks")
"""Groups of settings that may change on resuming: they decide how long a run takes and what it
reports, not what it computes."""
CHANGEABLE_KEYS = (
    "batch.token_budget",
    "batch.preflight",
    "environment.workers",
    "reward.*token_budget",
    "policy.gradient_checkpointing",
    "algo.packing",
    "algo.pack_length",
    *(
        f"rollout.{name}"
        for name in (
            "urls",
            "folder",
            "timeout_s",
            "retries",
            "backoff_s",
            "concurrency",
            "batch_size",
            "cache_gib",
            "ahead",
            "key_variable",
        )
    ),
)
"""Patterns of single settings of other groups that may change on resuming: memory, speed and
addresses. They change results by rounding, and `rollout.ahead` the age of the policy that samples.
`algo.packing` and `algo.pack_length` are of earlier versions."""
ADDED_GROUPS = {
    "adapter": "rlmods.adapter.NoAdapter",
    "reference": "rlmods.reference.StartPolicy",
    "teacher": "rlmods.teacher.Local",
    "router": "rlmods.router.Routing",
    "environment": "rlmods.environment.SingleTurn",
    "branching": "rlmods.branching.NoBranching",
    "judge": "rlmods.judge.Rule",
    "preference": "rlmods.preference.Sigmoid",
    "ranking": "rlmods.ranking.BradleyTerry",
    "critic": "rlmods.critic.NoCritic",
    "correction": "rlmods.correction.NoCorrection",
}
"""Groups that the configurations of earlier versions may lack, with the part, by its defaults, that
computes what those versions did."""
FORKABLE = (
    "ratio",
    "advantage",
    "aggregation",
    "correction",
    "sampling",
    "reward",
    "fork",
    "validation",
)
"""Groups of settings that may change in a fork, besides those that may change on resuming. A
checkpoint holds nothing that depends on them, or the state of a part, which is checked on
loading."""
CHECKPOINT_NAME = "iteration_{:06d}.ckpt"


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
    if not isinstance(resume, str):
        raise UserError(f"resume={resume}: type resume=auto, or the path of a checkpoint")
    path = Path(resume).expanduser().absolute()
    if not path.exists():
        raise UserError(
            f"resume={resume}: no such file or folder, give a checkpoint or resume=auto"
        )
    if path.is_dir() and not _is_sharded(path):
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
    match = re.fullmatch(r"(.+)@(\d{1,9})", fork)
    if match is None:
        raise UserError(
            f"fork={fork}: type a run directory and an iteration, such as fork=runs/a@60"
        )
    run, iteration = Path(match[1]).expanduser().absolute(), int(match[2])
    if not (run / "config.yaml").is_file():
        raise UserError(f"fork={fork}: {run} is not a run directory, it has no config.yaml")
    checkpoints = dict(list_checkpoints(run / "checkpoints"))
    if iteration not in checkpoints:
        found = ", ".join(map(str, checkpoints)) or "none"
        raise UserError(
            f"fork={fork}: no checkpoint of this iteration, there are: {found}; "
            "callbacks.checkpoint.keep=0 keeps all of a run"
        )
    verify(checkpoints[iteration])
    return checkpoints[iteration]


def recorded_precision(saved: Path) -> str | None:
    """Return `trainer.precision` in a run's `config.yaml`, None if there is none that is
    supported."""
    trainer = _saved_settings(read_config(saved)).get("trainer") if saved.is_file() else None
    precision = str(trainer.get("precision")) if isinstance(trainer, dict) else None
    return precision if precision in PRECISIONS else None


def recorded_resume(run_dir: Path) -> str | None:
    """Return the checkpoint path that the run in this directory was started from, None if it
    started from scratch."""
    path = run_dir / "config.yaml"
    resume = _saved_settings(read_config(path)).get("resume") if path.is_file() else None
    return None if resume in (None, "auto") else str(resume)


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in `folder` as (iteration, path), oldest first."""
    matches = (
        (re.fullmatch(r"iteration_(\d+)\.ckpt", path.name), path)
        for path in folder.glob("iteration_*.ckpt")
    )
    return sorted((int(match[1]), path) for match, path in matches if match)


def verify(path: Path) -> int:
    """Check every byte of a checkpoint and return its number of completed iterations.

    Raises:
        UserError: truncated, damaged, not a checkpoint of a training run, or a sharded one that
        would execute code.
    """
    if reason := find_damage(path):
        raise UserError(
            f"{path}: cannot be read as a checkpoint ({reason}), choose another with resume=PATH"
        )
    if path.is_dir():
        read_metadata(path)
    return read_iteration(path)


def read_iteration(path: Path) -> int:
    """Return the number of completed iterations in a checkpoint.

    Raises:
        UserError: unreadable, or not a checkpoint of a training run.
    """
    try:
        content = torch.load(
            path / "meta.pt" if path.is_dir() else path,
            map_location="cpu",
            weights_only=True,
            mmap=path.is_file(),
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{path}: cannot be read as a checkpoint ({reason}), choose another with resume=PATH"
        ) from error
    if not isinstance(content, dict) or not {"iteration", "loops"} <= content.keys():
        raise UserError(
            f"{path}: not a checkpoint of a training run, choose another with resume=PATH"
        )
    iteration = content["iteration"]
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
        raise UserError(
            f"{path}: its iteration is {str(iteration)[:40]!r}, not a whole number; choose "
            "another with resume=PATH"
        )
    return iteration


def check_same_run(saved: Path, config: Any, *, fork: bool = False) -> None:
    """Check that `config` equals the `saved` one, apart from `CHANGEABLE` groups and
    `CHANGEABLE_KEYS`. A setting that the saved one lacks, because it was written before there was
    such a setting, counts as its default, and a group (`ADDED_GROUPS`) as the part that is named
    there. In a fork, `FORKABLE` groups may differ too.

    Raises:
        UserError: another setting differs.
    """
    if not saved.is_file():
        return
    old_settings, new_settings = (
        _saved_settings(text) for text in (read_config(saved), as_yaml(config))
    )
    added = {
        group: {"_target_": target}
        for group, target in ADDED_GROUPS.items()
        if group in new_settings.keys() - old_settings.keys()
    }
    old, new = (dict(_leaves(settings)) for settings in (old_settings | added, new_settings))
    defaults = dict(_defaults(new_settings))
    old |= {key: defaults[key] for key in (new.keys() & defaults.keys()) - old.keys()}
    changes = [
        f"{key}={_show(old, key)} (now {_show(new, key)})"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    if fork:
        changes = [change for change in changes if re.split(r"[.=]", change)[0] not in FORKABLE]
    if changes:
        more = f" and {len(changes) - 6} more" if len(changes) > 6 else ""
        advice = (
            "a resumed run needs the same settings; for a new run, type another run_dir= and no "
            "resume="
        )
        if fork:
            allowed = ", ".join(group for group in FORKABLE if group != "fork")
            advice = f"restore these settings of the run; a fork may change {allowed}"
        raise UserError(f"{saved.parent} was started with {', '.join(changes[:6])}{more}: {advice}")


def _saved_settings(text: str) -> dict[str, Any]:
    """Parse a `config.yaml`. Interpolations in it are left as they are.

    Raises:
        UserError: it is broken.
    """
    try:
        settings = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(
            "config.yaml of the run to resume is broken "
            f"({' '.join(str(error).split())[:120]}): choose another run"
        ) from error
    if not isinstance(settings, dict):
        raise UserError("config.yaml of the run to resume holds no settings: choose another run")
    return settings  # type: ignore[return-value]


def as_yaml(config: Any) -> str:
    """Return the configuration as YAML, resolved but for what depends on the environment, and
    without the secrets in URLs (`saved_form`)."""
    return OmegaConf.to_yaml(OmegaConf.create(saved_form(config)))


def _newest(folder: Path) -> Path | None:
    """Return the newest intact checkpoint; warn about newer ones that are damaged."""
    candidates = [path for _, path in reversed(list_checkpoints(folder))]
    damaged = []
    for path in candidates:
        try:
            iteration = verify(path)
        except UserError as error:
            damaged.append(str(error).removesuffix(", choose another with resume=PATH"))
        else:
            if damaged:
                warnings.warn(
                    f"{'; '.join(damaged)}: resuming from iteration {iteration}, later "
                    "iterations are repeated",
                    stacklevel=2,
                )
            return path
    if damaged:
        raise UserError(
            f"{folder}: none of its {len(damaged)} checkpoints can be read, start a new run "
            "with another run_dir=..."
        )
    return None


def _is_sharded(path: Path) -> bool:
    return (path / "meta.pt").is_file()


def _leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values without `CHANGEABLE`; the path of the run directory is replaced
    by ${run_dir} in values."""
    run_dir = str(config.get("run_dir") or "${run_dir}")

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        if isinstance(node, Mapping) and node:
            for key, value in node.items():
                yield from walk(value, f"{prefix}{key}.")
        else:
            yield (
                prefix[:-1],
                node.replace(run_dir, "${run_dir}") if isinstance(node, str) else node,
            )

    kept = {key: value for key, value in config.items() if key not in CHANGEABLE}
    trainer, schedule = (
        x if isinstance(x := config.get(name), Mapping) else {} for name in ("trainer", "schedule")
    )
    # Trainer settings that affect the result: precision, and the number of iterations if the
    # learning rate decays over it.
    decays = schedule.get("decay", "constant") != "constant"
    kept["trainer"] = {
        key: trainer.get(key) for key in ("precision", *(("max_iterations",) if decays else ()))
    }
    return (
        (key, value)
        for key, value in walk(kept, "")
        if not any(fnmatchcase(key, pattern) for pattern in CHANGEABLE_KEYS)
    )


def _defaults(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and default values of the arguments of each `_target_`, and of the
    settings of an algorithm (`settings_type`, `common_settings`)."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _defaults(value, f"{prefix}{key}.")
    if isinstance(name := node.get("_target_"), str):
        target = get_object(name)
        yield from _default_arguments(getattr(target, "settings_type", target), prefix)
        for group, settings in getattr(target, "common_settings", {}).items():
            yield from _default_arguments(settings, f"{group}.")


def _default_arguments(target: Callable[..., Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for parameter in signature(target).parameters.values():
        if parameter.default is not Parameter.empty:
            yield (
                f"{prefix}{parameter.name}",
                list(parameter.default)
                if isinstance(parameter.default, tuple)
                else parameter.default,
            )


def _show(leaves: Mapping[str, Any], key: str) -> str:
    return str(leaves[key]) if key in leaves else "unset"
