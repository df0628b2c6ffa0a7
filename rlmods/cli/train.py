"""Train a language model: `rlmods train [group=option] [key=value]`, in the repository `python
train.py`. `--help` lists all groups."""

import os
import sys

from rlmods.config import equivalents, options, plugins
from rlmods.errors import one_line_errors


def main() -> None:
    """Print the groups for `--help`; else let Hydra compose the configuration, of one job or of
    several (`-m`), and run each (`rlmods.cli.task`)."""
    with one_line_errors():
        if {"-h", "--help"} & set(sys.argv[1:]):
            plugins.make_importable()
            print(options.usage(source.options for source in plugins.sources()))
        else:
            compose_and_run()


def set_environment() -> None:
    """Set variables that are read when a library is imported, unless you have set them."""
    # hides torch's warnings about a lost rank
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Sampling allocates tensors of other sizes than an update, on a GPU. In segments that grow,
    # memory that one of them frees serves the other.
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Hydra then raises its errors, which plain_errors() shortens to one line
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")


def compose_and_run() -> None:
    """Run every job that Hydra composes. What Hydra refuses is answered before torch is imported,
    which takes seconds."""
    set_environment()
    import hydra
    from hydra._internal.utils import get_args_parser

    flags = get_args_parser()._option_string_actions
    equivalents.reject_flags(sys.argv[1:], flags)
    from rlmods.cli import sweep
    from rlmods.cli.console import plain_errors
    from rlmods.cli.task import run_task

    start = hydra.main(version_base="1.3", config_path=str(options.CONF), config_name="train")
    with plain_errors(), sweep.summary():
        plugins.register()
        start(run_task)()


if __name__ == "__main__":
    main()
