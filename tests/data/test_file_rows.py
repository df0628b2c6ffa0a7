"""A large file equals the same rows in memory, for every reader, and is not kept in memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlmods.data import Jsonl, PromptLoader, jsonl
from rlmods.data.file_rows import FileRows, examples, kinds, largest, select
from rlmods.errors import UserError
from rlmods.training.lengths import (
    check_context,
    lengths_above,
    longest_rows,
    row_length,
    short_prompts,
)
from rlmods.types import Prompt
from tests.support.control_tokens import Model

ROWS: list[dict[str, Any]] = [
    {
        "prompt": f"{'é' if i % 7 == 0 else 'x'}{'y' * (i * 7 % 31)} {i % 40}",
        "answer": None if i % 5 == 0 else str(i),
        "solution": "z" * (i % 11 + 1),
        "hint": None if i % 3 else "a",
    }
    for i in range(60)
]


class Small(Model):
    context_length = 64


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        lines = [f"{json.dumps(row)}\n" for row in rows]
        # blank lines count as lines, and are no rows
        path.write_bytes(b"\n" + "\n".join(lines).encode() + b"\n \n")
    else:
        pytest.importorskip("datasets").Dataset.from_list(rows).to_parquet(str(path))
    return str(path)


@pytest.fixture(params=[".jsonl", ".parquet"])
def sets(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FileRows, list[Prompt]]:
    """The rows as they stay in the file, and in memory."""
    path = write(tmp_path / f"rows{request.param}", ROWS)
    read = Jsonl(path, num_val=0, response="solution", chat=request.param == ".jsonl")
    in_memory = read().train
    monkeypatch.setattr(jsonl, "LARGE", 10)
    in_file = read().train
    assert isinstance(in_file, FileRows)
    assert isinstance(in_memory, list)
    return in_file, in_memory


def test_holds_the_same_prompts(sets: Any) -> None:
    in_file, in_memory = sets
    assert len(in_file) == 60
    assert list(in_file) == in_memory == in_file[:]
    assert in_file[-1] == in_memory[-1]
    few = select(in_file, [3, 9])
    assert list(few) == few[:] == select(in_memory, [3, 9])
    assert list(select(few, [1])) == [in_memory[9]]
    assert list(examples(in_file)) == in_memory


def test_kinds_differ_in_source_answer_and_columns(sets: Any) -> None:
    in_file, in_memory = sets

    def kind(prompt: Prompt) -> Any:
        filled = {name for name, value in prompt.meta.items() if value is not None}
        return prompt.answer is None, frozenset(filled)

    assert sorted(map(str, map(kind, kinds(in_file)))) == sorted(
        {str(kind(prompt)) for prompt in in_memory}
    )
    assert kinds(in_memory) is in_memory


@pytest.mark.parametrize("columns", [(), ("response",)])
@pytest.mark.parametrize("limit", [0, 20, 42, 60, 90])
def test_lengths_are_the_same(sets: Any, limit: int, columns: tuple[str, ...]) -> None:
    in_file, in_memory = sets
    expected = list(lengths_above(Small(), in_memory, limit, columns))
    assert list(lengths_above(Small(), in_file, limit, columns)) == expected


def test_limits_are_the_same(sets: Any) -> None:
    in_file, in_memory = sets
    model = Small()
    assert list(short_prompts(model, in_file, 60)) == short_prompts(model, in_memory, 60)
    messages = []
    for prompts in sets:
        with pytest.raises(UserError) as error:
            check_context(model, prompts, 45, filters=True)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_the_longest_are_those_with_the_most_bytes(sets: Any) -> None:
    in_file, in_memory = sets
    model = Small()
    found = [row_length(model, row) for row in longest_rows(model, in_file, 3)]
    assert found == [row_length(model, row) for row in longest_rows(model, in_memory, 3)]
    assert len(largest(in_file, 3, lambda prompt: 0, has_response=True)) == 3


def test_a_selection_has_the_sizes_of_its_own_rows(sets: Any) -> None:
    in_file, in_memory = sets
    chosen = list(range(1, 60, 4))
    few = select(in_file, chosen)
    kept = select(in_memory, chosen)
    for columns in ((), ("response",)):
        found = list(lengths_above(Small(), few, 30, columns))
        assert found == list(lengths_above(Small(), kept, 30, columns))
        assert found


def test_the_loader_serves_the_same_stream(sets: Any) -> None:
    batches = [[p.id for b in PromptLoader(prompts, 7, seed=3) for p in b] for prompts in sets]
    assert batches[0] == batches[1]


def test_the_fingerprint_covers_every_row_and_the_choice(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(jsonl, "LARGE", 10)
    found = set()
    for number, changed in enumerate((None, {"answer": "other"}, {"hint": "other"})):
        rows = [dict(row) for row in ROWS]
        if changed is not None:
            rows[33] |= changed
        train = Jsonl(write(tmp_path / f"{number}.jsonl", rows), num_val=0)().train
        found.add(PromptLoader(train, 4).state_dict()["fingerprint"])
        found.add(PromptLoader(select(train, range(50)), 4).state_dict()["fingerprint"])
        again = Jsonl(str(tmp_path / f"{number}.jsonl"), num_val=0)().train
        assert PromptLoader(again, 4).state_dict() == PromptLoader(train, 4).state_dict()
    assert len(found) == 6


@pytest.mark.parametrize("seed", range(5))
def test_held_out_rows_share_no_question_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(jsonl, "LARGE", 10)
    rows = [{"prompt": f"q{i % 6}", "answer": "1"} for i in range(60)]
    splits = Jsonl(write(tmp_path / "x.jsonl", rows), num_val=30, seed=seed)()
    train = list(splits.train)
    assert (len(train), len(splits.val)) == (30, 30)
    assert not {p.text for p in train} & {p.text for p in splits.val}
    assert not {p.id for p in train} & {p.id for p in splits.val}
    again = Jsonl(str(tmp_path / "x.jsonl"), num_val=30, seed=seed)()
    assert again.val == splits.val


def test_more_than_can_be_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LARGE", 10)
    rows = [{"prompt": f"q{i % 2}", "answer": "1"} for i in range(60)]
    with pytest.raises(UserError, match=r"cannot hold out data\.num_val=9 of 60 rows"):
        Jsonl(write(tmp_path / "x.jsonl", rows), num_val=9)()


def test_an_id_that_occurs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LARGE", 10)
    rows = [{"prompt": f"q{i}", "answer": "1", "key": i % 59} for i in range(60)]
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(UserError, match=r"x\.jsonl:\d+: the id 0 occurs twice"):
        Jsonl(path, num_val=0, id="key")()
    val = write(tmp_path / "val.jsonl", [{"prompt": "v", "answer": "1", "key": 5}])
    with pytest.raises(UserError, match="the id 5 occurs twice"):
        Jsonl(write(tmp_path / "y.jsonl", rows[:59]), val=val, id="key")()


def test_a_broken_row_is_found_at_the_start(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(jsonl, "LARGE", 10)
    rows = [dict(row) for row in ROWS]
    rows[40]["prompt"] = "  "
    with pytest.raises(UserError, match=r'x\.jsonl:\d+: column "prompt" is empty'):
        Jsonl(write(tmp_path / "x.jsonl", rows), num_val=0)()
