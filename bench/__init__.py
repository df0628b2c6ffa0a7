"""Side-by-side measurements against TRL and against the limit of the machine, and growth curves."""
