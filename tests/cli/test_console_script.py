"""The command `rlmods`, and the wheel that installs it."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import rlmods
from rlmods.cli import __main__ as script, plugin
from rlmods.config.options import CONF

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


class TestCommands:
    def test_every_module_that_can_be_run_is_one(self) -> None:
        package = Path(rlmods.__file__).parent
        files = [*package.glob("cli/[a-z]*.py"), *package.glob("lab/**/*.py")]
        runnable = {file for file in files if '__name__ == "__main__"' in file.read_text()}
        names = {x.parent.name if x.stem == "__main__" else x.stem for x in runnable}
        assert names == script.COMMANDS.keys()

    @pytest.mark.parametrize("name", script.COMMANDS)
    def test_is_summarised_by_its_docstring(self, name: str) -> None:
        found = find_spec(f"rlmods.{name}")
        assert found is not None
        text = ast.get_docstring(ast.parse(Path(str(found.origin)).read_text()))
        assert str(text).partition(":")[0].replace("\n", " ") == script.COMMANDS[name]

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            ([], 2, "usage: rlmods COMMAND"),
            (["--help"], 0, "usage: rlmods COMMAND"),
            (["trian"], 1, "error: rlmods trian: there is no such command; did you mean train?"),
            (["xyz"], 1, "there is no such command; choose from train, evaluate"),
            (["show", "--help"], 0, "Print prompts and responses of a run"),
            (["compare", "/nowhere"], 1, "error: /nowhere"),
        ],
    )
    def test_runs_the_command(
        self, arguments: list[str], status: int, message: str, monkeypatch, capsys
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["rlmods", *arguments])
        with pytest.raises(SystemExit) as ended:
            script.main()
        out, err = capsys.readouterr()
        text = f"{out}\n{err}\n{ended.value.code}"
        assert message in text
        code = ended.value.code
        assert (code if isinstance(code, int) else 1) == status


class TestFolders:
    def test_the_package_holds_the_options_of_the_repository(self) -> None:
        assert (Path(rlmods.__file__).parent / "conf").resolve() == CONF == ROOT / "conf"

    def test_advice_of_an_installed_package(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert (
            plugin.new("reward", "terse_one", tmp_path)["try"][1]
            == "python train.py reward=terse_one"
        )
        monkeypatch.setattr(plugin, "CONF", tmp_path / "installed/conf")
        advice = plugin.new("reward", "terse_two", tmp_path)["try"]
        assert advice == [f"python -m pytest {tmp_path}/terse_two", "rlmods train reward=terse_two"]


def test_files_of_the_working_directory_do_not_run(tmp_path: Path) -> None:
    for name in ("yaml", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('ran')")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rlmods.report", "nowhere", "--text"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr.startswith("error: nowhere")


@pytest.mark.slow
def test_wheel_holds_every_module_option_and_asset(tmp_path: Path) -> None:
    # read, not imported: setuptools refuses a process that has imported the standard distutils
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("building needs setuptools 77")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "rlmods", tmp_path / "rlmods", symlinks=True, ignore=ignored)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    with zipfile.ZipFile(tmp_path / done.stdout.strip().splitlines()[-1]) as wheel:
        names = set(wheel.namelist())
        [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
        assert "rlmods = rlmods.cli.__main__:main" in wheel.read(entry_points).decode()
    shipped = [path for path in (tmp_path / "rlmods").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path)) for path in shipped} <= names
    assert {
        f"rlmods/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")
    } <= names
