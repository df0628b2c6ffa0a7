"""Aggregation of numbers per token, the objective or the value loss, to one scalar."""

from rlmods.aggregation.fixed_length import FixedLength
from rlmods.aggregation.sequence_mean import SequenceMean
from rlmods.aggregation.token_mean import TokenMean

__all__ = ["FixedLength", "SequenceMean", "TokenMean"]
