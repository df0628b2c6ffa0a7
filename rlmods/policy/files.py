"""Model folders, which may come from others: code in them is never executed, and weights are read
as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmods.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NO_CODE = {"trust_remote_code": False}
"""Options of every `from_pretrained`. By default transformers asks on the terminal whether to run
the code in the folder."""
NO_PICKLE = {"use_safetensors": True}
"""Options of `from_pretrained` of a model."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UserError: it is broken, or not an object.
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
    """Check the JSON files of a model folder. Transformers raises almost any error for a broken
    one. Do nothing for a hub name.

    Raises:
        UserError: as `read_config`.
    """
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        path = Path(source).expanduser() / name
        if path.is_file():
            read_config(path)


def is_classifier(config: PreTrainedConfig) -> bool:
    """Return True for the configuration of a reward model."""
    names = config.architectures or ()
    return any(name.endswith("ForSequenceClassification") for name in names)


def missing_weights(info: Mapping[str, Any]) -> list[str]:
    """Return the names of weights that a model's files lack or have in another shape, given
    transformers' loading info."""
    return sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})


def explain(error: BaseException) -> str:
    """Return why a model cannot be loaded, on one line."""
    text = str(error).strip()
    if "trust_remote_code" in text:
        return "it needs code of its own, which is never executed"
    return (text.splitlines() or [type(error).__name__])[0]
