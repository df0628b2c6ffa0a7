"""Trackio."""

from __future__ import annotations

import secrets
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from rlmods.logger.samples import table
from rlmods.logger.settings import read_identifier, write_identifier


class Trackio(Logger):
    """Run of Trackio with the metrics, the configuration and tables of samples. A resumed run goes
    on in the same one.

    Trackio finds runs by their names, so the default name is the label with a random suffix."""

    package: ClassVar[str] = "trackio"
    """Package that is needed; the extra has the same name."""

    def __init__(
        self,
        save_dir: str | Path,
        project: str = "rlmods",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
    ) -> None:
        """
        Args:
            save_dir: the run directory.
            name: name of the run, another one for each; None: the label and a suffix.
            space_id: Space of the Hugging Face hub to log to; None: a local database (TRACKIO_DIR),
            which `trackio show` displays.
        """
        super().__init__()
        self.folder, self.project, self.group, self.space_id, self.run_name = (
            save_dir,
            project,
            group,
            space_id,
            name,
        )
        self.run: Any = None

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Start the run with these settings, named by the `label` among them unless it has a
        name."""
        settings = params if isinstance(params, dict) else vars(params)
        self._start(settings, str(settings.get("label", "run")))

    def _start(self, settings: dict[str, Any], label: str) -> None:
        import trackio

        resumed = read_identifier(self.folder, "trackio")
        name = resumed or self.run_name or f"{label}-{secrets.token_hex(3)}"
        self.run = trackio.init(
            project=self.project,
            name=name,
            group=self.group,
            space_id=self.space_id,
            config=settings,
            resume="allow" if resumed else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        write_identifier(self.folder, "trackio", self.run.name)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if self.run is None:
            self._start({}, "run")
        self.run.log(dict(metrics), step=step)

    @rank_zero_only
    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log the rows as a table."""
        import trackio

        columns, cells = table(rows)
        self.run.log({f"samples/{name}": trackio.Table(columns=columns, data=cells)}, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None

    @property
    def name(self) -> str:
        return self.project

    @property
    def version(self) -> str:
        return "" if self.run is None else str(self.run.name)
