"""One training job, which Hydra has composed: a single run, or a member of a sweep."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Trainer
from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Learner
from rlmods.callbacks import Summary
from rlmods.callbacks.stop import DeadlineError, graceful_stop
from rlmods.cli.console import plain_errors, silence_libraries
from rlmods.cli.sweep import run_member
from rlmods.cli.table import show_run
from rlmods.config import build, compose
from rlmods.distributed.collectives import is_first_rank, is_lost_connection
from rlmods.distributed.strategy import check_resume
from rlmods.errors import UserError
from rlmods.logger import JsonlLogger, trackers
from rlmods.run.checkpoints import list_checkpoints
from rlmods.run.directory import RunDir, is_locked
from rlmods.run.secrets import clean_urls, saved_form
from rlmods.training.allocator import keep_freed_memory
from rlmods.training.out_of_memory import explain, is_out_of_memory, out_of_memory


def run_job(config: DictConfig) -> float | None:
    """Train, as Hydra's task function; exit with a nonzero status if the run was interrupted.
    Return the result of a member of a sweep (`run_member`), which a sweeper may maximize."""
    hydra = HydraConfig.get()
    keep_freed_memory()
    # once: the default directory is named by the time
    config.run_dir = str(Path(config.run_dir).expanduser().absolute())
    choices = dict(hydra.runtime.choices)
    overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # as typed
    if hydra.mode == RunMode.MULTIRUN:
        return run_member(
            config,
            checked=lambda: compose.run_spec(config, choices, overrides).config,
            train=lambda: _signal_status(
                train(config, choices, overrides, brief=hydra.job.num > 0)
            ),
        )
    with plain_errors(lambda: _resume_hint(config, overrides)):
        learner = train(config, choices, overrides)
    if _signal_status(learner):
        _exit_interrupted(learner, Path(config.run_dir), _resume_command(config, overrides))
    return None


def _resume_command(config: DictConfig, overrides: list[str]) -> str:
    kept = [clean_urls(x) for x in overrides if not x.startswith(("run_dir=", "resume="))]
    plugins = os.environ.get("RLMODS_PLUGINS")
    prefix = f"RLMODS_PLUGINS={shlex.quote(plugins)} " if plugins else ""
    is_installed = Path(sys.argv[0]).parent == Path(__file__).parent
    command = ["rlmods", "train"] if is_installed else ["python", "train.py"]
    return prefix + shlex.join([*command, *kept, f"run_dir={config.run_dir}", "resume=auto"])


def _resume_hint(config: DictConfig, overrides: list[str]) -> str:
    """Return how to resume a run that failed, "" if this process has not started to train in its
    directory."""
    run = RunDir(Path(config.run_dir))
    has_begun = is_first_rank() and is_locked(run.path)
    saved = list_checkpoints(run.checkpoints) if has_begun else []
    if not saved:
        return ""
    return f"iteration {saved[-1][0]} is saved; to resume: {_resume_command(config, overrides)}"


def _signal_status(learner: Learner) -> int:
    """Return the exit status of a run that a signal ended, 0 of others."""
    stop = graceful_stop(learner.trainer)
    is_complete = learner.iteration >= learner.max_iterations and not stop.iteration_aborted
    return stop.exit_status if stop.interrupted and not is_complete else 0


def _exit_interrupted(learner: Learner, run_dir: Path, resume_command: str) -> None:
    """Print how to resume and exit. Other ranks than the first exit with 0: launchers would treat a
    nonzero status there as a crash."""
    if not is_first_rank():
        sys.exit(0)
    stop = graceful_stop(learner.trainer)
    progress = f"after iteration {learner.iteration}"
    if stop.iteration_aborted:
        saved = list_checkpoints(RunDir(run_dir).checkpoints)
        progress = (
            f"within iteration {learner.iteration + 1}, work after iteration "
            f"{saved[-1][0] if saved else 0} will be repeated"
        )
    print(f"interrupted {progress}; to resume: {resume_command}", file=sys.stderr, flush=True)
    sys.exit(stop.exit_status)


def train(
    config: DictConfig, choices: dict[str, Any], overrides: list[str], *, brief: bool = False
) -> Learner:
    """Compose the parts, check them and train. All checks of the user's settings come before the
    run directory is touched.

    Args:
        choices: option by group, as Hydra reports it.
        brief: print the name of the run in place of the table of its settings.

    Raises:
        UserError: a user's mistake.
    """
    silence_libraries()
    spec = compose.run_spec(config, choices, overrides)
    try:
        loaded = build.load(spec)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        advice = "adapter=lora policy.dtype=bfloat16, or a smaller policy.name=..."
        raise out_of_memory("loading", error, advice) from error
    learner = loaded.learner
    num_ranks = build.num_ranks(spec, loaded.config)
    run_dir = RunDir.open(loaded.config, automatic_precision=loaded.precision is not None)
    label = clean_urls(spec.label)
    trackers.configure(loaded.config.logger, run_dir.path, label)
    trainer = build.trainer(
        loaded.config,
        [
            Summary(
                run_dir,
                spec.label,
                spec.choices,
                loaded.num_long_prompts,
                config.seed,
                overrides,
                config.get("fork"),
            )
        ],
        [JsonlLogger(run_dir.metrics, run_dir.iteration)],
    )
    check_resume(trainer.strategy, run_dir.checkpoint)
    show_run(loaded, run_dir, num_ranks, brief=brief)
    settings = {"label": label, **saved_form(loaded.config)}
    trackers.start(trainer.loggers, run_dir.path, settings)
    try:
        fit(trainer, learner, loaded.data(), run_dir.checkpoint)
    finally:
        trackers.finish(trainer.loggers)
    return learner


def fit(trainer: Trainer, learner: Learner, data: Any, checkpoint: Path | None) -> None:
    """Train until the end, the deadline or a signal.

    Raises:
        UserError: out of memory, or the connection to another rank is lost.
    """
    try:
        trainer.fit(learner, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except DeadlineError:  # GracefulStop has recorded it; run_job() reports it
        pass
    except SystemExit:  # raised by Lightning on Ctrl-C
        if not graceful_stop(trainer).interrupted_before_training():
            raise
    except Exception as error:
        explained = explain(learner, learner.timer.phase, error)
        if explained is not None:
            raise explained from error
        if not isinstance(error, RuntimeError) or not is_lost_connection(error):
            raise
        if not graceful_stop(trainer).interrupted_with_other_ranks():
            raise lost_rank(learner) from error


def lost_rank(learner: Learner) -> UserError:
    """Return the error of a rank that has lost the connection to another one."""
    return UserError(
        f"another rank has ended or hangs, as this one noticed in phase {learner.timer.phase} of "
        f"iteration {learner.iteration + 1}: see the output of the other ranks; resume=auto "
        "continues from the latest checkpoint"
    )
