"""Where steps end, and what a process reward model says there: against the row alone, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.policy import ScalarModel
from rlmods.reward import Process, WeightedSum
from rlmods.reward.process import step_ends
from rlmods.types import Prompt, Response, UserError
from tests.policy.test_base import tokenizer_with_bos
from tests.reward.models import said, save
from tests.reward.test_weighted_sum import composed

PIECES = ["<eos>", "\n", "\n\n", "a", "b", " ", ".\n", "\n\nb", "a\n \nb", "é", "#", "##"]
RESPONSES = [
    said("1+2\n=3\n<answer>3</answer>"),
    said("one step", prompt="9-5="),
    said("a\n\nb\n", finish="length"),
    said("c\n", finish="stop"),
    said(""),
]
ENDS = [[3, 6, 10], [8], [2, 4], [2], [0]]


def decode(tokens: Sequence[int]) -> str:
    """Pieces of different lengths; the first one is special."""
    return "".join(PIECES[t] for t in tokens if t)


def ends(*pieces: str, separator: str = "\n") -> list[int]:
    return step_ends(decode, [PIECES.index(piece) for piece in pieces], separator)


class TestStepEnds:
    @pytest.mark.parametrize(
        ("pieces", "want"),
        [
            (("a", "\n", "b", "<eos>"), [1, 3]),
            (("a", ".\n", "b"), [1, 2]),
            (("a", "\n", "\n", "b", "<eos>"), [2, 4]),  # separators in a row are one
            (("a", "\n", " ", "\n", "b"), [3, 4]),  # also with blanks between
            (("a", "\n", " ", "b"), [1, 3]),  # what indents a step is its own
            (("a", "\n\n", "b"), [1, 2]),
            (("a", "\n\nb", "<eos>"), [1, 2]),  # the token that completes the separator, whatever more it brings
            (("a\n \nb", "\n", "a"), [0, 1, 2]),
            (("a", "\n", "<eos>"), [2]),  # nothing follows: the last step goes on to the last token
            (("a", "\n", " "), [2]),
            (("\n", "a", "<eos>"), [2]),  # nothing before
            (("a", "<eos>"), [1]),
            (("<eos>",), [0]),
            ((" ", "\n"), [1]),
            (("<eos>", "<eos>", "a", "\n", "b"), [3, 4]),
            ((), []),
        ],
    )
    def test_of_every_kind(self, pieces: tuple[str, ...], want: list[int]) -> None:
        assert ends(*pieces) == want

    def test_a_separator_may_take_several_tokens_and_is_no_pattern(self) -> None:
        assert ends("a", "#", "#", "b", "##", "a", "#", "b", separator="##") == [2, 4, 7]
        assert ends("a", ".\n", "b", separator=".") == [1, 2]

    @given(st.lists(st.sampled_from(["<eos>", "\n", "a", "b", " ", "é"]), max_size=12))
    def test_cuts_the_text_into_steps_that_say_something(self, pieces: list[str]) -> None:
        starts = [0, *(end + 1 for end in ends(*pieces))]
        steps = ["".join(pieces[a:b]).replace("<eos>", "") for a, b in pairwise(starts)]
        assert starts[-1] == len(pieces)
        assert "".join(steps) == "".join(pieces).replace("<eos>", "")
        assert all(step.endswith("\n") and step.strip() for step in steps[:-1])
        said = [line for line in "".join(steps).split("\n") if line.strip()]
        assert [step.strip() for step in steps] == ([line.strip() for line in said] or [""] * bool(pieces))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("process"), kind="process", aggregate="min")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a tokenizer that has other ids for the same letters."""
    return save(tmp_path_factory.mktemp("foreign"), kind="process", tokenizer=tokenizer_with_bos(None))


load = cache(ScalarModel.load)


@torch.no_grad()
def by_hand(source: str, response: Response, ends: list[int]) -> list[float]:
    row = torch.tensor([[*response.prompt_tokens, *response.tokens]])
    numbers = load(source)(row)[0, len(response.prompt_tokens) :]
    return [1 / (1 + math.exp(-float(numbers[end]))) for end in ends]


WANT = {"min": min, "mean": fmean, "last": lambda steps: steps[-1], "product": math.prod}


class TestProcess:
    @pytest.mark.parametrize("budget", [1, 40, 8192])
    def test_a_reward_at_the_end_of_each_step_and_none_between(self, run: str, budget: int) -> None:
        scores = Process(run, token_budget=budget)(RESPONSES)
        assert scores.tokens is not None
        for response, at, rewards, value, steps in zip(RESPONSES, ENDS, scores.tokens, scores, scores.columns["steps"], strict=True):
            assert len(rewards) == len(response.tokens)
            assert [t for t, x in enumerate(rewards) if x is not None] == at
            want = by_hand(run, response, at)
            assert [rewards[t] for t in at] == steps == pytest.approx(want, abs=1e-5)
            assert value == pytest.approx(sum(want), abs=1e-5)

    @pytest.mark.parametrize("aggregate", WANT)
    def test_one_number_a_response(self, run: str, aggregate: Any) -> None:
        scores = Process(run, aggregate=aggregate)(RESPONSES)
        want = [by_hand(run, response, at) for response, at in zip(RESPONSES, ENDS, strict=True)]
        assert list(scores) == pytest.approx([WANT[aggregate](steps) for steps in want], abs=1e-5)
        assert scores.tokens is None
        assert [len(steps) for steps in scores.columns["steps"]] == [3, 1, 2, 1, 1]

    def test_reads_the_sampled_tokens_as_they_are(self, run: str) -> None:
        """Twice a token that only the machine reads: the text does not show it."""
        response = said("a\nb")
        odd = replace(response, tokens=[*response.tokens[:1], 0, 0, *response.tokens[1:]])
        scores = Process(run)([odd])
        assert scores.tokens is not None
        assert [t for t, x in enumerate(scores.tokens[0]) if x is not None] == [3, 5]
        assert scores.columns["steps"][0] == pytest.approx(by_hand(run, odd, [3, 5]), abs=1e-5)

    def test_an_end_that_is_no_special_token_is_not_in_the_text(self, run: str) -> None:
        response = replace(said("a\nb"), tokens=[*said("a\nb").tokens[:-1], 40])
        scores = Process(run)([response])
        assert scores.tokens is not None
        assert [t for t, x in enumerate(scores.tokens[0]) if x is not None] == [1, 3]

    def test_no_token_is_no_score(self, run: str) -> None:
        nothing = said("", finish="length")
        for aggregate in (None, "min", "mean", "last", "product"):
            scores = Process(run, aggregate=aggregate)([nothing, said("a")])  # type: ignore[arg-type]
            assert scores[0] is None
            assert scores[1] is not None
        assert list(Process(run)([])) == []

    def test_another_separator(self, run: str) -> None:
        scores = Process(run, separator="=>")([said("1=>2=>3")])
        assert scores.columns["steps"][0] == pytest.approx(by_hand(run, said("1=>2=>3"), [2, 5, 7]), abs=1e-5)

    def test_rewards_by_step_need_the_policys_tokenizer(self, foreign: str) -> None:
        for response in (said("ab", prompt="b"), said("", prompt="a")):
            with pytest.raises(UserError, match=r"has another tokenizer than the policy.*aggregate=min"):
                Process(foreign)([response])

    def test_one_number_a_response_does_not(self, foreign: str) -> None:
        responses = [said("ab", prompt="b"), said("", prompt="a"), said("aab", prompt="b", finish="length")]
        scores = Process(foreign, aggregate="last")(responses)
        own = [replace(r, prompt_tokens=[2, {"a": 3, "b": 4}[r.prompt.text or ""]]) for r in responses]
        spelt = [[3, 4, 1], [1], [3, 3, 4]]
        want = [by_hand(foreign, replace(r, tokens=t), [len(t) - 1])[0] for r, t in zip(own, spelt, strict=True)]
        assert list(scores) == pytest.approx(want, abs=1e-5)

    def test_a_response_that_brings_no_tokens_is_encoded(self, run: str) -> None:
        text = Response(Prompt(id="p", text="1+2="), text="a\nb")
        assert Process(run, aggregate="min")([text]) == Process(run, aggregate="min")([said("a\nb")])

    def test_says_whether_it_gives_steps(self, run: str) -> None:
        assert Process(run).gives_steps
        assert not Process(run, aggregate="min").gives_steps


class TestRefused:
    def refused(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(UserError) as error:
            Process(*arguments, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_no_model(self) -> None:
        message = self.refused()
        assert "reward=process needs a reward model: type reward.terms.process.reward.model=RUN_OR_DIRECTORY" in message
        assert "algo=process_reward_model" in message

    def test_a_model_of_whole_responses(self, tmp_path: Path) -> None:
        source = save(tmp_path, kind="reward")
        assert f"type reward=neural reward.terms.neural.reward.model={source}" in self.refused(source)

    def test_settings_out_of_range(self, run: str) -> None:
        assert "separator is empty" in self.refused(run, separator="")
        assert "aggregate='sum' is none of null, min, mean, last, product" in self.refused(run, aggregate="sum")


class TestOption:
    def test_rewards_steps_and_watches_the_answers(self, run: str, tmp_path: Path) -> None:
        reward = composed(tmp_path, "reward=process", f"reward.terms.process.reward.model={run}")
        assert isinstance(reward, WeightedSum)
        assert reward.gives_steps
        assert not reward.needs_answer
        responses = [replace(r, prompt=replace(r.prompt, answer="3")) for r in RESPONSES]
        scores = reward(responses)
        assert scores.tokens == Process(run)(responses).tokens
        assert scores.correct == [True, False, False, False, False]
        assert scores.monitored

    def test_of_one_number(self, run: str, tmp_path: Path) -> None:
        terms = "reward.terms.process.reward"
        reward = composed(tmp_path, "reward=process", f"{terms}.model={run}", f"{terms}.aggregate=min")
        assert not reward.gives_steps  # type: ignore[attr-defined]
