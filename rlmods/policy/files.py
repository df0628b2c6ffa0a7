"""Model folders, which may come from others: code in them is never executed, and weights are read
as safetensors."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from rlmods.distributed.deferred import first_values
from rlmods.errors import UserError, in_one_line

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
            f"{path}: cannot be read as JSON ({in_one_line(error, 120)}): give another model"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object: give another model")
    return content


def explain(error: BaseException) -> str:
    """Return why a model cannot be loaded, on one line."""
    text = str(error).strip()
    if "trust_remote_code" in text:
        return "it needs code of its own, which is never executed"
    return (text.splitlines() or [type(error).__name__])[0]


NUM_VALUES = 256
"""Values of each parameter that are part of the hash."""


def fingerprint(network: nn.Module) -> str:
    """Return a hash of the first values of every parameter. Training changes all parameters, so it
    also changes the hash.

    Empty on the meta device, where parameters have no values, unless these are in files that have
    not been read (`defer_loading`)."""
    digest = hashlib.blake2b(digest_size=8)
    stored = first_values(network, NUM_VALUES)
    for parameter in network.parameters():
        if id(parameter) in stored:
            values = stored[id(parameter)]
        elif parameter.is_meta:
            return ""
        else:
            values = parameter.detach().flatten()[:NUM_VALUES]
        digest.update(values.float().cpu().numpy().tobytes())
    return digest.hexdigest()
