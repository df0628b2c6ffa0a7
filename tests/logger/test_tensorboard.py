from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlmods.logger import TensorBoard
from rlmods.logger.tensorboard import markdown
from tests.logger.runs import ROWS, SETTINGS

HOSTILE = (
    "<script>alert(1)</script> | [link](javascript:x) **bold** `code` _a_\n# title "
    "![i](http://a/b.png) &amp; é"
)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Any:
    logger = TensorBoard(tmp_path_factory.mktemp("run"))
    logger.log_hyperparams(SETTINGS)
    logger.log_metrics({"val/accuracy": 0.25}, step=3)
    logger.log_samples("validation", ROWS, step=3)
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    return events


def test_settings_are_in_the_file_and_in_the_events(events: Any) -> None:
    settings = yaml.safe_load((Path(events.path) / "hparams.yaml").read_text())
    assert settings == {
        "label": "dapo[ratio=symmetric]",
        "seed": 1,
        "batch.prompts": 4,
        "fork": None,
    }
    assert "_hparams_/session_start_info" in events.summary_metadata
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"batch.prompts" in content
    assert b"val/accuracy" in events.summary_metadata["_hparams_/experiment"].plugin_data.content


def test_accuracy_has_no_value_that_was_not_logged(events: Any) -> None:
    assert [(event.step, event.value) for event in events.Scalars("val/accuracy")] == [(3, 0.25)]


def test_samples_are_text(events: Any) -> None:
    [event] = events.Tensors("samples/validation/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "| prompt | response | reward | advantage |" in text
    assert html.unescape(text).splitlines()[2] == "| 1+1= | 2 | 1 | 0.5 |"


def test_texts_are_no_markup() -> None:
    line = markdown(["response"], [[HOSTILE]]).splitlines()[2]
    cell = line.removeprefix("| ").removesuffix(" |")
    assert re.fullmatch(r"(?:[^\W_]|\s|&#\d+;|<br>)*", cell)
    assert html.unescape(cell.replace("<br>", "\n")) == HOSTILE
