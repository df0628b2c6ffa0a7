"""State of the learner in a checkpoint, beside the weights and the optimizer, and rows that differ
by rank, which are redistributed if a run resumes with another number of ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from rlmods.distributed.collectives import all_gather
from rlmods.distributed.strategy import FSDP2
from rlmods.errors import UserError
from rlmods.ops import group_index
from rlmods.policy.base import Policy
from rlmods.policy.quantization import BESIDE_WEIGHTS, is_quantized
from rlmods.training.views import LearnerView
from rlmods.types import Experience

T = TypeVar("T")
Columns = Mapping[str, Tensor | None] | None
"""Tensors of some rows by field name; None or empty for no rows."""


@runtime_checkable
class Stateful(Protocol):
    """State that is equal on all ranks: plain values and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> Any: ...


@runtime_checkable
class RankStateful(Protocol):
    """State of its own on each rank."""

    def rank_state(self) -> dict[str, Any]: ...
    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None: ...


@runtime_checkable
class GradingState(Protocol):
    """State that may depend on the parts that grade responses."""

    depends_on_grading: Literal["", "rewards", "rows"]
    """What it depends on: rewards, or the advantages and the selection of rows; "": neither."""


def adapter_bases(networks: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the fingerprints of the frozen weights under adapters, by network."""
    bases: dict[str, str] = {}
    for name, network in networks.items():
        if isinstance(network, Policy) and network.base_fingerprint is not None:
            bases[name] = network.base_fingerprint
    return bases


class LearnerCheckpoint:
    """Saves and loads what Lightning does not save: the learner's counters, parts with
    state by name, and fingerprints of reference and teacher, with their weights if they move. Base
    weights under adapters are left out, because loading the policy restores them."""

    def __init__(self, learner: LearnerView) -> None:
        self.learner = learner
        self.grading: Mapping[str, str] = {}
        """Identities of the settings that "rewards" and "rows" depend on; empty if unknown."""

    def state(self) -> dict[str, Any]:
        """Return the state that is equal on all ranks: plain values and tensors."""
        learner = self.learner
        parts = learner.stateful.items()
        return {
            **learner.counters(),
            "grading": dict(self.grading),
            "adapter_bases": adapter_bases(learner.networks),
            "frozen": {name: model.state_dict() for name, model in learner.frozen.items()},
            "parts": {name: x.state_dict() for name, x in parts if isinstance(x, Stateful)},
        }

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Add the state to Lightning's checkpoint; a collective."""
        learner = self.learner
        parts = learner.stateful.items()
        own = {name: x.rank_state() for name, x in parts if isinstance(x, RankStateful)}
        checkpoint["rlmods"] = self.state() | {"ranks": all_gather(own)}
        strategy = learner.trainer.strategy
        if isinstance(strategy, FSDP2) and strategy._save_distributed_checkpoint:
            return  # each rank writes its shards of all weights
        for name in self.frozen_state():
            checkpoint["state_dict"].pop(name, None)

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the frozen weights under adapters, and what belongs to quantized ones."""
        learner = self.learner
        frozen: set[int] = set()
        for name in adapter_bases(learner.networks):
            frozen |= {id(x) for x in learner.networks[name].parameters() if not x.requires_grad}
        names = learner.named_parameters(remove_duplicate=False)
        own = [name for name, x in names if id(x) in frozen]
        stems = [name.removesuffix("weight") for name in own if name.endswith(".weight")]
        own += [f"{stem}{extra}" for stem in stems for extra in BESIDE_WEIGHTS]
        prefixes = tuple(f"{name}." for name in own)
        state = learner.state_dict()
        return {name: x for name, x in state.items() if f"{name}.".startswith(prefixes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned.

        Raises:
            UserError: the run began with other weights under the adapter, with another frozen
            model, or without a part that has state.
        """
        learner = self.learner
        learner.load_counters(state)
        if state["adapter_bases"] != adapter_bases(learner.networks):
            raise UserError(
                "the weights under the adapter differ from those that the run began with: "
                "type the original policy="
            )
        for name, model in learner.frozen.items():
            model.load_state_dict(state["frozen"].get(name, {}))
        for name, part in learner.stateful.items():
            if isinstance(part, Stateful) and self._is_graded_alike(name, part, state):
                if name not in state["parts"]:
                    raise UserError(
                        f"the checkpoint has no state for {name}: resume with the {name} that "
                        "the run was started with"
                    )
                part.load_state_dict(state["parts"][name])

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Load what `save` has added. A part for which the checkpoint has no state of the ranks
        (`SampleAhead`, switched on at resume) begins empty, and so do graded rows in a fork that
        grades in another way."""
        learner = self.learner
        self.load_state(checkpoint["rlmods"])
        if "state_dict" in checkpoint:
            self._add_frozen(checkpoint["state_dict"])
        ranks: list[dict[str, Any]] = checkpoint["rlmods"]["ranks"]
        for name, part in learner.stateful.items():
            if not isinstance(part, RankStateful) or name not in ranks[0]:
                continue
            states = [rank[name] for rank in ranks]
            if not any(states) or self._is_graded_alike(name, part, checkpoint["rlmods"]):
                part.load_rank_states(states, learner.ranks.rank, learner.ranks.world_size)

    def _add_frozen(self, saved: dict[str, Tensor]) -> None:
        """Add the frozen weights to the saved ones, as Lightning loads all names. Quantized ones of
        bitsandbytes cannot be loaded: then Lightning loads what is there.

        Raises:
            UserError: the names of the other weights differ.
        """
        learner = self.learner
        frozen = self.frozen_state()
        if not any(map(is_quantized, learner.networks.values())):
            saved |= frozen
            return
        learner.strict_loading = False
        different = saved.keys() ^ (learner.state_dict().keys() - frozen.keys())
        if different:
            raise UserError(
                f"the checkpoint and the policy differ in {min(different)}: type the original "
                "policy= and adapter="
            )

    def _is_graded_alike(self, name: str, part: object, state: Mapping[str, Any]) -> bool:
        """Return False, with a warning, for a part whose state depends on another grading."""
        kind = part.depends_on_grading if isinstance(part, GradingState) else ""
        own = self.grading.get(kind)
        saved = state["grading"].get(kind)
        if own is None or saved is None or own == saved:
            return True
        rank_zero_warn(f"{name} begins anew: the checkpoint was graded with other settings")
        return False


def rank_state(rows: Experience | None) -> dict[str, Any]:
    """Return the rows as plain CPU tensors, for the checkpoint."""
    return {} if rows is None or not len(rows) else dict(rows.trim().to("cpu").tensors())


def reshard_rows(states: Sequence[Columns], rank: int, world_size: int) -> Experience | None:
    """Return the rows of this rank, given those of all ranks in a checkpoint.

    With an unchanged number of ranks each gets its own rows. Otherwise whole groups are distributed
    round-robin in the order in which they were sampled, with ids below those of all later
    groups."""
    held = [Experience(**part) if part else None for part in states]  # type: ignore[arg-type]
    if len(held) == world_size:
        return held[rank]
    # The k-th groups of all ranks were sampled at about the same time: interleave the ranks.
    parts: list[Experience] = []
    order: list[Tensor] = []
    for i, part in enumerate(held):
        if part is not None:
            parts.append(part)
            order.append(group_index(part.group) * len(held) + i)
    if not parts:
        return None
    groups = group_index(torch.cat(order))
    num_groups = int(groups.max()) + 1
    own = groups % world_size == rank
    if not own.any():
        return None
    return replace(Experience.concat(parts).select(own), group=groups[own] - num_groups)


def reshard(items: Sequence[Sequence[T]], rank: int, world_size: int) -> list[T]:
    """Return the items of this rank, given those of all ranks; distributed round-robin if the
    number of ranks has changed."""
    if len(items) == world_size:
        return list(items[rank])
    return [item for part in items for item in part][rank::world_size]
