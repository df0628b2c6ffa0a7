"""Judges: parts that decide which of two responses is better."""

from rlmods.judge.llm import LLM
from rlmods.judge.neural import Neural
from rlmods.judge.ranking import cohens_kappa, rank, rankings
from rlmods.judge.rule import Rule
from rlmods.protocols import compare

__all__ = ["LLM", "Neural", "Rule", "cohens_kappa", "compare", "rank", "rankings"]
