"""QLoRA with bitsandbytes itself, on the processor: a run resumes and is exported."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlmods.lab.diff import diff
from rlmods.policy import HuggingFace, Tiny
from tests.cli.test_main import train

pytestmark = pytest.mark.nightly
SIZES = ("batch.prompts=4", "batch.samples=4", "validation.max_prompts=4", "logger=none")


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_run_resumes_and_is_exported(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    Tiny()().export(tmp_path / "model")
    model = ("policy=hf", f"policy.name={tmp_path / 'model'}", f"policy.quantization={kind}")
    typed = ("algo=grpo", "reward=math", "adapter=lora", *model, *SIZES)
    for more in (
        ("run_dir=parts", "trainer.max_iterations=2"),
        ("run_dir=parts", "trainer.max_iterations=3", "resume=auto"),
        ("run_dir=whole", "trainer.max_iterations=3"),
    ):
        done = train(tmp_path, *typed, *more, small=False)
        assert done.code == 0, done.err[-2000:]
    found, _ = diff(tmp_path / "parts", tmp_path / "whole")
    assert found is None, str(found)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/export")
    quantized = HuggingFace(name=str(tmp_path / "model"), quantization=kind, dtype="float32")()
    ids = torch.arange(20)[None] % 90
    with torch.no_grad():
        distance = (exported(ids).logits - quantized.model(ids).logits).abs().max()
    assert distance < 1.0
