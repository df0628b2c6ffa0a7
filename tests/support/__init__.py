"""Helpers of the tests, and tools that are run by hand."""
