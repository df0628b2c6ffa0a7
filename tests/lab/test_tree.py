"""Responses to a prompt as a tree."""

from dataclasses import replace
from typing import Any

import torch

from rlmods.advantage import Tree
from rlmods.lab.tree import groups, tree_lines
from rlmods.training.collate import collate
from rlmods.training.credit import CreditAssignment
from rlmods.training.sample_log import SampleLog
from rlmods.types import Branch, Prompt, Response, Scores

PROMPT = Prompt(id="p1", text="17 * 23 = ?")
DECISION = {
    "position": 4,
    "entropy": 0.31,
    "initial_entropy": 0.22,
    "probability": 0.518,
    "num_branches": 2,
}


def response(text: str, tokens: str, branch: Branch | None = None, **meta: Any) -> Response:
    """A response of one token per character."""
    return Response(
        PROMPT, [9], [ord(c) for c in tokens], [-1.0] * len(tokens), text, branch=branch, meta=meta
    )


RESPONSES = [
    response("391", "abcdEF", decisions=[DECISION]),
    response("400", "abcdGHIJ", Branch(0, 4)),
    response("390", "abcdGHKL", Branch(1, 6)),
    response("40\x1b[2J0", "xyz"),
    response("392", "abMN", Branch(2, 2)),
]
REWARDS = [1.0, 0.0, 0.5, 0.0, 0.0]


def rows(part: Any = None) -> list[dict[str, Any]]:
    """Rows of the sample log, as the training loop writes them, with advantages of `part`
    (`tree`)."""
    group, scores = torch.tensor([3] * 5), Scores(REWARDS)
    batch = collate(RESPONSES, scores, group, policy_version=0, pad_id=0)
    batch.mask[:3, 4] = False  # token 3 is observed
    log = SampleLog()
    log.add_groups(RESPONSES, scores, 7, group, torch.ones(5, dtype=torch.bool))
    credit = CreditAssignment(part or Tree())
    log.set_advantages(credit.estimate(batch, scores, torch.zeros_like(batch.rewards)), {})
    return log.rows


TREE = """\
├── tokens 0-2  4 responses, mean reward 0.375, advantage +0.075
│   ├── tokens 2-4  3 responses, mean reward 0.5, advantage +0.125  entropy 0.220 -> 0.310, P 0.518
│   │   ├── response 0  tokens 4-6  reward 1, advantage +0.500  stop  391
│   │   └── tokens 4-6  2 responses, mean reward 0.25, advantage -0.250
│   │       ├── response 1  tokens 6-8  reward 0, advantage -0.250  stop  400
│   │       └── response 2  tokens 6-8  reward 0.5, advantage +0.250  stop  390
│   └── response 4  tokens 2-4  reward 0, advantage -0.375  stop  392
└── response 3  tokens 0-3  reward 0, advantage -0.300  stop  40\\x1b[2J0"""


class TestRows:
    def test_hold_the_branches(self) -> None:
        found = [row["branch"] for row in rows()]
        assert [(x["sample"], x["parent"], x["shared"]) for x in found] == [
            (0, None, 0),
            (1, 0, 4),
            (2, 1, 6),
            (3, None, 0),
            (4, 2, 2),
        ]
        assert found[0]["decisions"] == [DECISION]
        assert all(not x["decisions"] for x in found[1:])

    def test_without_branches_have_no_column_for_them(self) -> None:
        roots = [replace(RESPONSES[0], meta={}), RESPONSES[3]]
        log = SampleLog()
        group, selected = torch.tensor([3, 3]), torch.tensor([True] * 2)
        log.add_groups(roots, Scores([0.0, 1.0]), 7, group, selected)
        assert all("branch" not in row for row in log.rows)


class TestTree:
    def test_shows_every_segment_once(self) -> None:
        assert "\n".join(tree_lines(rows())) == TREE

    def test_of_responses_without_branches(self) -> None:
        own = ("branch", "credit")
        roots = [{k: v for k, v in row.items() if k not in own} for row in rows()[:2]]
        assert list(tree_lines(roots)) == [
            f"├── response 0  tokens 0-6  reward 1, advantage {roots[0]['advantage']:+.3f}  "
            "stop  391",
            f"└── response 1  tokens 0-8  reward 0, advantage {roots[1]['advantage']:+.3f}  "
            "stop  400",
        ]

    def test_cuts_are_those_of_a_segment(self) -> None:
        cut = [{**row, "cuts": [5, 99]} for row in rows()]
        lines = list(tree_lines(cut))
        assert [line.split("tokens ")[1][:14] for line in lines if "cut at" in line] == [
            "4-6 (cut at 5)",
            "4-6 (cut at 5)",
        ]

    def test_a_prompt_that_occurs_twice_has_two_trees(self) -> None:
        assert [len(group) for group in groups([*rows(), *rows()])] == [5, 5]
