"""Judges that compare scores, of a reward and of a reward model."""

from itertools import product

import pytest
import torch
from hydra import compose, initialize_config_dir

from rlmods.config.instantiate import instantiate
from rlmods.config.options import CONF
from rlmods.errors import UserError
from rlmods.judge import Neural, Rule, compare, rankings
from rlmods.policy import Tiny
from rlmods.policy.scalar import ScalarModel
from rlmods.reward import Accuracy, Format, Preference
from rlmods.training.meter import Meter
from rlmods.training.preferences import rank_responses
from rlmods.types import Prompt, Response, Scores

PROMPT = Prompt(id="0", text="1+1=", answer="2")
RIGHT, WRONG = "<answer>2</answer>", "<answer>3</answer>"


class TestRule:
    def test_prefers_the_correct_answer(self):
        judge = Rule()
        assert judge(PROMPT, RIGHT, WRONG) == 1.0
        assert judge(PROMPT, WRONG, RIGHT) == 0.0
        assert judge(PROMPT, RIGHT, "so it is <answer>2.0</answer>") == 0.5
        assert judge(PROMPT, WRONG, "<answer>4</answer>") == 0.5

    def test_no_verdict_without_a_gold_answer(self):
        assert Rule()(Prompt(id="0", text="1+1="), RIGHT, WRONG) is None

    def test_accepts_any_reward(self):
        judge = Rule(reward=Format(style="answer"))
        assert judge(PROMPT, "2", WRONG) == 0.0
        assert not judge.needs.answer
        assert Rule().needs.answer
        assert Rule(
            reward=lambda responses: [float(r.prompt.meta["want"] in r.text) for r in responses]
        )(Prompt(id="0", text="?", meta={"want": "b"}), "abc", "xyz")

    def test_scores_within_tie_are_a_tie(self):
        judge = Rule(reward=lambda responses: [float(r.text) for r in responses], tie=0.25)
        assert [judge(PROMPT, "1", x) for x in ("1.2", "1.25", "1.3", "0.7")] == [
            0.5,
            0.5,
            0.0,
            1.0,
        ]

    def test_a_reward_that_cannot_be_called(self):
        with pytest.raises(UserError, match=r"\+reward@judge.reward"):
            Rule(reward={"weight": 1})

    @pytest.mark.parametrize(
        ("overrides", "reward_class"), [([], Accuracy), (["+reward@judge.reward=format"], Format)]
    )
    def test_reward_from_the_command_line(self, overrides, reward_class):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            judge = instantiate(compose("train", ["judge=rule", *overrides]).judge, "judge")
        assert isinstance(judge.scorer, reward_class)


class TestCompareScores:
    def test_scores_every_response_once_in_one_call(self):
        calls: list[list[str]] = []

        def length(responses):
            calls.append([r.text for r in responses])
            return [len(r.text) for r in responses]

        pairs = [("a", "bb"), ("bb", "ccc"), ("ccc", "a"), ("bb", "dd")]
        verdicts = Rule(reward=length).compare([(PROMPT, *pair) for pair in pairs])
        assert verdicts == [0.0, 0.0, 1.0, 0.5]
        assert calls == [["a", "bb", "ccc", "dd"]]

    def test_scores_a_response_with_its_own_prompt(self):
        pairs = [(Prompt(id="0", text=text, answer=text), "x", "y") for text in "xy"]
        judge = Rule(reward=lambda rs: [float(r.text == r.prompt.answer) for r in rs])
        assert judge.compare(pairs) == [1.0, 0.0]

    def test_no_verdict_without_a_score(self):
        judge = Rule(reward=lambda rs: [None if r.text == "a" else 1.0 for r in rs])
        assert judge.compare([(PROMPT, "a", "b"), (PROMPT, "b", "c")]) == [None, 0.5]

    def test_adds_the_counts_of_the_reward(self) -> None:
        judge = Rule(reward=lambda rs: Scores([0.0] * len(rs), counts={"errors": 2}))
        judge(PROMPT, "a", "b")
        judge(PROMPT, "a", "b")
        assert judge.counts == {"errors": 4}


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


def ranks_of(judge, prompt, candidates):
    [(ranks, _)] = rankings(judge, [(prompt, candidates)])
    return ranks


class TestNeural:
    def test_prefers_the_response_with_the_higher_score(self, tmp_path):
        model = saved(tmp_path)
        judge = Neural(str(tmp_path))
        for prompt in PROMPTS:
            expected = scores(model, prompt)
            assert len({round(score, 4) for score in expected}) == len(TEXTS)
            assert ranks_of(judge, prompt, TEXTS) == [
                sorted(expected, reverse=True).index(score) for score in expected
            ]
            assert (
                judge(prompt, TEXTS[0], TEXTS[1])
                == float(expected[0] > expected[1])
                == 1 - judge(prompt, TEXTS[1], TEXTS[0])
            )

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

        finished = ranks_of(judge, prompt, TEXTS)
        assert expected(["stop"] * len(TEXTS)) == finished
        finishes = next(
            x for x in product(("stop", "length"), repeat=len(TEXTS)) if expected(x) != finished
        )
        ranks = expected(finishes)
        sampled = [
            Response(prompt, (1,), (7,), (0.0,), text, finish)
            for text, finish in zip(TEXTS, finishes, strict=True)
        ]
        assert ranks_of(judge, prompt, sampled) == ranks
        assert compare(judge, [(prompt, sampled[0], sampled[1])]) == [float(ranks[0] < ranks[1])]
        assert list(Preference(judge)(sampled)) == [(3 - r) / 3 for r in ranks]
        [ranked] = rank_responses(judge, [sampled], Meter())
        assert ranked.ranks == ranks

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({}, "judge.model=RUN_OR_DIRECTORY"),
            ({"model": "/nowhere/run"}, "no reward model at '/nowhere/run'"),
        ],
    )
    def test_rejects_invalid_settings(self, fields, word):
        with pytest.raises((UserError, ValueError), match=word):
            Neural(**fields)
