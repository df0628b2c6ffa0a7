from __future__ import annotations

import json
import threading

import pytest

from rlmods.errors import UserError
from rlmods.run.jsonl import JsonlWriter, read_rows, truncate_rows

ROWS = [
    {"id": "0", "text": "é\n"},
    {"id": "1", "x": [1, None]},
    {"id": "2", "lone surrogate": "\ud83d"},
]


def write(path, rows=ROWS):
    writer = JsonlWriter(path)
    for row in rows:
        writer.append(row)
    return path


class TestJsonlWriter:
    def test_appended_rows_are_read_back(self, tmp_path):
        path = write(tmp_path / "new" / "rows.jsonl")
        assert read_rows(path) == ROWS
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS

    def test_row_is_on_disk_after_append(self, tmp_path):
        writer = JsonlWriter(tmp_path / "rows.jsonl")
        assert not writer.path.exists()
        for i, row in enumerate(ROWS):
            writer.append(row)
            assert read_rows(writer.path) == ROWS[: i + 1]

    def test_file_cut_at_any_byte_is_continued(self, tmp_path):
        path = write(tmp_path / "rows.jsonl")
        content = path.read_bytes()
        ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
        for cut in range(len(content) + 1):
            path.write_bytes(content[:cut])
            # a row that only lacks its newline is complete
            num_rows = sum(end - 1 <= cut for end in ends)
            assert read_rows(path) == ROWS[:num_rows]
            write(path, ROWS[num_rows:])
            assert (read_rows(path), path.read_bytes().rstrip()) == (ROWS, content.rstrip())

    def test_reading_does_not_change_the_file(self, tmp_path):
        path = write(tmp_path / "rows.jsonl")
        truncated = path.read_bytes()[:-3]
        path.write_bytes(truncated)
        read_rows(path)
        JsonlWriter(path)
        assert path.read_bytes() == truncated

    def test_broken_line_before_the_last_is_an_error(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        for broken in ('{"id": ', "[1]", "3"):
            path.write_text(f'{{"id": "0"}}\n\n{broken}\n{{"id": "1"}}\n')
            with pytest.raises(UserError, match=r"rows.jsonl:3: broken JSON"):
                read_rows(path)

    def test_missing_file_has_no_rows(self, tmp_path):
        assert read_rows(tmp_path / "none.jsonl") == []

    def test_folder_is_rejected(self, tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_rows(tmp_path)
        with pytest.raises(UserError, match="cannot write there"):
            JsonlWriter(tmp_path).append({})

    def test_is_thread_safe(self, tmp_path):
        writer = JsonlWriter(tmp_path / "rows.jsonl")
        threads = [
            threading.Thread(
                target=lambda i=i: [writer.append({"i": i, "x": "y" * 9999}) for _ in range(20)]
            )
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = read_rows(writer.path)
        assert sorted(row["i"] for row in rows) == sorted([*range(8)] * 20)


class TestTruncateRows:
    def test_deletes_later_rows_and_broken_lines(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"iteration": 1}\n{broken\n{"iteration": 3}\n{"iteration": 2}\n{"itera')
        with pytest.warns(UserWarning, match="1 broken lines"):
            assert truncate_rows(path, 2) == [{"iteration": 1}, {"iteration": 2}]
        assert path.read_text() == '{"iteration": 1}\n{"iteration": 2}\n'

    def test_adds_a_missing_newline(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"iteration": 1}')
        assert truncate_rows(path, 2) == [{"iteration": 1}]
        assert path.read_text() == '{"iteration": 1}\n'

    def test_missing_file_stays_missing(self, tmp_path):
        assert truncate_rows(tmp_path / "rows.jsonl", 2) == []
        assert not (tmp_path / "rows.jsonl").exists()
