"""Files of a run: directory, lock, integrity of checkpoints, and resuming."""

from rlmods.run.directory import RunDir
from rlmods.run.files import atomic_write, dumps, wrap_write_errors, write_summary
from rlmods.run.name import member_name
from rlmods.run.resume import find_resume

__all__ = [
    "RunDir",
    "atomic_write",
    "dumps",
    "find_resume",
    "member_name",
    "wrap_write_errors",
    "write_summary",
]
