import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmods.data import Arithmetic
from rlmods.types import UserError

LEVELS = range(1, 6)


@settings(max_examples=25, deadline=None)
@given(levels=st.tuples(st.sampled_from(LEVELS), st.sampled_from(LEVELS)), seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_no_question_of_train_is_in_val_whatever_the_seeds_and_levels(levels, seeds):
    one, other = (Arithmetic(level=level, seed=seed, num_train=300)() for level, seed in zip(levels, seeds, strict=True))
    assert not {p.text for p in one.train} & {p.text for p in other.val}
    ids = [p.id for p in (*one.train, *one.val)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("level", LEVELS)
def test_answers_questions_and_demonstrations(level):
    splits = Arithmetic(level=level, operations="+-*", num_train=400)()
    shape = {4: r"\d\d\*[2-9]", 5: r"\(\d{1,2}[-+*]\d{1,2}\)\*[2-9]"}.get(level, rf"\d{{1,{level}}}[-+*]\d{{1,{level}}}")
    for prompt in (*splits.train, *splits.val):
        question = prompt.text.removesuffix("=")
        assert re.fullmatch(shape, question)
        assert prompt.answer == str(eval(question))
        assert prompt.meta == {"level": level, "response": f"<answer>{prompt.answer}</answer>"}
        assert prompt.id in (f"arithmetic-{level}-train-{question}", f"arithmetic-{level}-val-{question}")


def test_a_small_level_is_used_up():
    splits = Arithmetic(level=1)()
    assert {p.text for p in (*splits.train, *splits.val)} == {f"{a}{op}{b}=" for a in range(10) for op in "+-" for b in range(10)}
    assert len(splits.val) > 20


def test_one_seed_is_one_data_set_and_sizes_only_cut_it():
    full, same, other = Arithmetic()(), Arithmetic()(), Arithmetic(seed=1)()
    assert full == same
    assert full.train != other.train
    assert (len(full.train), len(full.val)) == (10_000, 200)
    short = Arithmetic(num_train=50, num_val=7)()
    assert (short.train, short.val) == (full.train[:50], full.val[:7])


@pytest.mark.parametrize("share", [0.0, 0.35, 1.0])
def test_wrong_fraction_is_exact_and_leaves_answers_and_val_alone(share):
    splits, clean = Arithmetic(num_train=1000, wrong_fraction=share)(), Arithmetic(num_train=1000)()
    wrong = [p for p in splits.train if p.meta["response"] != f"<answer>{p.answer}</answer>"]
    assert len(wrong) == round(share * 1000)
    assert [p.answer for p in splits.train] == [p.answer for p in clean.train]
    assert splits.val == clean.val
    assert splits == Arithmetic(num_train=1000, wrong_fraction=share)()
    for prompt in wrong:
        stated = re.fullmatch(r"<answer>(-?\d+)</answer>", prompt.meta["response"])[1]
        near = abs(int(stated) - int(prompt.answer)) in (1, 10)
        assert near or sorted(stated.lstrip("-").zfill(9)) == sorted(prompt.answer.lstrip("-").zfill(9))


def test_chat_and_templates():
    prompt = Arithmetic(chat=True, template="What is {question}?", response="<think></think><answer>{answer}</answer>")().train[0]
    assert prompt.text is None
    assert re.fullmatch(r"What is \d+[-+]\d+\?", prompt.messages[0]["content"])
    assert prompt.meta["response"] == f"<think></think><answer>{prompt.answer}</answer>"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": 6}, "data.level=6: choose from 1, 2, 3, 4, 5"),
        ({"operations": "+/"}, r"data.operations=\+/: choose from \+ - \*"),
        ({"operations": ""}, "data.operations="),
        ({"num_train": 0}, "data.num_train=0: must be a whole number of at least 1"),
        ({"num_val": -1}, "data.num_val=-1"),
        ({"wrong_fraction": 1.5}, "data.wrong_fraction=1.5: must lie between 0 and 1"),
        ({"template": "{prompt}="}, r"data.template: no \{prompt\} to fill in; there are: question"),
        ({"response": "\\boxed{}"}, "data.response=.*write a literal brace twice"),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(UserError, match=message) as error:
        Arithmetic(**fields)()
    assert "\n" not in str(error.value)
