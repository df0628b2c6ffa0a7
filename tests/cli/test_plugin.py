"""`python -m rlmods.plugin`: the plugin templates work unchanged."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmods.cli import plugin
from rlmods.cli.command import configuration
from rlmods.config import plugins
from rlmods.config.instantiate import instantiate
from rlmods.errors import UserError
from tests.support.processes import Process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of plugins; imports are undone after the test."""
    path, modules, before = list(sys.path), set(sys.modules), plugins.PluginFolders.folders
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("RLMODS_PLUGINS", str(tmp_path / "mine"))
    yield tmp_path / "mine"
    plugins.PluginFolders.folders = before
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize("group", plugin.GROUPS)
class TestNew:
    def test_writes_a_test_that_passes(self, group: str, folder: Path) -> None:
        plugin.new(group, f"own_{group}", folder)
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        tests = Process(
            ["-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", f"own_{group}"],
            cwd=folder,
            env=environment,
        )
        out, err = tests.communicate(timeout=120)
        assert tests.returncode == 0, out + err
        assert "passed" in out

    def test_option_can_be_selected(self, group: str, folder: Path) -> None:
        plugin.new(group, f"own_{group}", folder)
        plugins.register()
        config = configuration([f"{group}=own_{group}"])
        part = instantiate(config[group], group)
        assert type(part).__name__ == f"Own{group.capitalize()}"
        assert plugin.list_plugins()[f"own_{group}"]["options"] == [f"{group}=own_{group}"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("group", "name", "words"),
        [
            ("rewards", "mine", "did you mean reward"),
            ("judge", "mine", "choose from advantage, aggregation, environment, ratio"),
            ("reward", "MyReward", "as in my_reward"),
            ("reward", "my-reward", "as in my_reward"),
            ("reward", "class", "a plugin is a Python module"),
            ("reward", "math", "reward=math exists already"),
            ("reward", "random", "the module name random is used by"),
            ("reward", "_", "a plugin is a Python module"),
            ("reward", "3bad", "as in bad"),
        ],
    )
    def test_invalid_group_or_name(self, group: str, name: str, words: str, folder: Path) -> None:
        with pytest.raises(UserError, match=words):
            plugin.new(group, name, folder)
        assert list(folder.iterdir()) == []

    def test_existing_folder_is_not_overwritten(self, folder: Path) -> None:
        plugin.new("reward", "mine", folder)
        (folder / "mine" / "mine.py").write_text("precious")
        with pytest.raises(UserError, match="exists already"):
            plugin.new("advantage", "mine", folder)
        assert (folder / "mine" / "mine.py").read_text() == "precious"

    def test_name_of_an_option_of_another_plugin(self, folder: Path) -> None:
        plugin.new("reward", "mine", folder)
        (folder / "mine" / "reward" / "other.yaml").write_text("_target_: mine.Mine")
        plugins.register()
        with pytest.raises(UserError, match="reward=other exists already"):
            plugin.new("reward", "other", folder)

    @pytest.mark.parametrize(
        "typed", [["new"], ["new", "reward"], ["new", "a", "b", "c", "d"], ["gnu"]]
    )
    def test_invalid_command_line(self, typed: list[str], folder: Path) -> None:
        with pytest.raises(SystemExit, match=r"error: type new GROUP NAME"):
            plugin.main(typed)


def write_package(site: Path, name: str, options: dict[str, str]) -> None:
    """Write an installed package with an entry point for plugins."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(
        "class Loud:\n    def __init__(self, volume):\n        self.volume = volume\n        "
        "1 / volume\n"
    )
    for path, text in options.items():
        (site / name / path).parent.mkdir(parents=True, exist_ok=True)
        (site / name / path).write_text(text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlmods.plugins]\nloud = {name}\n")


class TestInstalledPackages:
    LOUD = "_target_: loud_rewards.Loud\nvolume: 11\n"

    def test_provide_options(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_package(tmp_path / "site", "loud_rewards", {"conf/reward/loud.yaml": self.LOUD})
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        plugins.register()
        assert (
            instantiate(configuration(["reward=loud", "reward.volume=3"]).reward, "reward").volume
            == 3
        )
        assert plugin.list_plugins()["loud"] == {
            "folder": str(tmp_path / "site/loud_rewards/conf"),
            "options": ["reward=loud"],
        }
        with pytest.raises(UserError, match=r"loud_rewards/__init__\.py:4: ZeroDivisionError"):
            instantiate(configuration(["reward=loud", "reward.volume=0"]).reward, "reward")

    def test_name_of_an_existing_option_is_refused(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_package(tmp_path / "site", "loud_rewards", {"conf/reward/math.yaml": self.LOUD})
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        plugins.register()
        with pytest.raises(UserError, match=r"reward=math is .* already"):
            configuration([])


def test_a_new_reward_trains(folder: Path, tmp_path: Path) -> None:
    plugin.new("reward", "politeness", folder)
    typed = ["reward=politeness", "reward.word=e", "run_dir=run"]
    small = [
        "trainer.max_iterations=1",
        "batch.prompts=2",
        "batch.samples=2",
        "sampling=fixed",
        "validation.max_prompts=2",
    ]
    process = Process(
        ["train.py", *typed, *small], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert "reward=politeness" in stdout
