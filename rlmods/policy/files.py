"""Model folders, which may come from others: code in them is never executed, and weights are read
as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from rlmods.distributed.deferred import first_values
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


MAX_BYTES = 8 * 2**30
"""Size of a model up to which `export_problem` loads it, while the trained one is in memory."""
NUM_TOKENS = 4
"""Number of tokens that a causal language model generates."""
QUESTION = "1 + 1 ="
"""Text that is continued, or scored."""


def check_export(folder: Path) -> None:
    """Load an exported model, and reward models beside it (`reward_model/`), with transformers
    alone, and run it: a causal language model generates some tokens, and a reward model scores a
    text. Random numbers that are drawn later stay the same.

    Raises:
        UserError: it cannot be loaded, lacks weights, or its logits or scores are not finite.
    """
    with torch.random.fork_rng(devices=[]):
        for path in (folder, *sorted(folder.glob("reward_model*"))):
            if (path / "config.json").is_file():
                _check(path)


def export_problem(folder: Path) -> str | None:
    """Return why an exported model cannot be used (`check_export`), None if it can or is larger
    than `MAX_BYTES`."""
    if sum(path.stat().st_size for path in folder.rglob("*.safetensors")) > MAX_BYTES:
        return None
    try:
        check_export(folder)
    except UserError as error:
        return str(error)
    return None


@torch.no_grad()
def _check(folder: Path) -> None:
    check_configs(folder)
    try:
        is_scalar = is_classifier(AutoConfig.from_pretrained(folder, **NO_CODE))
        kind = AutoModelForSequenceClassification if is_scalar else AutoModelForCausalLM
        model, info = kind.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, **NO_CODE, **NO_PICKLE
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise UserError(
            f"{folder}: transformers cannot load this model ({explain(error)})"
        ) from error
    missing = missing_weights(info)
    if missing:
        raise UserError(f"{folder}: lacks weights ({', '.join(missing[:3])})")
    encoded = tokenizer(QUESTION, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    if is_scalar:
        outputs = model(**inputs).logits
    else:
        generated = model.generate(
            **inputs,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=tokenizer.pad_token_id,
        )
        outputs = torch.stack(generated.logits)
    if not bool(torch.isfinite(outputs).all()):
        raise UserError(
            f"{folder}: the {'scores' if is_scalar else 'logits'} of this model are not finite: "
            "training has diverged"
        )
