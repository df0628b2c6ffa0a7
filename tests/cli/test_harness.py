"""The command that evaluates a model on tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlmods.cli.harness import evaluate, metrics
from rlmods.errors import UserError
from tests.support.tiny_setup import policy

TASK = """
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {file}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["#"]
  max_gen_toks: 4
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


class TestSettings:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], r"^tasks=: must be names of tasks: type tasks=TASK"),
            (["tasks=a", "limit=0"], r"^limit=0: must be null or at least 1"),
            (["tasks=a", "limit=some"], r"^limit=some: must be a whole number or null"),
            (["tasks=a", "include=/nowhere"], r"^include=/nowhere: must be a folder"),
            (["tasks=a", "shots=1"], r"^unknown key shots: known keys are tasks,"),
            (["tasks"], r"^tasks: type key=value"),
        ],
    )
    def test_mistakes(self, arguments: list[str], message: str) -> None:
        with pytest.raises(UserError, match=message):
            evaluate("model", arguments)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "lm_eval", None)
        with pytest.raises(
            UserError,
            match=r"^rlmods\.harness needs the package lm_eval; type pip install "
            r"'rlmods\[lm_eval\]'$",
        ):
            evaluate("model", ["tasks=a"])


def test_results_without_text_and_default_filter() -> None:
    values = {
        "alias": "sums",
        "sample_len": 3,
        "acc,none": 0.5,
        "acc_stderr,none": "N/A",
        "exact_match,strict-match": 1,
    }
    assert metrics(values) == {"acc": 0.5, "exact_match/strict-match": 1.0}


def test_what_the_harness_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def simple_evaluate(**options: Any) -> dict[str, Any]:
        asked.update(options)
        return {"results": {"b": {"acc,none": 0.25}, "a": {"acc,none": 1.0}}}

    manager = SimpleNamespace(
        match_tasks=lambda names: [name for name in names if name in ("a", "b")]
    )
    modules = {"lm_eval": ModuleType("lm_eval"), "lm_eval.tasks": ModuleType("lm_eval.tasks")}
    vars(modules["lm_eval"])["simple_evaluate"] = simple_evaluate
    vars(modules["lm_eval.tasks"])["TaskManager"] = lambda include_path: manager
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    policy().export(tmp_path)
    found = evaluate(str(tmp_path), ["tasks=a, b", "limit=7", "fewshot=2", "chat=true"])
    assert found == {"model": str(tmp_path), "tasks": {"a": {"acc": 1.0}, "b": {"acc": 0.25}}}
    assert (asked["tasks"], asked["limit"], asked["num_fewshot"], asked["apply_chat_template"]) == (
        ["a", "b"],
        7,
        2,
        True,
    )
    assert asked["model_args"] == {"pretrained": str(tmp_path)}
    with pytest.raises(UserError, match=r"^tasks=c: no such task"):
        evaluate(str(tmp_path), ["tasks=a,c"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of prompts to which the greedy response, decoded by this package too, is the
    target."""
    pytest.importorskip("lm_eval")
    from rlmods.rollout import Local
    from rlmods.types import Prompt

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    model = policy()
    model.eos_ids = frozenset()
    rollout = Local(max_tokens=4, temperature=0.0)
    rollout.sync(model, iteration=0)
    questions = [f"{i}+{i}=" for i in range(6)]
    said = [
        x.text
        for x in rollout.generate([Prompt(id=q, text=q) for q in questions], samples=1, iteration=0)
    ]
    targets = [text if i % 3 else "wrong" for i, text in enumerate(said)]
    rows = [{"question": q, "answer": target} for q, target in zip(questions, targets, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    model.export(tmp_path / "model")
    found = evaluate(str(tmp_path / "model"), ["tasks=sums", f"include={tmp_path}"])
    assert found["tasks"]["sums"]["exact_match"] == pytest.approx(4 / 6)
