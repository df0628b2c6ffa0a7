"""Settings and samples of a run for tests of loggers."""

SETTINGS = {"label": "dapo[ratio=symmetric]", "seed": 1, "batch": {"prompts": 4}, "fork": None}
ROWS = [
    {"prompt": "1+1=", "response": "2", "reward": 1.0, "advantage": 0.5, "tokens": [1, 2]},
    {"prompt": "1+1=", "response": "\x1b3", "reward": 0.0, "advantage": -0.5, "tokens": [1]},
]
COLUMNS = ["prompt", "response", "reward", "advantage"]
CELLS = [["1+1=", "2", 1.0, 0.5], ["1+1=", "\\x1b3", 0.0, -0.5]]
"""The table of `ROWS`."""
