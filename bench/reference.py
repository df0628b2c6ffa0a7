"""Add results of the scorecard to the reference results of the package: `python bench/reference.py
runs/reference/results.jsonl`. They replace results of the same entrant, task and seed. Results
without a score or of other settings than the present ones are left out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlmods.cli.scorecard import settings_digest
from rlmods.lab.tunnel.results import REFERENCE, read_results, reference_results, write_results


def main(paths: Sequence[str], reference: Path = REFERENCE) -> str:
    """Write the reference results, and return how many there are."""
    found = reference_results(settings_digest, reference)
    for path in map(Path, paths):
        found |= reference_results(settings_digest, path)
    kept = {key: result for key, result in found.items() if result.score is not None}
    write_results(reference, [kept[key] for key in sorted(kept)])
    return f"{len(read_results(reference))} results in {reference}"


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    print(main(sys.argv[1:]))
