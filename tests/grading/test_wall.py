"""The grading wing stands by itself: it imports neither torch nor the rest of the package."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from importlib import import_module
before = set(sys.modules)
for name in sys.argv[1:]:
    import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_nothing_beyond_the_wing_is_imported() -> None:
    paths = sorted((ROOT / "rlmods" / "grading").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    # the scorer runs within the sandbox only, where reasoning-gym is installed; what needs sympy is
    # imported when it is needed
    later = (".scorer", ".symbolic")
    names = [name.removesuffix(".__init__") for name in names if not name.endswith(later)]
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
