"""Responses are grouped by the prompt that they answer, in whatever order a rollout returns
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlmods.algo import Batch
from rlmods.errors import UserError
from rlmods.rollout import Local
from rlmods.rollout.order import generate_in_order
from rlmods.types import Prompt, Response
from tests.support.tiny_setup import SPLITS, attached, learner

PROMPTS = [Prompt(id="b", text="2"), Prompt(id="a", text="1"), Prompt(id="b", text="2")]


class Engine:
    """Returns the responses in another order, or other ones."""

    def __init__(self, change: Callable[[list[Response]], Sequence[Response]]) -> None:
        self.change = change

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        made = [
            Response(p, text=f"{p.id} {i}", meta={"iteration": iteration})
            for p in prompts
            for i in range(samples)
        ]
        return list(self.change(made))

    def sync(self, policy: Any, *, iteration: int) -> None:
        pass


def sample_major(responses: list[Response]) -> list[Response]:
    return [r for i in range(2) for r in responses[i::2]]


@pytest.mark.parametrize(
    "change", [list, reversed, sample_major, lambda rs: sorted(rs, key=lambda r: r.text)]
)
def test_is_prompt_major(change: Any) -> None:
    found = generate_in_order(Engine(change), PROMPTS, samples=2, iteration=3)
    assert [r.prompt.id for r in found] == ["b", "b", "a", "a", "b", "b"]
    assert sorted(r.text for r in found) == ["a 0", "a 1", "b 0", "b 0", "b 1", "b 1"]
    assert all(r.meta["iteration"] == 3 for r in found)


def test_responses_to_a_prompt_stay_in_the_order_in_which_they_were_returned() -> None:
    prompts = [Prompt(id=name, text="?") for name in "abc"]
    drawn = [
        Response(prompts[i], [5], [number], [-1.0]) for number, i in enumerate([2, 0, 2, 1, 1, 0])
    ]
    found = generate_in_order(Engine(lambda _: drawn), prompts, samples=2, iteration=1)
    assert [r.prompt.id for r in found] == list("aabbcc")
    assert [r.tokens for r in found] == [[1], [5], [3], [4], [0], [2]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rs: rs[:-1], "3 responses to prompt 'b' instead of 4"),
        (lambda rs: rs[:2], "2 responses to prompt 'b' instead of 4"),
        (lambda rs: [*rs, rs[2]], "3 responses to prompt 'a' instead of 2"),
        (lambda rs: [rs[0]] * len(rs), "6 responses to prompt 'b' instead of 4"),
        (
            lambda rs: [*rs, replace(rs[0], prompt=Prompt(id="c", text="3"))],
            "1 responses to prompt 'c' instead of 0",
        ),
        (lambda rs: [], "0 responses to prompt 'b' instead of 4"),
    ],
)
def test_another_number_of_responses_is_an_error_that_names_the_rollout(
    change: Any, says: str
) -> None:
    with pytest.raises(UserError, match="rollout Engine: generate returned") as error:
        generate_in_order(Engine(change), PROMPTS, samples=2, iteration=0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


class Shuffled(Local):
    """Returns the responses sample-major."""

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        made = super().generate(prompts, samples=samples, iteration=iteration)
        return [r for i in range(samples) for r in made[i::samples]]


def test_the_loop_groups_by_prompt() -> None:
    rows = [
        attached(learner(rollout=kind(max_tokens=8), batch=Batch(prompts=4, samples=4))).sample(
            SPLITS.train[:4]
        )[0]
        for kind in (Local, Shuffled)
    ]
    assert torch.equal(rows[0].tokens, rows[1].tokens)
    assert torch.equal(rows[0].advantages, rows[1].advantages)
    assert rows[0].advantages.any()
