"""Reinforcement learning for language models, composed of parts that swap from the command line."""

from pathlib import Path

__path__.append(str(Path(__file__).parent / "cli"))
"""`python -m rlmods.evaluate` runs `rlmods/cli/evaluate.py`, and so for every command."""
