"""Reading of a received `config.yaml` takes bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.run.config_file import MAX_BYTES, MAX_NESTING, read_config

ALIASES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    [
        "seed: 1\nname: é\n",
        "",
        f"a: {'[' * (MAX_NESTING - 1)}{']' * (MAX_NESTING - 1)}",
        f"a: {'1' * 900}",
    ],
)
def test_settings_are_read_as_they_are(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert read_config(tmp_path / "config.yaml") == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read"),
        ("\x00", "cannot be read"),
        ("5", "holds no settings"),
        ("- a: 1", "holds no settings"),
        ("a: &x [1]\nb: *x\n", "has YAML aliases"),
        (ALIASES, "has YAML aliases"),
        (f"x: {'[' * 5000}{']' * 5000}", "nested more than"),
        (f"seed: 0x1{'0' * 5000}", "a number of 5003 digits"),
        (f"seed: -0b1{'0' * 50000}", "a number of 50004 digits"),
        (f"seed: 1{':59' * 5000}", "a number of 15001 digits"),
        (f"a: '{'x' * MAX_BYTES}'", "larger than"),
    ],
)
def test_others_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"config\.yaml: .*{message}.*give another run") as error:
        read_config(tmp_path / "config.yaml")
    assert "\n" not in str(error.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "missing.yaml")
