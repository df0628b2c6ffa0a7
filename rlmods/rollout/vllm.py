"""Sampling with vLLM in the training process."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.seed import isolate_rng

from rlmods.distributed.collectives import local_rank
from rlmods.distributed.trainer import MIXED
from rlmods.errors import UserError, in_one_line
from rlmods.policy.base import Policy
from rlmods.protocols import RunSize
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout
from rlmods.rollout.cache import cache_bytes
from rlmods.rollout.external import (
    Completion,
    Request,
    Temperature,
    Versions,
    extend,
    full_weights,
    shared,
)
from rlmods.settings.bounds import Bound, Positive

ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Settings of vLLM that only the environment has, unless the user set them. Bound threads would
slow down training on a CPU."""
MIN_CACHE_GIB = 0.125
"""Cache of a small model: vLLM's blocks are larger than its rows."""
SPARE = 1.1
"""Size of a cache relative to the keys and values in it, as rows do not fill their last block."""


@dataclass
class VLLM(TokenRollout):
    """Samples with vLLM in the training process, one engine on each rank, on the device of the
    rank.

    The engine starts with the policy's configuration and tokenizer, and `sync` copies the weights
    into it: merged ones with an adapter, and one tensor at a time with sharded weights. The policy
    and the engine are in memory together, unless the engine sleeps (`sleep`). A response depends on
    the weights and on (seed, prompt id, how often that id occurred before, sample, iteration), up
    to rounding, which depends on the other rows.

    Raises: ValueError for a field that is out of range; UserError when training is set up, if vLLM
    is not installed or does not support the policy."""

    temperature: Temperature = 1.0
    """Temperature of the samples; 0: greedy."""
    max_length: Annotated[int, Bound("at least 2", lambda x: x >= 2)] | None = None
    """Maximum number of tokens of a prompt and its response; null: those of the longest ones. The
    cache must have room for it."""
    cache_gib: Positive | None = None
    """Size of the key-value cache, GiB. Responses wait while it is full. null: room for all
    responses of an iteration, as far as the GPU has memory that training does not need; without a
    GPU at most 1."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the engine's weights: float32, bfloat16, float16; null: bfloat16 or float16 if
    the trainer's precision is bf16-mixed or 16-mixed, else the policy's."""
    eager: bool | None = None
    """Run without compiled graphs, which take time to start; null: only without a GPU."""
    sleep: bool = False
    """Free the GPU's memory while the trainer computes: the engine moves its weights to the
    processor's memory and drops its cache. Each rollout then copies the weights back. Without a GPU
    it changes nothing."""

    def check_policy(self, policy: Policy) -> None:
        """Check that vLLM is installed and has an implementation of the policy's architecture.

        Raises:
            UserError: it is not, or has none.
        """
        check_architecture(policy)

    def fit_run(self, policy: Policy, run: RunSize) -> None:
        """Choose data type, maximum length and size of the cache, as far as they are null.

        Rounded to bfloat16, a weight stays the same in many small updates. An engine with float32
        weights would sample from another policy than the one that is trained."""
        if self.dtype is None:
            self.dtype = MIXED.get(run.precision)
        if self.max_length is None:
            self.max_length = run.longest_row
        if self.cache_gib is None:
            dtype = getattr(torch, self.dtype or "", policy.model.dtype)
            bytes_per_row = run.longest_row * cache_bytes(policy.model.config, dtype.itemsize)
            room = cache_room(policy, dtype.itemsize, run.reserved_bytes)
            size = max(SPARE * bytes_per_row, min(SPARE * bytes_per_row * run.num_rows, room))
            self.cache_gib = max(MIN_CACHE_GIB, size / 2**30)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Copy the policy's weights into the engine, which the first call starts."""
        super().sync(policy, iteration=iteration)
        self._engine(policy).load(policy, iteration)

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite.
        """
        with self.sampling():
            return extend(self, self._engine(self.synced), contexts, iteration=iteration)

    def sampling(self) -> AbstractContextManager[None]:
        """Wake the engine for several calls of `extend` in the block."""
        return self._engine(self.synced).awake()

    def _engine(self, policy: Policy) -> InProcess:
        settings = (self.max_length, self.cache_gib, self.dtype, self.eager, self.sleep)
        return shared(
            ("vllm", settings, policy.model.config.to_json_string()),
            lambda: InProcess(policy, *settings),
        )


class InProcess:
    """A vLLM engine in this process (`rlmods.rollout.external.Engine`)."""

    def __init__(
        self,
        policy: Policy,
        max_length: int | None,
        cache_gib: float | None,
        dtype: str | None,
        eager: bool | None,
        sleep: bool,
    ) -> None:
        self._versions = Versions()
        self._sleeps = sleep and torch.cuda.is_available()
        self._is_awake = False
        folder = mkdtemp(prefix="rlmods-vllm-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        write_description(policy, Path(folder))
        options: dict[str, Any] = {}
        if _num_ranks() > 1:
            options["distributed_executor_backend"] = "external_launcher"
        if torch.cuda.is_available():
            options["gpu_memory_utilization"] = memory_fraction()
            options["enable_sleep_mode"] = sleep
        if cache_gib is None:
            itemsize = getattr(torch, dtype or "", policy.model.dtype).itemsize
            cache_gib = cache_room(policy, itemsize) / 2**30
        with _isolated():
            import vllm

            try:
                self._llm = vllm.LLM(
                    model=folder,
                    load_format="dummy",  # `load` sets the weights
                    dtype=dtype or str(policy.model.dtype).removeprefix("torch."),
                    max_model_len=min(policy.context_length, max_length or policy.context_length),
                    kv_cache_memory_bytes=int(cache_gib * 2**30),
                    enforce_eager=not torch.cuda.is_available() if eager is None else eager,
                    logprobs_mode="processed_logprobs",  # after temperature and truncation
                    generation_config="vllm",  # not the checkpoint's
                    **options,
                )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                # vLLM's messages name the cause
                reason = in_one_line(error, 400)
                advice = (
                    "type another rollout.cache_gib, a smaller rollout.max_length or a smaller "
                    "batch.token_budget if memory is the cause, or rollout=local"
                )
                raise UserError(
                    f"rollout=vllm: the engine does not start ({reason}): {advice}"
                ) from error
        if self._sleeps:
            self._llm.sleep(level=1)
        if _num_ranks() > 1:  # the trainer destroys its process group before Python exits
            self._llm.llm_engine.engine_core._finalizer.atexit = False

    @property
    def version(self) -> str:
        return self._versions.name

    def load(self, policy: Policy, iteration: int) -> None:
        if not self._versions.update(policy, iteration):
            return
        with self.awake(), _outside_of_training():
            try:
                # Also tied weights: the CPU build has its own copy of the output layer.
                self._llm.collective_rpc(
                    "reload_weights", kwargs={"weights_iterator": full_weights(policy)}
                )
                if not self._llm.reset_prefix_cache():
                    raise RuntimeError(
                        "vLLM did not drop the cached keys and values of the previous weights"
                    )
            except BaseException:
                self._versions.forget()
                raise
            self._llm.update_weight_version(self.version)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Load weights or sample in the block. At its end the engine frees its memory, if it is to
        sleep."""
        if not self._sleeps or self._is_awake:
            yield
            return
        torch.cuda.empty_cache()  # memory of the last update
        self._llm.wake_up()
        self._is_awake = True
        try:
            yield
        finally:
            self._llm.sleep(level=1)  # level 2 would lose the weights
            self._is_awake = False

    def complete(self, requests: Sequence[Request], progress: Progress) -> list[list[Completion]]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        done: dict[str, list[Completion]] = {}
        ids = list(map(str, range(len(requests))))
        with _outside_of_training():
            try:
                for name, (tokens, fields) in zip(ids, requests, strict=True):
                    settings = SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
                    engine.add_request(name, tokens_input(tokens), settings)
                while len(done) < len(ids):
                    rows: list[Completion] = []
                    for output in engine.step():
                        if output.finished:
                            done[output.request_id] = list(map(_completion, output.outputs))
                            rows += done[output.request_id]
                    progress(len(rows), sum(len(x.tokens) for x in rows))
            finally:
                # some, if the run is being stopped
                engine.abort_request([name for name in ids if name not in done])
        return [done[name] for name in ids]


def memory_fraction() -> float:
    """Return the `gpu_memory_utilization` with which vLLM starts beside a trainer: at most 95 % of
    the memory that is free. vLLM refuses to start if less is free than this fraction of all memory,
    0.92 by default, also with `kv_cache_memory_bytes`, which decides what it takes."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return max(0.01, min(0.9, 0.95 * free / total))


def cache_room(policy: Policy, itemsize: int, reserved_bytes: float = 0.0) -> float:
    """Return the bytes that are left for the key-value cache beside training: half of the memory
    that is free after `reserved_bytes` and the engine's weights, as activations and graphs of the
    engine also need memory; 1 GiB without a GPU."""
    if not torch.cuda.is_available():
        return 2.0**30
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    weights = itemsize * sum(x.numel() for x in policy.parameters())
    return 0.5 * (free - reserved_bytes - weights)


def _completion(output: Any) -> Completion:
    tokens = list(output.token_ids)
    logprobs = []
    for position, token in zip(output.logprobs or (), tokens, strict=False):
        logprobs.append(float(position[token].logprob))
    versions = tuple(span.version for span in output.weight_versions or ())
    return Completion(tokens, logprobs, output.finish_reason, versions)


def check_architecture(policy: Policy) -> None:
    """Check that vLLM is installed and supports the policy's architecture. (Its CPU build, 0.32,
    computes with wrong experts after `reload_weights`, also with those of a checkpoint on disk.)

    Raises:
        UserError: it is not, or does not.
    """
    with _isolated():
        try:
            from vllm import ModelRegistry
        except ImportError as error:
            raise UserError(
                "rollout=vllm: vLLM cannot be imported "
                f"({in_one_line(error, 160)}): pip install 'rlmods[vllm]' (without a GPU, see "
                "docs/rollout.md), or type rollout=local"
            ) from error
        name = type(policy.model).__name__
        if name not in ModelRegistry.get_supported_archs():
            raise UserError(
                f"rollout=vllm: vLLM has no implementation of {name}: type rollout=local, or "
                "policy=... for another model"
            )
    if policy.is_mixture and not torch.cuda.is_available():
        raise UserError(
            f"rollout=vllm: vLLM's CPU build cannot load new experts into {name}: type "
            "rollout=local"
        )


def write_description(policy: Policy, folder: Path) -> None:
    """Write what an engine needs besides weights: configuration and tokenizer."""
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    vars(config).pop("quantization_config", None)
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _num_ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def _isolated() -> Iterator[None]:
    """Import vLLM or start an engine without an effect on training: random state, threads and
    warnings stay as they are."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # until vLLM sets the level of the environment
    logging.getLogger("vllm").setLevel(logging.ERROR)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine reads the policy's tensors
    rank: dict[str, str] = {}
    if _num_ranks() > 1:
        rank["RANK"] = str(dist.get_rank())
        # the engine's GPU, which it makes the current one
        is_on_gpu = torch.cuda.is_available()
        index = torch.cuda.current_device() if is_on_gpu else local_rank()
        rank["LOCAL_RANK"] = str(index)
    before = {name: os.environ.get(name) for name in rank}
    set_num_threads = torch.set_num_threads
    num_threads = torch.get_num_threads()
    os.environ.update(rank)
    try:
        with _outside_of_training(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_num_threads  # the CPU build replaces it
        torch.set_num_threads(num_threads)
        for name, old in before.items():
            if old is None:
                os.environ.pop(name)
            else:
                os.environ[name] = old


@contextmanager
def _outside_of_training() -> Iterator[None]:
    """Leave the trainer's precision context, as the engine has its own data type, and its random
    state, which vLLM also draws from."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with isolate_rng(), torch.no_grad(), torch.autocast(device, enabled=False):
        yield
