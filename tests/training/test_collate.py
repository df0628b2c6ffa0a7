"""Responses and their scores as tensors: every reward on the token it belongs to."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rlmods.errors import UserError
from rlmods.training.collate import collate
from rlmods.types import Branch, Experience, Prompt, Response, Scores

PROMPT = Prompt(id="p", text="?")
RESPONSES = [
    Response(PROMPT, [5, 6], [7, 8, 1], [-0.5, -1.0, -1.5]),
    Response(PROMPT, [5], [9, 9, 9, 1], [-1.0] * 4),
    Response(PROMPT, [5, 6, 7], [1], [-2.0]),
    Response(PROMPT, [5], [], []),
]
GROUP = torch.tensor([4, 4, 9, 9])


def made(scores: Scores) -> Experience:
    return collate(RESPONSES, scores, GROUP, policy_version=3, pad_id=0)


OUTCOMES = made(Scores([1.5, None, 0.0, 2.0]))
STEPS = made(
    Scores([0.75, None, 0.0, 2.0], tokens=[[0.5, None, 0.25], [1.0, None, None, 1.0], [0.0], []])
)


@pytest.mark.parametrize("rows", [OUTCOMES, STEPS], ids=["outcomes", "steps"])
def test_rows_are_prompt_response_and_padding(rows: Experience) -> None:
    assert rows.tokens.tolist() == [
        [5, 6, 7, 8, 1],
        [5, 9, 9, 9, 1],
        [5, 6, 7, 1, 0],
        [5, 0, 0, 0, 0],
    ]
    assert rows.lengths.tolist() == [5, 5, 4, 1]
    assert rows.behavior_logprobs[0].tolist() == [0, 0, -0.5, -1.0, -1.5]
    assert rows.on_policy.all()
    assert (rows.policy_version == 3).all()
    assert torch.equal(rows.group, GROUP)


@pytest.mark.parametrize("rows", [OUTCOMES, STEPS], ids=["outcomes", "steps"])
def test_loss_lies_on_the_sampled_tokens_of_scored_rows(rows: Experience) -> None:
    assert rows.mask.int().tolist() == [[0, 0, 1, 1, 1], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]


def test_every_sampled_token_has_a_logprob() -> None:
    """Also if the numbers of the batch agree."""
    wrong = [
        replace(RESPONSES[0], behavior_logprobs=[-1.0] * 2),
        replace(RESPONSES[1], behavior_logprobs=[-1.0] * 5),
        *RESPONSES[2:],
    ]
    with pytest.raises(
        UserError, match="a response to prompt 'p' has 3 tokens and 2 behavior_logprobs"
    ):
        collate(wrong, Scores([1.0] * 4), GROUP, policy_version=3, pad_id=0)


@pytest.mark.parametrize(("meta", "version"), [({}, 3), ({"iteration": 2}, 2)])
def test_version_of_the_sampler_is_by_default_that_of_the_policy(
    meta: dict[str, int], version: int
) -> None:
    responses = [replace(RESPONSES[0], meta=meta), RESPONSES[1]]
    rows = collate(responses, Scores([1.0] * 2), GROUP[:2], policy_version=3, pad_id=0)
    assert rows.sampler_version.tolist() == [version, 3]


def test_an_outcome_sits_on_the_last_sampled_token() -> None:
    assert OUTCOMES.rewards.tolist() == [[0, 0, 0, 0, 1.5], [0] * 5, [0] * 5, [0] * 5]
    assert OUTCOMES.steps is None


def test_rewards_by_step_sit_where_the_steps_end() -> None:
    assert STEPS.rewards.tolist() == [[0, 0, 0.5, 0, 0.25], [0] * 5, [0] * 5, [0] * 5]
    assert STEPS.steps is not None
    # a step may be worth 0
    assert STEPS.steps.int().tolist() == [[0, 0, 1, 0, 1], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]


def test_steps_stay_with_their_rows() -> None:
    both = Experience.concat(
        [STEPS.select(torch.tensor([2])).trim(), STEPS.select(torch.tensor([0]))]
    )
    assert both.steps is not None
    assert both.steps.int().tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 1]]
    assert Experience.concat([STEPS, OUTCOMES]).steps is None


class TestBranches:
    """A root, a branch of it, a branch of that branch, and another root."""

    TREE = (
        Response(PROMPT, [5, 6], [7, 8, 9, 1], [-1.0] * 4),
        Response(PROMPT, [5, 6], [7, 8, 3, 4, 1], [-1.0] * 5, branch=Branch(0, 2)),
        Response(PROMPT, [5, 6], [7, 8, 3, 2], [-1.0] * 4, branch=Branch(1, 3)),
        Response(PROMPT, [5, 6], [7, 8, 9], [-1.0] * 3),
    )

    def rows(self, *responses: Response, group: Sequence[int] = (4,) * 4) -> Experience:
        return collate(
            responses,
            Scores([1.0] * len(responses)),
            torch.tensor(group),
            policy_version=3,
            pad_id=0,
        )

    def test_origin_is_the_response_that_sampled_a_token(self) -> None:
        origin = self.rows(*self.TREE).origin
        assert origin is not None
        assert origin[:, 2:].tolist() == [[0] * 5, [0, 0, 1, 1, 1], [0, 0, 1, 2, 2], [3] * 5]

    def test_a_branch_before_that_of_its_parent_is_one_of_its_parent_s_parent(self) -> None:
        early = replace(self.TREE[2], tokens=[7, 0, 0, 0], branch=Branch(1, 1))
        origin = self.rows(*self.TREE[:2], early, self.TREE[3]).origin
        assert origin is not None
        assert origin[2, 2:].tolist() == [0, 2, 2, 2, 2]

    def test_parents_may_come_later(self) -> None:
        root, branch = self.TREE[:2]
        origin = self.rows(replace(branch, branch=Branch(1, 2)), root, group=(4, 4)).origin
        assert origin is not None
        assert origin[:, 2:].tolist() == [[1, 1, 0, 0, 0], [1] * 5]

    def test_parents_are_responses_of_the_group(self) -> None:
        root, branch = self.TREE[:2]
        origin = self.rows(
            root, replace(root, branch=None), branch, root, group=(4, 9, 9, 4)
        ).origin
        assert origin is not None
        assert origin[:, 2:].tolist() == [[0] * 5, [0] * 5, [0, 0, 1, 1, 1], [1] * 5]

    def test_rows_without_branches_have_none(self) -> None:
        assert self.rows(*(replace(r, branch=None) for r in self.TREE)).origin is None

    def test_selected_rows_keep_theirs(self) -> None:
        rows = self.rows(*self.TREE)
        assert rows.origin is not None
        kept = torch.tensor([2, 0])
        assert torch.equal(
            Experience.concat([rows.select(kept), rows.select(kept)]).origin,
            rows.origin[[2, 0, 2, 0]],
        )  # type: ignore[arg-type]

    def test_rows_of_batches_without_branches_share_nothing(self) -> None:
        tree, others = (
            self.rows(*self.TREE),
            self.rows(*(replace(r, branch=None) for r in self.TREE), group=(9, 9, 9, 9)),
        )
        joined = Experience.concat([others, tree.select(torch.tensor([0, 1]))])
        assert joined.origin is not None
        assert len({*joined.origin[:4, 2].tolist()}) == 4
        assert joined.origin[4:, 2:].tolist() == [[0] * 5, [0, 0, 1, 1, 1]]
        assert Experience.concat([others, others]).origin is None
