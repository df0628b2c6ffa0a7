import re
import sys

import pytest

from rlmods.data import GSM8K
from rlmods.errors import UserError
from tests.support.rows import write_rows

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def row(i, gold=None):
    return {
        "question": f"Ann has {i} and buys 1. How many?",
        "answer": f"{i}+1=<<{i}+1={i + 1}>>{i + 1}\n#### {gold or i + 1}",
    }


def write(path, n, first=0):
    return write_rows(path, [row(i) for i in range(first, first + n)])


def test_folder_with_train_and_test_files(tmp_path):
    write(tmp_path / "train.jsonl", 6)
    write(tmp_path / "test.jsonl", 4, 6)
    splits = GSM8K(str(tmp_path), num_val=3)()
    assert (len(splits.train), len(splits.val)) == (6, 3)
    assert splits == GSM8K(str(tmp_path), num_val=3)()
    first = splits.train[0]
    assert first.id == "gsm8k-train-1"
    assert first.answer == "1"
    [message] = first.messages
    assert message == {
        "role": "user",
        "content": f"{row(0)['question']}\n\n{GSM8K.instruction}",
    }
    assert "<answer>" in GSM8K.instruction
    assert first.meta == {"solution": row(0)["answer"], "response": "0+1=1\n<answer>1</answer>"}
    assert {p.id.split("-")[1] for p in splits.val} == {"test"}
    assert len(GSM8K(str(tmp_path), num_train=2)().train) == 2


def test_rows_of_one_file_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # not needed for JSON Lines
    path = str(write(tmp_path / "all.jsonl", 10))
    splits = GSM8K(path, num_val=3, chat=False, instruction="As {x}.")()
    assert (len(splits.train), len(splits.val)) == (7, 3)
    assert not {p.id for p in splits.train} & {p.id for p in splits.val}
    assert splits.train[0].text.endswith("How many?\n\nAs {x}.")


def test_the_hub(monkeypatch):
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        return datasets.Dataset.from_list([row(i, "1,234") for i in range(4)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits = GSM8K()()
    assert calls == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert splits.train[0].answer == "1234"


FORMAT = "; type data=jsonl data.train=FILE for data in another format"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"question": "q", "answer": "7"}\n',
            f'a.jsonl:1: column "answer" has no "#### NUMBER"{FORMAT}',
        ),
        (
            '{"problem": "q", "answer": "7"}\n',
            f"a.jsonl:1: no columns question and answer, but problem, answer{FORMAT}",
        ),
        (None, "a.jsonl: cannot be read (No such file or directory); type data.path=FILE_OR"),
    ],
)
def test_errors_in_files(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        GSM8K(str(path))()
