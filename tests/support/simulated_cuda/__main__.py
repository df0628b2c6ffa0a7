"""Run a program on the device: `python -m tests.support.simulated_cuda [--counts FILE] PROGRAM ...`.

PROGRAM is a script of the repository, or `-m MODULE`. The counts are printed, or written to FILE as
JSON."""

import json
import runpy
import sys
from pathlib import Path

from tests.support.simulated_cuda.device import install

import lightning  # before a GPU seems to be there  # noqa: F401
import torchmetrics  # noqa: F401
import transformers  # noqa: F401

from tests.support.simulated_cuda.counts import ROOT, counted


def main(arguments: list[str]) -> None:
    out = None
    if arguments[0] == "--counts":
        out = Path(arguments[1])
        arguments = arguments[2:]
    with install(), counted() as counts:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(ROOT / arguments[0]), *arguments[1:]]
            runpy.run_path(sys.argv[0], run_name="__main__")
    text = json.dumps(counts.as_dict(), indent=1)
    print(text) if out is None else out.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
