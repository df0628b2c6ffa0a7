"""Search over documents, a tool."""

import json
import re
import sqlite3
import threading
import weakref
from pathlib import Path

from rlmods.errors import UserError, in_one_line

MAX_WORDS = 32
"""Words of a search query that are read."""


class Search:
    """Full-text search over documents in a file, ranked by BM25 (SQLite's FTS5): one document a
    line, as text or as JSON with "text". Thread-safe."""

    def __init__(self, file: str, num_results: int = 3) -> None:
        """
        Args:
            num_results: number of documents that are returned.

        Raises:
            UserError: a file that cannot be read.
        """
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
            texts = list(map(_document, filter(str.strip, lines)))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"environment.documents={file}: {in_one_line(error)}: give a file with one "
                'document a line, as text or as JSON with "text"'
            ) from error
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
        database.executemany("INSERT INTO documents VALUES (?)", zip(texts))
        self._database = database
        weakref.finalize(self, database.close)
        self._num_results = num_results
        self._lock = threading.Lock()

    def __call__(self, query: str) -> str:
        """Return the documents that match a query best."""
        words = re.findall(r"\w+", query)[:MAX_WORDS]
        if not words:
            raise ValueError("the query has no words")
        match = " OR ".join(f'"{word}"' for word in words)  # quoted: FTS5 has operators
        with self._lock:
            rows = self._database.execute(
                "SELECT text FROM documents WHERE documents MATCH ? ORDER BY "
                "bm25(documents), rowid LIMIT ?",
                (match, self._num_results),
            ).fetchall()
        return "\n".join(text for (text,) in rows) or "no document matches"


def _document(line: str) -> str:
    return str(json.loads(line)["text"]) if line.lstrip().startswith("{") else line
