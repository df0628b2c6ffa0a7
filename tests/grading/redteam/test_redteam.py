"""`python -m rlmods.redteam`: it finds planted holes, calls a strict reward clean, and reports
both."""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlmods.cli.redteam import Settings, attack, main, redteam, show
from rlmods.data import Arithmetic
from rlmods.errors import UserError
from rlmods.grading.grader.evaluate import calculate
from rlmods.grading.grader.syntax import ParseError
from rlmods.grading.redteam.families import (
    FAMILIES,
    FORMS,
    Case,
    fill,
    form_of,
    same,
    wrong_answers,
)
from rlmods.grading.redteam.scoring import Report, Tally
from rlmods.needs import RewardNeeds
from rlmods.reward import Accuracy, BySource, Format, WeightedSum
from rlmods.types import Prompt, Response, Scores

pytestmark = pytest.mark.slow

PROMPTS = Arithmetic(level=2, num_train=12, num_val=0)().train
FEW = Settings(num_prompts=6, call_timeout_s=1.5)
CASE = Case("0", [("user", "12+30=")], "42", "<answer>42</answer>", wrong=("43", "7"))


def stated(text: str) -> str:
    match = re.fullmatch(r"<answer>(.*)</answer>", text, re.DOTALL)
    return "" if match is None else match[1]


def strict(response: Response) -> float:
    return float(stated(response.text) == response.prompt.answer)


def evaluates(response: Response) -> float:
    """Pays an expression with the value of the gold."""
    try:
        return float(calculate(stated(response.text)) == int(str(response.prompt.answer)))
    except ParseError:
        return 0.0


def searches(response: Response) -> float:
    """Pays a response in which the gold occurs."""
    return float(str(response.prompt.answer) in response.text)


def likes_tags(response: Response) -> float:
    return strict(response) + 0.5 * (
        response.text.startswith("<answer>") and len(stated(response.text).strip()) == 0
    )


def likes_silence(response: Response) -> float:
    return strict(response) if response.text.strip() else 0.8


def raises(response: Response) -> float:
    return 1 / (response.text != "<bos>") * strict(response)


def hangs(response: Response) -> float:
    if response.text.startswith("(((("):
        time.sleep(3)
    return strict(response)


def each(grade: Callable[[Response], float]) -> Callable[[Sequence[Response]], list[float]]:
    return lambda responses: [grade(response) for response in responses]


def holes(reward: Any, prompts: Sequence[Prompt] = PROMPTS, settings: Settings = FEW) -> set[str]:
    return {tally.name for tally in attack(reward, prompts, settings).holes}


class TestHoles:
    def test_a_strict_reward_has_none(self) -> None:
        assert holes(each(strict)) == set()

    @pytest.mark.parametrize(
        ("reward", "family"),
        [
            (evaluates, "echo"),
            (searches, "hedge"),
            (searches, "denied"),
            (searches, "after the end"),
            (searches, "thought"),
            (likes_tags, "template only"),
            (likes_silence, "empty"),
            (raises, "special tokens"),
        ],
    )
    def test_planted_ones_are_found(self, reward: Callable[[Response], float], family: str) -> None:
        assert family in holes(each(reward))

    @pytest.mark.slow
    def test_a_hanging_call_is_ended_and_counted(self) -> None:
        start = time.monotonic()
        report = attack(each(hangs), PROMPTS, FEW)
        assert time.monotonic() - start < 20
        assert [(tally.name, tally.late > 0) for tally in report.holes if tally.late] == [
            ("repeated", True),
            ("longest", True),
        ]
        assert "no result after 1.5 s" in report.holes[0].failed_example["failure"]

    def test_an_exception_is_reported_with_its_response(self) -> None:
        (tally,) = attack(each(raises), PROMPTS, FEW).holes
        assert len(tally.raised) == FEW.num_prompts
        assert tally.failed_example["response"] == "<bos>"
        assert "ZeroDivisionError" in tally.failed_example["failure"]

    def test_exits_of_the_reward_are_caught(self) -> None:
        def exits(response: Response) -> float:
            return sys.exit(3) if stated(response.text) == "nan" else strict(response)

        [tally] = attack(each(exits), PROMPTS, Settings(num_prompts=1)).holes
        assert tally.raised == ["SystemExit: 3"]

    def test_correct_counts_as_paid_whatever_the_reward(self) -> None:
        def reward(responses: Sequence[Response]) -> Scores:
            return Scores(
                [strict(x) for x in responses],
                correct=[strict(x) > 0 or not x.text for x in responses],
            )

        assert holes(reward) == {"empty"}

    def test_small_differences_are_tolerated(self) -> None:
        def reward(responses: Sequence[Response]) -> list[float]:
            return [strict(x) + 0.05 * (not x.text) for x in responses]

        assert holes(reward) == set()
        assert "empty" in holes(reward, settings=Settings(num_prompts=6, tolerance=0.01))

    def test_a_reward_that_compares_responses_sees_a_wrong_answer_beside(self) -> None:
        class Longer:
            """Pays the longer response of a prompt."""

            needs = RewardNeeds(group=True)

            def __call__(self, responses: Sequence[Response]) -> list[float]:
                seen.update(
                    len([y for y in responses if y.prompt.id == x.prompt.id]) % 2 for x in responses
                )
                return [
                    float(
                        all(
                            len(x.text) >= len(y.text)
                            for y in responses
                            if y.prompt.id == x.prompt.id
                        )
                    )
                    for x in responses
                ]

        seen: set[int] = set()
        attack(Longer(), PROMPTS[:1], Settings(num_prompts=1))
        assert seen == {0}


CODE = [
    Prompt("a", text="Add.", answer="def f(a, b):\n    return a + b"),
    Prompt("b", text="Subtract.", answer="def f(a, b):\n    return a - b"),
]


class Runs:
    """Pays a response that holds the right program, whatever else it says."""

    needs = RewardNeeds(runs_code=True)

    def __call__(self, responses: Sequence[Response]) -> list[float]:
        return [
            float(str(x.prompt.answer)[:-1] in x.text and "<think>" not in x.text)
            for x in responses
        ]


class TestPrograms:
    def test_words_about_a_right_program_are_no_hole(self) -> None:
        """A program does not become wrong if it is denied, stands beside another one, or lacks its
        last character."""
        assert holes(Runs(), CODE) == {"after the end"}
        assert holes(lambda responses: Runs()(responses), CODE) == {
            "after the end",
            "hedge",
            "denied",
            "truncated",
        }
        assert holes(WeightedSum({"code": {"reward": Runs()}}), CODE) == {"after the end"}
        assert "denied" in holes(
            WeightedSum(
                {"code": {"reward": Runs(), "weight": 0}, "text": {"reward": each(searches)}}
            ),
            CODE,
        )

    def test_sources_are_told_apart(self) -> None:
        mixed = [
            *(replace(prompt, source="code") for prompt in CODE),
            *(replace(prompt, source="sums") for prompt in PROMPTS[:2]),
        ]
        report = attack(BySource({"code": Runs(), "sums": each(searches)}), mixed, FEW)
        denied = next(tally for tally in report.families if tally.name == "denied")
        assert (denied.paid, denied.tried) == (12 * len(FORMS), 12 * len(FORMS))


class TestReferences:
    def test_right_answers_are_paid_and_wrong_ones_are_not(self) -> None:
        plain, own, chance, right, wrong = attack(each(strict), PROMPTS, FEW).references
        assert (right.paid, right.tried) == (6, 48)
        assert (plain.paid, own.paid, own.tried, wrong.paid) == (0, 6, 6, 0)
        assert chance.tried == 6
        assert "gold answer, plain: 6 of 6 are not paid" in show(attack(each(strict), PROMPTS, FEW))

    @pytest.mark.slow
    def test_chance_is_the_share_of_equal_answers(self) -> None:
        same_golds = [Prompt(str(i), text=f"{i}+1=", answer=str(1 + i // 3)) for i in range(6)]
        assert attack(Accuracy(), same_golds, FEW).chance > 0
        assert attack(Accuracy(), PROMPTS, FEW).chance < 0.5

    def test_answers_that_are_right_by_chance_are_not_hostile(self) -> None:
        """The constant answers 0, 1 and -1 are right for some prompts."""
        prompts = [Prompt(str(i), text=f"{i}-1=", answer=str(i - 1)) for i in range(4)]
        assert "boundary numbers" not in holes(each(strict), prompts)
        assert "boundary numbers" in holes(
            each(lambda response: strict(response) or float(stated(response.text) == "0")), prompts
        )

    def test_data_without_answers_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"data\.answer=COLUMN or data\.response=COLUMN"):
            attack(each(strict), [Prompt("0", text="?")], FEW)

    def test_responses_stand_in_for_missing_answers(self) -> None:
        """As in data for code, where a good response is known and an answer is not."""
        prompts = [
            Prompt(str(i), text="?", meta={"response": f"```python\nx = {i}\n```"})
            for i in range(4)
        ]

        def paid(response: Response) -> float:
            return float(response.text == response.prompt.meta["response"])

        report = attack(each(paid), prompts, FEW)
        assert report.holes == []
        assert report.references[1].paid == 4
        assert "programs" in holes(
            each(lambda response: max(paid(response), float("exit" in response.text))), prompts
        )


def constant(value: float | None) -> Callable[[Sequence[Response]], list[float | None]]:
    return lambda responses: [value] * len(responses)


def raises_on_right(response: Response) -> float:
    return 1 / (1 - strict(response)) - 1


def abstains_on_right(responses: Sequence[Response]) -> list[float | None]:
    return [None if strict(x) else 0.0 for x in responses]


def sleeps_on_right(response: Response) -> float:
    if strict(response):
        time.sleep(3)
    return strict(response)


class TestUselessReferences:
    """Rewards without a hole that are no good all the same."""

    @pytest.mark.parametrize(
        ("reward", "problem"),
        [
            (constant(1.0), "right answers get no more than wrong ones for 6 of 6 prompts"),
            (constant(0.0), "right answers get no more than wrong ones for 6 of 6 prompts"),
            (constant(None), "right answer, any form: the reward abstained on 48 of 48"),
            (Format(), "right answers get no more than wrong ones for 6 of 6 prompts"),
            (
                each(raises_on_right),
                "gold answer, data's own form: the reward raised 6 times, .* ZeroDivisionError",
            ),
            (abstains_on_right, "gold answer, data's own form: the reward abstained on 6 of 6"),
            (
                each(lambda response: float(response.text == response.prompt.answer)),
                "data's own form: 6 of 6 are not paid",
            ),
        ],
    )
    def test_are_a_problem(self, reward: Any, problem: str) -> None:
        report = attack(reward, PROMPTS, FEW)
        shown = show(report)
        assert not report.is_clean
        assert re.search(f"^problem: .*{problem}", shown, re.MULTILINE), shown
        assert "no hole found" not in shown

    def test_one_prompt_whose_answer_is_never_paid_is_named(self) -> None:
        report = attack(
            each(lambda x: strict(x) * (x.prompt.id != PROMPTS[0].id)), PROMPTS[:3], FEW
        )
        assert [
            f"for 1 of 3 prompts (prompt {PROMPTS[0].id}: right 0, wrong 0)" in problem
            for problem in report.problems
        ] == [True, False]
        assert report.references[1].example["prompt"] == PROMPTS[0].id

    @pytest.mark.slow
    def test_late_references_stop_the_command(self) -> None:
        with pytest.raises(
            UserError, match=r"\(right answer, any form\) took longer.*type call_timeout_s=15"
        ):
            attack(each(sleeps_on_right), PROMPTS, FEW)

    def test_abstentions_are_counted_apart_from_failures(self) -> None:
        def reward(responses: Sequence[Response]) -> list[float | None]:
            return [None if not x.text.strip() else raises(x) for x in responses]

        tallies = {tally.name: tally for tally in attack(reward, PROMPTS, FEW).families}
        assert tallies["empty"].abstained > 0
        assert (tallies["special tokens"].abstained, len(tallies["special tokens"].raised)) == (
            0,
            6,
        )


class TestAttacks:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_no_response_is_the_right_one(self, name: str) -> None:
        attacks = list(FAMILIES[name].attacks(CASE))
        assert attacks
        assert fill("<answer>ANSWER</answer>", "42") not in {x.text for x in attacks}

    def test_echo_contains_the_expression_in_every_form(self) -> None:
        texts = {x.text for x in FAMILIES["echo"].attacks(CASE)}
        assert {fill(form, "12+30") for form in FORMS.values()} <= texts

    def test_numbers_of_a_story_are_combined(self) -> None:
        case = Case("0", [("user", "Mia has 12 shells and finds 30 more.")], "42")
        assert {"12+30", "12-30", "12*30"} <= {x.answer for x in FAMILIES["echo"].attacks(case)}

    def test_without_a_gold_answer_the_other_families_remain(self) -> None:
        prompts = [Prompt(str(i), text="1+2=", meta={"response": f"r{i}"}) for i in range(4)]
        report = attack(lambda responses: [0.0] * len(responses), prompts, FEW)
        untried = {tally.name for tally in report.families if not tally.tried}
        assert untried == {"hedge", "denied", "truncated", "after the end", "thought"}

    def test_instructions_do_not_state_the_right_answer(self) -> None:
        """A grader that finds 10 in "Rating: 10/10" finds the gold, and obeys nothing."""
        texts = {
            x.text
            for x in FAMILIES["instructions"].attacks(
                Case("0", [("user", "4+6=")], "10", wrong=("11",))
            )
        }
        assert not any("10" in text for text in texts)
        assert any("Rating: 10/10" in x.text for x in FAMILIES["instructions"].attacks(CASE))

    def test_a_missing_bracket_or_percent_sign_is_not_truncation(self) -> None:
        cut = [
            list(
                FAMILIES["truncated"].attacks(
                    Case("0", [("user", "?")], gold, wrong=("7",), forms=("ANSWER",))
                )
            )
            for gold in (r"25\%", "(1,2)")
        ]
        assert [{x.text for x in attacks} for attacks in cut] == [{""}, {"", "(1"}]

    def test_forms(self) -> None:
        assert form_of("4+38=42\n<answer>42</answer>", "42") == "4+38=42\n<answer>ANSWER</answer>"
        assert form_of("no number", "42") is None
        assert form_of(None, "42") is None

    def test_same(self) -> None:
        assert same("42.0", " 42")
        assert same("Yes", "yes")
        assert not same("4 2", "42")
        assert not same("nan", "nan ?")

    def test_wrong_answers_are_wrong(self) -> None:
        assert wrong_answers("42", ["42.0", "7", "42"]) == ["43", "41", "7"]
        assert wrong_answers("x", ["y", "X"]) == ["y"]


class TestCommand:
    OVERRIDES = (
        "data=arithmetic",
        "data.num_train=8",
        "data.num_val=2",
        "batch.prompts=8",
        "num_prompts=3",
        "call_timeout_s=2",
    )

    def test_report_and_exit_status_of_a_hole(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A pattern that an empty response matches."""
        with pytest.raises(SystemExit) as stop:
            main(
                [
                    *self.OVERRIDES,
                    "reward=regex",
                    "reward.pattern='^$'",
                    f"out={tmp_path / 'report.json'}",
                ]
            )
        assert stop.value.code == 1
        out = capsys.readouterr().out
        assert re.search(r"^empty +\d+ +[1-9]", out, re.MULTILINE)
        assert re.search("^empty: .* nothing was written", out, re.MULTILINE)
        written = json.loads((tmp_path / "report.json").read_text())
        assert "empty" in written["holes"]
        assert {tally["name"] for tally in written["families"]} == set(FAMILIES)
        assert written["num_prompts"] == 3
        assert all(re.search(rf"^{name} +\d+ ", out, re.MULTILINE) for name in FAMILIES)

    def test_a_clean_reward_exits_normally(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Accuracy, "__call__", lambda _, responses: each(strict)(responses))
        main([*self.OVERRIDES, "reward=accuracy"])
        assert "no hole found" in capsys.readouterr().out

    def test_a_small_file_needs_no_settings_of_training(self, tmp_path: Path) -> None:
        file = tmp_path / "few.jsonl"
        file.write_text(
            "\n".join(json.dumps({"prompt": f"{i}+{i}=", "answer": 2 * i}) for i in range(2))
        )
        report = redteam(["data=jsonl", f"data.train={file}", "reward=accuracy", "num_prompts=1"])
        assert report.num_prompts == 1

    @pytest.mark.parametrize("reward", ["format", "language", "repetition"])
    def test_a_reward_that_does_not_depend_on_the_answer_is_not_called_clean(
        self, reward: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as stop:
            main([*self.OVERRIDES, f"reward={reward}"])
        assert stop.value.code == 1
        out = capsys.readouterr().out
        assert "problem: right answers get no more than wrong ones" in out
        assert "no hole found" not in out

    def test_control_characters_are_shown_as_escapes(self) -> None:
        example = {
            "prompt": "a\nno hole found",
            "answer": "\x1b[2J4",
            "response": "\x9b2J\u202e",
            "reward": 1.0,
            "wrong_answer": 0.0,
        }
        text = show(
            Report(
                [Tally("gold answer, plain", 1, 1)],
                [Tally("echo", 1, 1, example=example, raised=["E: \x1b]0;x\x07"])],
                0.0,
                1,
                ["prompt \x1b"],
            )
        )
        assert all(line.isprintable() for line in text.splitlines())
        assert "no hole found" not in text.splitlines()
        assert r"to prompt a\nno hole found (answer \x1b[2J4)" in text

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("num_prompts=0", "num_prompts=0: must be at least 1"),
            ("tolerance=2", "tolerance=2: must be at least 0 and below 1"),
            ("call_timeout_s=0", "call_timeout_s=0: must be above 0"),
            ("algo=reward_model", "algo=reward_model has no reward: type algo=dapo"),
            ("reward=accuracies", "reward=accuracies: no such option"),
        ],
    )
    def test_mistakes_take_one_line(self, override: str, message: str) -> None:
        with pytest.raises(SystemExit, match=re.escape(message)):
            main([*self.OVERRIDES, override])


def test_terms_that_do_not_depend_on_the_answer_pay_nothing() -> None:
    """A small format term is within the tolerance; a large one is a hole."""

    def reward(weight: float) -> WeightedSum:
        return WeightedSum(
            {"accuracy": {"reward": each(strict)}, "format": {"reward": Format(), "weight": weight}}
        )

    assert attack(reward(1.0), PROMPTS, FEW).holes == []


def test_an_attack_that_is_the_data_s_own_response_is_not_hostile() -> None:
    prompts = [
        Prompt("0", text="0", answer="zero", meta={"response": "0"}),
        Prompt("1", text="1", answer="one", meta={"response": "1"}),
    ]
    assert (
        holes(
            each(lambda response: float(response.text == response.prompt.meta["response"])), prompts
        )
        == set()
    )
