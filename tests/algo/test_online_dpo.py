"""DPO on responses that the policy gives and a judge ranks."""

from collections import Counter
from typing import ClassVar

import pytest
import torch

from rlmods.algo import Batch, OnlineDPO
from rlmods.preference import ORPO, Sigmoid
from rlmods.training.evaluation import Validation
from tests.support.tiny_setup import SPLITS, attached, fit, learner


def even_first(prompt, first, second):
    """Prefers the text whose first character has an even code."""
    a, b = ((ord(text[0]) % 2 == 0) if text else False for text in (first, second))
    return 0.5 if a == b else float(a)


def online(judge=even_first, **change):
    return learner(
        OnlineDPO,
        **{"judge": judge, "preference": Sigmoid(), "batch": Batch(prompts=8, samples=6)} | change,
    )


def test_ranks_are_the_judges_and_equal_responses_count_once():
    made = attached(online())
    rows = made.sample(SPLITS.train[:8])
    logged = made.meter.compute()
    assert logged["perf/sampled_tokens"] == round(48 * logged["train/response_tokens"])
    for p in range(len(rows)):
        said = [
            tuple(rows.tokens[p, k][rows.mask[p, k]].tolist())
            for k in range(rows.rank.shape[1])
            if rows.mask[p, k].any()
        ]
        assert len(said) == len(set(said)) > 1
        texts = [
            made.policy.decode(tokens[:-1] if tokens[-1] in made.policy.eos_ids else tokens)
            for tokens in said
        ]
        for i, text in enumerate(texts):
            for j, other in enumerate(texts):
                if even_first(None, text, other) == 1.0:
                    assert rows.rank[p, i] < rows.rank[p, j]


@pytest.mark.parametrize("preference", [Sigmoid(), ORPO()])
def test_where_no_answer_is_better_than_another_nothing_is_learned(preference):
    """Of equally wrong answers none is to be imitated."""
    made = online(judge=lambda *_: 0.5, preference=preference, sft_coefficient=0.1)
    before = {name: weight.clone() for name, weight in made.policy.state_dict().items()}
    rows = fit(made, 2)
    assert (
        [row["train/flat_group_fraction"] for row in rows]
        == [row["train/skipped_steps"] for row in rows]
        == [1.0, 1.0]
    )
    assert all(
        torch.equal(before[name], weight) for name, weight in made.policy.state_dict().items()
    )


def test_reference_follows_in_rounds():
    rows = fit(online(reference_every=2), 5)
    two = torch.tensor(2.0).log().item()
    losses = [row["train/loss"] for row in rows]
    assert losses[0] == pytest.approx(two, abs=1e-4)
    assert losses[2] == pytest.approx(two, abs=1e-4)
    assert losses[1] != pytest.approx(two, abs=1e-3)


def test_a_round_is_measured_from_where_it_began():
    """Also by the validation at its end. Afterwards the reference is the policy."""
    odd = list(SPLITS.val)[:7]  # so that half of them are right only where all are ties
    made = online(reference_every=2, validation=Validation(every=2), validation_prompts=odd)
    rows = fit(made, 4)
    found = {
        row["iteration"]: row["val/pair_accuracy"] for row in rows if "val/pair_accuracy" in row
    }
    assert found[0] == 0.5
    assert 0.5 not in (found[2], found[4])
    assert all(
        torch.equal(x, made.policy.state_dict()[name])
        for name, x in made.reference.state_dict()["weights"].items()
    )


def test_what_the_judge_counts_is_logged():
    class Counting:
        counts: ClassVar = Counter(errors=3)

        def __call__(self, prompt, first, second):
            self.counts["errors"] += 1
            return even_first(prompt, first, second)

    rows = fit(online(judge=Counting()), 2)
    assert sum(row["judge/errors"] for row in rows) == Counting.counts["errors"] - 3 > 0
