"""Responses are grouped by their order, so a rollout that returns another one is refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.rollout.order import generate_in_order
from rlmods.types import Prompt, Response

PROMPTS = [Prompt(id="b", text="2"), Prompt(id="a", text="1"), Prompt(id="b", text="2")]


class Engine:
    """Returns the responses in another order, or other ones."""

    temperature = 1.0

    def __init__(self, change: Callable[[list[Response]], Sequence[Response]]) -> None:
        self.change = change

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        made = []
        for prompt in prompts:
            made += [Response(prompt, meta={"iteration": iteration}) for _ in range(samples)]
        return list(self.change(made))

    def sync(self, policy: Any, *, iteration: int) -> None:
        pass


def test_prompt_major_responses_are_returned_as_they_are() -> None:
    found = generate_in_order(Engine(list), PROMPTS, samples=2, iteration=3)
    assert [r.prompt.id for r in found] == ["b", "b", "a", "a", "b", "b"]
    assert all(r.meta["iteration"] == 3 for r in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda rs: rs[:-1],
        lambda rs: [*rs, rs[2]],
        lambda rs: [rs[0]] * len(rs),
        lambda rs: [*rs[::2], *rs[1::2]],
        lambda rs: [],
    ],
    ids=["one is missing", "one more", "of one prompt", "sample-major", "none"],
)
def test_others_are_an_error_that_names_the_rollout(change: Any) -> None:
    with pytest.raises(UserError, match="rollout Engine: generate returned") as error:
        generate_in_order(Engine(change), PROMPTS, samples=2, iteration=0)
    assert "\n" not in str(error.value)
