"""Files of a run: what a run writes, and plain readers of it. Importing this package, `files`,
`saved`, `settings` or `name` does not import torch."""

from rlmods.run.files import atomic_write, dumps, wrap_write_errors

__all__ = ["atomic_write", "dumps", "wrap_write_errors"]
