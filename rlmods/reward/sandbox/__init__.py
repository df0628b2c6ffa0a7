"""Code that a model wrote, run where it can do no harm: `run` starts and watches, `child` is what is started, `walls` confine it.

Imports nothing: the confined process loads this package too, and knows nothing of rlmods.
"""
