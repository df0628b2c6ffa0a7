"""Two ranks write the files that one process writes: samples and counts of both, metrics over both,
the same exported models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support import ranks
from tests.support.rank_files import STRATEGIES, train
from tests.support.tiny_setup import untimed

pytestmark = pytest.mark.slow


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    train(folder)
    return folder


@pytest.fixture(scope="module", params=STRATEGIES)
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    ranks.run("tests.support.rank_files", [str(folder), request.param], timeout_s=230)
    return folder


def test_metrics(one: Path, two: Path) -> None:
    expected, found = lines(one / "metrics.jsonl"), lines(two / "metrics.jsonl")
    assert len(found) == len(expected)
    for row, same in zip(untimed(expected), found, strict=True):
        assert {name: same.get(name) for name in row} == pytest.approx(row, rel=1e-3, abs=1e-5)
    last = [row for row in expected if "train/num_retired" in row]
    assert len(last) == 4
    assert last[-1]["train/num_retired"] > 0
    assert sum(row["train/num_brought_back"] for row in last) > 0
    for name in ("reward_std", "all_correct_fraction", "all_wrong_fraction"):
        assert max(row[f"train/{name}"] for row in last) > 0, name
    assert {"train/reward/+", "train/accuracy/-"} <= last[0].keys()


def test_samples_and_tokens_of_all_ranks(one: Path, two: Path) -> None:
    names = sorted(path.name for path in (one / "samples").iterdir())
    assert sorted(path.name for path in (two / "samples").iterdir()) == names
    total = 0
    for name in names:
        expected, found = (
            sorted(
                (row["id"], row["response"], row["tokens"]) for row in lines(run / "samples" / name)
            )
            for run in (one, two)
        )
        assert found == expected
        total += sum(len(tokens) for *_, tokens in found) if name.startswith("iteration") else 0
    summaries = [json.loads((run / "summary.json").read_text()) for run in (one, two)]
    assert [summary["response_tokens"] for summary in summaries] == [total, total]


def test_early_stopping_ends_all_ranks(one: Path, two: Path) -> None:
    for run in (one, two):
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["exit"], summary["iterations"]) == ("finished", 4)


def test_exports(one: Path, two: Path) -> None:
    names = sorted(path.name for path in (one / "checkpoints").iterdir())
    assert sorted(path.name for path in (two / "checkpoints").iterdir()) == names
    folders = [
        "export",
        "export_best",
        *(f"checkpoints/{name}" for name in names if name.endswith("export")),
    ]
    assert len(folders) > 2
    for folder in folders:
        expected, found = (
            AutoModelForCausalLM.from_pretrained(run / folder).state_dict() for run in (one, two)
        )
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)
    best, last = (
        AutoModelForCausalLM.from_pretrained(one / folder).state_dict()
        for folder in ("export_best", "export")
    )
    assert any(not torch.equal(best[name], last[name]) for name in best)
