"""Files that a crash leaves readable."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.errors import UserError
from rlmods.run.files import JsonlWriter, atomic_write, dumps, read_rows


class TestAtomicWrite:
    def test_replaces_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "file"
        atomic_write(path, "first, long\n")
        with path.open() as reader:
            atomic_write(path, b"second")
            assert reader.read() == "first, long\n"
        assert path.read_bytes() == b"second"
        assert list(path.parent.iterdir()) == [path]

    def test_a_failed_one_keeps_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        atomic_write(path, "old")

        def write_half(self: Path, content: bytes) -> int:
            with self.open("wb") as file:
                file.write(content[: len(content) // 2])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", write_half)
        message = r"file: cannot write there \(No space left on device\): make room"
        with pytest.raises(UserError, match=message):
            atomic_write(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_lone_surrogates_are_escaped(self, tmp_path: Path) -> None:
        atomic_write(tmp_path / "f.json", dumps({"a": "\ud83d"}))
        assert json.loads((tmp_path / "f.json").read_text()) == {"a": "\ud83d"}


def test_dumps_writes_standard_json() -> None:
    tensors = {"tensor": torch.tensor([1.0, math.nan]), "one": torch.tensor(2)}
    value = {"nan": math.nan, "inf": -math.inf, **tensors, 3: (None, True, "é"), "path": Path("x")}
    expected = {
        "nan": None,
        "inf": None,
        "tensor": [1.0, None],
        "one": 2,
        "3": [None, True, "é"],
        "path": "x",
    }
    assert json.loads(dumps(value), parse_constant=pytest.fail) == expected
    assert "\n" not in dumps({"text": "a\nb"})


ROWS: list[dict[str, Any]] = [
    {"id": "0", "text": "é\n"},
    {"id": "1", "x": [1, None]},
    {"id": "2", "lone surrogate": "\ud83d"},
]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    writer = JsonlWriter(path)
    for row in rows:
        writer.append(row)
    return path


class TestJsonl:
    def test_row_is_on_disk_after_append(self, tmp_path: Path) -> None:
        writer = JsonlWriter(tmp_path / "new/rows.jsonl")
        assert read_rows(writer.path) == []
        for i, row in enumerate(ROWS):
            writer.append(row)
            assert read_rows(writer.path) == ROWS[: i + 1]
        lines = writer.path.read_text().splitlines()
        assert [json.loads(line) for line in lines] == ROWS

    def test_file_cut_at_any_byte_is_continued(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rows.jsonl")
        content = path.read_bytes()
        ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
        for cut in range(len(content) + 1):
            path.write_bytes(content[:cut])
            # a row that only lacks its newline is complete
            num_rows = sum(end - 1 <= cut for end in ends)
            assert read_rows(path) == ROWS[:num_rows]
            assert path.read_bytes() == content[:cut], "reading does not change it"
            write(path, ROWS[num_rows:])
            assert read_rows(path) == ROWS
            assert path.read_bytes().rstrip() == content.rstrip()

    @pytest.mark.parametrize("broken", ['{"id": ', "[1]", "3"])
    def test_broken_line_before_the_last_is_an_error(self, broken: str, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text(f'{{"id": "0"}}\n\n{broken}\n{{"id": "1"}}\n')
        with pytest.raises(UserError, match=r"rows.jsonl:3: broken JSON"):
            read_rows(path)

    def test_folder_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            read_rows(tmp_path)
        with pytest.raises(UserError, match="cannot write there"):
            JsonlWriter(tmp_path).append({})

    def test_is_thread_safe(self, tmp_path: Path) -> None:
        writer = JsonlWriter(tmp_path / "rows.jsonl")

        def append(i: int) -> None:
            for _ in range(20):
                writer.append({"i": i, "x": "y" * 9999})

        threads = [threading.Thread(target=append, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = read_rows(writer.path)
        assert sorted(row["i"] for row in rows) == sorted([*range(8)] * 20)
