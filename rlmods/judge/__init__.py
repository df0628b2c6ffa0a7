"""Judges: parts that decide which of two responses is better."""

from rlmods.judge.llm import LLM
from rlmods.judge.ranking import cohens_kappa, rankings
from rlmods.judge.scores import Neural, Rule
from rlmods.protocols import compare

__all__ = ["LLM", "Neural", "Rule", "cohens_kappa", "compare", "rankings"]
