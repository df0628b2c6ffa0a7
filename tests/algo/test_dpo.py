"""Preferences on whole responses, against a reference that stays where training began."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.algo import DPO, Batch
from rlmods.errors import UserError
from rlmods.preference import IPO, KTO, ORPO, Sigmoid, SimPO
from rlmods.training.preferences import PreferenceBatch, collate_preferences
from rlmods.types import Prompt
from tests.support.offline import RAGGED, alone, assert_invariant, close, gradients, pairs, widened
from tests.support.tiny_setup import SPLITS, fit, flat, flat_gradient, learner, perturb, policy

LOSSES = {
    "dpo": Sigmoid(),
    "cdpo": Sigmoid(label_smoothing=0.1),
    "ipo": IPO(),
    "simpo": SimPO(),
    "kto": KTO(),
    "orpo": ORPO(),
}
every_loss = pytest.mark.parametrize("preference", LOSSES.values(), ids=LOSSES)


def pair(better: str, worse: str, **meta: Any) -> Prompt:
    return Prompt(
        id=f"{better}-{worse}",
        text="1+1=",
        meta={"candidates": (better, worse), "ranks": (0, 1)} | meta,
    )


def dpo(preference: Any = None, **change: Any) -> Any:
    return learner(DPO, **{"preference": preference or Sigmoid()} | change)


def moved(
    preference: Any = None, prompts: list[Prompt] = RAGGED, **change: Any
) -> tuple[Any, PreferenceBatch]:
    """A learner whose policy has left the reference, and its rows."""
    made = alone(dpo(preference, **change))
    rows = made.rows(prompts)
    perturb(made.policy)
    if made.needs_kl:
        made.kl = made.estimate_kl(rows)
    return made, rows


def plain(made: Any, policy: Any, prompt: Prompt, k: int) -> Tensor:
    """log pi(y | x) from the model's own logits, a token at a time."""
    finished = prompt.meta.get("finished", (True,) * 9)[k]
    asked, said = (
        made.policy.encode(prompt),
        made.policy.encode_response(prompt.meta["candidates"][k], finished=finished),
    )
    logprobs = policy.model(input_ids=torch.tensor([asked + said])).logits[0].log_softmax(-1)
    return sum(
        (logprobs[len(asked) + t - 1, token] for t, token in enumerate(said)), torch.zeros(())
    )


def log_ratios(made: Any, prompt: Prompt) -> list[Tensor]:
    """log pi / pi_ref of each candidate, with the gradient of pi."""
    reference = made.reference.policy
    num = len(prompt.meta["ranks"])
    return [
        plain(made, made.policy, prompt, k) - plain(made, reference, prompt, k).detach()
        for k in range(num)
    ]


class TestStart:
    def test_is_ln_2_with_rewards_of_0_and_a_gradient(self) -> None:
        made = alone(dpo())
        rows = made.rows(RAGGED[:2])
        assert gradients(made, rows).norm() > 0.1
        metrics = made.meter.compute()
        assert metrics["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert metrics["train/reward_margin"] == pytest.approx(0, abs=1e-6)

    def test_swapping_better_and_worse_flips_the_gradient(self) -> None:
        made = alone(dpo())
        there, back = (
            gradients(made, made.rows([pair("2", "<answer>", ranks=ranks)]))
            for ranks in ((0, 1), (1, 0))
        )
        close(there, -back)


class TestLoss:
    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        """Sums over the tokens of the response and no other; mean over pairs, then over prompts
        (one of the four has no pair)."""
        made, rows = moved(Sigmoid(beta=0.3))
        have = gradients(made, rows)
        loss = torch.zeros(())
        for prompt in RAGGED:
            h = [0.3 * x for x in log_ratios(made, prompt)]
            losses = [torch.log(1 + torch.exp(h[j] - h[i])) for i, j in pairs(prompt)]
            loss = loss + sum(losses) / max(1, len(losses)) / len(RAGGED)
        made.zero_grad()
        loss.backward()
        close(have, flat_gradient(made.policy))
        assert made.meter.compute()["train/loss"] == pytest.approx(loss.item(), abs=1e-5)

    @every_loss
    def test_does_not_depend_on_how_rows_are_cut_padded_and_ordered(self, preference: Any) -> None:
        made, rows = moved(preference)
        assert_invariant(made, rows, widened)

    @every_loss
    def test_a_response_that_was_cut_away_is_harmless(self, preference: Any) -> None:
        """G8: nothing is left of the worst candidate."""
        three = pair(
            "2", "33", candidates=("2", "33", ""), ranks=(0, 1, 2), finished=(True, True, False)
        )
        (made, rows), (other, two) = (
            moved(preference, [three]),
            moved(preference, [pair("2", "33")]),
        )
        assert rows.lengths[0, 2] > 0 == rows.mask[0, 2].sum()
        close(gradients(made, rows), gradients(other, two))

    def test_sft_coefficient_adds_the_imitation_of_the_best(self) -> None:
        made, rows = moved(prompts=RAGGED[:2])
        without = gradients(made, rows)
        made.settings = replace(made.settings, sft_coefficient=0.7)
        have = gradients(made, rows)
        made.zero_grad()
        said = [
            plain(made, made.policy, RAGGED[0], 0) / 4,
            plain(made, made.policy, RAGGED[1], 1) / 5,
        ]
        assert [int(rows.mask[0, 0].sum()), int(rows.mask[1, 1].sum())] == [4, 5]
        (-0.7 * sum(said) / 2).backward()
        close(have, without + flat_gradient(made.policy))

    def test_metrics_are_those_of_the_better_and_the_worse(self) -> None:
        made, rows = moved()
        gradients(made, rows)
        values: dict[str, list[float]] = {"chosen": [], "rejected": [], "margins": []}
        for prompt in RAGGED:
            r = [0.1 * x.item() for x in log_ratios(made, prompt)]
            for k, rank in enumerate(prompt.meta["ranks"]):
                logprob = plain(made, made.policy, prompt, k).item()
                values["rejected" if rank else "chosen"].append(logprob)
            values["margins"] += [r[i] - r[j] for i, j in pairs(prompt)]
        metrics, means = made.meter.compute(), {name: sum(x) / len(x) for name, x in values.items()}
        assert metrics["train/chosen_logprob"] == pytest.approx(means["chosen"], abs=1e-4)
        assert metrics["train/rejected_logprob"] == pytest.approx(means["rejected"], abs=1e-4)
        assert metrics["train/reward_margin"] == pytest.approx(means["margins"], abs=1e-4)
        assert metrics["train/pair_accuracy"] == pytest.approx(
            sum(x > 0 for x in values["margins"]) / len(values["margins"])
        )
        assert abs(means["chosen"] - means["rejected"]) > 0.1


class TestReference:
    @pytest.mark.parametrize("preference", [Sigmoid(), IPO()], ids=["dpo", "ipo"])
    def test_precomputed_is_live(self, preference: Any) -> None:
        found = []
        for reference in ("live", "precomputed"):
            made = dpo(
                preference,
                reference=reference,
                validation_prompts=list(SPLITS.val),
                batch=Batch(prompts=8, minibatches=2),
            )
            rows = fit(made, 4)
            assert bool(made.reference.networks) == (reference == "live")
            found.append((flat(made.policy), rows))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-4)
        for a, b in zip(found[0][1], found[1][1], strict=True):
            for name in ("train/loss", "val/pair_accuracy"):
                assert a.get(name) == pytest.approx(b.get(name), abs=1e-4)

    def test_stays_where_training_began_and_out_of_the_checkpoint(self) -> None:
        made = dpo()
        fit(made, 2)
        start = policy().state_dict()
        assert all(
            torch.equal(x, start[name]) for name, x in made.reference.policy.state_dict().items()
        )
        assert not any(
            torch.equal(x, start[name])
            for name, x in made.policy.state_dict().items()
            if x.is_floating_point()
        )
        assert not any(p.requires_grad for p in made.reference.policy.parameters())
        assert len(made.state_dict()) == len(start)


class TestDivergence:
    """KTO's point of reference."""

    def test_is_the_mean_log_ratio_of_responses_to_other_prompts(self) -> None:
        made, rows = moved(KTO())
        ratios = []
        for p, prompt in enumerate(RAGGED):
            meta = RAGGED[(p + 1) % 4].meta
            ratios += log_ratios(made, replace(prompt, meta=meta))
        mean = torch.stack(ratios).mean().item()
        assert made.estimate_kl(rows).item() == pytest.approx(max(0, mean), abs=1e-4)

    def test_is_not_negative_and_does_not_depend_on_microbatches(self) -> None:
        made, rows = moved(KTO())
        made.reference._policy, made.policy = made.policy, made.reference.policy
        there = made.estimate_kl(rows)
        made.reference._policy, made.policy = made.policy, made.reference.policy
        back = made.estimate_kl(rows)
        assert min(there, back) == 0 < max(there, back)
        made.microbatches.token_budget = 1
        torch.testing.assert_close(made.estimate_kl(rows), back, rtol=1e-4, atol=1e-6)

    def test_is_computed_once_an_optimizer_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found: list[Tensor] = []
        right = DPO.estimate_kl
        monkeypatch.setattr(
            DPO, "estimate_kl", lambda self, rows: found.append(right(self, rows)) or found[-1]
        )
        rows = fit(dpo(KTO(), batch=Batch(prompts=8, minibatches=2, token_budget=40)), 3)
        assert len(found) == 6 == rows[-1]["optimizer_step"]
        for i, row in enumerate(rows):
            assert row["train/kl_ref"] == pytest.approx(
                (found[2 * i] + found[2 * i + 1]).item() / 2, abs=1e-6
            )

    def test_needs_the_reference_all_along(self) -> None:
        with pytest.raises(UserError, match=r"algo\.reference=live"):
            dpo(KTO(), reference="precomputed")


def test_a_run_does_not_go_on_from_another_reference() -> None:
    """A reference that stays is not in the checkpoint: it is made again from the policy that
    training starts from."""
    made, same, other = dpo(Sigmoid()), dpo(Sigmoid()), dpo(Sigmoid())
    for parameter in other.reference.policy.parameters():
        parameter.data += 0.1
    other = dpo(Sigmoid(), policy=other.reference.policy)
    same.checkpoint.load_state(made.checkpoint.state())
    with pytest.raises(
        UserError, match="not the model that the run began with: restore policy= and reference="
    ):
        other.checkpoint.load_state(made.checkpoint.state())


class TestTraining:
    @every_loss
    def test_learns_to_tell_better_from_worse(self, preference: Any) -> None:
        train = [pair(str(2 * i), str((2 * i + 3) % 10)) for i in range(4)]
        rows = fit(
            dpo(preference, batch=Batch(prompts=4, epochs=4)),
            5,
            splits=replace(SPLITS, train=train, val=[]),
        )
        assert rows[-1]["train/pair_accuracy"] == 1.0
        assert rows[-1]["train/reward_margin"] > rows[0]["train/reward_margin"]

    def test_single_verdicts_are_enough_for_kto(self) -> None:
        verdicts = [
            Prompt(id=str(d), text="1+1=", meta={"candidates": (str(d),), "ranks": (d % 2,)})
            for d in range(8)
        ]
        rows = fit(
            dpo(KTO(), batch=Batch(prompts=8)), 10, splits=replace(SPLITS, train=verdicts, val=[])
        )
        assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.05
        first, last = (
            row["train/chosen_logprob"] - row["train/rejected_logprob"]
            for row in (rows[0], rows[-1])
        )
        assert last > first + 1

    def test_held_out_pairs_count_by_the_implicit_reward(self) -> None:
        made, _ = moved(prompts=RAGGED)
        rows = collate_preferences(RAGGED, made.policy)
        known = made.measure(made.add_ref_logprobs(rows))["val/pair_accuracy"]
        right = []
        for prompt in RAGGED:
            h = log_ratios(made, prompt)
            right += [float(h[i] > h[j]) for i, j in pairs(prompt)]
        assert known == pytest.approx(sum(right) / len(right))
