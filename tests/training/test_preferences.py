"""Candidates to tensors."""

import pytest

from rlmods.algo import DPO, SFT, ProcessRewardModel, RewardModel
from rlmods.policy import Policy
from rlmods.preference import Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.training.preferences import collate_preferences, shift_responses
from rlmods.types import Prompt
from tests.support.models import CHAT, CHAT_TEMPLATE, llama, tokenizer_with_bos
from tests.support.offline import RAGGED
from tests.support.tiny_setup import learner, policy


class TestAssemble:
    def test_each_row_is_prompt_response_and_end_of_text(self) -> None:
        made = policy()
        rows = collate_preferences(RAGGED, made)
        assert rows.rank.shape == (4, 3)
        for p, prompt in enumerate(RAGGED):
            for k, (text, rank) in enumerate(
                zip(prompt.meta["candidates"], prompt.meta["ranks"], strict=True)
            ):
                finished = prompt.meta.get("finished", (True,) * 3)[k]
                asked, said = made.encode(prompt), made.encode_response(text, finished=finished)
                assert (said[-1] == made.eos_id) == finished
                assert rows.tokens[p, k, : rows.lengths[p, k]].tolist() == asked + said
                assert rows.tokens[p, k][rows.mask[p, k]].tolist() == said
                assert rows.rank[p, k] == rank
        assert rows.margin.tolist() == [0.5, 0, 0, 1]

    def test_a_candidate_that_is_not_there_is_padding_without_a_mask(self) -> None:
        made = policy()
        rows = collate_preferences(RAGGED, made)
        assert rows.present.tolist() == [
            [True] * 3,
            [True, True, False],
            [True, False, False],
            [True] * 3,
        ]
        assert (rows.tokens[~rows.present] == made.pad_id).all()
        assert not rows.mask[~rows.present].any()

    def test_the_end_of_text_counts_also_where_it_is_the_padding_id(self) -> None:
        """E4: the mask comes from lengths, never from ids."""
        made = policy()
        made.tokenizer.pad_token = made.tokenizer.eos_token
        rows = collate_preferences(RAGGED, made)
        assert rows.tokens[0, 0, rows.lengths[0, 0] - 1] == made.pad_id
        assert rows.mask[0, 0, rows.lengths[0, 0] - 1]
        assert rows.mask.sum(2).equal(collate_preferences(RAGGED, policy()).mask.sum(2))


def test_every_mismatched_prompt_is_followed_by_the_responses_to_the_next() -> None:
    rows = collate_preferences(RAGGED, made := policy())
    found = shift_responses(rows, 256)
    for p in range(4):
        q = (p + 1) % 4
        for k in range(3):
            said = rows.tokens[q, k][rows.mask[q, k]].tolist()
            assert found.tokens[p, k][found.mask[p, k]].tolist() == said
            if said:
                assert (
                    found.tokens[p, k, : found.lengths[p, k]].tolist()
                    == made.encode(RAGGED[p]) + said
                )


@pytest.mark.parametrize("text", [True, False], ids=["text", "chat"])
def test_beginning_of_text_comes_once_in_every_algorithm(text: bool) -> None:
    """G1."""
    meta = {
        "response": "ab",
        "candidates": ("ab", "b"),
        "ranks": (0, 1),
        "steps": ("a", "b"),
        "step_labels": (1.0, 0.0),
    }
    prompt = Prompt(
        id="0",
        text="ab" if text else None,
        messages=None if text else CHAT.messages,
        meta=meta,
    )
    asked = [2, 3, 4] if text else [2, 3, 4, 4]
    kinds = {
        SFT: {},
        ProcessRewardModel: {},
        RewardModel: {"ranking": BradleyTerry()},
        DPO: {"preference": Sigmoid()},
    }
    for kind, parts in kinds.items():
        made = learner(kind, policy=Policy(llama(), tokenizer_with_bos(CHAT_TEMPLATE)), **parts)
        if kind is DPO:
            made.reference.release()
        tokens = made.rows([prompt]).tokens.flatten(0, -2)[0].tolist()
        assert tokens == [*asked, 3, 4, 1], kind
