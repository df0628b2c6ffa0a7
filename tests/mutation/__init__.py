"""Plant bugs in the packages of mathematics and see whether the tests notice: `make mutate`."""
