import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from rlmods.config import plugins
from rlmods.config.instantiate import instantiate as create
from rlmods.config.overrides import explain_override
from rlmods.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application with one group, `reward`, which has one option, and one plugin, `shout`."""
    write(
        tmp_path / "conf/train.yaml",
        "defaults: [{reward: builtin}, _self_]\nhydra: {run: {dir: .}, output_subdir: null}",
    )
    write(tmp_path / "conf/reward/builtin.yaml", "_target_: builtins.dict")
    write(
        tmp_path / "plugins/shout/shout.py",
        "class Shout:\n    def __init__(self, volume):\n        self.volume = volume\n",
    )
    write(tmp_path / "plugins/shout/reward/loud.yaml", "_target_: shout.Shout\nvolume: 11")
    monkeypatch.setattr(plugins, "FOLDER", tmp_path / "plugins")
    monkeypatch.setattr(plugins, "SEARCHED", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def compose_with_plugins(tree: Path, *overrides: str) -> Any:
    plugins.register()
    with initialize_config_dir(str(tree / "conf"), version_base="1.3"):
        return compose("train", list(overrides))


def test_an_option_of_a_plugin_can_be_selected(tree: Path) -> None:
    reward = instantiate(compose_with_plugins(tree, "reward=loud", "reward.volume=12").reward)
    assert (type(reward).__name__, reward.volume) == ("Shout", 12)


def test_types_of_a_plugin_that_only_a_type_checker_imports_are_not_checked(tree: Path) -> None:
    write(
        tree / "plugins/shout/shout.py",
        """from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from decimal import Decimal

@dataclass
class Shout:
    volume: int
    pitch: Decimal | int = 3
    echo: int = None
""",
    )
    extra = ("+reward.pitch=4", "+reward.echo=null")
    reward = create(compose_with_plugins(tree, "reward=loud", *extra).reward, "reward")
    assert (reward.volume, reward.pitch, reward.echo) == (11, 4, None)
    with pytest.raises(UserError, match=r"reward.volume=loud: must be a whole number"):
        create(compose_with_plugins(tree, "reward=loud", "reward.volume=loud").reward, "reward")


def test_help_lists_options_of_plugins_from_any_directory(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = {**os.environ, "RLMODS_PLUGINS": str(tree / "plugins")}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run = subprocess.run(
        [sys.executable, ROOT / "train.py", "--help"],
        cwd=elsewhere,
        env=env,
        capture_output=True,
        text=True,
    )
    rewards = re.search("^reward: (.*)$", run.stdout, re.MULTILINE)
    assert rewards is not None, run.stderr
    assert {"loud", "math"} <= set(rewards[1].split(", "))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("shout/reward/builtin.yaml", "reward=builtin is .*conf/reward/builtin.yaml already"),
        ("whisper/reward/loud.yaml", "reward=loud is .*shout/reward/loud.yaml already"),
        ("shout/rewards/soft.yaml", "GROUP is one of reward$"),
        ("shout/soft.yaml", "GROUP is one of reward$"),
        ("my-plugin/my-plugin.py", "use letters, digits and _ only"),
        ("empty/readme.txt", "no empty.py in it"),
        ("json/json.py", "the module name json is used by .*rename the folder and json.py"),
    ],
)
def test_an_invalid_plugin_is_a_one_line_error(tree: Path, file: str, message: str) -> None:
    write(tree / "plugins" / file, "")
    if file.startswith("whisper"):
        write(tree / "plugins/whisper/whisper.py", "")
    with pytest.raises(UserError, match=message) as error:
        compose_with_plugins(tree)
    assert str(tree / "plugins" / Path(file).parts[0]) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_an_error_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLMODS_PLUGINS", str(tmp_path / "none"))
    monkeypatch.setattr(plugins, "SEARCHED", [])
    with pytest.raises(UserError, match="no plugin folder"):
        plugins.register()
    monkeypatch.delenv("RLMODS_PLUGINS")
    monkeypatch.setattr(plugins, "FOLDER", tmp_path / "none")
    plugins.register()


def test_folders_of_the_environment_are_added_to_those_of_the_repository(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tree / "more/whisper/whisper.py", "class Whisper: pass\n")
    write(tree / "more/whisper/reward/soft.yaml", "_target_: whisper.Whisper")
    (tree / "none of them").mkdir()
    monkeypatch.setenv(
        "RLMODS_PLUGINS", os.pathsep.join([str(tree / "more"), str(tree / "none of them"), ""])
    )
    plugins.register()
    assert [source.name for source in plugins.sources()] == ["shout", "whisper"]
    with initialize_config_dir(str(tree / "conf"), version_base="1.3"):
        assert type(instantiate(compose("train", ["reward=soft"]).reward)).__name__ == "Whisper"
        assert type(instantiate(compose("train", ["reward=loud"]).reward)).__name__ == "Shout"


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        (
            "x = 1\nimport no_such_package\n",
            2,
            "ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("x = (\n", 1, "SyntaxError"),
        (
            "def helper():\n    raise ValueError('two\\nlines')\n\ndef Shout(volume):\n    "
            "helper()\n",
            2,
            "ValueError: two lines",
        ),
    ],
)
def test_an_error_inside_a_plugin_names_its_file_and_line(
    tree: Path, code: str, line: int, message: str
) -> None:
    write(tree / "plugins/shout/shout.py", code)
    config = compose_with_plugins(tree, "reward=loud")
    with pytest.raises(Exception, match="shout") as error:
        instantiate(config.reward)
    explained = str(plugins.explain_plugin_error(error.value))
    assert explained.startswith(f"{tree / 'plugins/shout/shout.py'}:{line}: {message}")
    assert "\n" not in explained


def test_errors_outside_plugins_are_not_explained(tree: Path) -> None:
    plugins.register()
    with pytest.raises(ZeroDivisionError) as error:
        _ = 1 / 0
    assert plugins.explain_plugin_error(error.value) is None


def test_broken_yaml_is_one_line_with_file_and_line(tree: Path) -> None:
    write(tree / "plugins/shout/reward/loud.yaml", "_target_: shout.Shout\n\tvolume: 11")
    with pytest.raises(yaml.YAMLError) as error:
        compose_with_plugins(tree, "reward=loud")
    message = str(explain_override(error.value))
    assert "loud.yaml:2: is not valid YAML" in message
    assert "\n" not in message


def test_an_option_without_target_is_refused(tree: Path) -> None:
    write(tree / "plugins/shout/reward/loud.yaml", "volume: 11")
    config = compose_with_plugins(tree, "reward=loud")
    with pytest.raises(UserError, match="reward: its option has no _target_"):
        create(config.reward, "reward")
