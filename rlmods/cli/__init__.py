"""The commands: `train.py` and `python -m rlmods.<command>`."""
