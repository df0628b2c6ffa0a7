"""Check that an exported model loads and runs in transformers without this package."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from rlmods.errors import UserError
from rlmods.policy.files import (
    NO_CODE,
    NO_PICKLE,
    check_configs,
    explain,
    is_classifier,
    missing_weights,
)

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
