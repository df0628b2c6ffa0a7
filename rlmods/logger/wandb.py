"""Weights & Biases."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from rlmods.errors import UserError
from rlmods.logger.samples import table
from rlmods.logger.settings import read_identifier, write_identifier

WITHOUT_SERVER = "type logger.wandb.offline=true, or wandb login in a shell"


class Wandb(WandbLogger):
    """Run of Weights & Biases with the metrics, the configuration and tables of samples. A resumed
    run goes on in the same one.

    Offline, `wandb sync RUN/wandb/offline-run-*` uploads it later."""

    package: ClassVar[str] = "wandb"
    """Package that is needed; the extra has the same name."""

    def __init__(
        self,
        save_dir: str | Path,
        project: str = "rlmods",
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        offline: bool = False,
    ) -> None:
        """
        Args:
            save_dir: the run directory.
            name: name of the run; None: the label.
            entity: user or team; None: the default of the account.
            offline: write files only, without a network.
        """
        super().__init__(
            name=name,
            save_dir=save_dir,
            id=read_identifier(save_dir, "wandb"),
            offline=offline,
            project=project,
            entity=entity,
            group=group,
            tags=list(tags),
        )
        self.run_name, self.is_open = name, False

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace) -> None:
        """Start the run, name it by the `label` among the settings unless it has a name, and log
        the settings.

        Raises:
            UserError: it cannot be started.
        """
        import wandb

        try:
            run = self.experiment
        except (wandb.Error, OSError) as error:
            raise UserError(
                f"logger=wandb: {' '.join(str(error).split()).rstrip('.')}: {WITHOUT_SERVER}"
            ) from error
        self.is_open = True
        write_identifier(str(self.save_dir), "wandb", run.id)
        settings = params if isinstance(params, dict) else vars(params)
        if self.run_name is None and "label" in settings:
            run.name = settings["label"]
        super().log_hyperparams(settings)

    @rank_zero_only
    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log the rows as a table."""
        columns, cells = table(rows)
        self.log_table(f"samples/{name}", columns, cells, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, so that the next one of this process, as in a sweep, is another one."""
        super().finalize(status)
        if self.is_open:
            self.is_open = False
            self.experiment.finish(exit_code=int(status != "success"))
