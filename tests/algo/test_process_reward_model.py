"""A model that judges steps: where it reads, what it learns, what it leaves on disk."""

import functools
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from rlmods.algo import Batch, ProcessRewardModel
from rlmods.errors import UserError
from rlmods.policy import ScalarModel
from rlmods.reward import Process
from rlmods.reward.process import step_ends
from rlmods.types import Experience, Prompt, Response
from tests.support.offline import alone, assert_invariant, close, gradients
from tests.support.tiny_setup import SPLITS, fit, flat_gradient, learner


def solved(name: str, steps: tuple[str, ...], labels: tuple[float, ...]) -> Prompt:
    return Prompt(id=name, text="1+12=", meta={"steps": steps, "step_labels": labels})


RAGGED = [
    solved("0", ("1+2=3\n", "10+3=13\n", "<answer>13</answer>"), (1.0, 1.0, 1.0)),
    solved("1", ("1+2=4\n", "<answer>14</answer>"), (0.0, 0.0)),
    solved("2", ("1+2=3\n", "10+3=12\n", "12\n", "<answer>12</answer>"), (1.0, 0.25, 0.5, 0.0)),
    solved("3", ("13",), (1.0,)),
]


def model(**change: Any) -> Any:
    return learner(ProcessRewardModel, **{"rollout": None, "reward": None} | change)


def opinionated() -> tuple[Any, Experience]:
    made = alone(model())
    made.scalar.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return made, made.rows(RAGGED)


def joining(*merges: tuple[str, str]) -> PreTrainedTokenizerFast:
    """Characters, and pairs of them that become one token."""
    vocabulary = ["<pad>", "<eos>", *"0123456789+=\nab", *("".join(pair) for pair in merges)]
    core = Tokenizer(
        BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=list(merges))
    )
    core.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")


class TestRows:
    def test_a_step_ends_at_its_last_token_and_the_last_one_at_the_end_of_text(self) -> None:
        made, rows = opinionated()
        for i, prompt in enumerate(RAGGED):
            asked, steps = made.scalar.encode(prompt), prompt.meta["steps"]
            said = [made.scalar.encode_response(step, finished=step is steps[-1]) for step in steps]
            assert rows.tokens[i, : rows.lengths[i]].tolist() == asked + functools.reduce(
                operator.iadd, said, []
            )
            ends = [len(asked) + sum(map(len, said[: k + 1])) - 1 for k in range(len(said))]
            assert rows.mask[i].nonzero().squeeze(1).tolist() == ends
            assert rows.tokens[i, ends[-1]] == made.scalar.eos_id
            assert rows.rewards[i, ends].tolist() == list(prompt.meta["step_labels"])
        assert rows.loss_counts.tolist() == [10, 4]

    def test_tokens_and_ends_are_those_of_a_sampled_text(self) -> None:
        """A tokenizer may join what stands on both sides of a step's end."""
        made = alone(model())
        made.scalar.tokenizer = joining(("\n", "2"), ("\n", "\n"), ("a", "b"))
        rows = made.rows([solved("0", ("1\n\n", "2\n", "3"), (1.0, 0.0, 0.0))])
        asked, said = len(made.scalar.encode(RAGGED[0])), made.scalar.encode_response("1\n\n2\n3")
        assert len(said) == 6, (
            "1, a line's end, the other with the 2, a line's end, 3, the end of text"
        )
        assert rows.tokens[0, asked : rows.lengths[0]].tolist() == said
        assert (
            (rows.mask[0].nonzero().squeeze(1) - asked).tolist()
            == step_ends(made.scalar.decode, said, "\n")
            == [2, 3, 5]
        )
        with pytest.raises(UserError, match="ends within a token"):
            made.rows([solved("1", ("a", "b", "1"), (1.0, 1.0, 1.0))])

    def test_an_empty_step_is_refused(self) -> None:
        made = alone(model())
        with pytest.raises(UserError, match="prompt 9: a step is empty"):
            made.rows([solved("9", ("1\n", "", "2"), (1.0, 1.0, 1.0))])
        with pytest.raises(UserError, match="prompt 9: a step is empty"):
            made.rows([solved("9", ("1\n", ""), (1.0, 1.0))])


class TestLoss:
    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        made, rows = opinionated()
        have, loss = gradients(made, rows), torch.zeros(())
        numbers = made.scalar(rows.tokens)
        for i, t in rows.mask.nonzero().tolist():
            p, label = 1 / (1 + torch.exp(-numbers[i, t])), rows.rewards[i, t]
            loss = loss - (label * torch.log(p) + (1 - label) * torch.log(1 - p)) / 10
        made.zero_grad()
        loss.backward()
        close(have, flat_gradient(made.scalar))
        assert made.meter.compute()["train/loss"] == pytest.approx(loss.item(), abs=1e-5)

    def test_does_not_depend_on_how_rows_are_cut_padded_and_ordered(self) -> None:
        made, rows = opinionated()
        assert_invariant(made, rows)

    def test_labels_elsewhere_than_at_step_ends_are_never_read(self) -> None:
        made, rows = opinionated()
        poisoned = replace(rows, rewards=rows.rewards.masked_fill(~rows.mask, torch.nan))
        assert torch.equal(gradients(made, poisoned), gradients(made, rows))


class TestHeldOut:
    def test_metrics_are_those_of_the_steps(self) -> None:
        made, rows = opinionated()
        signs = [[1, 1, -1], [-1, 1], [1, -1, 1, -1], [1]]
        numbers = torch.full(rows.mask.shape, torch.nan)
        numbers[rows.mask] = torch.tensor(
            [float(x * (i + 1)) for i, row in enumerate(signs) for x in row]
        )
        by_ids = {
            tuple(tokens): row for tokens, row in zip(rows.tokens.tolist(), numbers, strict=True)
        }
        made.scalar.forward = lambda tokens: torch.stack(
            [by_ids[tuple(row)] for row in tokens.tolist()]
        )
        found = made.measure(rows)
        assert found["val/step_accuracy"] == pytest.approx(8 / 10)
        assert found["val/first_error_accuracy"] == pytest.approx(3 / 4)
        good, bad = [1, 1, -1, 3, 3, 4], [-2, 2, -3, -3]
        wins = [1.0 if g > b else 0.5 * (g == b) for g in good for b in bad]
        assert found["val/auc"] == pytest.approx(sum(wins) / len(wins))

    def test_do_not_depend_on_the_token_budget(self) -> None:
        made, rows = opinionated()
        whole = made.measure(rows)
        made.microbatches.token_budget = 1
        assert made.measure(rows) == pytest.approx(whole, abs=1e-5)


class TestTraining:
    def test_learns_which_steps_are_right(self) -> None:
        rows = fit(
            model(batch=Batch(prompts=4), validation_prompts=RAGGED),
            25,
            splits=replace(SPLITS, train=RAGGED),
        )
        assert rows[-1]["val/auc"] == 1.0
        assert rows[-1]["val/first_error_accuracy"] == 1.0
        assert rows[-1]["val/loss"] < rows[0]["val/loss"]

    def test_a_reward_reads_the_same_scores_from_disk(self, tmp_path: Path) -> None:
        made = model(batch=Batch(prompts=4))
        fit(made, 3, splits=replace(SPLITS, train=RAGGED, val=[]))
        made.export(tmp_path / "export")
        assert ScalarModel.load(tmp_path).metadata == {"kind": "process"}
        assert "policy" not in "".join(made.state_dict())
        rows = made.rows(RAGGED)
        want = made.scalar(rows.tokens).sigmoid()[rows.mask].tolist()
        responses = [Response(prompt=p, text="".join(p.meta["steps"])) for p in RAGGED]
        have = Process(str(tmp_path), aggregate="min")(responses).columns["steps"]
        assert functools.reduce(operator.iadd, have, []) == pytest.approx(want, abs=1e-5)
