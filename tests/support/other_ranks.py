"""Resume from checkpoints of another number of ranks, on this many ranks: `python -m
tests.support.other_ranks FOLDER STAGE`."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from rlmods.callbacks import IterationCheckpoint
from rlmods.cli.console import silence_libraries
from rlmods.config import build
from rlmods.distributed import sharding, trainer as trainers
from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.deferred import defer_loading
from rlmods.distributed.strategy import DDP, FSDP2
from tests.support.composed import composed
from tests.support.tiny_setup import Log

CASE = (
    "algo=ppo",
    "critic=separate",
    "kl.coefficient=0.2",
    "algo.reference_every=1",
    "algo.normalize_reward=true",
    "batch.prompts=8",
    "batch.samples=3",
    "batch.minibatches=1",
    "batch.epochs=2",
    "batch.token_budget=48",
    "rollout.max_tokens=8",
    "sampling=fixed",
    "validation.max_prompts=2",
    "data.num_train=64",
    "data.num_val=8",
)
RESUMED = "iteration_000001.ckpt"


def trained(
    folder: Path, iterations: int, resume: Path | None = None, **options: Any
) -> dict[str, torch.Tensor]:
    """Weights after so many iterations of gradient descent with momentum; the checkpoint of each is
    in the folder. With a folder called "pretraining" the first iteration trains the critic only."""
    silence_libraries()
    pretraining = int(folder.name.startswith("pretraining"))
    made = composed(*CASE, f"critic.pretraining={pretraining}", f"run_dir={folder}")
    run = build.load(made)
    learner: Any = run.learner
    learner.optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    options = {"accelerator": "cpu", "devices": 1, **options}
    checkpoint = IterationCheckpoint(folder, every=1, keep=0)
    trainer = trainers.build(
        max_iterations=iterations, callbacks=[checkpoint], loggers=[Log()], **options
    )
    trainer.fit(learner, datamodule=run.data(), ckpt_path=resume, weights_only=True)
    learner.export(folder / "export")
    return {name: tensor.clone() for name, tensor in sharding.full_state(learner).items()}


class Calls:
    """Counts all-reduce operations in backward, by their group."""

    def __init__(self) -> None:
        self.groups: list[Any] = []
        self._all_reduce = dist.all_reduce
        dist.all_reduce = self

    def __call__(self, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "foreach_reduce":
            self.groups.append(options["group"])
        return self._all_reduce(x, *args, **options)


STAGES = {
    "save": [
        ("fsdp", FSDP2, 1, None),
        ("ddp", DDP, 1, None),
        ("hybrid", partial(FSDP2, replicas=2), 1, None),
        ("folder", partial(FSDP2, sharded_checkpoints=True), 1, None),
        ("pretraining folder", partial(FSDP2, sharded_checkpoints=True), 1, None),
    ],
    "go on": [
        ("pretraining", partial(FSDP2, sharded_checkpoints=True), 2, "pretraining folder"),
        ("one_to_fsdp", FSDP2, 2, "one"),
        ("one_to_ddp", DDP, 2, "one"),
        ("ddp_to_fsdp", FSDP2, 2, "ddp"),
        ("folder_to_file", FSDP2, 2, "folder"),
    ],
    "alone": [("folder_to_one", FSDP2, 2, "folder")],
    "four": [
        ("four_fsdp", FSDP2, 1, None),
        ("four_ddp", DDP, 1, None),
        ("four_hybrid", partial(FSDP2, replicas=2), 1, None),
        ("four_hybrid_offload", partial(FSDP2, replicas=2, offload=True), 1, None),
        ("four_folder", partial(FSDP2, sharded_checkpoints=True), 1, None),
    ],
    "four go on": [
        ("four_to_two", FSDP2, 2, "four_folder"),
        ("hybrid_to_two", FSDP2, 2, "four_hybrid"),
    ],
}
"""Name, strategy, iterations and the checkpoint to go on from."""

if __name__ == "__main__":
    where, stage = Path(sys.argv[1]), sys.argv[2]
    for name, strategy, iterations, source in STAGES[stage]:
        resume = None if source is None else where / source / RESUMED
        made = strategy()
        calls = Calls()
        with defer_loading(isinstance(made, FSDP2)):  # as trainer=fsdp does
            weights = trained(
                where / name,
                iterations,
                resume,
                devices=int(os.environ["WORLD_SIZE"]),
                strategy=made,
            )
        if "hybrid" in name and source is None:
            assert made.shards.mesh_dim_names == ("replicate", "shard"), made.shards
            networks = made.lightning_module.networks.values()
            parts = [x for x in networks for x in x.modules() if isinstance(x, FSDPModule)]
            # two optimizer steps of several microbatches
            assert len(calls.groups) == 2 * len(parts), (len(calls.groups), len(parts))
        dist.all_reduce = calls._all_reduce
        if is_first_rank():
            torch.save(weights, where / f"{name}.pt")
