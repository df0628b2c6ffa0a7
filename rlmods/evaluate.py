"""Grade a saved policy: `python -m rlmods.evaluate RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is graded, on the run's own data, reward and rollout unless overrides say otherwise), a
directory of a Hugging Face model, or a hub name. Prints one JSON object; the same code validates during training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rlmods import plugins
from rlmods.evaluation import Validation
from rlmods.main import plain_errors, quiet
from rlmods.make import block, make
from rlmods.options import CONF
from rlmods.policy.hf import load
from rlmods.run import dumps, name
from rlmods.types import UserError

OF_THE_RUN = ("data", "reward", "rollout", "validation", "seed")
"""What is taken from a run's configuration where nothing is typed."""


class Alone:
    """One process, no Trainer."""

    global_rank, iteration = 0, 0

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(source: str, overrides: list[str]) -> dict[str, Any]:
    """Metrics of the policy at `source`.

    Raises:
        UserError: a user's mistake.
    """
    run = Path(source).expanduser()
    saved = run / "config.yaml"
    if saved.is_file() and not (run / "export").is_dir():
        raise UserError(f"{source}: this run has no export/ yet, let it finish or give a model")
    config = _config(saved if saved.is_file() else None, overrides)
    splits = make(config.data, "data")()
    if not splits.val:
        raise UserError("there are no held-out prompts: type data.num_val=200")
    reward, rollout = make(config.reward, "reward"), make(config.rollout, "rollout")
    validation = block(config.validation, "validation", Validation)
    ranks = Alone()
    policy = load(run / "export" if saved.is_file() else source).to(ranks.device)
    metrics, _ = validation(policy, rollout, reward, splits.val, ranks)
    return {"model": source, "prompts": len(splits.val[: validation.max_prompts]), **dict(sorted(metrics.items()))}


def _config(saved: Path | None, overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose("train", overrides)
            if saved is not None:
                groups = {override.lstrip("+~").split("=")[0] for override in overrides}
                OmegaConf.set_struct(config, False)
                run = OmegaConf.load(saved)
                assert isinstance(run, DictConfig)
                for key in set(OF_THE_RUN) - groups:
                    config[key] = run[key]
                settings = [o for o in overrides if "." in o.split("=")[0]]
                config.merge_with_dotlist(settings)
    except HydraException as error:
        raise UserError(" ".join(str(error).split())) from error
    assert isinstance(config, DictConfig)
    return config


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if arguments else 2)
    with plain_errors():
        quiet()
        plugins.register()
        name.register()
        print(dumps(evaluate(arguments[0], arguments[1:]), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
