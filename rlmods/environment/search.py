"""Search over documents, a tool."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path

from rlmods.types import UserError

MAX_WORDS = 32
"""Words of a search query that are read."""


@dataclass(frozen=True)
class Search:
    """Full-text search over documents in a file, ranked by BM25 (SQLite's FTS5): one document a line, as text or as JSON with "text".

    Raises: UserError for a file without documents."""

    file: str
    num_results: int = 3
    """Number of documents that are returned."""
    _database: sqlite3.Connection = field(init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            lines = [line for line in Path(self.file).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
            texts = [_document(line) for line in lines]
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise UserError(
                f"environment.documents={self.file}: {' '.join(str(error).split())}: give a file with one document a line"
            ) from error
        if not texts:
            raise UserError(f"environment.documents={self.file}: holds no documents: give another file")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
        database.executemany("INSERT INTO documents VALUES (?)", [(text,) for text in texts])
        object.__setattr__(self, "_database", database)

    def __call__(self, query: str) -> str:
        """Return the documents that match a query best."""
        words = re.findall(r"\w+", query)[:MAX_WORDS]
        if not words:
            raise ValueError("the query has no words")
        match = " OR ".join(f'"{word}"' for word in words)  # quoted: FTS5 has operators
        with self._lock:
            rows = self._database.execute(
                "SELECT text FROM documents WHERE documents MATCH ? ORDER BY bm25(documents), rowid LIMIT ?", (match, self.num_results)
            ).fetchall()
        return "\n".join(text for (text,) in rows) or "no document matches"


def _document(line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    row = json.loads(line)
    if not isinstance(row.get("text"), str):
        raise ValueError('a row has no "text"')
    return str(row["text"])
