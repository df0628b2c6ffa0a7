"""`python -m rlmods.plugin`: the plugin templates work unchanged."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlmods.cli import plugin
from rlmods.cli.command import configuration
from rlmods.cli.templates import algo
from rlmods.config import plugins
from rlmods.config.instantiate import find_class, instantiate
from rlmods.errors import UserError
from rlmods.ratio import LogLikelihood
from tests.support import composed as support
from tests.support.processes import Process
from tests.support.tiny_setup import attached, close, collected, gradients, learner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of plugins; imports are undone after the test."""
    modules = set(sys.modules)
    monkeypatch.setattr(plugins, "SEARCHED", [*plugins.SEARCHED])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("RLMODS_PLUGINS", str(tmp_path / "mine"))
    yield tmp_path / "mine"
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize("group", plugin.GROUPS)
class TestNew:
    @pytest.mark.slow
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
        kind = find_class(config[group]._target_, group)
        assert kind.__name__ == f"Own{group.capitalize()}"
        if group != "algo":
            assert isinstance(instantiate(config[group], group), kind)
        assert plugin.list_plugins()[f"own_{group}"]["options"] == [f"{group}=own_{group}"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("group", "name", "words"),
        [
            ("rewards", "mine", "did you mean reward"),
            ("judge", "mine", "choose from advantage, aggregation, algo, environment, ratio"),
            ("reward", "MyReward", "as in my_part"),
            ("reward", "my-reward", "as in my_part"),
            ("reward", "class", "a plugin is a Python module"),
            ("reward", "math", "reward=math exists already"),
            ("reward", "random", "the module name random is used by"),
            ("reward", "_", "a plugin is a Python module"),
            ("reward", "3bad", "as in my_part"),
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


def label_of(*typed: str) -> str:
    """Return the label of a run with plugins of this test, which other tests must not see."""
    support.configuration.cache_clear()
    try:
        return support.composed(*typed).label
    finally:
        support.configuration.cache_clear()


class TestAlgorithm:
    """An algorithm of a plugin, with settings of its own."""

    SETTINGS = """
@dataclass(frozen=True)
class Settings(PolicyGradientSettings):
    imitation: float = 0.1
    weights: list[float] = field(default_factory=lambda: [1.0, 2.0])
    scale: float = 1.0
    chunk: int = unlabelled(8)
"""

    @pytest.fixture
    def with_settings(self, folder: Path) -> Path:
        """The template with more settings, among them one that is not in its option."""
        plugin.new("algo", "mine", folder)
        code = folder / "mine" / "mine.py"
        before, rest = code.read_text().split("@dataclass", 1)
        imports = "from dataclasses import field\nfrom rlmods.training.settings import unlabelled\n"
        code.write_text(f"{before}{imports}{self.SETTINGS}\nclass{rest.split('class', 2)[2]}")
        option = folder / "mine" / "algo" / "mine.yaml"
        option.write_text(option.read_text() + "  weights: [1.0, 2.0]\n  chunk: 8\n")
        return folder

    @pytest.mark.parametrize(
        ("typed", "label"),
        [
            ((), "mine"),
            (("algo.imitation=0.1", "algo.weights=[1.0,2.0]"), "mine"),
            (("algo.imitation=0.2",), "mine[algo.imitation=0.2]"),
            (("algo.weights=[1.0,3.0]",), "mine[algo.weights=[1.0, 3.0]]"),
            (("+algo.scale=2.0",), "mine[algo.scale=2.0]"),
            (("algo.chunk=4", "algo.max_draws=3"), "mine"),
            (
                ("ratio=symmetric", "algo.target_kl=0.1"),
                "mine[ratio=symmetric,algo.target_kl=0.1]",
            ),
        ],
    )
    def test_every_setting_counts_in_the_label_unless_declared_otherwise(
        self, typed: tuple[str, ...], label: str, with_settings: Path
    ) -> None:
        assert label_of("algo=mine", *typed) == label

    def test_objective_is_dapo_and_the_likelihood_of_good_responses(self) -> None:
        def gradient(weight: float, batch: Any) -> Any:
            return gradients(attached(learner(algo.Name, imitation=weight)), batch)

        batch = collected(learner())
        good = replace(batch, advantages=(batch.advantages > 0).float())
        likelihood = gradients(attached(learner(ratio=LogLikelihood())), good)
        close(gradient(0.3, batch) - gradient(0.0, batch), 0.3 * likelihood)


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


def test_output_is_text_or_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin.main(["new", "ratio", "mine", str(folder)])
    text = capsys.readouterr().out
    assert f"wrote {folder}/mine/mine.py\n" in text
    assert "train.py ratio=mine\n" in text
    plugin.main(["list"])
    assert f"mine  {folder}/mine\n  ratio=mine\n" in capsys.readouterr().out
    plugin.main(["list", "--json"])
    assert json.loads(capsys.readouterr().out) == plugin.list_plugins()


@pytest.mark.slow
def test_the_commands_of_the_page_run(folder: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "own_algorithm.md").read_text()
    [block] = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (tmp_path / "plugins").symlink_to(folder)
    outputs = []
    for command in block.splitlines():
        words = shlex.split(command)[1:]
        if words[0] == "train.py":
            words += ["batch.prompts=4", "validation.max_prompts=4", f"run_dir=run{len(outputs)}"]
        process = Process(words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stdout + stderr
        outputs.append(stdout)
    assert outputs[2].splitlines()[0] == "mine"
    assert outputs[3].splitlines()[0] == "mine[algo.imitation=0.5]"


QUICK = [
    "overrides=callbacks.budget.max_tokens=2500 validation.max_prompts=6 validation.every=1",
    "tasks=stale",
    "seeds=2",
]


@pytest.mark.slow
def test_an_idea_is_written_and_scored_as_the_page_says(folder: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "own_idea.md").read_text()
    module, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [option] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    files = {"fading.py": module, "test_fading.py": test, "ratio/fading.yaml": option}
    (tmp_path / "plugins").symlink_to(folder)
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    outputs = []
    for command in "".join(blocks).splitlines():
        words = shlex.split(command)[1:]
        if words[0] == "train.py":
            words += ["batch.prompts=4", "validation.max_prompts=4", "run_dir=run"]
        if "rlmods.scorecard" in words:
            words = [word for word in words if not word.startswith(("tasks=", "seeds="))] + QUICK
        if "--power" in words:  # accuracies of six prompts are often equal
            words += ["--metric", "train/grad_norm"]
        process = Process(words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
        stdout, stderr = process.communicate(timeout=400)
        assert process.returncode == 0, stdout + stderr
        outputs.append(stdout)
        if "plugin new" in command:
            for name, text in files.items():
                (folder / "fading" / name).write_text(text)
    assert outputs[2].splitlines()[0] == "dapo[ratio=fading]"
    html = (tmp_path / "runs/scorecard/scorecard.html").read_text()
    assert html.count("<td>2 runs, ") == 3
    assert outputs[5].count("standard deviation of the difference of a pair") == 2
    assert "ratio.width=0.5" in outputs[5]
