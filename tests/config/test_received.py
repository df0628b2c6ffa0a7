"""A configuration that comes with a run creates known parts only, and reads no environment."""

from __future__ import annotations

import copy
import shlex
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from rlmods.cli.command import configuration
from rlmods.cli.evaluate import RUN_KEYS, evaluate
from rlmods.config import plugins
from rlmods.config.received import _override, is_known_class, read_received
from rlmods.errors import UserError

PIECES = (
    "data:",
    " ",
    "\n",
    "\n  ",
    "_target_: os.system",
    "{",
    "}",
    "[",
    "]",
    ",",
    "- ",
    "&a ",
    "*a",
    "${oc.env:HOME}",
    "reward: ",
    "a: ",
    "rlmods.data.Stories",
    "!!python/name:os.system",
    "? ",
    "<<: ",
    '"',
    "seed: 1",
    "_target_: {a: os.system}",
    "[_target_, os.system]",
)
OTHERS: tuple[Any, ...] = (
    "torch.load",
    "os.system",
    "builtins.eval",
    "subprocess.Popen",
    "rlmods.run.files.atomic_write",
    "rlmods.cli.evaluate.evaluate",
    "hydra.utils.instantiate",
    "rlmods.reward.accuracy.os.system",
    "rlmods.reward.Nonsense",
    "",
    5,
    None,
    ["os.system"],
)
LLM_JUDGE = [
    "reward=rating",
    "+judge@reward.judge=llm",
    "reward.judge.url=http://h/v1",
    "reward.judge.model=m",
]


@lru_cache(maxsize=8)
def composed(*overrides: str) -> DictConfig:
    return OmegaConf.masked_copy(configuration(list(overrides)), list(RUN_KEYS))


def saved(folder: Path, *overrides: str, **changes: Any) -> Path:
    """Write the configuration of a run, with changes by key (`__` for a dot)."""
    config = copy.deepcopy(composed(*overrides))
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    OmegaConf.save(config, folder / "config.yaml")
    return folder / "config.yaml"


def whole_run(folder: Path, **changes: Any) -> Path:
    """Write all settings of a run, with changes by key (`__` for a dot)."""
    config = configuration([])
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    OmegaConf.save(config, folder / "config.yaml")
    return folder / "config.yaml"


class TestTargets:
    @pytest.mark.parametrize(
        ("key", "target"),
        [
            *(("data._target_", target) for target in OTHERS),
            *(
                (key, "os.system")
                for key in (
                    "reward.terms.math.reward._target_",
                    "rollout.nested._target_",
                    "data.list.0._target_",
                )
            ),
        ],
    )
    def test_others_are_refused_by_key(self, key: str, target: Any, tmp_path: Path) -> None:
        path = saved(tmp_path, "reward=math")
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        node: Any = config
        *parents, last = key.split(".")
        for parent in parents:
            node = (
                node[int(parent)]
                if isinstance(node, list)
                else node.setdefault(parent, [{}] if parent == "list" else {})
            )
        node[last] = target
        path.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
        with pytest.raises(
            UserError, match=rf"config.yaml: {key}=.* no part of rlmods or of your plugins"
        ) as error:
            read_received(path, RUN_KEYS)
        assert "\n" not in str(error.value)

    def test_of_validation_are_read(self, tmp_path: Path) -> None:
        parts = {
            "validation__data__x": {"_target_": "rlmods.data.Stories"},
            "validation__reward": {"_target_": "rlmods.reward.Format"},
        }
        path = saved(tmp_path, **parts)
        assert read_received(path, RUN_KEYS)["validation"]["reward"] == {
            "_target_": "rlmods.reward.Format"
        }
        again = configuration(["reward@validation.reward=accuracy"], saved=path, run_keys=RUN_KEYS)
        assert again.validation.reward._target_ == "rlmods.reward.Accuracy"
        assert again.validation.data.x._target_ == "rlmods.data.Stories"

    @pytest.mark.parametrize(
        ("key", "target"),
        [
            ("data._target_", "rlmods.callbacks.Samples"),
            ("data._target_", "rlmods.reward.Accuracy"),
            ("reward._target_", "rlmods.data.Stories"),
            ("reward._target_", "rlmods.judge.LLM"),
            ("reward.terms.math.reward._target_", "rlmods.judge.LLM"),
            ("reward.rewards.judge._target_", "rlmods.judge.LLM"),
            ("rollout.judge._target_", "rlmods.judge.LLM"),
            ("validation.data.x._target_", "rlmods.reward.Accuracy"),
            ("validation.reward._target_", "rlmods.data.Stories"),
            ("validation.sampler._target_", "rlmods.data.Stories"),
        ],
    )
    def test_of_another_group_are_refused(self, key: str, target: str, tmp_path: Path) -> None:
        with pytest.raises(
            UserError,
            match=rf"config.yaml: {key}=.* no part of rlmods or of your plugins for this place",
        ):
            read_received(
                saved(tmp_path, "reward=math", **{key.replace(".", "__"): target}), RUN_KEYS
            )

    @pytest.mark.parametrize(
        "key",
        [
            *(
                f"{group}._target_"
                for group in (
                    "policy",
                    "adapter",
                    "reference",
                    "judge",
                    "preference",
                    "ranking",
                    "sampling",
                    "critic",
                )
            ),
            *(
                "optimizer._target_",
                "trainer._target_",
                "algo._target_",
                "ptx._target_",
                "teacher.policy._target_",
            ),
            *(
                "callbacks.samples._target_",
                "callbacks.mine._target_",
                "logger.default._target_",
                "unknown._target_",
                "_target_",
            ),
        ],
    )
    def test_those_that_the_command_does_not_create_are_refused_too(
        self, key: str, tmp_path: Path
    ) -> None:
        """Another command may create them."""
        path = whole_run(tmp_path, **{key.replace(".", "__"): "os.system"})
        top = key.split(".")[0]
        advice = (
            "give another run"
            if top in ("policy", "ptx", "unknown", "_target_")
            else f"type {top}=OPTION"
        )
        with pytest.raises(
            UserError,
            match=rf"config.yaml: {key}=os.system is no part .* and is not executed: {advice}",
        ):
            read_received(path, RUN_KEYS)
        if top not in ("_target_", "unknown"):
            assert read_received(path, RUN_KEYS, {top})["seed"] == 1

    def test_arguments_of_a_part_that_the_command_does_not_create_are_refused_too(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(
            UserError, match=r"optimizer\._args_\.0: _args_ changes how parts are created"
        ):
            read_received(whole_run(tmp_path, optimizer___args_=[1]), RUN_KEYS)

    @pytest.mark.parametrize(
        "overrides",
        [
            (),
            (
                "algo=distill",
                "+policy@teacher.policy=tiny",
                "adapter=lora",
                "logger=csv",
                "trainer=fsdp",
                "critic=none",
            ),
            (
                "algo=sft",
                "data@ptx=mixture",
                "+data@ptx.sources.a=jsonl",
                "router=two_stage",
                "schedule=kl_adaptive",
            ),
            (
                "algo=ppo",
                "reference=model",
                "+policy@reference.policy=hf",
                "judge=rule",
                "+reward@judge.reward=math",
            ),
            (
                "+callbacks.early._target_=lightning.pytorch.callbacks.EarlyStopping",
                "optimizer._target_=torch.optim.SGD",
            ),
            ("+callbacks.mine._target_=brevity.Brevity",),
        ],
    )
    def test_every_part_of_an_own_run_is_known(
        self, overrides: tuple[str, ...], tmp_path: Path
    ) -> None:
        plugins.register()
        OmegaConf.save(configuration(overrides), tmp_path / "config.yaml")
        assert set(read_received(tmp_path / "config.yaml", RUN_KEYS)) == set(RUN_KEYS)

    @pytest.mark.parametrize(
        "target",
        [
            "lightning.pytorch.callbacks.early_stopping.log",
            "lightning.pytorch.loggers.utilities.os.system",
        ],
    )
    def test_what_a_library_imports_is_no_class_of_it(self, target: str) -> None:
        assert not is_known_class(target, "callbacks")
        assert not is_known_class(target, "logger")

    def test_of_the_group_at_a_place_are_used(self, tmp_path: Path) -> None:
        for overrides in (
            ["data=mixture", "+data@data.sources.reward=arithmetic", "+data@data.sources.b=gsm8k"],
            [
                "reward=by_source",
                "+reward@reward.rewards.judge=math",
                "+reward@reward.rewards.data=code",
            ],
            ["reward=preference", "+judge@reward.judge=rule", "+reward@reward.judge.reward=math"],
        ):
            assert "_target_" in read_received(saved(tmp_path, *overrides), RUN_KEYS)["data"]

    @pytest.mark.parametrize(
        "key", ["data._partial_", "rollout._args_", "reward.terms.math.reward._recursive_"]
    )
    def test_keys_that_change_the_creation_are_refused(self, key: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"config.yaml: {key}.* changes how parts are created"):
            read_received(
                saved(
                    tmp_path,
                    "reward=math",
                    **{key.replace(".", "__"): [1] if "args" in key else True},
                ),
                RUN_KEYS,
            )

    def test_nothing_is_executed_by_evaluate(self, tmp_path: Path) -> None:
        (tmp_path / "export").mkdir()
        path = saved(tmp_path)
        path.write_text(
            f"data: {{_target_: pathlib.Path.touch, self: {{_target_: pathlib.Path, _args_: "
            f"[{tmp_path}/executed]}}}}\n"
        )
        with pytest.raises(UserError, match=r"data\._target_=pathlib\.Path\.touch"):
            evaluate(str(tmp_path), [])
        assert not (tmp_path / "executed").exists()

    def test_own_parts_and_what_is_typed(self, tmp_path: Path) -> None:
        path = saved(tmp_path, "reward=math", data___target_="os.getcwd")
        assert (
            configuration(
                ["data._target_=rlmods.data.Stories"], saved=path, run_keys=RUN_KEYS
            ).data._target_
            == "rlmods.data.Stories"
        )
        assert (
            configuration(["data=arithmetic"], saved=path, run_keys=RUN_KEYS).data._target_
            == "rlmods.data.Arithmetic"
        )

    def test_plugins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        option = tmp_path / "received_plugin/reward/mine.yaml"
        option.parent.mkdir(parents=True)
        option.write_text("_target_: received_plugin.Mine\n")
        (tmp_path / "received_plugin/received_plugin.py").write_text(
            "import os\nfrom subprocess import Popen\nclass Mine: pass\nclass Other: "
            "pass\ndef function(): pass\n"
        )
        monkeypatch.setattr(plugins.PluginFolders, "folders", plugins.PluginFolders.folders)
        monkeypatch.setattr(sys, "path", [*sys.path])
        plugins.register(tmp_path)
        assert is_known_class("received_plugin.Mine", "reward")
        assert is_known_class("received_plugin.Other", "reward")
        for target in ("Popen", "os.system", "function", "Nonsense", "nowhere.Mine"):
            assert not is_known_class(f"received_plugin.{target}", "reward")
        assert not is_known_class("received_plugin_too.Mine", "reward")
        monkeypatch.setattr(plugins.PluginFolders, "folders", (tmp_path / "empty",))
        assert not is_known_class("received_plugin.Mine", "reward")


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            "${oc.env:RECEIVED_SECRET}",
            "x${oc.env:RECEIVED_SECRET,none}",
            "${oc.decode:${a}}",
            "${${a}:HOME}",
        ],
    )
    def test_resolvers_are_refused(
        self, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RECEIVED_SECRET", "sk-secret")
        path = saved(tmp_path)
        path.write_text(
            path.read_text() + f"validation:\n  name: '{value}'\n"
            if "validation:" not in path.read_text()
            else path.read_text()
        )
        config = OmegaConf.load(path)
        OmegaConf.update(config, "data.name", value, force_add=True)
        OmegaConf.save(config, path)
        with pytest.raises(UserError, match=r"data\.name=.* calls a resolver") as error:
            configuration([], saved=path, run_keys=RUN_KEYS)
        assert "sk-secret" not in str(error.value)

    def test_packages_are_imported_only_if_their_names_are_typed(self, tmp_path: Path) -> None:
        path = saved(tmp_path, data__env_id="somebody:Environment")
        with pytest.raises(
            UserError,
            match=r"data\.env_id=somebody:Environment imports .* type "
            r"data\.env_id=somebody:Environment",
        ):
            read_received(path, RUN_KEYS)
        assert (
            read_received(path, RUN_KEYS, ("data.env_id",))["data"]["env_id"]
            == "somebody:Environment"
        )

    def test_recorded_folders_of_plugins_are_named_but_not_used(self, tmp_path: Path) -> None:
        path = saved(tmp_path, reward___target_="elsewhere.Mine")
        with pytest.raises(UserError, match="is not executed: type reward=OPTION"):
            read_received(path, RUN_KEYS)
        path.with_name("versions.txt").write_text(
            "command python train.py\nplugins /my plugins\x1b[2J\n"
        )
        with pytest.raises(
            UserError,
            match=r"if you trust its plugins, set RLMODS_PLUGINS='/my plugins.*', or type "
            r"reward=OPTION",
        ):
            read_received(path, RUN_KEYS)

    def test_what_reaches_beyond_the_process_is_typed(self, tmp_path: Path) -> None:
        path = saved(
            tmp_path,
            *LLM_JUDGE,
            reward__judge__key_variable="AWS_SECRET",
            reward__judge__cache="/etc/x",
        )
        with pytest.raises(
            UserError, match=r"if you trust this run, type reward\.judge\.url=http://h/v1 "
        ) as error:
            read_received(path, RUN_KEYS)
        typed = str(error.value).split(" type ")[1].split()
        assert sorted(typed) == [
            "reward.judge.cache=/etc/x",
            "reward.judge.key_variable=AWS_SECRET",
            "reward.judge.url=http://h/v1",
        ]
        assert configuration(typed, saved=path, run_keys=RUN_KEYS).reward.judge.cache == "/etc/x"
        with pytest.raises(UserError, match=r"type reward\.judge\.cache"):
            configuration(typed[:2], saved=path, run_keys=RUN_KEYS)

    def test_addresses_of_servers_and_the_folder_of_weights_are_typed(self, tmp_path: Path) -> None:
        path = saved(
            tmp_path,
            "rollout=vllm_server",
            "rollout.urls=[http://h:1,'http://i:2/?a=$(touch x)']",
            rollout__folder="/etc/x",
        )
        with pytest.raises(
            UserError, match=r"rollout\.urls=.* sends prompts and weights there"
        ) as error:
            read_received(path, RUN_KEYS)
        typed = shlex.split(str(error.value).split(" type ")[1])
        assert [x.split("=")[0] for x in typed] == [
            "rollout.urls",
            "rollout.folder",
            "rollout.key_variable",
        ]
        assert configuration(typed, saved=path, run_keys=RUN_KEYS).rollout.urls == [
            "http://h:1",
            "http://i:2/?a=$(touch x)",
        ]
        for missing in typed:
            with pytest.raises(UserError, match="if you trust this run"):
                configuration([x for x in typed if x != missing], saved=path, run_keys=RUN_KEYS)

    def test_folders_that_parts_of_lightning_write_are_typed(self, tmp_path: Path) -> None:
        profiler = {
            "_target_": "lightning.pytorch.profilers.SimpleProfiler",
            "dirpath": "/etc",
            "filename": "x",
        }
        path, keys = whole_run(tmp_path, trainer__profiler=profiler), (*RUN_KEYS, "trainer")
        with pytest.raises(
            UserError, match=r"writes files there: .* type trainer\.profiler\.dirpath=/etc"
        ):
            read_received(path, keys)
        assert (
            read_received(path, keys, ("trainer.profiler.dirpath",))["trainer"]["profiler"]
            == profiler
        )

    def test_weights_of_pickle_are_typed(self, tmp_path: Path) -> None:
        path, keys = whole_run(tmp_path, policy__allow_pickle=True), (*RUN_KEYS, "policy")
        with pytest.raises(UserError, match=r"type policy\.allow_pickle=True"):
            read_received(path, keys)
        assert read_received(path, keys, ("policy.allow_pickle",))["policy"]["allow_pickle"]
        assert not read_received(whole_run(tmp_path, policy__allow_pickle=False), keys)["policy"][
            "allow_pickle"
        ]

    @settings(max_examples=150, deadline=None)
    @given(
        value=st.text("ab1 '\"\\$(){}[],:=;&|`~#!*?é\n\x1b")
        | st.sampled_from(["null", "True", "1e5", "-1", "nan"])
    )
    @example(value="\\\n")
    def test_what_is_to_be_typed_is_quoted(self, value: str) -> None:
        if "${" in value:  # an interpolation, of another setting only
            return
        [override] = shlex.split(_override("reward.judge.url", value))
        assert OverridesParser.create().parse_override(override).value() == value

    def test_a_url_runs_nothing_when_pasted(self, tmp_path: Path) -> None:
        path = saved(tmp_path, *LLM_JUDGE, reward__judge__url="http://h/v1?a=$(touch x)")
        with pytest.raises(UserError, match="if you trust this run") as error:
            read_received(path, RUN_KEYS)
        typed = shlex.split(str(error.value).split(" type ")[1])
        assert (
            configuration(typed, saved=path, run_keys=RUN_KEYS).reward.judge.url
            == "http://h/v1?a=$(touch x)"
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"data": "abc"}, r"data is missing or not a part: type data=OPTION"),
            ({"rollout": ["x"]}, r"rollout is missing or not a part: type rollout=OPTION"),
            ({"reward": None}, r"reward is missing or not a part"),
            ({"data": {"num_val": 2}}, r"data is missing or not a part"),
            ({"validation": 3}, r"validation is not a group of settings"),
            ({"seed": "abc"}, r"seed is not a whole number: type seed=NUMBER"),
        ],
    )
    def test_settings_of_another_shape(
        self, change: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        config = OmegaConf.to_container(composed("reward=math"), resolve=False)
        assert isinstance(config, dict)
        OmegaConf.save(OmegaConf.create(config | change), tmp_path / "config.yaml")
        with pytest.raises(UserError, match=f"config.yaml: {message}"):
            read_received(tmp_path / "config.yaml", RUN_KEYS)

    def test_weaker_walls_are_typed(self, tmp_path: Path) -> None:
        assert (
            configuration([], saved=saved(tmp_path, "reward=code"), run_keys=RUN_KEYS).reward.walls
            == "full"
        )
        path = saved(tmp_path, "reward=code", "reward.walls=limits")
        with pytest.raises(UserError, match=r"reward\.walls=limits weakens the sandbox"):
            configuration([], saved=path, run_keys=RUN_KEYS)

    @pytest.mark.parametrize(
        "text",
        [
            "data: [",
            "- 1",
            "5",
            "",
            "data: !!python/object/apply:os.system [true]",
            "data: ${",
            "\x00",
        ],
    )
    def test_broken_files_are_one_line(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text(text)
        try:
            assert read_received(tmp_path / "config.yaml", RUN_KEYS) == {}
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017

    @settings(
        max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(pieces=st.lists(st.sampled_from(PIECES), max_size=10))
    @example(pieces=["_target_: os.system", "\n", "\n  ", "{"])
    def test_any_file_holds_known_classes_or_is_one_line(
        self, pieces: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "config.yaml").write_text("".join(pieces))
        try:
            settings = read_received(tmp_path / "config.yaml", RUN_KEYS)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert "os.system" not in str(settings)
            assert "oc.env" not in str(settings)
