"""MLflow."""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only

from rlmods.errors import UserError
from rlmods.logger.samples import table
from rlmods.logger.settings import flatten, read_identifier, write_identifier


class MLflow(MLFlowLogger):
    """Run of MLflow with the metrics, the configuration (parameters, and `config.yaml` as an
    artifact) and tables of samples.

    Names of metrics have `_at_` for `@`, which MLflow does not allow. A resumed run goes on in the
    same one."""

    package: ClassVar[str] = "mlflow"
    """Package that is needed; the extra has the same name."""

    def __init__(
        self,
        save_dir: str | Path,
        experiment: str = "rlmods",
        name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            save_dir: the run directory.
            name: name of the run; None: the label.
            tracking_uri: server, `sqlite:///FILE` or folder; None: MLFLOW_TRACKING_URI, or else the
            default of MLflow.
        """
        import mlflow

        # "Creating it." as a warning
        logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)
        self.folder, self.run_name = save_dir, name
        self.resumed_id = read_identifier(save_dir, "mlflow")
        super().__init__(
            experiment_name=experiment,
            run_name=name,
            tracking_uri=tracking_uri or mlflow.get_tracking_uri(),
            tags=None if tags is None else dict(tags),
            run_id=self.resumed_id,
        )

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace) -> None:
        """Start the run, name it by the `label` among the settings unless it has a name, and log
        the settings.

        Raises:
            UserError: it cannot be started.
        """
        from mlflow.exceptions import MlflowException

        settings = params if isinstance(params, dict) else vars(params)
        try:
            client, run_id = self.experiment, str(self.run_id)
            if self.resumed_id is not None:  # its parameters cannot change
                client.update_run(run_id, status="RUNNING")
                return
            write_identifier(self.folder, "mlflow", run_id)
            if self.run_name is None and "label" in settings:
                client.set_tag(run_id, "mlflow.runName", settings["label"])
            client.log_dict(run_id, settings, "config.yaml")
        except (MlflowException, OSError) as error:
            advice = (
                "type logger.mlflow.tracking_uri=sqlite:///mlflow.db, or the address of a server "
                "that runs"
            )
            raise UserError(
                f"logger=mlflow: {' '.join(str(error).split())[:300]}: {advice}"
            ) from error
        super().log_hyperparams(dict(flatten(settings)))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({metric_name(name): value for name, value in metrics.items()}, step)

    @rank_zero_only
    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log the rows as an artifact, a table that `mlflow.load_table` reads."""
        columns, cells = table(rows)
        data = {column: [row[i] for row in cells] for i, column in enumerate(columns)}
        self.experiment.log_table(str(self.run_id), data, f"samples/{name}_{step:06d}.json")


def metric_name(name: str) -> str:
    """Return the name of a metric in the characters that MLflow allows: `val/pass@8` is
    `val/pass_at_8`."""
    return re.sub(r"[^a-zA-Z0-9_/. -]", "_", name.replace("@", "_at_"))
