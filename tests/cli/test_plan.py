"""`python -m rlmods.plan`: its arithmetic by hand, its output and its messages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rlmods.cli.command import compose_run
from rlmods.cli.plan import PlanSettings, Sizes, main, predict, read_devices
from rlmods.config.instantiate import instantiate
from rlmods.policy.output_layer import logits_per_chunk
from rlmods.policy.tiny import character_tokenizer
from tests.support.eight_bits import eight_bits as eight_bits

pytestmark = pytest.mark.slow

RANDOM = (
    "policy=tiny",
    "policy.pretrained=false",
    "policy.hidden_size=64",
    "policy.num_layers=2",
    "data.num_train=512",
)
WIDTH, INNER, WORDS, LAYERS = 64, 8 * 64 // 3, 102, 2
MATRICES = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * INNER)
WEIGHTS = WORDS * WIDTH + MATRICES + LAYERS * 2 * WIDTH + WIDTH
"""Llama with tied embeddings: 4 h^2 of attention, 3 h i of the feed-forward layer and two norms in
each layer, and a norm."""
SIZES = Sizes(LAYERS, WIDTH, WIDTH, INNER, WORDS)


def stages(*overrides: str, precision: str = "32-true") -> dict[str, dict[str, float]]:
    spec, settings = compose_run(["algo=dapo", *RANDOM, *overrides], PlanSettings)
    devices = read_devices(spec.config.trainer, settings.num_gpus)
    with torch.device("meta"):
        policy = spec.adapter(instantiate(spec.config.policy, "policy")())
    return predict(spec, policy, devices, precision)


SMALLER_TEACHER = (
    "algo=distill",
    "+policy@teacher.policy=tiny",
    *(f"teacher.{override}" for override in RANDOM if override.startswith("policy.")),
)
SGD = ("optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps")
FSDP = ("algo=grpo", "trainer=fsdp", "num_gpus=8")


@pytest.mark.parametrize(
    ("overrides", "part", "expected"),
    [
        ((), "weights", 4 * WEIGHTS),
        ((), "gradients", 4 * WEIGHTS),
        ((), "optimizer state", 8 * WEIGHTS),
        ((), "gradient buckets", 0),
        (("algo=grpo",), "reference", 4 * WEIGHTS),
        (("algo=sdpo",), "teacher", 4 * WEIGHTS),
        (("algo=sdpo", "teacher.weights=current"), "teacher", 0),
        (SMALLER_TEACHER, "teacher", 4 * WEIGHTS),
        (SGD, "optimizer state", 0),
        ((*SGD, "+optimizer.momentum=0.9"), "optimizer state", 4 * WEIGHTS),
        (("optimizer=muon",), "optimizer state", 8 * WEIGHTS - 4 * MATRICES),
        (("optimizer=muon", *FSDP), "optimizer state", WEIGHTS - MATRICES / 2),
        (
            ("optimizer=muon", "algo=ppo", "critic=shared"),
            "optimizer state",
            8 * (WEIGHTS + WIDTH + 1) - 4 * MATRICES,
        ),
        (("trainer=ddp", "num_gpus=8"), "gradient buckets", 4 * WEIGHTS),
        (("trainer=ddp", "num_gpus=8"), "weights", 4 * WEIGHTS),
        (FSDP, "optimizer state", WEIGHTS),
        (FSDP, "reference", WEIGHTS / 2),
        ((*FSDP, "trainer.strategy.replicas=4"), "optimizer state", 4 * WEIGHTS),
        ((*FSDP, "trainer.strategy.offload=true"), "weights", 0),
        (("algo=ppo", "critic=shared"), "weights", 4 * (WEIGHTS + WIDTH + 1)),
    ],
)
def test_what_a_rank_holds(overrides: tuple[str, ...], part: str, expected: float) -> None:
    assert stages(*overrides)["update"][part] == expected


def test_moments_in_8_bits(eight_bits: None) -> None:
    assert stages("optimizer=adamw_8bit")["update"]["optimizer state"] == 2 * WEIGHTS


def test_a_separate_critic_doubles_everything() -> None:
    critic = stages("algo=ppo", "critic=separate", "batch.minibatches=1")["update"]
    shared = stages("algo=ppo", "critic=shared", "batch.minibatches=1")["update"]
    for part in ("weights", "optimizer state", "activations"):
        assert critic[part] == pytest.approx(2 * shared[part], rel=0.02)


def test_an_adapter_trains_little_and_serves_as_reference() -> None:
    pytest.importorskip("peft")
    held = stages("algo=grpo", "adapter=lora")["update"]
    assert held["reference"] == held["gradients"] < held["weights"] / 2


def test_activations() -> None:
    layer = 10 * (24 * WIDTH + 4 * 4 * (WIDTH + INNER))
    assert SIZES.activations(10, 4, checkpointing=False) == 2.5 * layer
    assert SIZES.activations(10, 4, checkpointing=True) == 2 * 10 * 4 * WIDTH + 1.5 * layer


def test_logits_are_limited_to_a_chunk() -> None:
    matrix = 4 * WORDS * WIDTH
    assert SIZES.logits(10) == 2 * 4 * 10 * WORDS + matrix
    assert SIZES.logits(10**9) == 2 * 4 * logits_per_chunk("cuda") + matrix


def test_experts_and_grouped_heads() -> None:
    sizes = Sizes.of(
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "intermediate_size": 256,
            "moe_intermediate_size": 32,
            "num_experts_per_tok": 2,
            "vocab_size": 100,
        }
    )
    assert sizes == Sizes(3, 64, query=64, inner=64, vocabulary=100)


def test_an_iteration() -> None:
    small = stages("batch.prompts=8", "batch.samples=4", "rollout.batch_size=16")
    longer = stages("batch.prompts=8", "batch.samples=4", "rollout.batch_size=32")
    assert longer["sampling"]["key-value cache"] == 2 * small["sampling"]["key-value cache"]
    whole = stages("batch.token_budget=100000")["update"]["activations"]
    assert stages("batch.token_budget=256")["update"]["activations"] < whole
    cast = stages(precision="bf16-mixed")
    assert cast["update"]["cast weights"] == cast["sampling"]["copies of weights"] == 2 * WEIGHTS
    assert stages()["sampling"]["copies of weights"] == 4 * WEIGHTS
    assert stages("rollout.fused=false")["sampling"]["copies of weights"] == 0
    assert 2 * cast["sampling"]["key-value cache"] == stages()["sampling"]["key-value cache"]
    assert stages(precision="16-mixed") == cast
    sharded = stages(*FSDP, precision="bf16-mixed")
    assert sharded["sampling"]["gathered weights"] == 2 * WEIGHTS


def test_prints_table_peak_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    main([*RANDOM, "num_gpus=2", "trainer=fsdp", "gpu_gib=0.01"])
    shown = capsys.readouterr().out
    assert shown.split()[:6] == ["GiB", "on", "a", "device", "update", "sampling"]
    assert "precision: 32-true" in shown
    assert "GiB in update; does not fit 2 x 0.01 GiB, of which 0.009 GiB are usable" in shown
    assert "type batch.token_budget=4096, a smaller rollout.batch_size=N, or trainer.st" in shown


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_gpus=0"], "num_gpus=0: must be at least 1"),
        (["trainer=fsdp", "num_gpus=3", "trainer.strategy.replicas=2"], "replicas"),
        (["polcy=tiny"], "polcy"),
    ],
)
def test_a_mistake_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as error:
        main([*RANDOM, *overrides])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_70b_parameters_are_planned_in_little_memory(tmp_path: Path) -> None:
    """Of 70.6 billion parameters, in float32 on 64 ranks: 4.4 GB of weights each."""
    LlamaConfig(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    ).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    typed = ["algo=grpo", "trainer=fsdp", "num_gpus=64", "policy=hf", f"policy.name={tmp_path}"]
    code = (
        "import sys\n"
        "from rlmods.cli.plan import main\n"
        "main(sys.argv[1:])\n"
        # not ru_maxrss, which begins with the memory of the parent
        "print(*[x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *typed], capture_output=True, text=True, timeout=300
    )
    *printed, peak_kb = done.stdout.splitlines()
    [weights] = [line for line in printed if re.match(r"\s*weights\b", line)]
    assert weights.split() == ["weights", "4.11", "4.11"]
    assert int(peak_kb) < 1.5e6
