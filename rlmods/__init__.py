"""Reinforcement learning for language models, composed of parts that swap from the command line."""

from pathlib import Path

__path__ += [str(Path(__file__).parent / folder) for folder in ("cli", "lab")]
"""`python -m rlmods.evaluate` runs `rlmods/cli/evaluate.py`, and so for every command."""
