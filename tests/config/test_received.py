"""Settings of a run that somebody sent execute nothing and reach nothing unless it is trusted."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from omegaconf import OmegaConf

from rlmods.cli.command import configuration
from rlmods.cli.evaluate import RUN_KEYS, evaluate
from rlmods.config import plugins
from rlmods.config.received import is_known, read_received
from rlmods.errors import UserError
from rlmods.run.settings import leaves

PIECES = (
    *("data:", " ", "\n", "\n  ", "_target_: os.system", "{", "}", "[", "]", ",", "- ", "&a "),
    *("*a", "${oc.env:HOME}", "reward: ", "a: ", "rlmods.data.Stories", "!!python/name:os.system"),
    *("? ", "<<: ", '"', "seed: 1", "_target_: {a: os.system}", "[_target_, os.system]"),
)
JUDGE = (
    "reward=rating",
    "+judge@reward.judge=llm",
    "reward.judge.url=http://h/v1",
    "reward.judge.model=m",
)


def write(folder: Path, *overrides: str, **changes: Any) -> Path:
    """Write the settings of a run, with changes by key (`__` for a dot)."""
    config = configuration(list(overrides))
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    OmegaConf.save(config, folder / "config.yaml")
    return folder / "config.yaml"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data._target_", "torch.load"),
        ("data._target_", "os.system"),
        ("data._target_", "rlmods.run.files.atomic_write"),
        ("data._target_", "hydra.utils.instantiate"),
        ("data._target_", "rlmods.reward.accuracy.os.system"),
        ("data._target_", "lightning.pytorch.cli.LightningCLI"),
        ("data._target_", "lightning.pytorch.callbacks.EarlyStopping"),
        ("data._target_", ["os.system"]),
        ("data._target_", {"a": "os.system"}),
        ("data._target_", None),
        ("data._target_", "${seed}"),
        ("data.list", [{"_target_": "os.system"}]),
        ("reward.terms.math.reward._target_", "os.system"),
        ("callbacks.mine._target_", "lightning.pytorch.callbacks.early_stopping.log"),
        ("logger.mine._target_", "lightning.pytorch.loggers.utilities.os.system"),
        ("optimizer._target_", "os.system"),
        ("unknown._target_", "os.system"),
        ("data._partial_", True),
        ("rollout._args_", [1]),
        ("optimizer._args_", [1]),
        ("environment.tools", ["shutil.rmtree"]),
        ("environment.tools", "os.system"),
        ("environment.tools", [{"a": "os.system"}]),
        ("environment.tools", {"os.system": 1}),
        ("environment.tools", "${rollout.stop}"),
        ("environment.tools", [["os.system"]]),
        ("environment.tools", ["brevity.os.system"]),
        ("environment.format", {"_target_": "rlmods.environment.Tools", "tools": ["os.system"]}),
        ("data.name", "${oc.env:HOME}"),
        ("data.name", "x${oc.env:HOME,none}"),
        ("data.name", "${oc.decode:${seed}}"),
        ("data.env_id", "somebody:Environment"),
        ("reward.walls", "limits"),
        ("reward.function", "rewards.py:f"),
        ("reward.function", ["os:system"]),
        ("rollout.urls", ["http://h"]),
        ("rollout.folder", "/etc/x"),
        ("rollout.key_variable", "AWS_SECRET"),
        ("reward.judge.cache", "/etc/x"),
    ],
)
@pytest.mark.slow
def test_needs_trust(key: str, value: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "reward=math", **{key.replace(".", "__"): value})
    with pytest.raises(UserError, match=r"if you trust this run, type --trust") as error:
        read_received(path, RUN_KEYS)
    assert "\n" not in str(error.value)
    assert key in str(error.value)
    assert "data" in read_received(path, RUN_KEYS, trust=True)
    top = key.split(".")[0]
    if top != "unknown":
        assert "seed" in read_received(path, RUN_KEYS, {top})


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("algo=distill", "+policy@teacher.policy=tiny", "adapter=lora", "logger=csv"),
        ("algo=sft", "data@ptx=mixture", "+data@ptx.sources.a=jsonl", "schedule=kl_adaptive"),
        ("algo=ppo", "reference=model", "+policy@reference.policy=hf", "trainer=fsdp"),
        ("optimizer._target_=torch.optim.SGD",),
        ("+callbacks.early._target_=lightning.pytorch.callbacks.EarlyStopping",),
        ("+callbacks.mine._target_=brevity.Brevity",),
        ("data=mixture", "+data@data.sources.reward=arithmetic", "reward=code"),
        ("reward=preference", "+judge@reward.judge=rule", "+reward@reward.judge.reward=math"),
        ("environment=tools",),
    ],
)
def test_an_own_run_needs_none(overrides: tuple[str, ...], tmp_path: Path) -> None:
    plugins.register()
    path = write(tmp_path, *overrides)
    assert set(read_received(path, RUN_KEYS)) == set(RUN_KEYS)


def test_what_is_typed_is_not_checked(tmp_path: Path) -> None:
    path = write(tmp_path, *JUDGE, reward__judge__key_variable="KEY")
    typed = ["reward.judge.url=http://mine/v1", "reward.judge.key_variable=OWN"]
    config = configuration(typed, saved=path, run_keys=RUN_KEYS)
    assert config.reward.judge.url == "http://mine/v1"
    with pytest.raises(UserError, match="key_variable=KEY reaches beyond"):
        configuration(typed[:1], saved=path, run_keys=RUN_KEYS)
    trusted = configuration(["--trust"], saved=path, run_keys=RUN_KEYS)
    assert trusted.reward.judge.url == "http://h/v1"


def test_what_is_below_a_typed_option_is_checked(tmp_path: Path) -> None:
    """The settings of the run are merged into those of the option."""
    path = write(tmp_path, "reward=math", reward__terms__x={"reward": {"_target_": "os.system"}})
    typed = ["+reward@reward.terms.x.reward=format"]
    with pytest.raises(UserError, match="type --trust"):
        configuration(typed, saved=path, run_keys=RUN_KEYS)


def test_parts_of_validation_are_read(tmp_path: Path) -> None:
    parts = {
        "validation__data__x": {"_target_": "rlmods.data.Stories"},
        "validation__reward": {"_target_": "rlmods.reward.Format"},
    }
    path = write(tmp_path, **parts)
    again = configuration(["reward@validation.reward=accuracy"], saved=path, run_keys=RUN_KEYS)
    assert again.validation.reward._target_ == "rlmods.reward.Accuracy"
    assert again.validation.data.x._target_ == "rlmods.data.Stories"


def test_nothing_is_executed_by_evaluate(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    target = f"{{_target_: pathlib.Path, _args_: [{tmp_path}/executed]}}"
    text = f"data: {{_target_: pathlib.Path.touch, self: {target}}}\n"
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"data\._target_=pathlib\.Path\.touch"):
        evaluate(str(tmp_path), [])
    assert not (tmp_path / "executed").exists()


def test_classes_of_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = tmp_path / "received_plugin/reward/mine.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: received_plugin.Mine\n")
    (tmp_path / "received_plugin/received_plugin.py").write_text(
        "import os\nfrom subprocess import Popen\nclass Mine: pass\nclass Other: pass\n"
        "def function(): pass\n"
    )
    monkeypatch.setattr(plugins, "SEARCHED", [])
    monkeypatch.setattr(plugins, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    plugins.register()
    assert is_known("received_plugin.Mine", "reward")
    assert is_known("received_plugin.Other", "reward")
    for target in ("Popen", "os.system", "function", "Nonsense", "nowhere.Mine"):
        assert not is_known(f"received_plugin.{target}", "reward")
    assert not is_known("received_plugin_too.Mine", "reward")
    own = write(tmp_path, "environment=tools", environment__tools=["received_plugin.function"])
    assert read_received(own, RUN_KEYS)["environment"]["tools"] == ["received_plugin.function"]
    imported = write(tmp_path, "environment=tools", environment__tools=["received_plugin.Popen"])
    with pytest.raises(UserError, match="is not a tool of rlmods or of your plugins"):
        read_received(imported, RUN_KEYS)


@pytest.mark.parametrize(
    "text",
    ["data: [", "- 1", "5", "", "data: !!python/object/apply:os.system [true]", "\x00"],
)
def test_broken_files_are_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        read_received(tmp_path / "config.yaml", RUN_KEYS)
    assert "\n" not in str(error.value)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=10))
@example(pieces=["_target_: os.system", "\n", "\n  ", "{"])
@example(pieces=["data:", "\n  ", "_target_: os.system"])
@example(pieces=["data:", "\n  ", "data:", "_target_: os.system"])  # the key `data:_target_`
def test_any_file_holds_known_classes_or_is_one_line(pieces: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("".join(pieces))
    try:
        found = read_received(tmp_path / "config.yaml", RUN_KEYS)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        settings_of_run = leaves(found, lists=True)
        targets = [value for key, value in settings_of_run if "_target_" in key.split(".")]
        assert set(map(str, targets)) <= {"rlmods.data.Stories"}
        assert "oc.env" not in str(found)
