"""Rules on environments of several turns, and runs that have one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlmods.branching import Entropy
from rlmods.cli.evaluate import evaluate
from rlmods.environment import GuessNumber
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds
from rlmods.policy.tiny import WEIGHTS
from rlmods.rollout import MultiTurn
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
