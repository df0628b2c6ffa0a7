"""The report as one HTML file that loads nothing: scripts, styles and data are in it.

Data are JSON in an element that is not executed, with `<`, `>` and `&` as escapes, so no text can
end it. The script writes texts as text nodes, never as HTML. The content security policy allows the
two scripts only, by their hashes, and no request."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlmods.run.files import dumps

ASSETS = Path(__file__).parent / "assets"
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"} | dict.fromkeys(
    range(0xD800, 0xE000), "\ufffd"
)
"""Characters that HTML or JavaScript may read as syntax, and lone surrogates, which UTF-8 cannot
encode."""


def page(contents: Mapping[str, Any]) -> str:
    """Return the HTML of a report."""
    uplot, script = _read("uplot.js"), _read("page.js")
    inserted = {
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(uplot)} "
        f"{_hash(script)}",
        "STYLE": _read("uplot.css") + _read("page.css"),
        "UPLOT": uplot,
        "SCRIPT": script,
        "CONTENTS": dumps(contents).translate(ESCAPES),
    }
    return re.sub(r"{{(\w+)}}", lambda match: inserted[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
