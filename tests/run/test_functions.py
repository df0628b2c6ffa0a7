from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.run.functions import load_function

FILE = """
from dataclasses import dataclass

@dataclass
class Setting:
    value: int = 1

def score(x):
    return Setting(x).value

not_a_function = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "functions_of_this_folder.py").write_text(FILE)
    (tmp_path / "broken_functions.py").write_text("\nraise RuntimeError('two\\nlines')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/"])
    return tmp_path


@pytest.mark.parametrize("module", ["functions_of_this_folder", "functions_of_this_folder.py"])
def test_a_module_or_file_of_the_working_directory(module: str) -> None:
    assert load_function(f"{module}:score", "a.b")(4) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("score", r"^a\.b=score: type a\.b=MODULE:FUNCTION, or a\.b=FILE\.py:FUNCTION$"),
        ("no_file.py:score", r"^a\.b=no_file\.py:score: no file .*no_file\.py$"),
        ("no_module:score", r"^a\.b=no_module:score: ModuleNotFoundError: No module named"),
        ("functions_of_this_folder.py:scor", "no function scor; did you mean score"),
        ("functions_of_this_folder.py:not_a_function", "no function not_a_function; choose from"),
        ("broken_functions.py:f", r"RuntimeError: two lines \(.*broken_functions\.py:2\)$"),
    ],
)
def test_mistakes_are_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        load_function(name, "a.b")
    assert "\n" not in str(error.value)
