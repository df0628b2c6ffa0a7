import hashlib
import re

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.data import Arithmetic
from rlmods.errors import UserError
from rlmods.grading.grader import extract
from rlmods.policy import Tiny
from rlmods.reward.accuracy import verify

LEVELS = range(1, 6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    levels=st.tuples(st.sampled_from(LEVELS), st.sampled_from(LEVELS)),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_train_and_val_share_no_question_at_any_seed_and_level(levels, seeds):
    one, other = (
        Arithmetic(level=level, seed=seed, num_train=300)()
        for level, seed in zip(levels, seeds, strict=True)
    )
    assert not {p.text for p in one.train} & {p.text for p in other.val}
    ids = [p.id for p in (*one.train, *one.val)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("level", LEVELS)
def test_questions_answers_and_responses(level):
    splits = Arithmetic(level=level, operations="+-*", num_train=400)()
    shape = {4: r"\d\d\*[2-9]", 5: r"\(\d{1,2}[-+*]\d{1,2}\)\*[2-9]"}.get(
        level, rf"\d{{1,{level}}}[-+*]\d{{1,{level}}}"
    )
    for prompt in (*splits.train, *splits.val):
        question = prompt.text.removesuffix("=")
        assert re.fullmatch(shape, question)
        assert prompt.answer == str(eval(question))
        assert (prompt.meta["level"], prompt.meta["response"]) == (
            level,
            f"<answer>{prompt.answer}</answer>",
        )
        assert prompt.id in (
            f"arithmetic-{level}-train-{question}",
            f"arithmetic-{level}-val-{question}",
        )


def test_a_small_level_yields_all_of_its_questions():
    splits = Arithmetic(level=1)()
    assert {p.text for p in (*splits.train, *splits.val)} == {
        f"{a}{op}{b}=" for a in range(10) for op in "+-" for b in range(10)
    }
    assert len(splits.val) > 20


@pytest.mark.slow
def test_data_depends_on_the_seed_and_smaller_sizes_are_prefixes():
    full, same, other = Arithmetic()(), Arithmetic()(), Arithmetic(seed=1)()
    assert full == same
    assert full.train != other.train
    assert (len(full.train), len(full.val)) == (10_000, 200)
    short = Arithmetic(num_train=50, num_val=7)()
    assert (short.train, short.val) == (full.train[:50], full.val[:7])


@pytest.mark.parametrize("share", [0.0, 0.35, 1.0])
def test_wrong_fraction_is_exact_and_changes_only_train_responses(share):
    splits, clean = Arithmetic(num_train=1000, wrong_fraction=share)(), Arithmetic(num_train=1000)()
    wrong_prompts = [
        p for p in splits.train if p.meta["response"] != f"<answer>{p.answer}</answer>"
    ]
    assert len(wrong_prompts) == round(share * 1000)
    assert [p.answer for p in splits.train] == [p.answer for p in clean.train]
    assert splits.val == clean.val
    assert splits == Arithmetic(num_train=1000, wrong_fraction=share)()
    for prompt in wrong_prompts:
        wrong_answer = re.fullmatch(r"<answer>(-?\d+)</answer>", prompt.meta["response"])[1]
        is_near = abs(int(wrong_answer) - int(prompt.answer)) in (1, 10)
        assert is_near or sorted(wrong_answer.lstrip("-").zfill(9)) == sorted(
            prompt.answer.lstrip("-").zfill(9)
        )


@pytest.mark.slow
def test_responses_are_those_of_the_shipped_weights():
    responses = [
        p.meta["response"] for p in Arithmetic(num_train=100_000, wrong_fraction=0.35)().train
    ]
    assert hashlib.sha256("".join(responses).encode()).hexdigest()[:16] == "f9ba22a55e2aff26"


@pytest.mark.parametrize(
    "num_candidates", [5, *[pytest.param(x, marks=pytest.mark.slow) for x in (2, 9)]]
)
@pytest.mark.parametrize("level", LEVELS)
def test_one_candidate_is_correct_and_others_are_ranked_by_distance(level, num_candidates):
    splits = Arithmetic(
        level=level, operations="+-*", num_train=300, num_val=100, num_candidates=num_candidates
    )()
    for prompt in (*splits.train, *splits.val):
        candidates, ranks = prompt.meta["candidates"], prompt.meta["ranks"]
        assert len(set(candidates)) == len(candidates) == len(ranks) == num_candidates
        assert [verify(text, prompt.answer) for text in candidates] == [rank == 0 for rank in ranks]
        assert candidates[ranks.index(0)] == prompt.meta["response"]
        distances = [abs(int(extract(text)) - int(prompt.answer)) for text in candidates]
        assert list(ranks) == [sorted(set(distances)).index(x) for x in distances]


def test_candidates_and_steps_do_not_depend_on_other_settings():
    def columns(*names, **fields):
        splits = Arithmetic(num_train=200, **fields)()
        return [[p.meta[name] for name in names] for p in (*splits.train, *splits.val)]

    assert columns("candidates", "ranks") == columns(
        "candidates", "ranks", wrong_fraction=0.5, wrong_steps=1.0
    )
    assert columns("steps", "step_labels", "response") == columns(
        "steps", "step_labels", "response", num_candidates=4
    )
    one, other = (
        {p.text: p.meta["candidates"] for p in Arithmetic(level=1, seed=seed)().train}
        for seed in (0, 1)
    )
    assert set(one) == set(other)
    assert one != other


@pytest.mark.parametrize("share", [0.5, *[pytest.param(x, marks=pytest.mark.slow) for x in (0, 1)]])
@pytest.mark.parametrize("level", LEVELS)
def test_wrong_steps_and_their_labels(level, share):
    splits = Arithmetic(
        level=level, operations="+-*", num_train=1000, num_val=100, wrong_steps=share
    )()
    num_wrong = 0
    for prompt in (*splits.train, *splits.val):
        steps, labels = prompt.meta["steps"], prompt.meta["step_labels"]
        assert len(steps) == len(labels) >= 2
        assert verify("".join(steps), prompt.answer) == all(labels)
        num_wrong += not all(labels)
    assert num_wrong / (len(splits.train) + len(splits.val)) == pytest.approx(share, abs=0.1)


def test_the_embedded_model_can_encode_all_solutions():
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    longest = 0
    for level in LEVELS:
        for prompt in Arithmetic(level=level, operations="+-*", num_train=500)().train:
            solution = "".join(prompt.meta["steps"])
            longest = max(
                longest, len(policy.encode(prompt)) + len(ids := policy.encode_response(solution))
            )
            assert policy.decode(ids) == solution
    assert longest <= policy.context_length


def test_chat_and_templates():
    fields = {
        "template": "What is {question}?",
        "response": "<think></think><answer>{answer}</answer>",
    }
    prompt = Arithmetic(num_train=1, chat=True, **fields)().train[0]
    assert prompt.text is None
    assert re.fullmatch(r"What is \d+[-+]\d+\?", prompt.messages[0]["content"])
    assert prompt.meta["response"] == f"<think></think><answer>{prompt.answer}</answer>"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": 6}, "data.level=6: must be one of 1, 2, 3, 4, 5"),
        ({"operations": "+/"}, r"data.operations=\+/: choose from \+ - \*"),
        ({"operations": ""}, "data.operations="),
        ({"num_train": 0}, "data.num_train=0: must be at least 1"),
        ({"num_val": -1}, "data.num_val=-1"),
        ({"wrong_fraction": 1.5}, "data.wrong_fraction=1.5: must be from 0 to 1"),
        (
            {"template": "{prompt}="},
            r"data.template: no \{prompt\} to fill in; there are: question",
        ),
        ({"response": "\\boxed{}"}, "data.response=.*write a literal brace twice"),
        ({"response": "{question} is easy"}, r"data.response=.*must state the \{answer\}"),
        ({"num_candidates": 0}, "data.num_candidates=0: must be from 1 to 9"),
        ({"num_candidates": 10}, "data.num_candidates=10: must be from 1 to 9"),
        ({"wrong_steps": -0.1}, "data.wrong_steps=-0.1: must be from 0 to 1"),
    ],
)
def test_errors(fields, message):
    with pytest.raises((UserError, ValueError), match=message) as error:
        Arithmetic(**fields)()
    assert "\n" not in str(error.value)
