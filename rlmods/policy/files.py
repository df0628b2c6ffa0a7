"""Model folders, which may come from others: code in them is never executed, and weights are read
as safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlmods.errors import UserError

NO_CODE = {"trust_remote_code": False}
"""Options of every `from_pretrained`. By default transformers asks on the terminal whether to run
the code in the folder."""
NO_PICKLE = {"use_safetensors": True}
"""Options of `from_pretrained` of a model."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UserError: it is broken, or no object.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read as JSON ({' '.join(str(error).split())[:120]}): give "
            "another model"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object: give another model")
    return content


def check_configs(source: str | Path) -> None:
    """Check the JSON files of a model folder, of which transformers raises almost any error; do
    nothing for a hub name.

    Raises:
        UserError: as `read_config`.
    """
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (path := Path(source).expanduser() / name).is_file():
            read_config(path)


def explain(error: BaseException) -> str:
    """Return why a model cannot be loaded, on one line."""
    text = str(error).strip()
    return (
        "it needs code of its own, which is never executed"
        if "trust_remote_code" in text
        else (text.splitlines() or [type(error).__name__])[0]
    )
