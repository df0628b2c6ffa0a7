"""One run: check, train, summarise. What `train.py` calls."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from rlmods.algo import Learner
from rlmods.callbacks import GracefulStop, JsonlLogger, Summary
from rlmods.callbacks.stop import DeadlineError
from rlmods.callbacks.table import show_plan
from rlmods.callbacks.watchdog import RESUME_HINT
from rlmods.config import compose
from rlmods.config.overrides import explain_override
from rlmods.config.plugins import explain
from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.strategy import check_resume
from rlmods.run import RunDir
from rlmods.run.resume import list_checkpoints
from rlmods.types import UserError

QUIET = (
    r".*does not have many workers.*",
    r".*module\(s\) in eval mode at the start of training.*",  # on purpose: dropout is off in every log-prob
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
    r".*`training_step` returned `None`.*",
)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A user's mistake is one line and exit status 1, also while Hydra composes."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except Exception as error:
        if (mistake := explain(error) or explain_override(error)) is None:
            raise
        sys.exit(f"error: {mistake}")


def main(config: DictConfig) -> None:
    """Run it as Hydra's task."""
    hydra = HydraConfig.get()
    with plain_errors():
        if hydra.mode == RunMode.MULTIRUN:
            _check_sweep(sys.argv[1:])
        learner = run(config, dict(hydra.runtime.choices), list(hydra.overrides.task))
    if learner.iteration < learner.max_iterations:
        settings = [typed for typed in hydra.overrides.task if typed.split("=")[0] not in ("run_dir", "resume")]
        again = shlex.join(["python", "train.py", *settings, f"run_dir={config.run_dir}", "resume=auto"])
        _leave(learner, RunDir(Path(config.run_dir)), again)


def _leave(learner: Learner, directory: RunDir, again: str) -> None:
    """Say where it stands and how to go on. The first rank speaks for all: launchers take the status of another for a crash."""
    if not is_first_rank():
        sys.exit(0)
    saved = max((iteration for iteration, _ in list_checkpoints(directory.checkpoints)), default=0)
    stop = _stop_of(learner.trainer)
    where = f"after iteration {learner.iteration}"
    if stop.iteration_aborted:
        where = f"within iteration {learner.iteration + 1}, what came after iteration {saved} is repeated"
    print(f"interrupted {where}; to go on: {again}", file=sys.stderr, flush=True)
    sys.exit(stop.exit_status)


def _stop_of(trainer: Any) -> GracefulStop:
    return next((callback for callback in trainer.callbacks if isinstance(callback, GracefulStop)), GracefulStop())


def _check_sweep(typed: Sequence[str]) -> None:
    """
    Raises:
        UserError: all jobs of a sweep would go to one run directory.
    """
    for override in typed:
        if override.startswith("run_dir=") and "," not in override and "${" not in override:
            folder = override.removeprefix("run_dir=")
            raise UserError(f"{override} is one directory for all jobs of the sweep: type hydra.sweep.dir={folder}")


def quiet() -> None:
    """Silence what libraries say that a user can do nothing about; a warning is one line without its place in the code."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    for pattern in QUIET:
        warnings.filterwarnings("ignore", pattern)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)  # devices that are not there, advertisements
    logging.getLogger("lightning.fabric.utilities.distributed").setLevel(logging.WARNING)  # who has joined
    transformers.utils.logging.disable_progress_bar()


def run(config: DictConfig, choices: dict[str, Any], overrides: list[str]) -> Learner:
    """Compose, check, fit. Everything a user can get wrong is found before the run directory is touched.

    Raises:
        UserError: a user's mistake.
    """
    quiet()
    plan = compose.plan(config, choices, overrides)
    learner = plan.learner()
    num_ranks = plan.num_ranks()
    directory = RunDir.open(config)
    trainer = plan.trainer([Summary(directory, plan.label, plan.choices)], [JsonlLogger(directory.metrics, directory.iteration)])
    check_resume(trainer.strategy, directory.checkpoint)
    show_plan(plan, learner, directory, num_ranks)
    try:
        trainer.fit(learner, datamodule=plan.data(), ckpt_path=directory.checkpoint, weights_only=True)
    except DeadlineError:  # the callback knows
        pass
    except SystemExit:  # Lightning's answer to Ctrl-C
        if not _stop_of(trainer).interrupted_before_training():
            raise
    except RuntimeError as error:
        if (lost := getattr(trainer, "lost", None)) and not _stop_of(trainer).stop_after_lost_rank(lost):
            raise UserError(f"{lost}; {RESUME_HINT}") from error
        if not lost:
            raise
    return learner
