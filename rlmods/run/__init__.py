"""What a run leaves on disk, and how it goes on from there."""

from rlmods.run.directory import RunDir
from rlmods.run.files import atomic_write, dumps, write_summary, writing
from rlmods.run.resume import find_resume

__all__ = ["RunDir", "atomic_write", "dumps", "find_resume", "write_summary", "writing"]
