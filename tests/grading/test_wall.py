"""The grader and the red team stand by themselves: they import neither torch nor the rest of the
package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from importlib import import_module
before = set(sys.modules)
for name in sys.argv[1:]:
    import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("package", ["grader", "redteam"])
def test_nothing_beyond_the_wing_is_imported(package: str) -> None:
    folder = ROOT / "rlmods" / "grading" / package
    names = [f"rlmods.grading.{package}.{path.stem}" for path in sorted(folder.glob("*.py"))]
    names = [name.removesuffix(".__init__") for name in names]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert set(names) <= set(loaded)
    own = [name for name in loaded if name.partition(".")[0] == "rlmods"]
    outside = [name for name in own if name != "rlmods" and not name.startswith("rlmods.grading")]
    assert outside == []
    assert not {"torch", "lightning", "transformers", "hydra", "sympy"} & set(loaded)
