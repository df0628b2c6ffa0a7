"""The page of a report: contents, script and style in one file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlmods.run.files import dumps

ASSETS = Path(__file__).parent / "assets"


def page(contents: Mapping[str, Any]) -> str:
    """Return the HTML of a report.

    The contents are JSON in an element that is not executed. `<` is written as `\\u003c`, so that no text in it, such as `</script>`, can
    end the element.
    """
    inserted = {
        "STYLE": _read("uplot.css") + _read("page.css"),
        "UPLOT": _read("uplot.js"),
        "SCRIPT": _read("page.js"),
        "CONTENTS": dumps(contents).replace("<", "\\u003c"),
    }
    return re.sub(r"/\*(STYLE|UPLOT|SCRIPT|CONTENTS)\*/", lambda match: inserted[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return (ASSETS / name).read_text()
