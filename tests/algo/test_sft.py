"""Imitation of responses."""

import copy
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models as tokenizer_models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rlmods.algo import SFT, Batch
from rlmods.policy import Policy
from rlmods.rollout import Local
from rlmods.training.collate import sft_batch
from rlmods.training.evaluation import Validation
from rlmods.types import Experience, Prompt
from tests.support.models import MODELS, llama, policy as small_policy
from tests.support.offline import alone, assert_invariant, close, gradients
from tests.support.tiny_setup import SPLITS, fit, flat_gradient, learner, policy


def prompts(*responses: str) -> list[Prompt]:
    return [
        Prompt(id=str(i), text="1+" + "2" * i + "=", meta={"response": text})
        for i, text in enumerate(responses)
    ]


RAGGED = prompts("3", "<answer>13</answer>", "222 and a little more", "0", "2 plus 2")


def losses_of_transformers(made: Policy, rows: Experience) -> tuple[Tensor, Tensor]:
    """`model(labels=...)`, labels -100 outside the mask, and its gradient."""
    made.zero_grad()
    attention = (torch.arange(rows.tokens.shape[1]) < rows.lengths[:, None]).long()
    loss = made.model(
        input_ids=rows.tokens,
        attention_mask=attention,
        labels=rows.tokens.masked_fill(~rows.mask, -100),
    ).loss
    loss.backward()
    return loss.detach(), flat_gradient(made)


class TestRows:
    def test_the_loss_is_on_the_response_and_the_end_of_text(self) -> None:
        made = policy()
        rows = sft_batch(RAGGED, made, policy_version=3)
        for i, prompt in enumerate(RAGGED):
            asked, said = made.encode(prompt), made.encode_response(prompt.meta["response"])
            assert said[-1] == made.eos_id
            assert rows.tokens[i, : rows.lengths[i]].tolist() == asked + said
            assert rows.tokens[i][rows.mask[i]].tolist() == said
        assert (rows.policy_version == 3).all()

    def test_the_end_of_text_is_learned_also_where_it_is_the_padding_id(self) -> None:
        """E4."""
        made = policy()
        made.tokenizer.pad_token = made.tokenizer.eos_token
        rows = sft_batch(RAGGED, made, policy_version=0)
        assert rows.mask[torch.arange(5), rows.lengths - 1].all()
        assert rows.mask.equal(sft_batch(RAGGED, policy(), policy_version=0).mask)

    def test_a_token_never_spans_prompt_and_response(self) -> None:
        """G2: sampling starts from the prompt's own ids."""
        inner = Tokenizer(
            tokenizer_models.BPE({"<eos>": 0, "2": 1, "=": 2, "4": 3, "=4": 4}, [("=", "4")])
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>"
        )
        assert tokenizer("2=4")["input_ids"] == [1, 4]
        rows = sft_batch(
            [Prompt(id="0", text="2=", meta={"response": "4"})],
            Policy(llama(), tokenizer),
            policy_version=0,
        )
        assert rows.tokens.tolist() == [[1, 2, 3, 0]]
        assert rows.mask.tolist() == [[False, False, True, True]]


class TestLoss:
    @pytest.mark.parametrize("kind", MODELS)
    def test_equals_that_of_transformers_in_value_and_gradient(self, kind: str) -> None:
        """G6: nothing is shifted twice."""
        made = alone(learner(SFT, policy=small_policy(MODELS[kind]())))
        rows = sft_batch(RAGGED, made.policy, policy_version=0)
        loss, grad = losses_of_transformers(made.policy, rows)
        close(gradients(made, rows), grad)
        assert made.meter.compute()["train/loss"] == pytest.approx(loss.item(), abs=1e-5)

    def test_does_not_depend_on_how_rows_are_cut_padded_and_ordered(self) -> None:
        made = alone(learner(SFT))
        rows = sft_batch(RAGGED, made.policy, policy_version=0)
        assert_invariant(made, rows)


class TestTraining:
    def test_two_samples_are_learned_to_the_end(self) -> None:
        """E4: a model that never learned to stop would go on until the limit."""
        made = policy()
        made.eos_ids = frozenset([made.eos_id])
        made.tokenizer.pad_token = made.tokenizer.eos_token
        two = prompts("<answer>1</answer>", "<answer>13</answer>.")
        splits = replace(SPLITS, train=two, val=[])
        rows = fit(learner(SFT, policy=made, batch=Batch(prompts=2)), 60, splits=splits)
        assert rows[-1]["train/loss"] < 0.05
        rollout = Local(max_tokens=20, temperature=0.0)
        rollout.sync(made, iteration=0)
        said = rollout.generate(two, samples=1, iteration=0)
        assert [(r.text, r.finish) for r in said] == [(p.meta["response"], "stop") for p in two]

    def test_held_out_loss_is_the_mean_over_tokens(self) -> None:
        batch, validation = Batch(prompts=4, token_budget=60), Validation(max_prompts=5)
        made = learner(SFT, validation_prompts=list(SPLITS.val), validation=validation, batch=batch)
        start = copy.deepcopy(made.policy)
        rows = fit(made, 1)
        want = losses_of_transformers(start, sft_batch(SPLITS.val[:5], start, policy_version=0))[
            0
        ].item()
        assert rows[0]["val/loss"] == pytest.approx(want, abs=1e-5)
        assert "val/accuracy" in rows[0]

    def test_prompts_without_a_response_are_left_out(self) -> None:
        bare = [replace(prompt, meta={}) for prompt in SPLITS.val]
        made = learner(SFT, validation_prompts=bare)
        assert "val/loss" not in fit(made, 1)[0]
