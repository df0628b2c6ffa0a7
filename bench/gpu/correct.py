"""Whether the device computes what the processor computes: losses, gradients, log-probabilities,
samples, training, checkpoints."""

import copy
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu import shapes
from bench.gpu.findings import Findings
from bench.gpu.process import Setting, run
from bench.gpu.shapes import Shape

NATS = 1e-4
"""Largest difference of a log-probability in float32: sums are in another order."""
RELATIVE = 1e-4
"""Largest relative distance of gradients in float32."""
NATS_16 = 0.05
"""Largest mean difference of a log-probability under bfloat16 autocast."""
RELATIVE_16 = 0.1
SAME_ROWS = 0.99
"""Least fraction of equal responses in float32: a random number may lie so near to the boundary of
two tokens that rounding decides."""
HEADS = {
    "shared heads of 64": Shape("", "", 512, 256, 512, 2, 4, 2, is_tied=False),
    "shared heads of 128": Shape("", "", 512, 512, 512, 2, 4, 2, is_tied=False),
}


class Scores(NamedTuple):
    """Results of one microbatch, on the processor in float64."""

    logprobs: Tensor
    entropy: Tensor
    loss: Tensor
    gradient: Tensor


def distance(a: Tensor, b: Tensor) -> float:
    """Return `|a - b| / |b|`."""
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def autocast(enabled: bool) -> torch.autocast:
    return torch.autocast(shapes.device().type, dtype=torch.bfloat16, enabled=enabled)


def score(policy: Any, tokens: Tensor, mask: Tensor, *, packs: bool, mixed: bool) -> Scores:
    """Return scores of rows, and the gradient of a clipped loss with an entropy bonus."""
    policy.packs = packs
    policy.zero_grad()
    tokens, mask = tokens.to(policy.device), mask.to(policy.device)
    with autocast(mixed):
        output = policy(tokens, mask, entropy=True)
    weight = torch.linspace(-1, 1, int(mask.sum())).to(policy.device)
    ratio = (output.logprobs[mask] - output.logprobs[mask].detach()).exp()
    loss = -(ratio * weight + 0.1 * output.entropy[mask] * weight.abs()).mean()
    loss.backward()
    gradients = [x.grad.flatten() for x in policy.parameters() if x.grad is not None]
    results = (output.logprobs[mask], output.entropy[mask], loss, torch.cat(gradients))
    return Scores(*(x.detach().cpu().double() for x in results))


def embedded() -> Any:
    """Return the embedded model on the processor."""
    from rlmods.policy import Tiny

    return Tiny()()


def forward(found: Findings, setting: Setting) -> None:
    """Losses, gradients, log-probabilities and entropies of rows that share prompts."""
    shape = Shape("", "", 90, 0, 0, 0, 0, 0, prompt_tokens=30, tokens=60)
    tokens, mask = shapes.responses(shape, 16, seed=1)
    policies: dict[str, Callable[[], Any]] = {"embedded model": embedded}
    for name, sizes in HEADS.items():
        policies[name] = partial(on_processor, sizes)
    for name, make in policies.items():
        with found.step(name):
            policy = make()
            expected = score(policy, tokens, mask, packs=False, mixed=False)
            moved = copy.deepcopy(policy).to(shapes.device())
            for packs in (True, False):
                rows = f"{name}, {'packed' if packs else 'padded'}"
                got = score(moved, tokens, mask, packs=packs, mixed=False)
                check_float32(found, f"{rows}, float32", got, expected)
                got = score(moved, tokens, mask, packs=packs, mixed=True)
                check_bfloat16(found, f"{rows}, bfloat16", got, expected)
    if setting.device == "cuda":
        for name, sizes in HEADS.items():
            label = f"flex attention, {name}"
            with found.step(label):
                policy = on_processor(sizes)
                expected = score(policy, tokens, mask, packs=False, mixed=False)
                moved = shapes.with_flex_attention(policy.to(shapes.device()))
                got = score(moved, tokens, mask, packs=True, mixed=False)
                check_float32(found, f"{label}, float32", got, expected)
                repeated = [score(moved, tokens, mask, packs=True, mixed=True) for _ in range(2)]
                check_bfloat16(found, f"{label}, bfloat16", repeated[0], expected)
                same = torch.equal(repeated[0].gradient, repeated[1].gradient)
                found.figure(f"{label}: a repeated gradient is equal bit for bit", same)
    with found.step("output layer"):
        output_layer(found, setting.tiny)
    with found.step("repeated gradient"):
        policy = spread(shapes.policy(HEADS["shared heads of 64"]))
        repeated = [score(policy, tokens, mask, packs=True, mixed=True) for _ in range(3)]
        same = all(torch.equal(x.gradient, repeated[0].gradient) for x in repeated)
        found.figure("a repeated bfloat16 gradient is equal bit for bit", same)


def on_processor(shape: Shape) -> Any:
    """Return a policy on the processor."""
    return spread(shapes.policy(shape, where="cpu"))


def spread(policy: Any) -> Any:
    """Let logits be as far apart as those of a trained model."""
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(8)
    return policy


def check_float32(found: Findings, name: str, got: Scores, expected: Scores) -> None:
    nats = float((got.logprobs - expected.logprobs).abs().max())
    found.check(f"{name}: log-probabilities, nats", nats, NATS)
    found.check(
        f"{name}: entropies, nats", float((got.entropy - expected.entropy).abs().max()), NATS
    )
    found.check(f"{name}: loss", float((got.loss - expected.loss).abs()), NATS)
    found.check(f"{name}: gradient", distance(got.gradient, expected.gradient), RELATIVE)


def check_bfloat16(found: Findings, name: str, got: Scores, expected: Scores) -> None:
    nats = float((got.logprobs - expected.logprobs).abs().mean())
    found.check(f"{name}: log-probabilities, mean nats", nats, NATS_16)
    found.check(f"{name}: gradient", distance(got.gradient, expected.gradient), RELATIVE_16)


def output_layer(found: Findings, tiny: bool) -> None:
    """Log-probabilities of a large vocabulary, computed in chunks, against float64."""
    from rlmods.policy.output_layer import LogitTransform, linear_logprobs

    num, width, words = (40, 32, 1000) if tiny else (1500, 896, 151936)
    where = shapes.device()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num, width, generator=generator).to(where)
    weight = (torch.randn(words, width, generator=generator) * 3 / math.sqrt(width)).to(where)
    targets = torch.randint(words, (num,), generator=generator).to(where)
    expected = []
    for rows in range(0, num, 100):
        logits = hidden[rows : rows + 100].double() @ weight.T.double()
        own = logits.log_softmax(-1).gather(-1, targets[rows : rows + 100, None])
        expected.append(own.squeeze(-1))
    for mixed, bound in ((False, NATS), (True, 0.2)):
        with autocast(mixed), torch.no_grad():
            output = linear_logprobs(
                hidden, weight, None, targets, LogitTransform(), entropy_gradient=False
            )
        name = f"output layer, {'bfloat16' if mixed else 'float32'}: log-probabilities, nats"
        gap = (output.logprobs.double() - torch.cat(expected)).abs().max()
        found.check(name, float(gap), bound)


# Sampling


def sampling(found: Findings, setting: Setting) -> None:
    """Sampled ids, their log-probabilities beside the trainer's, and the frequencies of draws."""
    policy = embedded()
    moved = copy.deepcopy(policy).to(shapes.device())
    with found.step("sampled ids"):
        expected = sample(policy, mixed=False)
        got = sample(moved, mixed=False)
        pairs = zip(got, expected, strict=True)
        same = sum(a.tokens == b.tokens for a, b in pairs) / len(expected)
        found.check("float32: responses with equal ids", same, SAME_ROWS, at_least=True)
        found.check("float32: sampler against trainer, nats", gap(moved, got, mixed=False), NATS)
    with found.step("bfloat16"):
        got = sample(moved, mixed=True)
        found.check("bfloat16: sampler against trainer, nats", gap(moved, got, mixed=True), NATS_16)
    if setting.device == "cuda":
        with found.step("recorded decode steps"):
            got = sample(moved, mixed=True, graphs=True)
            distance = gap(moved, got, mixed=True)
            found.check("graphs: sampler against trainer, nats", distance, NATS_16)
    with found.step("draws"):
        chi = chi_square(1000 if setting.device == "cuda" else 50)
        found.check("draws: chi-square over its expectation, less 1", abs(chi - 1), 0.35)


def sample(policy: Any, *, mixed: bool, graphs: bool = False) -> Sequence[Any]:
    """Return responses to prompts of several lengths."""
    from rlmods.data import Arithmetic
    from rlmods.rollout import Local

    rollout = Local(max_tokens=16, graphs=graphs)
    with autocast(mixed):
        rollout.sync(policy, iteration=0)
        prompts = list(Arithmetic(num_train=16, num_val=1)().train)
        return rollout.generate(prompts, samples=8, iteration=0)


def gap(policy: Any, responses: Sequence[Any], *, mixed: bool) -> float:
    """Return the mean difference of the sampler's log-probabilities and the trainer's."""
    width = max(len(r.prompt_tokens) + len(r.tokens) for r in responses)
    tokens = torch.zeros(len(responses), width, dtype=torch.long)
    mask = torch.zeros(len(responses), width, dtype=torch.bool)
    reported = []
    for i, response in enumerate(responses):
        row = [*response.prompt_tokens, *response.tokens]
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, len(response.prompt_tokens) : len(row)] = True
        reported += response.behavior_logprobs
    tokens, mask = tokens.to(policy.device), mask.to(policy.device)
    with autocast(mixed), torch.no_grad():
        computed = policy(tokens, mask).logprobs[mask]
    return float((computed.cpu() - torch.tensor(reported)).abs().mean())


def chi_square(words: int) -> float:
    """Return `sum (f - np)^2 / np / (V - 1)` of draws from V tokens, near 1."""
    from rlmods.rollout.local import sample_tokens

    where = shapes.device()
    count = 200 * words
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(1, words, generator=generator) * 2).to(where)
    uniforms = torch.rand(count, dtype=torch.float64, generator=generator).to(where)
    drawn = []
    for part in uniforms.split(20_000):  # type: ignore[no-untyped-call]
        rows = logits.expand(len(part), -1)
        drawn.append(sample_tokens(rows, part, temperature=1.0, top_p=1.0, top_k=0)[0])
    counts = torch.bincount(torch.cat(drawn).cpu(), minlength=words).double()
    expected = count * logits.cpu().double().softmax(-1)[0]
    return float(((counts - expected).square() / expected).sum() / (words - 1))


# Training

CASES = (
    "grpo",
    "dapo",
    "sft",
    "grpo lora",
    "ppo",
    "dpo",
    "reward_model",
    "gspo",
    "grpo full kl",
    "dapo checkpointed activations",
    "grpo moving reference",
    "grpo turns lora",
    "experts replayed",
    "ppo shared imitating",
    "grpo branches",
    "gkd demonstration",
)
"""Runs of `tests.support.two_ranks`, the most used first."""
OFFLINE = ("sft", "dpo", "reward_model")
"""Runs that sample nothing: bfloat16 takes the same rows."""
STEP = 0.01
"""Largest difference of a weight, over the largest step of a weight."""


def training(found: Findings, setting: Setting) -> None:
    """One or two optimizer steps of the algorithms, on the processor and on the device."""
    from tests.support import composition
    from tests.support.two_ranks import trained

    composition.speed_up()
    deadline = time.time() + setting.seconds - 20
    for case in CASES[:4] if setting.tiny else CASES:
        if time.time() > deadline:
            found.skip(case, "no time was left")
            continue
        if find_spec("peft") is None and ("lora" in case or case.startswith("gkd")):
            found.skip(case, "peft is not installed")
            continue

        def train(case: str, name: str, **options: Any) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as folder:
                result: dict[str, Any] = trained(case, Path(folder) / name, **options)
                return result

        with found.step(case):
            expected = train(case, "processor", accelerator="cpu")
            got = train(case, "device", accelerator=setting.accelerator)
            compare_runs(found, case, got, expected)
        with found.step(f"{case}, bfloat16"):
            got = train(case, "mixed", accelerator=setting.accelerator, precision="bf16-mixed")
            finite = all(bool(x.isfinite().all()) for x in got["weights"].values())
            found.check(f"{case}, bfloat16: finite weights", finite, 1, at_least=True)
            if case in OFFLINE:
                moved = difference(got["weights"], expected["weights"], norm=True)
                step = difference(expected["before"], expected["weights"], norm=True)
                found.check(f"{case}, bfloat16: step", moved / step, 2 * RELATIVE_16)


def compare_runs(
    found: Findings, case: str, got: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Check samples, loss and weights of a run in float32."""
    if got["said"] != expected["said"]:
        rows = list(zip(got["said"], expected["said"], strict=False))
        same = sum(a == b for a, b in rows) / max(1, len(rows))
        found.check(f"{case}: responses with equal ids", same, SAME_ROWS, at_least=True)
        found.skip(f"{case}: weights", "a response differs")
        return
    losses = [
        [row["train/loss"] for row in x["rows"] if "train/loss" in row] for x in (got, expected)
    ]
    pairs = zip(*losses, strict=True)
    found.check(f"{case}: loss", max((abs(a - b) for a, b in pairs), default=0.0), NATS)
    step = difference(expected["before"], expected["weights"])
    moved = difference(got["weights"], expected["weights"])
    found.check(f"{case}: weights, over the largest step", moved / max(step, 1e-12), STEP)


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, norm: bool = False) -> float:
    """Return the largest difference of a number, or the norm of all differences."""
    found = []
    for name, x in a.items():
        if x.is_floating_point():
            found.append((x.cpu().double() - b[name].cpu().double()).flatten())
    joined = torch.cat(found)
    return float(joined.norm() if norm else joined.abs().max())


# Commands


SMALL = (
    "reward=math",
    "batch.prompts=8",
    "batch.samples=4",
    "rollout.max_tokens=8",
    "validation.max_prompts=8",
    "validation.every=null",
    "logger=none",
)


class Commands:
    """Training commands in a folder, each within the time that is left to the part."""

    def __init__(self, found: Findings, setting: Setting) -> None:
        self.found = found
        self.setting = setting
        self.folder = Path(setting.folder)
        self.deadline = time.time() + setting.seconds - 5

    def __call__(self, step: str, *command: str) -> bool:
        """Run a program on the device; return False, and record why, if it fails."""
        left = self.deadline - time.time()
        if left < 10:
            self.found.skip(step, "no time was left")
            return False
        ended = run([*self.setting.python(), *command], self.folder / "commands.log", left)
        self.found.seconds[step] = round(ended.seconds, 1)
        if ended.reason:
            self.found.fail(step, ended.reason, ended.lines)
        self.found.check(f"{step}: exit status", abs(ended.status), 0)
        return not ended.reason

    def train(self, step: str, name: str, *typed: str, iterations: int = 2) -> bool:
        """Train for some iterations in the run directory `name`."""
        own = (f"run_dir={self.folder / name}", f"trainer.accelerator={self.setting.accelerator}")
        size = f"trainer.max_iterations={iterations}"
        return self(step, "train.py", "algo=grpo", *SMALL, size, *own, *typed)


def resume(found: Findings, setting: Setting) -> None:
    """A run that is saved on the device and resumed ends where a whole run ends."""
    commands = Commands(found, setting)
    exact = ("trainer.deterministic=warn", "trainer.precision=32-true")
    half = commands.train("first half", "resumed", *exact)
    more = half and commands.train("second half", "resumed", *exact, "resume=auto", iterations=4)
    if not (more and commands.train("whole run", "whole", *exact, iterations=4)):
        return
    with found.step("weights"):
        from safetensors.torch import load_file

        paths = [commands.folder / x / "export/model.safetensors" for x in ("whole", "resumed")]
        weights = [load_file(path) for path in paths]
        start = {name: x.clone() for name, x in embedded().weights()}
        moved = difference({k: start[k] for k in weights[0] if k in start}, weights[0])
        found.check("resumed run: the whole one moved weights", moved, 1e-8, at_least=True)
        apart = difference(*weights)
        found.check("resumed run: weights, over the largest step", apart / moved, STEP)
        found.figure("a resumed run is equal bit for bit", apart == 0)


def programs(found: Findings, setting: Setting) -> None:
    """The first command of the README, evaluation, an adapter, recorded steps, ranks, a critic."""
    commands = Commands(found, setting)
    if commands.train("README's first command", "first", "algo=dapo"):
        typed = ("validation.max_prompts=8", "validation.samples=2")
        commands("evaluate", "-m", "rlmods.evaluate", str(commands.folder / "first"), *typed)
    mixed = "trainer.precision=bf16-mixed"
    if find_spec("peft") is None:
        found.skip("adapter in bfloat16, resumed", "peft is not installed")
    elif commands.train("adapter in bfloat16", "lora", "adapter=lora", mixed):
        adapter = ("adapter=lora", mixed, "resume=auto")
        commands.train("adapter in bfloat16, resumed", "lora", *adapter, iterations=3)
    if setting.device == "simulated":
        found.skip("shards on one rank", "the simulated device has no collectives")
        return
    if setting.device == "cuda":
        commands.train("recorded decode steps", "graphs", "rollout.graphs=true", mixed)
    commands.train("DDP on one rank", "ddp", "trainer=ddp", "trainer.devices=1", mixed)
    shards = ("trainer=fsdp", "trainer.devices=1", mixed)
    if commands.train("shards on one rank", "fsdp", *shards):
        commands.train("shards, resumed", "fsdp", *shards, "resume=auto", iterations=3)
    critic = ("algo=ppo", "sampling=fixed", "kl=loss", "reference=policy")
    commands.train("critic and reference in bfloat16", "critic", *critic, mixed)
