"""Checks that a resumed run has the settings of the run that it continues."""

import hashlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from rlmods.distributed.trainer import PRECISIONS
from rlmods.errors import UserError
from rlmods.run.files import dumps
from rlmods.run.saved import LOADER, read_config
from rlmods.run.secrets import as_yaml
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
    "policy.compile",
    "rollout.urls",
    "rollout.folder",
    "rollout.transfer",
    "rollout.timeout_s",
    "rollout.retries",
    "rollout.backoff_s",
    "rollout.concurrency",
    "rollout.batch_size",
    "rollout.fused",
    "rollout.graphs",
    "rollout.cache_gib",
    "rollout.ahead",
    "rollout.key_variable",
)
"""Patterns of single settings of other groups that may change on resuming: memory, speed and
addresses. They change results by rounding, and `rollout.ahead` the age of the policy that
samples."""
FORKABLE = (
    "ratio",
    "advantage",
    "aggregation",
    "correction",
    "tokens",
    "sampling",
    "reward",
    "validation",
)
"""Groups of settings that may change in a fork, besides those that may change on resuming. What a
checkpoint holds of them is the state of a part, which is checked on loading, and what depends on
grading (`grading_identities`)."""
GRADING = {"rewards": ("reward",), "rows": ("reward", "advantage", "sampling")}
"""Groups of settings that decide about rewards, and about the advantages of rows and which rows are
kept."""


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


def check_same_run(saved: Path, config: DictConfig, *, fork: bool = False) -> None:
    """Check that `config` equals the `saved` one (`changed_settings`).

    Raises:
        UserError: another setting differs.
    """
    changes = [
        f"{key}={old} (now {new})"
        for key, (old, new) in changed_settings(saved, config, fork=fork).items()
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


def changed_settings(
    saved: Path, config: DictConfig, *, fork: bool = False
) -> dict[str, tuple[object, object]]:
    """Return the settings that differ in `config` from the `saved` one, with both values ("unset":
    there is none), apart from `CHANGEABLE` groups and `CHANGEABLE_KEYS`, and in a fork from
    `FORKABLE` groups. Without such a file nothing differs."""
    if not saved.is_file():
        return {}
    old = _computing_settings(read_config(saved))
    new = _computing_settings(yaml.load(as_yaml(config), Loader=LOADER))
    free = ("fork", *FORKABLE) if fork else ()
    return {
        key: (old.get(key, "unset"), new.get(key, "unset"))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key.split(".")[0] not in free
    }


def grading_identities(config: DictConfig) -> dict[str, str]:
    """Return a digest of the settings that rewards depend on, and of the settings that graded rows
    depend on. A fork with another one begins without such state of its origin."""
    settings = _computing_settings(yaml.load(as_yaml(config), Loader=LOADER))
    found = {}
    for name, groups in GRADING.items():
        own = [item for item in sorted(settings.items()) if item[0].split(".")[0] in groups]
        found[name] = hashlib.sha256(dumps(own).encode()).hexdigest()
    return found


def _computing_settings(config: object) -> dict[str, Any]:
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
