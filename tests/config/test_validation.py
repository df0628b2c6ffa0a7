"""Reward and named sets of validation on the command line."""

from pathlib import Path

import pytest

from rlmods.callbacks.progress import format_validation
from rlmods.config import build
from rlmods.errors import UserError
from rlmods.reward import WeightedSum
from tests.support.composed import composed
from tests.support.rows import write_rows

HARD = (
    "+data@validation.data.hard=arithmetic",
    "validation.data.hard.level=3",
    "validation.data.hard.num_val=3",
)
TINY = ("policy.pretrained=false", "policy.hidden_size=32")


class TestReward:
    def test_is_another_one_than_that_of_training(self) -> None:
        made = composed("reward=format", "reward@validation.reward=accuracy")
        assert isinstance(made.validation.reward, WeightedSum)
        assert list(made.validation.reward.terms) == ["accuracy"]
        assert list(made.parts["reward"].terms) == ["format"]
        assert made.choices["reward@validation.reward"] == "accuracy"
        assert made.label == "dapo"

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            (
                "validation.reward=accuracy",
                r"^validation\.reward=accuracy: is not a reward: type "
                r"reward@validation\.reward=OPTION$",
            ),
            (
                "reward@validation.reward=regex",
                r"^reward@validation\.reward=regex needs a pattern: type "
                r"'validation\.reward\.pattern=",
            ),
        ],
    )
    def test_mistakes(self, typed: str, message: str) -> None:
        with pytest.raises(UserError, match=message):
            composed(typed)

    def test_of_prompts_without_answers(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "rows.jsonl", [{"question": f"{i}+1="} for i in range(40)])
        rows = (
            "data=jsonl",
            f"data.train={path}",
            "data.prompt=question",
            "data.num_val=8",
            "data.answer=null",
        )
        message = (
            r"^reward@validation\.reward=accuracy needs gold answers, but prompt .* has none: "
            r"type data\.answer=COLUMN"
        )
        with pytest.raises(UserError, match=message):
            composed(*rows, "reward=format", "reward@validation.reward=accuracy")

    def test_of_an_algorithm_that_grades_nothing(self) -> None:
        experiment = (
            "algo=reward_model",
            "data.wrong_fraction=0.5",
            "reward@validation.reward=accuracy",
        )
        with pytest.raises(
            UserError,
            match=r"^algo=reward_model grades no responses: drop validation\.reward and "
            r"validation\.data$",
        ):
            composed(*experiment)


class TestData:
    def test_sets_by_name(self) -> None:
        made = composed(*HARD)
        assert made.validation.data is not None
        [(name, prompts)] = made.validation.data.items()
        assert (name, len(prompts)) == ("hard", 3)
        assert all(prompt.id.startswith("hard/") for prompt in prompts)
        assert len(made.splits.val) == 8

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            (
                "+data@validation.data=arithmetic",
                r"must be named sets: type \+data@validation\.data\.NAME=OPTION",
            ),
            (
                "+data@validation.data.accuracy=arithmetic",
                r"^validation\.data\.accuracy: type another name",
            ),
            ("validation.data=hard", r"^validation\.data must be named sets"),
            (
                "+validation.data.hard=arithmetic",
                r"^validation\.data\.hard: is not a data set: type "
                r"\+data@validation\.data\.hard=OPTION",
            ),
        ],
    )
    def test_mistakes(self, typed: str, message: str) -> None:
        with pytest.raises(UserError, match=message):
            composed(typed)

    def test_a_set_without_held_out_prompts(self) -> None:
        with pytest.raises(
            UserError,
            match=r"^validation\.data\.hard: no held-out prompts: type "
            r"validation\.data\.hard\.num_val=200$",
        ):
            composed(*HARD, "validation.data.hard.num_val=0")

    def test_errors_name_the_settings_of_the_set(self) -> None:
        with pytest.raises(UserError, match=r"validation\.data\.hard\.level"):
            composed(*HARD, "validation.data.hard.level=99")

    def test_a_set_that_the_reward_cannot_grade(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "rows.jsonl", [{"question": f"{i}+1="} for i in range(40)])
        rows = [
            f"validation.data.x.{key}"
            for key in (f"train={path}", "prompt=question", "num_val=8", "answer=null")
        ]
        with pytest.raises(
            UserError,
            match=r"^reward=math needs gold answers, .*: type validation\.data\.x\.answer=COLUMN",
        ):
            composed("+data@validation.data.x=jsonl", *rows)

    def test_a_set_whose_responses_do_not_fit_the_context(self) -> None:
        with pytest.raises(
            UserError,
            match=r"validation\.max_tokens=100000 .* type a smaller validation\.max_tokens",
        ):
            build.load(composed(*HARD, *TINY, "validation.max_tokens=100000"))

    def test_long_prompts_are_left_out(self, tmp_path: Path) -> None:
        given = [{"question": f"{i * i}+1=", "answer": "1"} for i in range(40)]
        path = write_rows(tmp_path / "rows.jsonl", given)
        rows = [
            f"validation.data.x.{key}"
            for key in (f"train={path}", "prompt=question", "num_val=20", "max_prompt_tokens=5")
        ]
        made = composed("+data@validation.data.x=jsonl", *rows, *TINY)
        named = build.load(made).learner.validation.data["x"]
        assert 0 < len(named) < 20
        assert all(len(prompt.text) <= 5 for prompt in named)


def test_accuracies_of_sets_are_printed() -> None:
    metrics = {
        "val/accuracy": 0.5,
        "val/hard/accuracy": 0.25,
        "val/reward/accuracy": 1.0,
        "val/hard/reward": 2.0,
        "val/hard/pass@4": 0.75,
    }
    assert (
        format_validation(metrics)
        == "val/accuracy 0.500  val/hard/accuracy 0.250  val/hard/pass@4 0.750"
    )
