from __future__ import annotations

import json
import threading

import pytest

from rlmods.run.journal import Journal, read_rows
from rlmods.types import UserError

ROWS = [{"id": "0", "text": "é\n"}, {"id": "1", "x": [1, None]}, {"id": "2", "half a pair": "\ud83d"}]


def written(path, rows=ROWS):
    journal = Journal(path)
    for row in rows:
        journal.append(row)
    return path


class TestJournal:
    def test_holds_what_was_appended(self, tmp_path):
        path = written(tmp_path / "new" / "rows.jsonl")
        assert read_rows(path) == ROWS
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS

    def test_a_row_is_on_disk_at_once(self, tmp_path):
        journal = Journal(tmp_path / "rows.jsonl")
        assert not journal.path.exists()
        for i, row in enumerate(ROWS):
            journal.append(row)
            assert read_rows(journal.path) == ROWS[: i + 1]

    def test_goes_on_wherever_it_was_cut(self, tmp_path):
        path = written(tmp_path / "rows.jsonl")
        whole = path.read_bytes()
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        for cut in range(len(whole) + 1):
            path.write_bytes(whole[:cut])
            there = sum(end - 1 <= cut for end in ends)  # a row that lacks its line break only is whole
            assert read_rows(path) == ROWS[:there]
            written(path, ROWS[there:])
            assert (read_rows(path), path.read_bytes().rstrip()) == (ROWS, whole.rstrip())

    def test_reading_changes_nothing(self, tmp_path):
        path = written(tmp_path / "rows.jsonl")
        torn = path.read_bytes()[:-3]
        path.write_bytes(torn)
        read_rows(path)
        Journal(path)
        assert path.read_bytes() == torn

    def test_a_broken_line_that_is_not_the_last_is_named(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        for broken in ('{"id": ', "[1]", "3"):
            path.write_text(f'{{"id": "0"}}\n\n{broken}\n{{"id": "1"}}\n')
            with pytest.raises(UserError, match=r"rows.jsonl:3: broken JSON"):
                read_rows(path)

    def test_no_file_has_no_rows(self, tmp_path):
        assert read_rows(tmp_path / "none.jsonl") == []

    def test_a_folder_is_refused(self, tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_rows(tmp_path)
        with pytest.raises(UserError, match="cannot write there"):
            Journal(tmp_path).append({})

    def test_threads_share_it(self, tmp_path):
        journal = Journal(tmp_path / "rows.jsonl")
        threads = [threading.Thread(target=lambda i=i: [journal.append({"i": i, "x": "y" * 9999}) for _ in range(20)]) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = read_rows(journal.path)
        assert sorted(row["i"] for row in rows) == sorted([*range(8)] * 20)
