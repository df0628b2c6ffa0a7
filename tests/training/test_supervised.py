"""Rows of the supervised loss beside the RL loss, and likelihood terms on responses of several turns with observations, cuts and branches: against a
loop over the tokens of each segment."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.branching import Entropy
from rlmods.training.extensions import PTX, supervised
from rlmods.training.extensions.supervised import correct_tokens, observed_tokens
from rlmods.types import Experience, Prompt
from tests.data.test_loader import CountingRows
from tests.support.tiny_setup import close, collected, gradients
from tests.training.test_parts import distributions, moved

TERMS = ("positive", "observation")


def expected_slots(term: str, rows: Experience) -> list[tuple[int, int]]:
    slots = []
    for i in range(len(rows)):
        has_acted = False
        for t in range(int(rows.lengths[i])):
            if rows.cuts is not None and rows.cuts[i, t]:
                has_acted = False
            is_sampled = bool(rows.mask[i, t])
            if term == "observation" and has_acted and not is_sampled:
                slots.append((i, t))
            if term == "positive" and is_sampled and float(rows.score[i]) >= 0.5:
                slots.append((i, t))
            has_acted = has_acted or is_sampled
    return slots


@pytest.mark.parametrize("branches", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("term", TERMS)
def test_equals_the_loop(term: str, branches: bool) -> None:
    """The gradient of the term alone; in several microbatches."""
    rule = Entropy(num_initial=2, tau=-100) if branches else None
    made, rows = moved(None, rule, **{f"{term}_coefficient": 0.7})
    score = torch.arange(len(rows)) % 3 == 0
    flat = replace(rows, advantages=torch.zeros_like(rows.advantages), score=score.float())
    found = gradients(made, flat)
    logprobs = distributions(made, flat).gather(-1, flat.tokens[..., None]).squeeze(-1)
    slots = expected_slots(term, flat)
    assert len(slots) > 10
    made.policy.zero_grad()
    (-0.7 * sum(logprobs[slot] for slot in slots) / len(slots)).backward()
    close(found, torch.cat([p.grad.flatten() for p in made.policy.parameters()]))


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.slow
def test_is_beside_the_objective(term: str) -> None:
    """The term adds to the gradient of the objective, whose denominators stay."""
    made, rows = moved(None, **{f"{term}_coefficient": 0.7})
    rows = replace(rows, score=(torch.arange(len(rows)) % 2).float())
    alone, _ = moved(None)
    flat = replace(rows, advantages=torch.zeros_like(rows.advantages))
    close(gradients(made, rows), gradients(alone, rows) + gradients(made, flat))


def test_rows_without_loss_have_no_term() -> None:
    _, rows = moved(None, observation_coefficient=0.7, positive_coefficient=0.7)
    rows = replace(rows, score=torch.ones(len(rows)))
    assert not observed_tokens(rows.without_loss()).any()
    assert not correct_tokens(rows.without_loss()).any()


def test_unscored_and_wrong_responses_are_not_positive() -> None:
    _, rows = moved(None)
    score = torch.full((len(rows),), torch.nan)
    score[0], score[1] = 0.4, 0.5
    chosen = correct_tokens(replace(rows, score=score)).any(1)
    assert chosen.nonzero().flatten().tolist() == [1]


@pytest.mark.slow
def test_a_run_stores_the_scores_and_logs_both_terms() -> None:
    made, _ = moved(None, observation_coefficient=0.1, positive_coefficient=0.1)
    rows = collected(made)
    assert rows.score is not None
    assert sorted(rows.score.unique().tolist()) == [0.0, 1.0]
    gradients(made, rows)
    metrics: dict[str, Any] = made.meter.compute()
    assert metrics["train/positive_loss"] > 0
    assert metrics["train/observation_loss"] > 0


def test_a_step_reads_its_own_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "sft_batch", lambda prompts, *_, **__: [p.id for p in prompts])
    rows = CountingRows(Prompt(id=str(i), text="x") for i in range(100))
    extension = PTX(0.5, rows, 4)
    extension.loop = SimpleNamespace(seed=3, policy=None)  # type: ignore[assignment]
    steps = []
    for step in range(25):
        steps.append(extension.rows(step))
        assert rows.num_read == 4 * (step + 1)
    assert {name for step in steps for name in step} == {str(i) for i in range(100)}
    assert extension.rows(7, 1, 2) == steps[7][1::2]
