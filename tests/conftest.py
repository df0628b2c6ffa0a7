"""Shapes in annotations are checked in tests, and only there; one thread, so that ranks and workers
do not fight."""

import gc
import os
import signal

# as in a background job: the tests of Ctrl-C need it heard
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings
from jaxtyping import install_import_hook

# of a machine that does something else at the time
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

CHECKED = ("types", "ops", "advantage", "ratio", "kl", "correction", "aggregation")
install_import_hook([f"rlmods.{name}" for name in CHECKED], "beartype.beartype")


gc.disable()  # modules and tests, which imports and the collection of tests make, stay to the end


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collection: to go through them takes half a second,
    and most tests cause that."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collectstart() -> None:
    """Prepare compositions where tests are collected: the process that only deals tests out to
    others need not wait for the imports."""
    import rlmods.config.schema  # noqa: F401  (registers the settings, so that each test file can compose on its own)
    from tests.support import composition

    composition.speed_up()
