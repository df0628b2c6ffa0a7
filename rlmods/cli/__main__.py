"""All commands: `rlmods COMMAND ...`, which is `python -m rlmods.COMMAND ...`. `rlmods --help`
lists them."""

import runpy
import sys

from rlmods.errors import suggest

COMMANDS = {
    "train": "Train a language model",
    "evaluate": "Evaluate a saved policy",
    "report": "Report on runs",
    "compare": "Compare runs",
    "watch": "Show the curves of runs in the terminal while they train",
    "collect": "Sample candidate responses to compare",
    "convert": "Convert logs of other trainers into a run directory",
    "diff": "Find where and why two runs first differ",
    "label": "Rank candidate responses with a judge",
    "plan": "Predict the memory of a run",
    "plugin": "Create or list plugins",
    "redteam": "Look for holes in a reward before a policy does",
    "scorecard": "Train algorithms on the tasks of the wind tunnel and compare them",
    "serve": "Start a vLLM server for `rollout=vllm_server`",
    "show": "Print prompts and responses of a run",
    "whatif": "Compare parts on an iteration of a run",
}
"""What each command does."""


def main() -> None:
    """Run the command that the first argument names.

    Raises:
        SystemExit: after the usage, or if there is no such command.
    """
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: rlmods COMMAND ..., and rlmods COMMAND --help\n")
        for command, summary in COMMANDS.items():
            print(f"  {command:<10} {summary}")
        sys.exit(0 if sys.argv[1:] else 2)
    if name not in COMMANDS:
        sys.exit(f"error: rlmods {name}: there is no such command; {suggest(name, COMMANDS)}")
    sys.argv = [f"rlmods {name}", *rest]
    # `__main__` is then the module of the command, by whose name further ranks are started
    runpy.run_module(f"rlmods.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
