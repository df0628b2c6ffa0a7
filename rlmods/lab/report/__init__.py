"""Report on runs: one HTML file that opens without a network (`python -m rlmods.report DIR...`)."""
