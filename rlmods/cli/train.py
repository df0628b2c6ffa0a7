"""Train a language model: `rlmods train [group=option] [key=value]`, in the repository `python
train.py`. `--help` lists all groups."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C inside the block. Libraries that are being imported may catch a
    KeyboardInterrupt, or fail later because of it."""

    def end(*_: Any) -> None:
        os.write(2, b"interrupted\n")
        os._exit(1)

    # ignored by a shell in the background
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run() -> None:
    """Compose, check, train. Imports are local because they take seconds, and Ctrl-C during them is
    to be one line too."""
    # read on import; hides torch's warnings about a lost rank
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with exit_on_interrupt():
        import hydra
        from omegaconf import DictConfig

        from rlmods.cli import main, sweep
        from rlmods.cli.console import plain_errors
        from rlmods.config import plugins
        from rlmods.config.options import CONF

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def train(config: DictConfig) -> float | None:
        return main.main(config)

    # Hydra then raises its errors, which plain_errors() shortens to one line
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    with plain_errors(), sweep.summary():
        plugins.register()
        train()


def main() -> None:
    try:
        run()
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    # run as a file: the commands beside it have common names, such as evaluate
    if os.path.abspath(sys.path[0]) == folder:
        sys.path[0] = os.path.dirname(os.path.dirname(folder))
    main()
