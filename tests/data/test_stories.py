import re
from collections import Counter

import pytest

from rlmods.data import Stories
from rlmods.data.stories import BOXES, LESS, MORE
from rlmods.errors import UserError
from rlmods.reward.accuracy import verify


@pytest.mark.parametrize("num_candidates", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_one_candidate_is_correct_at_a_uniform_position(level, num_candidates):
    part = Stories(level=level, num_train=1000, num_val=50, num_candidates=num_candidates)
    splits = part()
    for prompt in (*splits.train, *splits.val):
        candidates, ranks = prompt.meta["candidates"], prompt.meta["ranks"]
        assert len(set(candidates)) == len(ranks) == num_candidates
        assert [verify(text, prompt.answer) for text in candidates] == [rank == 0 for rank in ranks]
        assert candidates[ranks.index(0)] == prompt.meta["response"]
        assert all(int(text) >= 0 for text in candidates)
    best = Counter(prompt.meta["ranks"].index(0) for prompt in splits.train)
    assert all(n == pytest.approx(1000 / num_candidates, rel=0.2) for n in best.values())
    assert len(best) == num_candidates
    assert splits == part()


def pattern(template):
    """Return the regular expression of a sentence's template; a name or a thing is any word."""
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.sub(
        r"\{(.)\w*\}", lambda field: r"(\d+)" if field[0] in ("{k}", "{n}") else r"\w+", escaped
    )


def solve(story):
    """Count the things by reading the story sentence by sentence."""
    things = 0
    for sentence in re.findall(r"[^.?]+\.", story):
        sentence = sentence.strip()
        if start := re.fullmatch(r"\w+ has (\d+) \w+\.", sentence):
            things = int(start[1])
        elif boxes := next(filter(None, (re.fullmatch(pattern(t), sentence) for t in BOXES)), None):
            things = int(boxes[1]) * int(boxes[2])
        elif loss := next(filter(None, (re.fullmatch(pattern(t), sentence) for t in LESS)), None):
            things -= int(loss[1])
        else:
            gain = next(filter(None, (re.fullmatch(pattern(t), sentence) for t in MORE)))
            things += int(gain[1])
    return things


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_answer_follows_from_the_story(level):
    for prompt in Stories(
        level=level, num_train=300, num_val=20, template="{story}", chat=False
    )().train:
        assert str(solve(prompt.text)) == prompt.answer, prompt.text


def test_splits_share_no_story():
    splits = Stories(num_train=300, num_val=100)()
    train, val = (
        {p.messages[-1]["content"] for p in split} for split in (splits.train, splits.val)
    )
    assert (len(train), len(val)) == (300, 100)
    assert not train & val


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": 4}, "data.level=4: must be one of 1, 2, 3"),
        ({"num_candidates": 10}, "data.num_candidates=10: must be from 1 to 9"),
    ],
)
def test_errors(fields, message):
    with pytest.raises((UserError, ValueError), match=message):
        Stories(**fields)()
