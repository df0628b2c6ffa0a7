"""Templates of `python -m rlmods.plugin new GROUP NAME`: `<group>.py`, a working part, and
`test_<group>.py`, its test.

`Name` is replaced by the class name and `name` by the module name; the fields become the keys of
the option."""
