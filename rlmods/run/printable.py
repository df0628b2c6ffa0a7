"""Text from others on a terminal."""

from __future__ import annotations

import json
import unicodedata

INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of control and format characters, surrogates, and separators of lines and
paragraphs."""


def printable(text: str) -> str:
    """Return text with its control characters, apart from newlines and tabs, and its invisible
    characters as escapes such as `\\x1b`.

    A terminal executes control characters: `\\x1b[2J` clears the screen, and directional marks such
    as `\\u202e` change the order of what is shown."""
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in INVISIBLE and c not in "\n\t"
        else c
        for c in text
    )


def printable_json(text: str) -> str:
    """Return JSON with the invisible characters of its texts as escapes of JSON."""
    return "".join(
        json.dumps(c)[1:-1] if unicodedata.category(c) in INVISIBLE and c != "\n" else c
        for c in text
    )


def one_line(text: str) -> str:
    """Return `printable` text with newlines and tabs as escapes too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
