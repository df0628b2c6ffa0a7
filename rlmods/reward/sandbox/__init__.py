"""Sandbox for model-written code: `run` starts and watches a process, `child` is its entry point, `walls` confine it.

Imports nothing: the confined process loads this package too, without rlmods.
"""
