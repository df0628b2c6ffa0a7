"""Tests of step boundaries and of step scores, against a forward pass of each row alone."""

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
from hypothesis import given, strategies as st

from rlmods.errors import UserError
from rlmods.policy import ScalarModel
from rlmods.reward import Process
from rlmods.reward.process import step_ends
from rlmods.types import Prompt, Response
from tests.reward.models import said, save
from tests.support.models import tokenizer_with_bos

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
    """Join pieces of different lengths; the first one is a special token."""
    return "".join(PIECES[t] for t in tokens if t)


def ends(*pieces: str, separator: str = "\n") -> list[int]:
    return step_ends(decode, [PIECES.index(piece) for piece in pieces], separator)


class TestStepEnds:
    @pytest.mark.parametrize(
        ("pieces", "expected"),
        [
            (("a", "\n", "b", "<eos>"), [1, 3]),
            (("a", ".\n", "b"), [1, 2]),
            (("a", "\n", "\n", "b", "<eos>"), [2, 4]),  # consecutive separators are one
            (("a", "\n", " ", "\n", "b"), [3, 4]),  # also with whitespace between them
            (("a", "\n", " ", "b"), [1, 3]),  # indentation belongs to the step
            (("a", "\n\n", "b"), [1, 2]),
            # the token that completes the separator, even if it contains more
            (("a", "\n\nb", "<eos>"), [1, 2]),
            (("a\n \nb", "\n", "a"), [0, 1, 2]),
            (("a", "\n", "<eos>"), [2]),  # no text follows: the last step extends to the last token
            (("a", "\n", " "), [2]),
            (("\n", "a", "<eos>"), [2]),  # no text before the separator
            (("a", "<eos>"), [1]),
            (("<eos>",), [0]),
            ((" ", "\n"), [1]),
            (("<eos>", "<eos>", "a", "\n", "b"), [3, 4]),
            ((), []),
        ],
    )
    def test_matches_the_table(self, pieces: tuple[str, ...], expected: list[int]) -> None:
        assert ends(*pieces) == expected

    def test_separator_may_span_several_tokens_and_is_literal(self) -> None:
        assert ends("a", "#", "#", "b", "##", "a", "#", "b", separator="##") == [2, 4, 7]
        assert ends("a", ".\n", "b", separator=".") == [1, 2]

    @given(st.lists(st.sampled_from(["<eos>", "\n", "a", "b", " ", "é"]), max_size=12))
    def test_splits_the_text_into_nonempty_steps(self, pieces: list[str]) -> None:
        starts = [0, *(end + 1 for end in ends(*pieces))]
        steps = ["".join(pieces[a:b]).replace("<eos>", "") for a, b in pairwise(starts)]
        assert starts[-1] == len(pieces)
        assert "".join(steps) == "".join(pieces).replace("<eos>", "")
        assert all(step.endswith("\n") and step.strip() for step in steps[:-1])
        lines = [line for line in "".join(steps).split("\n") if line.strip()]
        assert [step.strip() for step in steps] == (
            [line.strip() for line in lines] or [""] * bool(pieces)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("process"), kind="process", aggregate="min")


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model whose tokenizer has other ids for the same letters."""
    return save(
        tmp_path_factory.mktemp("other_tokenizer"),
        kind="process",
        tokenizer=tokenizer_with_bos(None),
    )


load = cache(ScalarModel.load)


@torch.no_grad()
def expected_steps(source: str, response: Response, ends: list[int]) -> list[float]:
    row = torch.tensor([[*response.prompt_tokens, *response.tokens]])
    outputs = load(source)(row)[0, len(response.prompt_tokens) :]
    return [1 / (1 + math.exp(-float(outputs[end]))) for end in ends]


REDUCTIONS = {"min": min, "mean": fmean, "last": lambda steps: steps[-1], "product": math.prod}


class TestProcess:
    @pytest.mark.parametrize("budget", [1, 40, 8192])
    def test_rewards_are_at_the_step_ends_only(self, run: str, budget: int) -> None:
        scores = Process(run, token_budget=budget)(RESPONSES)
        assert scores.tokens is not None
        for response, indices, rewards, value, steps in zip(
            RESPONSES, ENDS, scores.tokens, scores, scores.columns["steps"], strict=True
        ):
            assert len(rewards) == len(response.tokens)
            assert [t for t, x in enumerate(rewards) if x is not None] == indices
            expected = expected_steps(run, response, indices)
            assert [rewards[t] for t in indices] == steps == pytest.approx(expected, abs=1e-5)
            assert value == pytest.approx(sum(expected), abs=1e-5)

    @pytest.mark.parametrize("aggregate", REDUCTIONS)
    def test_aggregate_gives_one_score_per_response(self, run: str, aggregate: Any) -> None:
        scores = Process(run, aggregate=aggregate)(RESPONSES)
        step_scores = [
            expected_steps(run, response, indices)
            for response, indices in zip(RESPONSES, ENDS, strict=True)
        ]
        assert list(scores) == pytest.approx(
            [REDUCTIONS[aggregate](steps) for steps in step_scores], abs=1e-5
        )
        assert scores.tokens is None
        assert [len(steps) for steps in scores.columns["steps"]] == [3, 1, 2, 1, 1]

    def test_an_unknown_aggregate_is_refused(self, run: str) -> None:
        says = "aggregate=max: must be one of min, mean, last, product"
        with pytest.raises(ValueError, match=says):
            Process(run, aggregate="max")  # type: ignore[arg-type]

    def test_abstains_without_tokens(self, run: str) -> None:
        empty = said("", finish="length")
        for aggregate in (None, "min", "mean", "last", "product"):
            scores = Process(run, aggregate=aggregate)([empty, said("a")])  # type: ignore[arg-type]
            assert scores[0] is None
            assert scores[1] is not None
        assert list(Process(run)([])) == []

    def test_step_rewards_require_the_tokenizer_of_the_policy(self, other_tokenizer: str) -> None:
        for response in (said("ab", prompt="b"), said("", prompt="a")):
            with pytest.raises(
                UserError, match=r"has another tokenizer than the policy.*aggregate=min"
            ):
                Process(other_tokenizer)([response])

    def test_aggregate_works_with_another_tokenizer(self, other_tokenizer: str) -> None:
        responses = [
            said("ab", prompt="b"),
            said("", prompt="a"),
            said("aab", prompt="b", finish="length"),
        ]
        scores = Process(other_tokenizer, aggregate="last")(responses)
        encoded = [
            replace(r, prompt_tokens=[2, {"a": 3, "b": 4}[r.prompt.text or ""]]) for r in responses
        ]
        tokens = [[3, 4, 1], [1], [3, 3, 4]]
        expected = [
            expected_steps(other_tokenizer, replace(r, tokens=t), [len(t) - 1])[0]
            for r, t in zip(encoded, tokens, strict=True)
        ]
        assert list(scores) == pytest.approx(expected, abs=1e-5)

    def test_encodes_a_response_without_tokens(self, run: str) -> None:
        text = Response(Prompt(id="p", text="1+2="), text="a\nb")
        assert Process(run, aggregate="min")([text]) == Process(run, aggregate="min")(
            [said("a\nb")]
        )


class TestRejects:
    def error_message(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(UserError) as error:
            Process(*arguments, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_a_missing_model(self) -> None:
        message = self.error_message()
        assert "reward=process needs a reward model: type reward.model=RUN_OR_DIRECTORY" in message
        assert "algo=process_reward_model" in message

    def test_an_outcome_reward_model(self, tmp_path: Path) -> None:
        source = save(tmp_path, kind="reward")
        assert (
            f"type reward=neural reward.terms.neural.reward.model={source}"
            in self.error_message(source)
        )
