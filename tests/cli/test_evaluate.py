"""Evaluation of reward models on preferences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlmods.cli import evaluate
from rlmods.cli.command import configuration
from rlmods.cli.evaluate import is_reward_model, pair_accuracy
from rlmods.errors import UserError
from rlmods.types import Prompt, Response
from tests.support.rows import write_rows
from tests.support.saved_runs import write_run


class Length:
    """Reward model that scores the length of a text, and abstains on empty ones that are
    truncated."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def __call__(self, responses: Sequence[Response]) -> list[float | None]:
        return [float(len(x.text)) if x.text or x.finish == "stop" else None for x in responses]


def prompt(candidates: list[str], ranks: list[int], **meta: Any) -> Prompt:
    return Prompt(
        id=candidates[0], text="?", meta={"candidates": candidates, "ranks": ranks, **meta}
    )


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "Neural", Length)


class TestPairAccuracy:
    def test_fraction_of_pairs_in_order(self) -> None:
        found = pair_accuracy(
            "model",
            [prompt(["aa", "a"], [0, 1]), prompt(["a", "aa"], [0, 1]), prompt(["b", "a"], [0, 1])],
            64,
        )
        assert (found["prompts"], found["pairs"]) == (3, 3)
        assert found["val/pair_accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)  # a tie counts half
        low, high = found["interval_95"]["val/pair_accuracy"]
        assert low <= 0.5 <= high

    def test_all_pairs_of_a_ranking_count_without_ties_of_ranks(self) -> None:
        found = pair_accuracy(
            "model", [prompt(["aaa", "aa", "a"], [0, 0, 1]), prompt(["aa", "a"], [0, 1])], 64
        )
        assert (found["pairs"], found["val/pair_accuracy"]) == (3, 1.0)
        assert found["interval_95"] == {}  # the prompts differ in their number of pairs

    def test_responses_without_a_score_are_left_out(self) -> None:
        found = pair_accuracy(
            "model", [prompt(["aa", "", "a"], [0, 1, 2], finished=[True, False, True])], 64
        )
        assert (found["pairs"], found["val/pair_accuracy"]) == (1, 1.0)

    def test_of_data_without_preferences(self) -> None:
        with pytest.raises(
            UserError, match=r"the data has none: type data=preferences data\.train=FILE$"
        ):
            pair_accuracy("model", [Prompt(id="a", text="?", answer="1")], 64)


def test_a_reference_is_found_before_the_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "load", lambda name: torch.nn.Identity())
    monkeypatch.setattr(evaluate, "usable_prompts", lambda *_: pytest.fail("too late"))
    typed = ["data=arithmetic", "data.num_val=2", "reference=/nowhere"]
    with pytest.raises(UserError, match="'/nowhere': no such directory"):
        evaluate.evaluate("a/model", typed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"architectures": ["LlamaForSequenceClassification"]}', True),
        ('{"architectures": ["LlamaForCausalLM"]}', False),
        ("{", False),
    ],
)
def test_reward_models_are_recognised(text: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert is_reward_model(tmp_path) is expected
    assert not is_reward_model(tmp_path / "elsewhere")


def test_prompts_that_the_run_was_trained_on_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many more rows are held out as are typed, of the rows that the run trained on."""
    rows = [{"prompt": f"question {i}", "answer": str(i)} for i in range(20)]
    write_rows(tmp_path / "rows.jsonl", rows)
    file = tmp_path / "rows.jsonl"
    run = write_run(tmp_path / "run", [0.5])
    saved = OmegaConf.create({"data": {"_target_": "rlmods.data.Jsonl", "num_val": 4}})
    saved.data.train = str(file)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(saved))
    monkeypatch.setattr(evaluate, "find_policy", lambda *_: ("model", run / "config.yaml"))
    monkeypatch.setattr(evaluate, "is_reward_model", lambda _: True)
    monkeypatch.setattr(evaluate, "pair_accuracy", lambda *_: {})
    typed = ["data=jsonl", f"data.train={file}", "data.num_val=10"]
    with pytest.warns(UserWarning, match="(?:[6-9]|10) of 10 held-out prompts are also trained on"):
        evaluate.evaluate("run", typed)


def test_a_flag_is_answered_with_the_setting() -> None:
    with pytest.raises(UserError, match=r"--samples: .* type samples=4"):
        configuration(["data=arithmetic", "--samples", "4"])


@pytest.mark.parametrize("path", ["sweep", "sweep/a/checkpoints", "sweep/a/config.yaml"])
def test_a_folder_or_a_file_of_runs_is_answered_with_the_run(path: str, tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "a", [0.5])
    (tmp_path / "sweep/a/checkpoints").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=r"is not a run or a model: .*sweep/a"):
        evaluate.evaluate(str(tmp_path / path), [])


def test_table_shows_values_and_intervals() -> None:
    result = {
        "model": "runs/a",
        "prompts": 20,
        "val/accuracy": 0.5,
        "interval_95": {"val/accuracy": [0.25, 0.75]},
    }
    assert evaluate.table(result).splitlines() == [
        "model         runs/a",
        "prompts       20",
        "val/accuracy  0.5000  95 % from 0.2500 to 0.7500",
    ]


def test_data_of_a_received_run_are_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run", [0.5])
    evil = {"_target_": "rlmods.reward.Function", "function": f"{tmp_path}/evil.py:f"}
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create({"data": evil})))
    monkeypatch.setattr(evaluate, "find_policy", lambda *_: ("model", run / "config.yaml"))
    monkeypatch.setattr(evaluate, "is_reward_model", lambda _: True)
    monkeypatch.setattr(evaluate, "pair_accuracy", lambda *_: {})
    with pytest.warns(UserWarning, match="cannot be compared with that of the evaluation"):
        evaluate.evaluate("run", ["data=arithmetic", "data.num_val=10"])
    assert not (tmp_path / "executed").exists()
