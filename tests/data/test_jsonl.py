import json
import sys

import datasets
import pytest
from hypothesis import given, settings, strategies as st

from rlmods.data import Jsonl, Preferences
from rlmods.data.jsonl import hold_out
from rlmods.data.schema import warn_of_shared_prompts
from rlmods.errors import UserError
from rlmods.types import Prompt

USER, ASSISTANT = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is 4."}


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="data.jsonl"):
        (tmp_path / name).write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
            encoding="utf-8",
        )
        return str(tmp_path / name)

    return write


def rows(n, **more):
    return [{"prompt": f"q{i}", "answer": str(i), **more} for i in range(n)]


def test_rows_become_prompts_and_no_column_is_lost(write):
    path = write(
        {"q": "1+1", "gold": 2, "hint": "small", "tags": ["a"]},
        "",
        {"q": "é\u2028", "gold": "x", "hint": None, "tags": []},
    )
    splits = Jsonl(path, prompt="q", answer="gold", num_val=0)()
    first = {"gold": 2, "hint": "small", "tags": ["a"]}
    second = {"gold": "x", "hint": None, "tags": []}
    assert list(splits.train) == [
        Prompt(id="train-1", text="1+1", answer="2", meta=first),
        Prompt(id="train-3", text="é\u2028", answer="x", meta=second),
    ]
    assert list(splits.val) == []


def test_template_system_chat_response_and_id(write):
    path = write({"prompt": "1{+}1", "answer": None, "unit": "kg", "good": "two", "key": 7})
    fields = {
        "answer": None,
        "response": "good",
        "id": "key",
        "num_val": 0,
        "chat": True,
        "system": "Be brief.",
    }
    (prompt,) = Jsonl(
        path, template="{prompt} in {unit}\nPut the answer in \\boxed{{}}.", **fields
    )().train
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1{+}1 in kg\nPut the answer in \\boxed{}."},
    ]
    assert prompt == Prompt(
        id="7",
        messages=expected,
        answer=None,
        meta={"answer": None, "unit": "kg", "response": "two"},
    )


def test_chat_messages(write):
    system = {"role": "system", "content": "Own."}
    path = write(
        {"prompt": [system, USER], "answer": "4"}, {"prompt": [USER, ASSISTANT], "answer": "4"}
    )
    first, second = Jsonl(path, num_val=0, system="Ours.", template="{prompt}!")().train
    assert first.messages == [system, {"role": "user", "content": "2+2?!"}]
    assert second.messages == [
        {"role": "system", "content": "Ours."},
        {"role": "user", "content": "2+2?!"},
    ]
    assert second.meta == {"response": "It is 4."}
    conversation = write({"turns": [USER, ASSISTANT]})
    assert Jsonl(conversation, prompt="turns", answer=None, num_val=0)().train[0].messages == [USER]


def test_held_out_rows_are_reproducible_and_not_in_train(write):
    path = write(*rows(30))
    splits = Jsonl(path, num_val=5)()
    assert splits == Jsonl(path, num_val=5)()
    assert [len(splits.train), len(splits.val)] == [25, 5]
    assert {p.id for p in (*splits.train, *splits.val)} == {f"train-{i}" for i in range(1, 31)}
    assert splits.val != Jsonl(path, num_val=5, seed=1)().val


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=15),
    num_val=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_all_rows_of_a_question_are_in_one_split(texts, num_val, seed):
    prompts = [Prompt(id=str(i), text=t) for i, t in enumerate(texts)]
    try:
        train, val = hold_out(prompts, num_val, seed, "file")
    except UserError:
        assert num_val > min(sum(texts.count(t) == 1 for t in texts), len(texts) - 1)
        return
    assert len(val) == num_val
    assert train
    assert not {p.text for p in train} & {p.text for p in val}
    assert sorted(p.id for p in train + val) == sorted(p.id for p in prompts)


@pytest.mark.filterwarnings("ignore:data. . of . held-out prompts are also trained on")
def test_separate_val_file(write):
    train, val = write(*rows(4)), write(*rows(9), name="val.jsonl")
    assert [p.id for p in Jsonl(train, val=val)().val] == [f"val-{i}" for i in range(1, 10)]
    with pytest.warns(UserWarning, match="3 of its 9 rows are used: type data.num_val=9"):
        assert len(Jsonl(train, val=val, num_val=3)().val) == 3
    assert len(Jsonl(train, val=val)().train) == 4


def test_held_out_rows_that_are_trained_on_are_counted(write):
    train, val = write(*rows(4)), write(*rows(9), name="val.jsonl")
    with pytest.warns(UserWarning, match="4 of 9 held-out prompts are also trained on"):
        splits = Jsonl(train, val=val)()
    warn_of_shared_prompts(splits.val[4:], splits.train)


GOOD = {"prompt": "q", "answer": "a"}
CASES = [
    (
        [{"prompt": "q", "gold_answer": "a"}],
        {},
        r'1: no column "answer"; columns: prompt, gold_answer; type data.answer=gold_answer',
    ),
    (
        [{"question": "q", "answer": "a"}],
        {},
        r'1: no column "prompt"; columns: question, answer; type data.prompt=COLUMN',
    ),
    (
        [GOOD, {"prompt": "q"}],
        {},
        r'2: no column "answer"; columns: prompt; .*or data.answer=null if there is none',
    ),
    ([GOOD], {"response": "answers"}, r'no column "answers".*type data.response=answer'),
    ([GOOD, {"prompt": "q", "answer": "  "}], {}, r'2: column "answer" is empty'),
    ([{"prompt": "q", "answer": []}], {}, r'1: column "answer" must hold text, found a list'),
    ([{"prompt": "q", "answer": True}], {}, r"found true/false"),
    ([{"prompt": "", "answer": "a"}], {}, r'1: column "prompt" is empty'),
    ([{"prompt": 3, "answer": "a"}], {}, r"must hold text, found a number"),
    (['{"prompt": "\\ud800", "answer": "a"}'], {}, r"half a surrogate pair"),
    ([{"prompt": [], "answer": "a"}], {}, r'column "prompt" is empty'),
    ([{"prompt": [{"role": "user"}], "answer": "a"}], {}, r"must list messages such as"),
    ([{"prompt": ["hi"], "answer": "a"}], {}, r"must list messages such as"),
    ([{"prompt": [ASSISTANT], "answer": "a"}], {}, r"must end with a user turn"),
    ([GOOD, '{"prompt": "q"'], {}, r"2: broken JSON .*one whole object per line"),
    (["[", "]"], {}, r"1: broken JSON"),
    ([GOOD, '{"prompt": "q", "answer": NaN}'], {}, r'2: column "answer" must hold finite numbers'),
    (['{"prompt": "q", "answer": ' + "9" * 5000 + "}"], {}, r"1: broken JSON"),
    (["[" * 100_000], {}, r"1: broken JSON"),
    (
        [{"prompt": [{"role": "im_end", "content": "x"}], "answer": "a"}],
        {},
        r"1: .*the role 'im_end' is not one of system, dev",
    ),
    (
        [{"prompt": [{"role": "gpt", "content": "x"}], "answer": "a"}],
        {},
        r"the role 'gpt' is not .*; write 'assistant' in its place",
    ),
    (
        [{"prompt": [{"role": "human", "content": "x"}], "answer": "a"}],
        {},
        r"the role 'human' is not .*; write 'user' in its place",
    ),
    (["[1]"], {}, r"1: must be one object with named columns per line, found a list"),
    ([], {}, r"the file has no rows; type data.train=FILE"),
    (
        [{**GOOD, "k": "x"}, {**GOOD, "k": "x"}],
        {"id": "k"},
        r"2: the id x occurs twice; type data.id=COLUMN",
    ),
    (
        [GOOD],
        {"template": "{question}"},
        r"data.template: no \{question\} to fill in; there are: prompt, answer",
    ),
    (
        [GOOD],
        {"template": "{prompt:>300000000}"},
        r"data.template=.*a placeholder is the name of a column only",
    ),
    (
        [GOOD],
        {"template": "{prompt!r}"},
        r"data.template=.*a placeholder is the name of a column only",
    ),
    (
        [GOOD],
        {"template": "{prompt.__class__}"},
        r"data.template: no \{prompt.__class__\} to fill in; there are: prompt",
    ),
    ([GOOD], {"template": "{prompt[0]}"}, r"data.template: no \{prompt\[0\]\} to fill in"),
    ([GOOD], {"template": "{prompt"}, r"data.template=.*write a literal brace twice"),
    ([GOOD], {"template": "{prompt} \\boxed{}"}, r"data.template=.*write a literal brace twice"),
    ([GOOD], {"system": "Be brief."}, r"data.system is a chat message.*type data.chat=true"),
    (
        [GOOD, GOOD],
        {"num_val": 1},
        r"cannot hold out data.num_val=1 of 2 rows with 1 different questions; type a smaller data.num_val",
    ),
    (
        rows(3),
        {"num_val": 200},
        r"cannot hold out data.num_val=200 of 3 rows with 3 different questions; type data.num_val=1",
    ),
    ([GOOD], {"num_val": -1}, r"data.num_val=-1: must be at least 0"),
]


@pytest.mark.parametrize(("lines", "fields", "message"), CASES)
def test_errors(write, lines, fields, message):
    path = write(*lines)
    with pytest.raises((UserError, ValueError), match=message) as error:
        Jsonl(path, **{"num_val": 0, **fields})()
    assert "\n" not in str(error.value)
    assert "data." in str(error.value) or str(error.value).startswith(f"{path}:")


def test_an_infinite_answer_of_another_format(monkeypatch):
    rows = datasets.Dataset.from_list([{"prompt": "q", "answer": float("inf")}])
    monkeypatch.setattr("rlmods.data.jsonl._load", lambda *_: rows)
    with pytest.raises(UserError, match=r'column "answer" must hold finite numbers, found inf'):
        Jsonl("file.parquet", num_val=0)()


def test_files_that_cannot_be_read(tmp_path, write):
    with pytest.raises(
        UserError, match=r"data\.train=null: the data needs a file; type data\.train=FILE"
    ):
        Jsonl()()
    with pytest.raises(
        UserError,
        match=r"nowhere.jsonl: cannot be read \(No such file or directory\); type data.train=FILE",
    ):
        Jsonl(str(tmp_path / "nowhere.jsonl"))()
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "q", "answer": "a"}\n{"prompt": "\xe9"}\n')
    with pytest.raises(UserError, match=r"latin\.jsonl:2: not UTF-8 text"):
        Jsonl(str(tmp_path / "latin.jsonl"))()
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "q", "answer": "a"}\r\n')
    assert Jsonl(str(tmp_path / "bom.jsonl"), num_val=0)().train[0].text == "q"


ROWS = [{"prompt": f"q{i}", "chosen": "good", "rejected": "bad"} for i in range(4)]


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
    assert prompt == Prompt(id="train-1", messages=[USER], meta={"response": "It is 4."})


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.csv", None, r"cannot be loaded \(.*\); type data.train=FILE"),
        ("b.parquet", "no", r"cannot be loaded \(.*\); type data.train=FILE, data.train=FOLDER"),
    ],
)
def test_files_of_other_formats_that_cannot_be_read(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name}: {message}") as error:
        Jsonl(str(tmp_path / name))()
    assert "\n" not in str(error.value)


def test_errors_name_the_row_and_the_package(tmp_path, monkeypatch):
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_list([*ROWS, {**ROWS[0], "rejected": None}]).to_parquet(path)
    with pytest.raises(
        UserError, match=r'a.parquet \(train row 5\): column "rejected" must hold text, found null'
    ):
        Preferences(path)()

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match=r"org/name: cannot be loaded \(Couldn't reach the Hub\);"):
        Jsonl("org/name")()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"org/name needs the package datasets; type pip install"):
        Jsonl("org/name")()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_val", [1, 4, 7])
def test_a_number_that_can_be_held_out_is_named(num_val: int, seed: int) -> None:
    """Rows of one question stay together."""
    prompts = [Prompt(id=str(i), text=question) for i, question in enumerate("aabbbccc")]
    with pytest.raises(UserError, match=r"type data\.num_val=\d$") as error:
        hold_out(prompts, num_val, seed, source="rows")
    possible = int(str(error.value)[-1])
    train, val = hold_out(prompts, possible, seed, source="rows")
    assert (len(train), len(val)) == (8 - possible, possible)
