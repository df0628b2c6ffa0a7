"""One part, in this process: `python -m bench.gpu.part NAME SETTING`."""

import json
import sys
from importlib import import_module
from pathlib import Path

from bench.gpu.__main__ import PARTS
from bench.gpu.findings import Findings
from bench.gpu.process import Setting
from rlmods.cli.train import set_environment


def main(name: str, settings: str) -> None:
    """Run a part, and write what it finds to its folder."""
    set_environment()
    setting = Setting(**json.loads(settings))
    part = PARTS[name]
    found = Findings(path=Path(setting.folder) / "findings.json")
    function = getattr(import_module(f"bench.gpu.{part.module}"), part.function)
    if part.shape:
        from bench.gpu.shapes import missing, shapes

        reason = missing(shapes(setting.tiny)[part.shape])
        if reason:
            found.skip(name, reason)
        else:
            with found.step(name):
                function(found, setting, part.shape)
    else:
        with found.step(name):
            function(found, setting)
    found.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
