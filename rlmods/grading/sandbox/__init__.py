"""Sandbox for model-written code: `run` asks `server` for confined processes (`confinement`). In
them `child` runs programs and the code under test, and `test_runner` its tests.

The package itself imports nothing: confined processes load it too, without rlmods.
"""
