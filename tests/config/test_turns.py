"""Rules on environments of several turns, and runs that have one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlmods.branching import Entropy
from rlmods.cli.command import configuration
from rlmods.cli.evaluate import RUN_KEYS, evaluate
from rlmods.config import plugins
from rlmods.config.received import read_received
from rlmods.environment import GuessNumber
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds
from rlmods.policy.tiny import WEIGHTS
from rlmods.rollout import Local, MultiTurn
from tests.support.composed import composed, loaded

GAME = ("data=hidden_number", "reward=environment", "environment=guess_number")
TIMED = (
    GAME[0],
    GAME[2],
    "reward=math",
    "+reward@reward.terms.game.reward=environment",
    "+reward.terms.game.timeout_s=5",
)
FOUR = r"prompt .*: its answer 'four' is not a whole number"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Questions whose answers are not numbers."""
    file = tmp_path / "rows.jsonl"
    rows = (f'{{"prompt": "Guess {i}:", "answer": "four"}}\n' for i in range(40))
    file.write_text("".join(rows))
    return file


def named(file: Path) -> list[str]:
    """Return the overrides that validate on a file too."""
    other = "validation.data.other"
    return [f"+data@{other}=jsonl", f"{other}.train={file}", f"{other}.num_val=4"]


class TestRules:
    def test_single_turn_leaves_the_rollout_as_it_is(self) -> None:
        assert type(composed().parts["rollout"]) is Local

    def test_a_game_wraps_it(self) -> None:
        made = composed("algo=ppo", *GAME, "environment.max_tokens=40")
        assert isinstance(made.parts["rollout"], MultiTurn)
        assert made.parts["rollout"].max_tokens == 40
        assert made.label == "ppo"

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            (
                ("reward=environment",),
                r"environment=single_turn gives none: type environment=guess_number",
            ),
            (
                TIMED,
                r"this reward reads the turns of a response, which workers do not get: drop "
                r"timeout_s",
            ),
            (
                (*GAME, "algo=online_dpo"),
                r"algo=online_dpo trains on responses of one turn, .*: type "
                r"environment=single_turn",
            ),
            (("environment=tools", "environment.tools=[search]"), r"search needs documents"),
            ((*GAME, "environment.max_turns=0"), r"environment\.max_turns=0: must be at least 1"),
            (
                ("branching=entropy",),
                r"branching=entropy: .* environment=single_turn has none: type environment=tools",
            ),
            (
                (*GAME, "branching=entropy"),
                r"branching\.num_initial=8 leaves none of batch\.samples=8 .*: type "
                r"branching\.num_initial=4",
            ),
            (
                (*GAME, "branching=entropy", "rollout=vllm"),
                r"rollout=vllm does not return the entropies .*: type rollout=local",
            ),
        ],
    )
    def test_say_what_to_type(self, typed: tuple[str, ...], message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            composed(*typed)
        assert "\n" not in str(error.value)

    def test_the_limit_of_several_turns_is_named(self) -> None:
        with pytest.raises(
            UserError,
            match=r"environment\.max_tokens=512 that exceeds .* type a smaller "
            r"environment\.max_tokens",
        ):
            loaded(
                "algo=arpo",
                "environment.max_tokens=512",
                "policy.pretrained=false",
                "policy.hidden_size=32",
            )

    def test_prompts_must_begin_an_episode(self, words: Path) -> None:
        typed = ("data=jsonl", f"data.train={words}", "data.num_val=4")
        with pytest.raises(UserError, match=f"environment=guess_number cannot begin with {FOUR}"):
            composed("environment=guess_number", "reward=environment", *typed)

    def test_so_must_those_of_named_sets(self, words: Path) -> None:
        with pytest.raises(UserError, match=f"environment=guess_number cannot begin with {FOUR}"):
            composed(*GAME, *named(words))

    def test_so_must_those_of_an_evaluation(self, words: Path) -> None:
        game = ["environment=guess_number", "reward=environment"]
        for typed in (
            ["data=jsonl", f"data.train={words}", "data.num_val=4"],
            ["data=hidden_number", *named(words)],
        ):
            with pytest.raises(UserError, match=f"environment: no episode begins with {FOUR}"):
                evaluate(str(WEIGHTS), [*typed, *game])

    def test_arpo_branches(self) -> None:
        rollout = composed("algo=arpo").parts["rollout"]
        assert isinstance(rollout, MultiTurn)
        assert rollout.branching == Entropy()
        assert composed(*GAME).parts["rollout"].branching is None

    def test_episodes_that_cannot_be_copied_do_not_branch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(GuessNumber, "needs", EnvironmentNeeds(copies=False), raising=False)
        with pytest.raises(
            UserError,
            match=r"episodes of environment=guess_number cannot be copied, .*: type branching=none",
        ):
            composed("algo=arpo", *GAME)

    def test_sft_is_validated_in_an_environment(self) -> None:
        assert isinstance(composed("algo=sft", "environment=tools").parts["rollout"], MultiTurn)


@pytest.fixture
def own_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin with a function, which imports another one."""
    folder = tmp_path / "plugins/received_tools"
    folder.mkdir(parents=True)
    (folder / "received_tools.py").write_text(
        "from shutil import rmtree\ndef own(text: str) -> str: return text\n"
    )
    monkeypatch.setattr(plugins.PluginFolders, "folders", plugins.PluginFolders.folders)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "received_tools", raising=False)
    plugins.register(tmp_path / "plugins")


class TestReceived:
    def settings(self, folder: Path, environment: str) -> Path:
        path = folder / "config.yaml"
        path.write_text(f"seed: 1\nenvironment:\n{environment}")
        return path

    @pytest.mark.parametrize(
        "settings",
        [
            "tools: [calculator, os.system]",
            "tools: {os.system: 1}",
            "tools: ${rollout.stop}",
            "tools: [[os.system]]",
            "tools: ['${rollout.stop.0}']",
            "tools: [brevity.os.system]",
            "tools: [received_tools.rmtree]",
            "format: {_target_: rlmods.environment.Tools, tools: [os.system]}",
            "documents: /etc/passwd",
        ],
    )
    def test_functions_and_files_of_others_need_trust(
        self, settings: str, own_plugin: None, tmp_path: Path
    ) -> None:
        path = tmp_path / "config.yaml"
        config = OmegaConf.masked_copy(configuration(["environment=tools"]), list(RUN_KEYS))
        config.rollout.stop = ["os.system"]
        config.environment = OmegaConf.create(f"_target_: rlmods.environment.Tools\n{settings}\n")
        OmegaConf.save(config, path)
        with pytest.raises(UserError, match=r"environment\..* type --trust") as error:
            configuration([], saved=path, run_keys=RUN_KEYS)
        assert "\n" not in str(error.value)
        own = configuration(["environment=tools"], saved=path, run_keys=RUN_KEYS)
        assert own.environment.tools == ["calculator"]
        if settings.startswith("tools: ["):
            typed = ["environment.tools=[search]"]
            own = configuration(typed, saved=path, run_keys=RUN_KEYS)
            assert own.environment.tools == ["search"]

    def test_functions_of_own_plugins_are_fine(self, own_plugin: None, tmp_path: Path) -> None:
        path = self.settings(
            tmp_path, "  _target_: rlmods.environment.Tools\n  tools: [received_tools.own]\n"
        )
        assert read_received(path, ("environment", "seed"))["environment"]["tools"] == [
            "received_tools.own"
        ]

    def test_built_in_tools_are_fine(self, tmp_path: Path) -> None:
        path = self.settings(
            tmp_path, "  _target_: rlmods.environment.Tools\n  tools: [calculator]\n"
        )
        assert read_received(path, ("environment", "seed"))["environment"]["tools"] == [
            "calculator"
        ]

    def test_runs_without_an_environment_are_fine(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("seed: 1\n")
        assert read_received(tmp_path / "config.yaml", ("environment", "seed")) == {"seed": 1}
