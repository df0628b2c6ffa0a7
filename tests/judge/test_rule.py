import pytest
from hydra import compose, initialize_config_dir

from rlmods.config.instantiate import instantiate
from rlmods.config.options import CONF
from rlmods.errors import UserError
from rlmods.judge import Rule
from rlmods.reward import Accuracy, Format
from rlmods.types import Prompt, Scores

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

    @pytest.mark.parametrize(
        ("fields", "word"),
        [({"tie": -1.0}, "judge.tie=-1.0"), ({"reward": {"weight": 1}}, r"\+reward@judge.reward")],
    )
    def test_rejects_invalid_settings(self, fields, word):
        with pytest.raises((UserError, ValueError), match=word):
            Rule(**fields)

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
