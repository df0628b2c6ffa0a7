from itertools import product

import pytest
import torch

from rlmods.errors import UserError
from rlmods.judge import Neural, compare, rank
from rlmods.policy import Tiny
from rlmods.policy.scalar import ScalarModel
from rlmods.reward import Preference
from rlmods.training.meter import Meter
from rlmods.training.preferences import rank_responses
from rlmods.types import Prompt, Response

PROMPTS = [Prompt(id=str(i), text=text) for i, text in enumerate(("1+1=", "12345+67890="))]
TEXTS = ["2", "<answer>3</answer>", "so it is two", "7" * 40]


def saved(folder, *, pooling="last", seed=0):
    torch.manual_seed(seed)
    model = ScalarModel.from_policy(Tiny(pretrained=False, hidden_size=32, num_layers=2)())
    torch.nn.init.normal_(model.model.score.weight)
    model.metadata["pooling"] = pooling
    model.export(folder)
    return ScalarModel.load(folder)


def scores(model, prompt):
    """Score each response at its end-of-text token, in a forward pass of its own without
    padding."""
    rows = [(model.encode(prompt), model.encode_response(text)) for text in TEXTS]
    return [model(torch.tensor([[*p, *r]]))[0, -1].item() for p, r in rows]


class TestNeural:
    def test_prefers_the_response_with_the_higher_score(self, tmp_path):
        model = saved(tmp_path)
        judge = Neural(str(tmp_path))
        for prompt in PROMPTS:
            expected = scores(model, prompt)
            assert len({round(score, 4) for score in expected}) == len(TEXTS)
            assert rank(judge, prompt, TEXTS) == [
                sorted(expected, reverse=True).index(score) for score in expected
            ]
            assert (
                judge(prompt, TEXTS[0], TEXTS[1])
                == float(expected[0] > expected[1])
                == 1 - judge(prompt, TEXTS[1], TEXTS[0])
            )

    def test_verdicts_do_not_depend_on_the_other_pairs(self, tmp_path):
        saved(tmp_path)
        judge = Neural(str(tmp_path))
        pairs = [(prompt, a, b) for prompt in PROMPTS for a in TEXTS for b in TEXTS]
        assert judge.compare(pairs) == [judge(*pair) for pair in pairs]
        assert judge.compare(pairs[::-1]) == judge.compare(pairs)[::-1]

    def test_a_truncated_response_has_no_end_of_text(self, tmp_path):
        """In all that asks the judge: directly, in rankings, in the reward by win rates, and in
        rankings of sampled responses."""
        model, prompt, judge = saved(tmp_path), PROMPTS[0], Neural(str(tmp_path))

        def expected(finishes):
            rows = [
                [*model.encode(prompt), *model.encode_response(text, finished=finish == "stop")]
                for text, finish in zip(TEXTS, finishes, strict=True)
            ]
            scores = [model(torch.tensor([row]))[0, -1].item() for row in rows]
            return [sorted(scores, reverse=True).index(score) for score in scores]

        finished = rank(judge, prompt, TEXTS)
        assert expected(["stop"] * len(TEXTS)) == finished
        finishes = next(
            x for x in product(("stop", "length"), repeat=len(TEXTS)) if expected(x) != finished
        )
        ranks = expected(finishes)
        sampled = [
            Response(prompt, (1,), (7,), (0.0,), text, finish)
            for text, finish in zip(TEXTS, finishes, strict=True)
        ]
        assert rank(judge, prompt, sampled) == ranks
        assert compare(judge, [(prompt, sampled[0], sampled[1])]) == [float(ranks[0] < ranks[1])]
        assert list(Preference(judge)(sampled)) == [(3 - r) / 3 for r in ranks]
        [ranked] = rank_responses(judge, [sampled], Meter())
        assert ranked.ranks == ranks

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({}, "judge.model=RUN_OR_DIRECTORY"),
            ({"model": "/nowhere/run"}, "no reward model at '/nowhere/run'"),
            ({"model": "owner/name", "tie": -1.0}, "judge.tie=-1.0"),
        ],
    )
    def test_rejects_invalid_settings(self, fields, word):
        with pytest.raises((UserError, ValueError), match=word):
            Neural(**fields)
