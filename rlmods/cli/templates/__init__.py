"""What `python -m rlmods.plugin new GROUP NAME` starts from: `<group>.py`, a part that works, and `test_<group>.py`. `Name` becomes the
class, `name` the module; the fields become the option's keys."""
