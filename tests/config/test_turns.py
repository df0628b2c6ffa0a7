"""Rules on environments of several turns, and runs that have one."""

from pathlib import Path

import pytest

from rlmods.branching import Entropy
from rlmods.cli.evaluate import evaluate
from rlmods.environment import GuessNumber
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds
from rlmods.policy.tiny import FOLDER
from rlmods.rollout import MultiTurn
from tests.support.composed import composed, loaded
from tests.support.rows import write_rows

GAME = ("data=hidden_number", "reward=environment", "environment=guess_number")
FOUR = r"prompt .*: its answer 'four' is not a whole number"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Questions whose answers are not numbers."""
    rows = [{"prompt": f"Guess {i}:", "answer": "four"} for i in range(40)]
    return write_rows(tmp_path / "rows.jsonl", rows)


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
                evaluate(str(FOLDER / "tiny"), [*typed, *game])

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
