"""Reinforcement learning for language models, composed of parts that swap from the command line."""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
__path__ += [str(_HERE / folder) for folder in ("cli", "lab")]
"""`python -m rlmods.evaluate` runs `rlmods/cli/evaluate.py`, and so for every command."""

_MODULE = " ".join(sys.orig_argv[1:]).partition("-m ")[2]
if _MODULE.startswith("rlmods.") and sys.path[0] == os.getcwd() != str(_HERE.parent):
    # else a received folder that holds a yaml.py would run code
    del sys.path[0]
