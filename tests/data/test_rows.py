import json
import sys

import pytest

from rlmods.data import Jsonl, Preferences
from rlmods.errors import UserError
from rlmods.types import Prompt

datasets = pytest.importorskip("datasets")
ROWS = [{"prompt": f"q{i}", "chosen": "good", "rejected": "bad"} for i in range(4)]
USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def questions(splits):
    return [p.text for p in splits.train], [p.text for p in splits.val]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_files(tmp_path, suffix):
    path = str(tmp_path / f"data.{suffix}")
    table = datasets.Dataset.from_list(ROWS)
    {"csv": table.to_csv, "parquet": table.to_parquet, "json": table.to_json}[suffix](path)
    splits = Preferences(path, num_val=0)()
    assert questions(splits) == (["q0", "q1", "q2", "q3"], [])
    assert splits.train[0].meta["candidates"] == ("good", "bad")
    assert [p.id for p in splits.train] == ["train-1", "train-2", "train-3", "train-4"]


def test_json_file_with_one_list(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"messages": [USER, ASSISTANT]}]))
    (prompt,) = Jsonl(str(tmp_path / "a.json"), prompt="messages", answer=None, num_val=0)().train
    assert prompt == Prompt(id="train-1", messages=[USER], meta={"response": "Hello."})


def test_splits_of_a_folder(tmp_path):
    for split, rows in (("train", ROWS[:3]), ("test", ROWS[3:])):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / f"{split}.parquet")
    folder = str(tmp_path)
    assert questions(Preferences(folder, val=folder)()) == (["q0", "q1", "q2"], ["q3"])
    assert questions(Preferences(f"{folder}:test", num_val=0)()) == (["q3"], [])


def test_folder_written_by_save_to_disk(tmp_path):
    one, both = str(tmp_path / "one"), str(tmp_path / "both")
    datasets.Dataset.from_list(ROWS).save_to_disk(one)
    datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS[:2]), test=datasets.Dataset.from_list(ROWS[2:])
    ).save_to_disk(both)
    assert questions(Preferences(one, num_val=0)()) == (["q0", "q1", "q2", "q3"], [])
    assert questions(Preferences(both, val=both)()) == (["q0", "q1"], ["q2", "q3"])
    with pytest.raises(
        UserError,
        match=r"both:validation: cannot be loaded \(.*validation.*\); type data.train=FILE",
    ):
        Preferences(f"{both}:validation", num_val=0)()


def test_names_on_the_hub(monkeypatch):
    calls = []

    def load_dataset(*args, split):
        calls.append((*args, split))
        return datasets.Dataset.from_list(ROWS[:3] if "train" in split else ROWS[3:])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for train, val in (
        ("org/name", "org/name"),
        ("org/name:train_prefs", "org/name:test_prefs"),
        ("org/name:default:train", "org/name"),
    ):
        assert questions(Preferences(train, val=val)()) == (["q0", "q1", "q2"], ["q3"])
    assert calls == [
        ("org/name", "train"),
        ("org/name", "test"),
        ("org/name", "train_prefs"),
        ("org/name", "test_prefs"),
        ("org/name", "default", "train"),
        ("org/name", "test"),
    ]


def test_errors_name_the_row(tmp_path, monkeypatch):
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_list([*ROWS, {**ROWS[0], "rejected": None}]).to_parquet(path)
    with pytest.raises(
        UserError, match=r'a.parquet \(train row 5\): column "rejected" must hold text, found null'
    ):
        Preferences(path)()
    with pytest.raises(
        UserError,
        match=r"nowhere.csv: cannot be read \(no such file\); type data.train=FILE",
    ):
        Preferences(str(tmp_path / "nowhere.csv"))()
    (tmp_path / "b.parquet").write_text("no")
    (tmp_path / "empty").mkdir()

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nmore")

    for source in (tmp_path / "b.parquet", tmp_path / "empty"):
        with pytest.raises(
            UserError,
            match=rf"{source.name}: cannot be loaded \(.*\); type data.train=FILE, data.train=FOLDER",
        ) as error:
            Jsonl(str(source))()
        assert "\n" not in str(error.value)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        UserError,
        match=r"org/name: cannot be loaded \(Couldn't reach the Hub\); type data.train=FILE",
    ):
        Jsonl("org/name")()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"org/name needs the package datasets; type pip install"):
        Jsonl("org/name")()
