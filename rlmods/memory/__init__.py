"""Prediction of a run's memory from its configuration and the sizes of its networks."""
