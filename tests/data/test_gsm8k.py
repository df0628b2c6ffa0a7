import json
import sys

import pytest

from rlmods.data import GSM8K
from rlmods.errors import UserError

datasets = pytest.importorskip("datasets")


def row(i, gold=None):
    return {
        "question": f"Ann has {i} and buys 1. How many?",
        "answer": f"{i}+1=<<{i}+1={i + 1}>>{i + 1}\n#### {gold or i + 1}",
    }


def write(path, n, first=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row(i)) + "\n" for i in range(first, first + n)))
    return path


def test_folder_with_train_and_test_files(tmp_path):
    write(tmp_path / "train.jsonl", 6), write(tmp_path / "test.jsonl", 4, 6)
    splits = GSM8K(str(tmp_path), num_val=3)()
    assert (len(splits.train), len(splits.val)) == (6, 3)
    assert splits == GSM8K(str(tmp_path), num_val=3)()
    first = splits.train[0]
    assert first.id == "gsm8k-train-1"
    assert first.answer == "1"
    assert [m["role"] for m in first.messages] == ["user"]
    assert first.messages[0]["content"] == f"{row(0)['question']}\n\n{GSM8K.instruction}"
    assert "<answer>" in GSM8K.instruction
    assert first.meta == {"solution": row(0)["answer"], "response": "0+1=1\n<answer>1</answer>"}
    assert {p.id.split("-")[1] for p in splits.val} == {"test"}
    assert len(GSM8K(str(tmp_path), num_train=2)().train) == 2


def test_parquet_files_in_a_configuration_subfolder(tmp_path):
    for split, n in (("train", 5), ("test", 2)):
        (tmp_path / "main").mkdir(exist_ok=True)
        datasets.Dataset.from_list([row(i) for i in range(n)]).to_parquet(
            tmp_path / "main" / f"{split}-00000-of-00001.parquet"
        )
    splits = GSM8K(str(tmp_path), chat=False, instruction="")()
    assert (len(splits.train), len(splits.val)) == (5, 2)
    assert splits.train[0].text == row(0)["question"]


def test_rows_of_one_file_are_held_out(tmp_path):
    splits = GSM8K(str(write(tmp_path / "all.jsonl", 10)), num_val=3)()
    assert (len(splits.train), len(splits.val)) == (7, 3)
    assert not {p.id for p in splits.train} & {p.id for p in splits.val}


def test_the_hub(monkeypatch):
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        return datasets.Dataset.from_list([row(i, "1,234") for i in range(4)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits = GSM8K()()
    assert calls == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert splits.train[0].answer == "1234"


def test_errors(tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        UserError,
        match=r"openai/gsm8k: cannot be loaded \(Couldn't reach the Hub\); type "
        r"data.path=FILE_OR_FOLDER",
    ):
        GSM8K()()
    with pytest.raises(
        UserError, match=r"no train\*.jsonl or train\*.parquet there; type data.path="
    ):
        GSM8K(str(tmp_path / "nowhere"))()
    (tmp_path / "a.jsonl").write_text('{"question": "q", "answer": "7"}\n')
    with pytest.raises(
        UserError,
        match=r'a.jsonl \(train row 1\): column "answer" has no "#### NUMBER"; type data=jsonl',
    ):
        GSM8K(str(tmp_path / "a.jsonl"))()
    (tmp_path / "b.jsonl").write_text('{"problem": "q", "answer": "7"}\n')
    with pytest.raises(
        UserError, match='no column "question"; columns: problem, answer; type data=jsonl'
    ):
        GSM8K(str(tmp_path / "b.jsonl"))()
    (tmp_path / "c.parquet").write_text("no")
    with pytest.raises(UserError, match=r"c.parquet: cannot be read as parquet"):
        GSM8K(str(tmp_path / "c.parquet"))()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError,
        match=r"data=gsm8k needs the package datasets; type pip install 'rlmods\[gsm8k\]'",
    ):
        GSM8K()()
