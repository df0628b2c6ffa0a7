"""Sandbox for model-written code: `run` asks `server` for confined processes (`walls`), in which
`child` runs programs, `serve` the code under test and `judge` its tests.

The package itself imports nothing: confined processes load it too, without rlmods.
"""
