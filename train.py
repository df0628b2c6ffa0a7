"""Train a language model: `python train.py [group=option] [key=value]`. `--help` lists groups and
options."""

from rlmods.cli.train import main

if __name__ == "__main__":
    main()
