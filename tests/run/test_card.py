"""Model cards."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlmods.run.card import MAX_ROWS, model_card
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run


def card(folder: Path, **options: object) -> str:
    path = write_run(
        folder / "first",
        [0.25, None, 0.5, 0.75],
        overrides=["algo=dapo", "data.template=a b"],
        **options,
    )  # type: ignore[arg-type]
    (path / "versions.txt").write_text("command python train.py\ntorch 2.13\nprocessor mine\n")
    return model_card(SavedRun(path))


def test_says_what_was_trained_how_and_with_which_result(tmp_path: Path) -> None:
    text = card(tmp_path)
    assert "# first: dapo\n" in text
    assert "| ratio | `clip_higher` |" in text
    assert (
        "| iteration | val/accuracy |\n| --- | --- |\n| 0 | 0.250 |\n| 2 | 0.500 |\n| 3 | 0.750 |"
        in text
    )
    assert "python train.py algo=dapo 'data.template=a b'\n" in text
    assert "- torch 2.13" in text
    assert "processor" not in text


def test_of_a_checkpoint_of_a_run_that_goes_on(tmp_path: Path) -> None:
    path = write_run(tmp_path / "first", [0.25, 0.5])
    (path / "summary.json").unlink()
    assert "Trained with rlmods for 1 iterations (`dapo`), seed 1." in model_card(SavedRun(path), 1)
    (path / "config.yaml").unlink()  # as of a run that was started from Python
    assert "Trained with rlmods for 1 iterations (`first`), seed None." in model_card(
        SavedRun(path), 1
    )


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("org/model-1.5", "org/model-1.5"),
        ("/home/me/model", None),
        ("a/b\nlicense: x", None),
        (None, None),
    ],
)
def test_front_matter_names_models_of_the_hub_only(
    name: str | None, base: str | None, tmp_path: Path
) -> None:
    text = card(tmp_path, settings={"policy": {"name": name}})
    front = yaml.safe_load(text.split("---\n")[1])
    assert front.get("base_model") == base
    assert set(front) <= {"library_name", "tags", "base_model"}


def test_long_runs_have_some_rows(tmp_path: Path) -> None:
    path = write_run(tmp_path / "long", [i / 100 for i in range(100)])
    rows = [
        line
        for line in model_card(SavedRun(path)).splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    assert len(rows) == MAX_ROWS
    assert (rows[0], rows[-1]) == ("| 0 | 0.000 |", "| 99 | 0.990 |")
