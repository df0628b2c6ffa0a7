"""Train a language model: `python train.py [group=option] [key=value]`. `--help` lists groups and options."""

import hydra
from omegaconf import DictConfig

from rlmods import main, plugins
from rlmods.run import name


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def train(config: DictConfig) -> None:
    main.main(config)


if __name__ == "__main__":
    with main.plain_errors():
        plugins.register()
        name.register()
        train()
