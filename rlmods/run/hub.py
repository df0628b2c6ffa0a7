"""The Hugging Face Hub, and machines that cannot reach it."""

import os
import sys
from functools import cache, lru_cache
from pathlib import Path

from rlmods.distributed.collectives import is_first_rank


def check_hub(name: str | Path) -> None:
    """Before `name` is loaded from the Hub, print it: it may be from the settings of a run, or be
    the base of an adapter. If the Hub cannot be reached, use its cache alone from now on, as
    `HF_HUB_OFFLINE=1` does.

    The libraries otherwise repeat each request for half a minute, and print every one. Do nothing
    for a local file or directory."""
    if not Path(name).expanduser().exists():
        _announce(str(name))
        _check_connection()


@cache
def _announce(name: str) -> None:
    if is_first_rank():
        print(f"loading {name} from the Hugging Face Hub or its cache", file=sys.stderr)


@lru_cache(maxsize=1)
def _check_connection() -> None:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # the client raises its own exceptions of the network and built-in ones
        os.environ["HF_HUB_OFFLINE"] = "1"  # for processes started by this one
        constants.HF_HUB_OFFLINE = True
        datasets = sys.modules.get("datasets")
        if datasets is not None:  # it has read the variable on import
            datasets.config.HF_HUB_OFFLINE = True
