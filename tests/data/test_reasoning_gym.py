import sys

import pytest

from rlmods.data import ReasoningGym
from rlmods.errors import UserError

reasoning_gym = pytest.importorskip("reasoning_gym")
SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # 200 questions


def questions(prompts):
    return {p.meta["entry"]["question"] for p in prompts}


@pytest.mark.parametrize("task", ["chain_sum", "leg_counting", "gsm_symbolic", "acre", "boxnet"])
def test_questions_are_unique_and_reproducible(task):
    part = ReasoningGym(task, num_train=40, num_val=10)
    splits = part()
    assert (len(splits.train), len(splits.val)) == (40, 10)
    assert len(questions(splits.train) | questions(splits.val)) == 50
    assert splits == part()
    assert splits.train != ReasoningGym(task, num_train=40, num_val=10, seed=1)().train


def test_a_small_task_is_deduplicated_across_the_splits():
    splits = ReasoningGym(num_train=120, num_val=40, options=SMALL)()
    assert len(questions(splits.train)) == 120
    assert not questions(splits.train) & questions(splits.val)
    assert questions(ReasoningGym(num_train=20, num_val=40, options=SMALL)().val) == questions(
        splits.val
    )


def test_nearby_seeds_share_no_question():
    one, two = (
        ReasoningGym(num_train=300, num_val=50, seed=seed, options={"min_digits": 4})()
        for seed in (0, 1)
    )
    assert not (questions(one.train) | questions(one.val)) & (
        questions(two.train) | questions(two.val)
    )


def test_meta_holds_the_arguments_of_the_scorer():
    prompt = ReasoningGym("countdown", num_train=3, num_val=0)().train[0]
    score = reasoning_gym.get_score_answer_fn(prompt.meta["task"])
    assert score(prompt.answer, prompt.meta["entry"]) == 1.0
    assert score("1", prompt.meta["entry"]) < 1.0
    assert (
        prompt.messages[0]["content"]
        == f"{prompt.meta['entry']['question']}\n\n{ReasoningGym.instruction}"
    )
    assert prompt.meta["response"] == f"<answer>{prompt.answer}</answer>"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "chainsum"}, "data.task=chainsum: did you mean chain_sum"),
        (
            {"options": {"min_term": 2}},
            "data.options=.*min_term.*: not valid for data.task=chain_sum",
        ),
        ({"options": {"min_terms": 9, "max_terms": 2}}, "max_terms must be >= min_terms"),
        (
            {"options": SMALL, "num_train": 900},
            r"only 200 different questions in 4400 draws, 1100 needed; type data.num_val=20 "
            r"data.num_train=180,",
        ),
        ({"num_train": 0}, "data.num_train=0: must be at least 1"),
        ({"seed": -1}, "data.seed=-1"),
    ],
)
def test_errors(fields, message):
    with pytest.raises((UserError, ValueError), match=message) as error:
        ReasoningGym(**fields)()
    assert "\n" not in str(error.value)


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.delitem(sys.modules, "reasoning_gym.factory")
    with pytest.raises(
        UserError,
        match=r"data=reasoning_gym needs the package reasoning_gym; type pip install "
        r"'rlmods\[reasoning-gym\]'",
    ):
        ReasoningGym()()
