"""The sample log, against the batch and values by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.training import sample_log
from rlmods.training.sample_log import SampleLog, branch_row
from rlmods.types import Branch, Experience, Prompt, Response, Scores
from tests.training.test_metrics import experience

PROMPT = Prompt(id="p", text="?")
NUM_PROMPT_TOKENS = 2
TERMS = {"outcome": 1.0, "turns": 0.5}


def test_sample_rows_hold_what_was_said_and_scored() -> None:
    responses = [
        Response(PROMPT, tokens=[i], text=str(i), finish="length" if i % 2 else "stop")
        for i in range(6)
    ]
    scores = Scores(
        [0.5, None, 1.0, 0.0, 0.0, 2.0],
        correct=[True, None, True, False, None, True],
        terms={"format": [1.0] * 6},
    )
    scores = replace(scores, columns={"extracted": list("abcdef")})
    log = SampleLog()
    log.add_groups(responses, scores, 8, torch.arange(6) // 2, torch.tensor([True, False] * 3))
    for i, row in enumerate(log.rows):
        assert row == {
            "id": "p",
            "prompt": "?",
            "answer": None,
            "response": str(i),
            "tokens": [i],
            "finish": "length" if i % 2 else "stop",
            "reward": scores.values[i],
            "correct": (scores.correct or ())[i],
            "reward/format": 1.0,
            "extracted": "abcdef"[i],
            "iteration": 8,
            "advantage": None,
            "kept": i % 2 == 0,
        }


def test_advantages_are_means_over_the_tokens_with_loss() -> None:
    """Of two groups and a half: the last row is of an earlier iteration, and the log has a group
    that is not trained on."""
    batch = replace(experience(0)[0], group=torch.tensor([3, 3, 7, 7, 7, -1]))
    batch.mask[3] = False
    log = SampleLog()
    responses = [Response(PROMPT, tokens=[1], text="x")] * 6
    group = torch.tensor([3, 3, 7, 7, 7, 8])
    log.add_groups(responses, Scores([1.0] * 6), 8, group, torch.ones(6, dtype=torch.bool))
    log.set_advantages(batch, {})
    for i, row in enumerate(log.rows[:5]):
        credit = [float(a) for a, m in zip(batch.advantages[i], batch.mask[i], strict=True) if m]
        assert row["advantage"] == (pytest.approx(sum(credit) / len(credit)) if credit else None)
    is_open = [row["advantage"] is None for row in log.rows]
    assert is_open == [False, False, False, True, False, True]


def test_the_row_of_a_branch_names_its_parent() -> None:
    def response(branch: Branch | None) -> Response:
        return Response(PROMPT, [1], [2] * 4, branch=branch)

    branched = branch_row(response(Branch(parent=2, shared=3)), sample=1)
    assert (branched["sample"], branched["parent"], branched["shared"]) == (1, 2, 3)
    alone = branch_row(response(None), sample=0)
    assert (alone["sample"], alone["parent"], alone["shared"]) == (0, None, 0)


def logged(seed: int, num_rows: int = 6, width: int = 9) -> tuple[SampleLog, Experience]:
    """A log and a batch of two groups with ragged responses and observations. The advantages have
    few different values, and a term abstains on a row. The columns without a loss are garbage."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=generator)

    lengths = torch.randint(NUM_PROMPT_TOKENS + 1, width + 1, (num_rows,), generator=generator)
    columns = torch.arange(width)
    in_response = (columns >= NUM_PROMPT_TOKENS) & (columns < lengths[:, None])
    mask = in_response & draw(num_rows, width).bool()
    mask[-1] = False
    advantages = draw(num_rows, width) / 3
    terms = draw(num_rows, width, 2) / 7
    terms[1, :, 1] = torch.nan
    tokens = torch.arange(num_rows * width).reshape(num_rows, width)  # all responses differ
    group = torch.arange(num_rows) // 3 + 5
    unused = torch.zeros(num_rows, width)
    batch = Experience(
        tokens=tokens,
        mask=mask,
        lengths=lengths,
        rewards=unused,
        old_logprobs=unused,
        on_policy=group > 0,
        behavior_logprobs=unused,
        advantages=torch.where(mask, advantages, torch.nan),
        policy_version=group,
        sampler_version=group,
        group=group,
        term_advantages=torch.where(mask[:, :, None], terms, torch.inf),
    )
    responses = []
    for ids, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
        prompt_tokens, sampled = ids[:NUM_PROMPT_TOKENS], ids[NUM_PROMPT_TOKENS:length]
        responses.append(Response(PROMPT, prompt_tokens, sampled, text="x"))
    log = SampleLog()
    scores = Scores([1.0] * num_rows)
    log.add_groups(responses, scores, 1, group, torch.ones(num_rows, dtype=torch.bool))
    return log, batch


def by_token(runs: Any, width: int) -> list[Any]:
    """The numbers of the runs at each token of the response, None elsewhere."""
    found: list[Any] = [None] * width
    for begin, end, *values in runs:
        assert begin < end
        for t in range(begin, end):
            assert found[t] is None
            found[t] = values
    return found


@pytest.mark.parametrize("seed", range(20))
class TestCredit:
    def test_is_the_batch_token_by_token(self, seed: int) -> None:
        log, batch = logged(seed)
        log.set_advantages(batch, TERMS)
        assert batch.term_advantages is not None
        for i, row in enumerate(log.rows):
            if not batch.mask[i].any():
                assert "credit" not in row
                continue
            assert row["credit_terms"] == TERMS
            found = by_token(row["credit"], len(row["tokens"]))
            for t, numbers in enumerate(found, NUM_PROMPT_TOKENS):
                assert (numbers is not None) == bool(batch.mask[i, t])
                if numbers is None:
                    continue
                total, *terms = numbers
                assert total == pytest.approx(float(batch.advantages[i, t]), rel=1e-5)
                expected = batch.term_advantages[i, t].tolist()
                if i == 1:
                    assert terms[1] is None
                    terms, expected = terms[:1], expected[:1]
                assert terms == pytest.approx(expected, rel=1e-5)

    def test_has_as_few_runs_as_possible(self, seed: int) -> None:
        log, batch = logged(seed)
        log.set_advantages(batch, TERMS)
        for row in log.rows:
            runs = row.get("credit", [])
            for before, after in pairwise(runs):
                assert before[1] < after[0] or before[2:] != after[2:]

    def test_trained_tokens_are_those_of_the_last_step_on_a_response(self, seed: int) -> None:
        """Two epochs with other selections, in another order, then an empty microbatch."""
        log, batch = logged(seed)
        log.set_advantages(batch, TERMS)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            selected = torch.rand(batch.mask.shape, generator=generator) < 0.5
            order = torch.randperm(len(batch), generator=generator)
            for part in order.split(4):
                micro = batch.select(part)
                log.add_selection(micro.trim(), selected[part][:, : int(micro.lengths.max())])
        log.add_selection(batch.without_loss(), torch.zeros_like(batch.mask))
        log.set_trained()
        expected = (batch.mask & selected)[:, NUM_PROMPT_TOKENS:]
        for i, row in enumerate(log.rows):
            if not batch.mask[i].any():
                assert "trained" not in row
                continue
            found = by_token(row["trained"], len(row["tokens"]))
            is_trained = [values is not None for values in found]
            assert is_trained == expected[i, : len(found)].tolist()


def test_the_first_responses_have_credit_and_selection_if_there_is_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, batch = logged(0)
    monkeypatch.setattr(sample_log, "MAX_RUNS", 1)
    log.set_advantages(batch, TERMS)
    log.add_selection(batch, batch.mask)
    log.set_trained()
    has_loss = batch.mask.any(1).tolist()
    first = has_loss.index(True)
    assert ["credit" in row for row in log.rows] == [i == first for i in range(6)]
    in_first_group = [i < 3 and has_loss[i] for i in range(6)]
    assert ["trained" in row for row in log.rows] == in_first_group
    assert [row["advantage"] is not None for row in log.rows] == has_loss


def test_one_advantage_on_all_tokens_needs_no_runs() -> None:
    log, batch = logged(0)
    columns = torch.arange(batch.tokens.shape[1])
    mask = (columns >= NUM_PROMPT_TOKENS) & (columns < batch.lengths[:, None])
    equal = torch.full_like(batch.advantages, 0.5)
    log.set_advantages(replace(batch, mask=mask, advantages=equal, term_advantages=None), {})
    assert all(row["advantage"] == 0.5 and "credit" not in row for row in log.rows)


def test_sessions_of_a_group_may_begin_with_other_messages() -> None:
    """Prompts of 2 and 4 tokens in one group: credit and selection begin with the response."""
    _, batch = logged(0, num_rows=2)
    starts = torch.tensor([2, 4])
    columns = torch.arange(batch.tokens.shape[1])
    mask = columns >= starts[:, None]
    batch = replace(
        batch,
        mask=mask,
        lengths=torch.tensor([9, 9]),
        advantages=torch.where(columns == starts[:, None], 1.0, 0.0),
        term_advantages=None,
    )
    rows = [
        Response(PROMPT, ids[:start], ids[start:], text="x")
        for ids, start in zip(batch.tokens.tolist(), starts.tolist(), strict=True)
    ]
    log = SampleLog()
    log.add_groups(rows, Scores([1.0, 1.0]), 1, batch.group, torch.ones(2, dtype=torch.bool))
    log.set_advantages(batch, {})
    log.add_selection(batch, batch.advantages > 0)
    log.set_trained()
    assert [row["credit"] for row in log.rows] == [
        [[0, 1, 1.0], [1, 7, 0.0]],
        [[0, 1, 1.0], [1, 5, 0.0]],
    ]
    assert [row["trained"] for row in log.rows] == [[[0, 1]], [[0, 1]]]


def test_a_log_of_a_prompt_has_copies_without_credit() -> None:
    log, batch = logged(0)
    log.set_advantages(batch, TERMS)
    other = log.of_prompt("p")
    assert [row["tokens"] for row in other.rows] == [row["tokens"] for row in log.rows]
    assert all(row["advantage"] is None and "credit" not in row for row in other.rows)
    other.set_advantages(batch, TERMS)
    assert other.rows == log.rows
    assert log.of_prompt("q").rows == []
