"""Inputs of the memory prediction from a composed plan: devices, networks on the meta device, and
batch shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig
from torch import nn

from rlmods.algo import ProcessRewardModel, RewardModel
from rlmods.config.plan import Plan
from rlmods.data import Splits
from rlmods.distributed.strategy import DDP, FSDP2, check_replicas
from rlmods.errors import UserError
from rlmods.needs import KLNeeds, ReferenceNeeds, TeacherNeeds, needs_of
from rlmods.policy import Policy, ScalarModel
from rlmods.policy.cpu_linear import packed_dtypes
from rlmods.rollout import VLLM, VLLMServer
from rlmods.rollout.turns import MultiTurn, num_added_tokens
from rlmods.training.row_shape import row_shape
from rlmods.types import Prompt


@dataclass(frozen=True)
class Devices:
    """Devices of a run, and the distribution of its networks over them."""

    ranks: int = 1
    shards: int = 1
    """Number of ranks over which one copy of the networks is sharded."""
    fsdp: bool = False
    ddp: bool = False
    offload: bool = False
    """True if shards, gradients and optimizer state are in CPU memory."""
    full_checkpoint: bool = False
    """True if rank 0 gathers full tensors to write a checkpoint."""
    on_cpu: bool = False
    precision: str = "32-true"

    @classmethod
    def from_config(cls, trainer: DictConfig, num_gpus: int) -> Devices:
        """Read the group `trainer`. `num_gpus`: number of ranks if `trainer.devices` is not a
        number.

        Raises:
            UserError: `replicas` does not divide the number of ranks, several devices without a
            strategy, or a strategy given by its name.
        """
        devices, strategy = trainer.get("devices", 1), trainer.get("strategy") or {}
        if isinstance(strategy, str):
            raise UserError(
                f"trainer.strategy={strategy}: the plan needs the strategy's settings: type "
                "trainer=ddp or trainer=fsdp"
            )
        if not isinstance(devices, int | str):  # a list of indices
            devices = len(devices)
        ranks = (
            devices * trainer.get("num_nodes", 1)
            if isinstance(devices, int) and devices > 0
            else num_gpus
        )
        kind = get_class(strategy["_target_"]) if "_target_" in strategy else object
        on_cpu, precision = trainer.get("accelerator") == "cpu", str(trainer.get("precision"))
        if issubclass(kind, FSDP2):
            check_replicas(strategy["replicas"], ranks)
            offload, full = strategy["offload"] and not on_cpu, not strategy["sharded_checkpoints"]
            return cls(
                ranks, ranks // strategy["replicas"], True, False, offload, full, on_cpu, precision
            )
        if not issubclass(kind, DDP) and ranks > 1:
            raise UserError(
                f"trainer.devices={devices}: several devices need a strategy: type "
                "trainer=fsdp or trainer=ddp"
            )
        return cls(ranks, ddp=issubclass(kind, DDP), on_cpu=on_cpu, precision=precision)

    @property
    def autocast(self) -> bool:
        return self.precision in ("bf16-mixed", "16-mixed")

    @property
    def stored_itemsize(self) -> int | None:
        """Bytes of a stored trained weight; None: those of the policy's dtype."""
        return 2 if self.precision in ("bf16-true", "16-true") else None

    @property
    def gathered_itemsize(self) -> int | None:
        """Bytes of a trained weight in forward and backward; None: those of the policy's dtype."""
        return 2 if self.fsdp and self.precision == "bf16-mixed" else self.stored_itemsize


@dataclass(frozen=True)
class Networks:
    """Networks of a run, on the meta device."""

    trained: Mapping[str, nn.Module]
    """Trained networks by name: `policy` or `reward_model`, and `critic`."""
    frozen: Mapping[str, Policy]
    """Models that are not trained by name, `reference` and `teacher`; the policy, for a frozen copy
    of its trainable weights."""
    reward_models: list[nn.Module]
    teacher: Policy | None = None
    """Network that scores responses as the teacher: frozen or the policy; None without a teacher,
    or with one on a server."""


def build_networks(plan: Plan) -> Networks:
    """Build the networks of a plan without reading weights.

    Raises:
        UserError: the policy does not load.
    """
    parts = plan.parts
    with torch.device("meta"):
        try:
            policy: Policy = plan.adapter(instantiate(plan.config.policy, _convert_="all")())
        except HydraException as error:
            raise UserError(f"policy: {' '.join(str(error.__cause__ or error).split())}") from error
        if issubclass(plan.algorithm, RewardModel | ProcessRewardModel):
            return Networks({"reward_model": ScalarModel.from_policy(policy)}, {}, [])
        critic = parts["critic"](policy) if "critic" in parts else None
        scorers = (
            scorer
            for part in (parts.get("reward"), parts.get("judge"))
            for scorer in nested_parts(part)
        )
        reward_models: list[nn.Module] = [
            ScalarModel.load(source)
            for scorer in scorers
            for source in getattr(scorer, "sources", ())
        ]
        needs_reference = any(
            getattr(parts[name], "needs", KLNeeds()).reference
            for name in ("kl", "preference")
            if name in parts
        )
        loaders = {
            name: parts[name]
            for name in ("reference", "teacher")
            if name in parts and (name == "teacher" or needs_reference)
        }
        models = {
            name: policy if _copies_policy(loader) else loader(policy)
            for name, loader in loaders.items()
        }
    frozen = {
        name: model
        for name, model in models.items()
        if model is not None and (model is not policy or _copies_policy(loaders[name]))
    }
    return Networks(
        {"policy": policy} | ({} if critic is None else {"critic": critic}),
        frozen,
        reward_models,
        models.get("teacher"),
    )


def nested_parts(part: Any) -> Iterator[Any]:
    """Yield a reward or judge, and those that it contains: terms of a sum, rewards by source, the
    judge of a reward, its reward model."""
    yield part
    rewards = getattr(part, "rewards", None)
    inner = [
        *(rewards.values() if isinstance(rewards, Mapping) else ()),
        *(getattr(part, x, None) for x in ("reward", "judge", "scorer")),
    ]
    for x in inner:
        if x is not None:
            yield from nested_parts(x)


def tensors(*networks: nn.Module, trained: bool = False) -> list[torch.Tensor]:
    """Return weights and buffers, shared ones once. `trained`: only those that require a
    gradient."""
    unique = {id(x): x for network in networks for x in (*network.parameters(), *network.buffers())}
    return [x for x in unique.values() if x.requires_grad or not trained]


def num_bytes(*networks: nn.Module, itemsize: int | None = None, trained: bool = False) -> int:
    """Return the bytes of `tensors`. `itemsize`: bytes of one element; None: those of its dtype."""
    return sum(x.numel() * (itemsize or x.itemsize) for x in tensors(*networks, trained=trained))


def optimizer_copies(optimizer: DictConfig) -> float:
    """Return the elements of optimizer state per trained weight (2 for Adam, 0 for plain SGD),
    counted after a step on one matrix."""
    weight = nn.Parameter(torch.zeros(64, 64))
    weight.grad = torch.zeros_like(weight)
    instance = instantiate(optimizer, _partial_=True, _convert_="all")([weight])
    instance.step()
    return (
        sum(
            x.numel()
            for state in instance.state.values()
            for x in state.values()
            if torch.is_tensor(x) and x.ndim
        )
        / weight.numel()
    )


@dataclass(frozen=True)
class Rows:
    """Shape of the rows of one forward, padded to the longest."""

    num: int
    length: int
    """Tokens of prompt and response."""
    response: int
    """Tokens of the response."""

    @property
    def tokens(self) -> int:
        return self.num * self.length


def microbatches(
    plan: Plan, encoder: Any, train: Sequence[Prompt], ranks: int
) -> tuple[Rows, Rows]:
    """Return the shapes of one microbatch of the policy, and of one of the teacher, whose prompts
    may be longer.

    Responses have `rollout.max_tokens` tokens, or the largest length in the data. Rows of both are
    in one microbatch if the loss compares their distributions (`DistillBatch`)."""
    batch, algorithm, teacher = plan.batch, plan.algorithm, plan.parts.get("teacher")
    rows = [row_shape(row, encoder, algorithm.columns(plan.settings)) for row in train]
    prompt, response, candidates = (max(sizes) for sizes in zip(*rows, strict=True))
    length, num = max(p + r for p, r, _ in rows), batch.prompts // ranks * candidates
    if algorithm.samples_responses:
        prompt += num_added_tokens(encoder, plan.parts["rollout"], train)
        response = max(response, plan.parts["rollout"].max_tokens)
        length, num = prompt + response, batch.prompts // ranks * batch.samples
        candidates = batch.samples // algorithm.rows_per_prompt(batch)
    step = max(candidates, num // batch.minibatches)

    def shape(length: int, packed: int) -> Rows:
        return Rows(
            min(step, max(1, batch.token_budget // (candidates * packed)) * candidates),
            length,
            response,
        )

    shown = length if teacher is None else _longest(encoder, map(teacher.prompt, train)) + response
    longer = max(length, shown) if getattr(algorithm, "needs_distributions", False) else 0
    return shape(length, longer or length), shape(shown, longer or shown)


def divergence_tensors(plan: Plan) -> int:
    """Return the tensors of logits in backward, beside the policy's own, of a divergence from
    another model over the whole vocabulary; 0 without one.

    Counted in a backward: 3.3 for a Kullback-Leibler divergence (logits and log-probabilities of
    the other model, products), 7.5 for a Jensen-Shannon divergence (also those of the mixture)."""
    if getattr(plan.algorithm, "needs_distributions", False):
        return 8 if 0 < getattr(plan.settings, "beta", 0.5) < 1 else 4
    is_full = (
        needs_of(plan.parts.get("kl"), KLNeeds).distributions
        or getattr(plan.settings, "kl_coefficient", 0) > 0
    )
    return 4 if is_full else 0


def generation(plan: Plan, encoder: Any, splits: Splits, ranks: int) -> dict[str, tuple[int, Rows]]:
    """Return the prompts and rows that the policy of one rank decodes at once, by stage: sampling,
    validation. Empty if another engine samples."""
    rollout = plan.parts.get("rollout")
    if rollout is None or isinstance(engine(rollout), VLLM | VLLMServer):
        return {}
    settings = plan.config.validation
    val = splits.val[: settings.max_prompts]
    stages = (
        {"sampling": (splits.train, plan.batch.prompts, plan.batch.samples)}
        if plan.algorithm.samples_responses
        else {}
    )
    shapes = {}
    for stage, (prompts, available, samples) in (
        stages | {"validation": (val, len(val), max(1, settings.samples))}
    ).items():
        num = min(
            -(-available // ranks), max(1, getattr(rollout, "batch_size", available) // samples)
        )
        prompt = _longest(encoder, prompts) + num_added_tokens(encoder, rollout, prompts)
        response = rollout.max_tokens
        if (
            stage == "validation"
            and settings.max_tokens is not None
            and not isinstance(rollout, MultiTurn)
        ):
            response = settings.max_tokens
        shapes[stage] = (num, Rows(num * samples, prompt + response, response))
    return shapes


def num_caches(plan: Plan) -> int:
    """Return the number of key-value caches of a batch in generation: another one for earlier turns
    if the rollout has several turns."""
    return 1 + isinstance(plan.parts.get("rollout"), MultiTurn)


def engine(rollout: Any) -> Any:
    """Return what samples the turns of an environment, or else the rollout itself."""
    return rollout.rollout if isinstance(rollout, MultiTurn) else rollout


def engine_bytes(plan: Plan, policy: Policy) -> int:
    """Return the bytes of a sampling engine in this process, on each rank: all weights, and the
    key-value cache; 0 without one."""
    if not isinstance(rollout := engine(plan.parts.get("rollout")), VLLM):
        return 0
    dtype = policy.model.dtype if rollout.dtype is None else getattr(torch, rollout.dtype)
    return num_bytes(policy, itemsize=dtype.itemsize) + int(rollout.cache_gib * 2**30)


def packed_bytes(policy: Policy, autocast: bool) -> int:
    """Return the bytes of the copies of weights that sampling on a processor makes
    (`packed_weights`): in 16 bits under autocast, except for the output layer, which is float32."""
    dtypes = packed_dtypes(
        policy, policy.model.get_output_embeddings(), torch.bfloat16 if autocast else None
    )
    return sum(layer.weight.numel() * dtype.itemsize for layer, dtype in dtypes.items())


def _longest(encoder: Any, prompts: Iterable[Prompt]) -> int:
    return max((len(encoder.encode(prompt)) for prompt in prompts), default=0)


def _copies_policy(loader: Any) -> bool:
    needs: ReferenceNeeds | TeacherNeeds = getattr(loader, "needs", TeacherNeeds())
    return needs.copies_policy
