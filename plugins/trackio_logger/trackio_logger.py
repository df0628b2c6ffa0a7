"""Logger of Trackio: `logger=trackio`."""

import secrets
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only


class Trackio(Logger):
    """Run of Trackio with the metrics, the settings and tables of samples. Trackio finds runs by
    name, so the name has a random suffix."""

    def __init__(
        self,
        project: str = "rlmods",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """
        Args:
            name: name of a new run; None: the label.
            space_id: Space of the Hugging Face hub to log to; None: a local database (TRACKIO_DIR),
            which `trackio show` displays.
            run_id: full name of the run to go on with.
        """
        super().__init__()
        self.options = {"project": project, "group": group, "space_id": space_id}
        self.run_name = run_id or f"{name or 'run'}-{secrets.token_hex(3)}"
        self.resume = "never" if run_id is None else "allow"
        self.run: Any = None

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Start the run with these settings."""
        self._start(params if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.run is None:
            self._start({})
        self.run.log(dict(metrics), step=step)

    @rank_zero_only
    def log_table(
        self, key: str, columns: list[str], data: list[list[Any]], step: int | None = None
    ) -> None:
        """Log a table."""
        import trackio

        self.log_metrics({key: trackio.Table(columns=columns, data=data)}, step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None

    def _start(self, settings: dict[str, Any]) -> None:
        import trackio

        quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        self.run = trackio.init(
            name=self.run_name, config=settings, resume=self.resume, **self.options, **quiet
        )

    @property
    def name(self) -> str:
        return str(self.options["project"])

    @property
    def version(self) -> str:
        return self.run_name
