from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.logger.settings import FILE, flatten, read_identifier, write_identifier


def test_settings_have_the_names_of_overrides() -> None:
    nested = {
        "seed": 1,
        "batch": {"prompts": 4},
        "data": {"sources": {"a": {"level": 2}}},
        "tags": ["x"],
    }
    assert dict(flatten(nested)) == {
        "seed": 1,
        "batch.prompts": 4,
        "data.sources.a.level": 2,
        "tags": ["x"],
    }


def test_identifiers_are_kept_by_tracker(tmp_path: Path) -> None:
    assert read_identifier(tmp_path, "wandb") is None
    write_identifier(tmp_path, "wandb", "a")
    write_identifier(tmp_path, "mlflow", "b")
    assert (read_identifier(tmp_path, "wandb"), read_identifier(tmp_path, "mlflow")) == ("a", "b")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=r"trackers\.json: broken: delete it"):
        read_identifier(tmp_path, "wandb")
