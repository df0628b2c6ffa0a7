"""Seconds and memory of sampling, updates and iterations, beside the loops of `bench.gpu.plain` and
the card's own rates."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from bench.gpu import plain, shapes
from bench.gpu.findings import Findings
from bench.gpu.process import Setting, run
from bench.gpu.shapes import SAMPLES, Shape
from bench.limit import (
    Architecture,
    decode_bytes,
    decode_steps,
    fastest,
    linear_flops,
    update_flops,
)

BUDGETS = (8192, 32768)
"""Tokens of a microbatch of updates, padding included."""
PLAIN_ROWS = 16
"""Rows of a plain microbatch, at first."""
DECODE_PROMPT = 128
"""Tokens of a prompt while sampling is measured."""
GIB = 2**30


def autocast() -> torch.autocast:
    return torch.autocast(shapes.device().type, dtype=torch.bfloat16)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start


def forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    """Return the largest memory allocated since `forget_peak`, GiB; 0 without a GPU."""
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0


# The card


def rates(found: Findings, setting: Setting) -> None:
    """What the card does by itself: matrix products, copies, launches."""
    size, seconds = (256, 0.02) if setting.tiny else (8192, 0.3)
    where = shapes.device()
    a, b = (torch.randn(size, size, device=where) for _ in range(2))
    flops = 2 * size**3
    with found.step("float32 products"):
        found.figure("float32 TFLOP/s", flops / fastest(lambda: a @ b, seconds) / 1e12)
    with found.step("TF32 products"):
        torch.set_float32_matmul_precision("high")
        found.figure("TF32 TFLOP/s", flops / fastest(lambda: a @ b, seconds) / 1e12)
        torch.set_float32_matmul_precision("highest")
    c, d = a.bfloat16(), b.bfloat16()
    with found.step("bfloat16 products"):
        found.figure("bfloat16 TFLOP/s", flops / fastest(lambda: c @ d, seconds) / 1e12)
    if setting.device == "cuda":
        with found.step("bfloat16 products, float32 results"):
            exact = partial(torch.mm, c, d, out_dtype=torch.float32)
            found.figure("bfloat16 to float32 TFLOP/s", flops / fastest(exact, seconds) / 1e12)
    with found.step("copies"):
        x = torch.zeros(2**18 if setting.tiny else 2**28, device=where)
        y = torch.ones_like(x)
        copied = fastest(lambda: y.copy_(x), seconds)
        found.figure("memory TB/s", 2 * x.nbytes / copied / 1e12)
        host = torch.zeros(2**16 if setting.tiny else 2**26)
        moved = fastest(lambda: x[: len(host)].copy_(host), seconds)
        found.figure("host to device GB/s", host.nbytes / moved / 1e9)
    with found.step("launches"):
        small = torch.zeros(16, device=where)
        count = 100 if setting.tiny else 2000
        found.figure("us a launch", timed(lambda: launches(small, count)) / count * 1e6)
    with found.step("attention"):
        found.figure("attention kernels", kernels())


def launches(x: Tensor, count: int) -> None:
    for _ in range(count):
        x.add_(1)


def kernels() -> dict[str, str]:
    """Return the kernel that `scaled_dot_product_attention` takes, of those that a policy allows."""
    from rlmods.policy.modes import disable_cudnn_attention

    disable_cudnn_attention()
    if not hasattr(torch, "_fused_sdp_choice"):
        return {}
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
    calls = {
        "update, bfloat16": (torch.bfloat16, 300, 300),
        "decode, bfloat16": (torch.bfloat16, 1, 300),
        "update, float32": (torch.float32, 300, 300),
        "decode, float32": (torch.float32, 1, 300),
    }
    chosen = {}
    for name, (dtype, num_queries, num_keys) in calls.items():
        heads = 14 if dtype == torch.bfloat16 else 2  # keys are repeated in float32
        query = torch.zeros(4, heads, num_queries, 64, device=shapes.device(), dtype=dtype)
        key = torch.zeros(4, 2, num_keys, 64, device=shapes.device(), dtype=dtype)
        choice = torch._fused_sdp_choice(
            query, key, key, None, 0.0, num_queries > 1, enable_gqa=heads > 2
        )
        chosen[name] = names.get(int(choice), str(choice))
    return chosen


# Sampling


def model(shape: Shape) -> tuple[Any, Architecture]:
    """Return a policy as a run trains it, and its architecture."""
    made = shapes.policy(shape, gradient_checkpointing=shape.lora)
    arch = Architecture.of(made.model)
    if shape.lora:
        made = shapes.adapted(made)
    return made.to(shapes.device()), arch


def decode(found: Findings, setting: Setting, name: str) -> None:
    """Sampling by `rollout=local` and by `generate`."""
    shape = shapes.shapes(setting.tiny)[name]
    length = min(DECODE_PROMPT, shape.prompt_tokens)
    policy, arch = model(shape)
    for rows in shape.decode_rows:
        contexts = decode_steps([length] * (rows // SAMPLES), [shape.decode_tokens] * rows)
        moved = sum(decode_bytes(arch, context, 2) for context in contexts) / len(contexts)
        flops = linear_flops(arch, rows, rows)
        work = {"rows": rows, "bytes": moved, "flops": flops}
        prompts = shapes.questions(shape, rows // SAMPLES, length)
        sides = {"here": local, "plain": generated}
        if setting.device == "cuda":
            sides["graphs"] = partial(local, graphs=True)
        for side, make in sides.items():
            if side == "plain" and rows == min(shape.decode_rows) < max(shape.decode_rows):
                continue  # `generate` takes as long for a step with few rows
            with found.step(f"{side}, {rows} rows"), autocast():
                sample = make(policy, prompts, shape.decode_tokens)
                make(policy, prompts, max(2, shape.decode_tokens // 8))()
                forget_peak()
                seconds = timed(sample)
                figures = {
                    "tokens/s": rows * shape.decode_tokens / seconds,
                    "ms a step": seconds / shape.decode_tokens * 1e3,
                    "GiB": peak_gib(),
                }
                found.figure(f"{side}, {rows} rows", work | figures)
    if setting.device == "cuda":
        with found.step("kernels of a step"), autocast():
            prompts = shapes.questions(shape, max(shape.decode_rows[:2]) // SAMPLES, length)
            short, long = (profiled(local(policy, prompts, n)) for n in (8, 24))
            step = {k: (long[k] - short[k]) / 16 for k in ("launches", "busy ms")}
            found.figure("kernels of a step", step | {"top": long["top"]})


def local(
    policy: Any, prompts: Tensor, num_tokens: int, graphs: bool = False
) -> Callable[[], object]:
    """Return a call that samples with `rollout=local`."""
    from rlmods.rollout import Local
    from rlmods.types import Prompt

    ids = {str(i): row for i, row in enumerate(prompts.tolist())}
    policy.encode = lambda prompt, tools=(): ids[prompt.id]
    questions = [Prompt(id=name, text=name) for name in ids]
    rollout = Local(max_tokens=num_tokens, batch_size=len(prompts) * SAMPLES, graphs=graphs)
    rollout.sync(policy, iteration=0)
    return lambda: rollout.generate(questions, samples=SAMPLES, iteration=0)


def generated(policy: Any, prompts: Tensor, num_tokens: int) -> Callable[[], object]:
    """Return a call that samples with `generate`."""
    ids = prompts.to(shapes.device())
    return lambda: plain.sample(policy.model, ids, SAMPLES, num_tokens)


def profiled(call: Callable[[], object]) -> dict[str, Any]:
    """Return the number of kernels of a call, their time, and those that take the most."""
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        timed(call)
    averages = [x for x in trace.key_averages() if str(x.device_type).endswith("CUDA")]
    averages.sort(key=lambda x: -x.self_device_time_total)
    top = [[x.key[:80], round(x.self_device_time_total / 1e3, 2), x.count] for x in averages[:12]]
    busy = sum(x.self_device_time_total for x in averages) / 1e3
    return {"launches": sum(x.count for x in averages), "busy ms": busy, "top": top}


# Updates


def trained(policy: Any) -> tuple[Any, torch.optim.Optimizer]:
    """Return the trained parameters, and the optimizer of a run."""
    parameters = [x for x in policy.parameters() if x.requires_grad]
    return parameters, torch.optim.AdamW(parameters, lr=1e-6, fused=True)


class Step:
    """One optimizer step of this project on rows whose lengths differ."""

    def __init__(self, policy: Any, budget: int) -> None:
        self.policy = policy
        self.budget = budget
        self.parameters, self.optimizer = trained(policy)

    def __call__(self, tokens: Tensor, mask: Tensor, advantages: Tensor) -> None:
        from rlmods.ops import pack

        total = mask.sum()
        lengths = (mask * torch.arange(mask.shape[1], device=mask.device)).amax(1) + 1
        group = torch.arange(len(tokens), device=tokens.device) // SAMPLES
        for rows in pack(lengths, self.budget, group):
            end = int(lengths[rows].max())
            wanted = mask[rows, :end]
            with autocast():
                logprobs = self.policy(tokens[rows, :end], wanted).logprobs
            losses = plain.objective(logprobs, logprobs.detach(), advantages[rows, None])
            ((losses * wanted).sum() / total).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def update(found: Findings, setting: Setting, name: str) -> None:
    """Forward, backward and the optimizer step, packed here and padded in the plain loop."""
    shape = shapes.shapes(setting.tiny)[name]
    policy, arch = model(shape)
    policy.train(policy.gradient_checkpointing)
    for budget in BUDGETS:
        label = f"here, budget {budget}"
        with found.step(label):
            step = Step(policy, budget)
            found.figure(label, measured(shape, arch, step))
    if setting.device == "cuda":
        with found.step("kernels of an update"):
            rows = on_device(shape, 1)
            found.figure("kernels of an update", profiled(partial(step, *rows)))
        label = f"flex attention, budget {BUDGETS[-1]}"
        with found.step(label):
            step = Step(shapes.with_flex_attention(policy), BUDGETS[-1])
            found.figure(label, measured(shape, arch, step))
    with found.step("plain"):
        policy.packs = False
        policy.model.train(policy.gradient_checkpointing)
        whole = plain.Update(policy.model, trained(policy)[1], PLAIN_ROWS)
        figures = measured(shape, arch, whole)
        found.figure("plain", figures | {"rows of a microbatch": whole.rows})


def on_device(shape: Shape, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, mask and advantages of an update."""
    tokens, mask = shapes.responses(shape, shape.update_rows, seed)
    advantages = torch.linspace(-1, 1, len(tokens))
    where = shapes.device()
    return tokens.to(where), mask.to(where), advantages.to(where)


def measured(shape: Shape, arch: Architecture, step: Callable[..., object]) -> dict[str, Any]:
    """Return speed and memory of a step. Lengths differ in every step, as in a run."""
    step(*on_device(shape, 1))
    forget_peak()
    total_s = 0.0
    num_tokens = flops = 0
    for seed in (2, 3):
        rows = on_device(shape, seed)
        total_s += timed(partial(step, *rows))
        lengths = rows[1].sum(1).tolist()
        num_tokens += sum(lengths)
        prompts = [shape.prompt_tokens] * (len(lengths) // SAMPLES)
        work = update_flops(arch, prompts, lengths)
        # frozen weights have no gradients
        flops += work * 2 // 3 if shape.lora else work
    return {
        "response tokens/s": num_tokens / total_s,
        "s a step": total_s / 2,
        "flops": flops / 2,
        "GiB": peak_gib(),
    }


# Iterations


def iteration(found: Findings, setting: Setting, name: str) -> None:
    """Iterations of the training command: sampling, grading, update."""
    shape = shapes.shapes(setting.tiny)[name]
    folder = Path(setting.folder)
    data = folder / "prompts.jsonl"
    text = " ".join("abcdefgh"[i % 8] for i in range(shape.prompt_tokens // 2))
    with data.open("w") as file:
        for i in range(shape.prompts):
            file.write(json.dumps({"prompt": f"{text}{i:03d}"}) + "\n")
    run_dir = folder / "run"
    settings = {
        "algo": "dapo",
        "sampling": "fixed",
        "policy": "random",
        "policy._target_": "bench.gpu.shapes.Shaped",
        "policy.name": f"'tiny {name}'" if setting.tiny else f"'{name}'",
        "data": "jsonl",
        "data.train": data,
        "data.num_val": 0,
        "data.answer": "null",
        "reward": "function",
        "reward.function": "bench.gpu.shapes:parity",
        "batch.prompts": shape.prompts,
        "batch.samples": SAMPLES,
        "batch.minibatches": 1,
        "rollout.max_tokens": shape.tokens,
        "optimizer.lr": 1e-6,
        "validation.every": "null",
        "logger": "none",
        "trainer.max_iterations": 2,
        "trainer.precision": "bf16-mixed",
        "trainer.accelerator": setting.accelerator,
        "run_dir": run_dir,
    }
    if shape.lora:
        settings |= {"adapter": "lora", "policy.gradient_checkpointing": "true"}
    typed = [f"{key}={value}" for key, value in settings.items()]
    log = folder / "train.log"
    command = [*setting.python(), "train.py", *typed, "~callbacks.checkpoint"]
    ended = run(command, log, setting.seconds - 5)
    rows = []
    metrics = run_dir / "metrics.jsonl"
    for line in metrics.read_text().splitlines() if metrics.exists() else ():
        row = json.loads(line)
        if "time/iteration_s" in row:
            rows.append(row)
    if rows:  # the first one compiles and measures
        kept = {k: v for k, v in rows[-1].items() if k.startswith(("time/", "perf/"))}
        found.figure("here", kept | {"iterations": len(rows), "rows": shape.rows})
    if ended.reason and len(rows) < 2:
        found.fail("training command", ended.reason, ended.lines)
    elif ended.reason:
        found.skip("export", ended.reason)


def plain_iteration(found: Findings, setting: Setting, name: str) -> None:
    """One iteration of the plain loop with the same work."""
    shape = shapes.shapes(setting.tiny)[name]
    policy, _ = model(shape)
    policy.packs = False
    optimizer = trained(policy)[1]
    step = plain.Update(policy.model, optimizer, PLAIN_ROWS)
    prompts = shapes.questions(shape, shape.prompts, shape.prompt_tokens)
    prompts = prompts.to(shapes.device())
    with found.step("warm-up"), autocast():
        plain.sample(policy.model, prompts[:2], SAMPLES, 4)
    forget_peak()
    with found.step("plain"):
        start = time.perf_counter()
        with autocast():
            rows = plain.sample(policy.model, prompts, SAMPLES, shape.tokens)
        synchronize()
        sampled_s = time.perf_counter() - start
        found.figure("sampling", {"time/rollout_s": sampled_s})
        mask = torch.zeros_like(rows, dtype=torch.bool)
        mask[:, shape.prompt_tokens :] = True
        advantages = rows[:, -1].remainder(2) * 2.0 - 1
        policy.model.train(policy.gradient_checkpointing)
        step(rows, mask, advantages)
        synchronize()
        seconds = time.perf_counter() - start
        figures = {
            "time/iteration_s": seconds,
            "time/rollout_s": sampled_s,
            "time/update_s": seconds - sampled_s,
            "perf/peak_memory_mb": peak_gib() * 1024,
            "rows": shape.rows,
        }
        found.figure("plain", figures)
