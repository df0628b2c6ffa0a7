"""`python -m rlmods.plan`: what it predicts is what a run takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from rlmods.cli.plan import advise, main, predict, report, table
from rlmods.config.options import CONF
from rlmods.memory import size
from rlmods.memory.allocations import SMALL, Peak, measure, retype
from rlmods.types import UserError
from tests.policy.mixtures import mixture

RANDOM = ("policy=tiny", "policy.pretrained=false", "policy.hidden_size=64", "policy.num_layers=2", "data.level=1")
LARGE = ("policy=tiny", "policy.pretrained=false", "policy.hidden_size=2048", "policy.num_layers=2", "data.level=1")
STATE = ("weights", "gradients", "optimizer state")


def parts(*overrides, stage="update"):
    return predict(overrides).footprint.device[stage]


class TestMeasure:
    def test_by_hand(self):
        """x W is saved for relu's backward (its result), x for that of W; the sum's gradient is expanded without memory."""
        layer, seen = nn.Linear(1000, 500, bias=False, device="meta"), []

        def forward():
            x = torch.zeros(64, 1000)
            y = layer(x).relu()
            seen.append(y)

        assert measure(forward, layer).total == 4 * (64 * 1000 + 2 * 64 * 500)
        seen.clear()
        assert measure(lambda: layer(torch.zeros(64, 1000)).relu().sum().backward(), layer).total >= 4 * (64 * 1000 + 64 * 500 + 1000 * 500)

    def test_what_is_freed_counts_no_more(self):
        def one_after_the_other():
            for length in (1000, 2000, 500):
                [torch.zeros(length) for _ in range(5)]

        assert measure(one_after_the_other).total == 5 * 2000 * 4

    def test_views_and_weights_are_nothing_of_their_own(self):
        layer = nn.Linear(100, 100, device="meta")
        assert measure(lambda: layer.weight.T[3:][:5], layer).total == 0

    def test_large_blocks_are_counted_apart(self):
        def both():
            small, large = torch.zeros(1000), torch.zeros(SMALL // 4 + 1)
            return small, large

        assert measure(both) == Peak(4000 + SMALL + 4, 4000, SMALL + 4)

    def test_a_mask_finds_what_it_is_told_to(self):
        x = torch.zeros(4, 5, 7)
        assert measure(lambda: x[torch.ones(4, 5, dtype=torch.bool)], picked=9).total == 4 * 9 * 7 + 20

    def test_shared_weights_stay_shared(self):
        one, two = nn.Linear(10, 10, device="meta"), nn.Linear(10, 10, device="meta")
        two.weight = one.weight
        both = nn.ModuleList([one, two])
        measure(lambda: None, both)
        assert two.weight is one.weight
        retype(both, torch.bfloat16)
        assert two.weight is one.weight
        assert size([both]) == 2 * 120

    def test_what_depends_on_numbers_is_refused(self):
        layer = nn.Linear(10, 10, device="meta")
        with pytest.raises(UserError, match="Linear does next depends on numbers"):
            measure(lambda: layer(torch.zeros(1, 10)).sum().item(), layer)


class TestIdentities:
    def test_adamw_in_float32_takes_16_bytes_a_parameter(self):
        found = predict(["algo=sft", *RANDOM])
        number = sum(p.numel() for p in found.learner.policy.parameters())
        held = found.footprint.device["update"]
        buffers = size([found.learner.policy]) - 4 * number
        assert sum(held[part] for part in STATE) == pytest.approx(16 * number + buffers, abs=1000)  # and AdamW's step counts

    def test_a_model_of_known_size(self):
        """Llama: 4 H^2 of attention and 3 H I of the rest in each layer, three norms' H, one tied embedding."""
        found = predict(["algo=sft", *RANDOM])
        width, inner, words = 64, 8 * 64 // 3, 102
        by_hand = words * width + 2 * (4 * width**2 + 3 * width * inner + 2 * width) + width
        assert sum(p.numel() for p in found.learner.policy.parameters()) == by_hand

    def test_other_optimizers_have_other_states(self):
        held = parts("algo=sft", *RANDOM, "optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps")
        assert held["optimizer state"] == 0
        held = parts(
            "algo=sft", *RANDOM, "optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps", "+optimizer.momentum=0.9"
        )
        assert held["optimizer state"] == held["gradients"]

    def test_shards_divide_what_is_held(self):
        """Up to AdamW's step counts and rounding."""
        whole = parts("algo=grpo", *LARGE)
        for ranks in (2, 8):
            cut = parts("algo=grpo", *LARGE, "trainer=fsdp", f"num_gpus={ranks}", "batch.prompts=32")
            for part in (*STATE, "reference"):
                assert ranks * cut[part] == pytest.approx(whole[part], rel=1e-4), part
        hybrid = parts("algo=grpo", *LARGE, "trainer=fsdp", "num_gpus=8", "trainer.strategy.replicas=4")
        assert hybrid["weights"] == parts("algo=grpo", *LARGE, "trainer=fsdp", "num_gpus=2")["weights"]

    def test_ddp_holds_gradients_twice(self):
        held = parts("algo=sft", *RANDOM, "trainer=ddp", "num_gpus=2")
        assert held["gradient buckets"] == held["gradients"]
        assert parts("algo=sft", *RANDOM)["gradient buckets"] == 0

    def test_offloaded_state_is_on_the_machine(self):
        held = predict(["algo=grpo", *RANDOM, "trainer=fsdp", "trainer.strategy.offload=true", "num_gpus=4"]).footprint
        assert all(held.device["update"][part] == 0 for part in (*STATE, "reference"))
        kept = predict(["algo=grpo", *RANDOM, "trainer=fsdp", "num_gpus=4"]).footprint
        assert held.host["checkpoint"] > kept.host["checkpoint"] > 0
        alone = predict(["algo=grpo", *RANDOM]).footprint
        assert alone.host["checkpoint"] == 0
        assert held.host["loading"] == kept.host["loading"]

    def test_no_reference_no_term(self):
        assert parts("algo=dapo", *RANDOM)["reference"] == 0
        assert parts("algo=grpo", *RANDOM)["reference"] == parts("algo=grpo", *RANDOM)["weights"]

    def test_an_adapter_is_its_own_reference(self):
        pytest.importorskip("peft")
        held = parts("algo=grpo", *RANDOM, "adapter=lora")
        assert held["reference"] == 0
        assert held["gradients"] < held["weights"] / 2

    def test_a_separate_critic_doubles_what_is_trained(self):
        alone, apart = (parts("algo=ppo", *LARGE, "batch.prompts=32", critic) for critic in ("critic=shared", "critic=separate"))
        assert apart["optimizer state"] == pytest.approx(2 * alone["optimizer state"], rel=0.01)
        assert apart["reference"] == alone["reference"]

    def test_activations_are_linear_in_the_budget(self):
        budgets = (2048, 4096, 8192)
        found = [
            parts("algo=dapo", *RANDOM, f"batch.token_budget={n}", "data.level=3", "batch.prompts=512")["activations"] for n in budgets
        ]
        assert found[2] - found[1] == pytest.approx(2 * (found[1] - found[0]), rel=0.02)
        assert found[2] == pytest.approx(4 * found[0], rel=0.05)

    def test_checkpointing_and_bfloat16_take_less(self):
        plain, *less = (
            parts("algo=dapo", "policy=tiny", "batch.prompts=256", *more)["activations"]
            for more in ([], ["policy.gradient_checkpointing=true"], ["trainer.precision=bf16-mixed"])
        )
        assert all(x < 0.8 * plain for x in less)

    def test_the_cache_by_hand(self):
        found = predict(["algo=dapo", *RANDOM, "rollout.max_tokens=50", "rollout.batch_size=64", "batch.samples=8"])
        prompt = max(len(found.learner.policy.encode(p)) for p in found.plan.splits.train)
        layers, width = 2, 64
        assert found.footprint.device["sampling"]["key-value cache"] == 64 * (prompt + 50) * 2 * layers * width * 4

    def test_rollouts_gather_the_whole_policy(self):
        for precision, share in (("32-true", 1), ("bf16-mixed", 2)):
            found = predict(["algo=dapo", *LARGE, "trainer=fsdp", "num_gpus=8", f"trainer.precision={precision}"]).footprint
            assert found.device["sampling"]["gathered weights"] == pytest.approx(8 * found.device["sampling"]["weights"] / share, rel=1e-3)
            assert found.device["update"]["gathered weights"] < 1.6 * found.device["sampling"]["gathered weights"]

    def test_a_reward_model_is_whole_on_every_rank(self, tmp_path):
        from rlmods.policy import ScalarModel, Tiny

        scalar = ScalarModel.from_policy(Tiny(pretrained=False, hidden_size=64, num_layers=2)())
        scalar.export(tmp_path)
        typed = [
            "algo=ppo",
            *RANDOM,
            "reward=neural",
            f"reward.terms.neural.reward.model={tmp_path}",
            "trainer=fsdp",
            "num_gpus=4",
            "batch.prompts=32",
        ]
        assert parts(*typed)["reward models"] == size([scalar])

    def test_the_peak_is_a_maximum_over_stages(self):
        found = predict(["algo=dapo", *RANDOM]).footprint
        assert found.peak == max(sum(stage.values()) for stage in found.device.values()) == found.total(found.decides)

    @pytest.mark.parametrize("kind", ["qwen3", "deepseek_v3"])
    def test_mixtures_of_experts_are_followed(self, kind, tmp_path):
        policy = mixture(kind)
        policy.export(tmp_path)
        found = predict(["algo=dapo", "policy=hf", f"policy.name={tmp_path}", "data.level=1"])
        assert size([found.learner.policy]) == size([policy])
        assert found.footprint.device["update"]["activations"] > 0


class TestAdvice:
    def advice(self, *overrides):
        return advise(predict(overrides))

    def test_overrides_lower_the_peak(self):
        typed = ["algo=dapo", *RANDOM, "batch.prompts=128"]
        peaks = [predict(typed).footprint.peak]
        for _ in range(2):
            typed = [*typed, self.advice(*typed)[0]]
            peaks.append(predict(typed).footprint.peak)
        assert all(later < earlier for earlier, later in pairwise(peaks))

    def test_a_large_model_is_cut_or_adapted(self):
        typed = ("algo=sft", *LARGE, "batch.prompts=1")
        assert self.advice(*typed)[0] == "trainer=fsdp"
        assert self.advice(*typed, "trainer=fsdp", "batch.prompts=8")[0] != "trainer=fsdp"

    def test_a_device_that_is_too_small_is_called_so(self):
        small, large = (report(predict(["algo=sft", *RANDOM, f"gpu_gib={n}"])) for n in (0.001, 80))
        assert "does not fit 1 x 0.001 GiB" in small
        assert "; fits 1 x 80 GiB, of which 72 can be used" in large


class TestCommand:
    def said(self, capsys, *arguments):
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        return end.value.code, capsys.readouterr().out

    def test_help(self, capsys):
        code, out = self.said(capsys, "--help")
        assert code == 0
        assert all(f"{key}=" in out for key in ("num_gpus", "gpu_gib"))

    @pytest.mark.parametrize(
        ("overrides", "wanted"),
        [
            (["num_gpus=0"], "num_gpus=0: must be a whole number"),
            (["gpu_gib=-1"], "gpu_gib=-1: must be a number above 0"),
            (["trainer=fsdp", "num_gpus=8", "trainer.strategy.replicas=3"], "replicas=3 does not divide 8 ranks"),
            (["num_gpus=8"], "num_gpus=8, and this trainer has 1: type trainer=fsdp or trainer=ddp"),
            (["trainer=fsdp", "num_gpus=3"], "type batch.prompts=33"),
            (["trainer.devices=4"], "several devices need a strategy: type trainer=fsdp or trainer=ddp"),
            (["algo=sft", "ratio=symmetric"], "does not use ratio"),
            (["batch.promts=3"], "batch.promts"),
            (["policy=hf", "policy.name=./nowhere"], "no such directory"),
            (["--table", "algo=sft"], "takes no overrides"),
        ],
    )
    def test_mistakes_are_one_line(self, capsys, overrides, wanted):
        code, out = self.said(capsys, *overrides)
        assert wanted in code
        assert "\n" not in code
        assert out == ""

    def test_prints_the_table_and_what_decides(self, capsys):
        main(["algo=dapo", *RANDOM])
        out = capsys.readouterr().out
        assert re.search(r"^\| \*\*all\*\* \| \*\*", out, re.MULTILINE)
        assert re.search(r"^peak: [\d.]+ GiB \(\d+ MiB\) in \w+; fits 1 x 80 GiB", out, re.MULTILINE)
        assert "would lower it: " in out


class TestTable:
    def test_the_docs_show_what_is_printed(self):
        shown, page = table(), (CONF.parent / "docs" / "scaling.md").read_text()
        assert shown in page, "python -m rlmods.plan --table"
        rows = {line.split("|")[1].strip(" `"): [float(x) for x in line.split("|")[2:-1]] for line in shown.splitlines()[2:]}
        assert rows["algo=sft"] == [16.0, 20.0, 2.0, 0.5, 2.0]
        assert rows["algo=grpo"][0] == 20.0
        assert rows["algo=ppo"][0] == 36.0


class TestMeasured:
    """Against `perf/peak_memory_mb` of a run in a process of its own."""

    def compared(self, tmp_path, *overrides):
        """MiB."""
        typed = [*overrides, "trainer.max_iterations=2", "validation.max_prompts=2", "trainer.accelerator=cpu"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore"]
        where = {"cwd": CONF.parent, "env": env, "capture_output": True, "text": True, "timeout": 300}
        ran = subprocess.run([*command, "train.py", *typed, f"run_dir={tmp_path / 'run'}", "logger=none"], **where)
        assert ran.returncode == 0, ran.stderr[-2000:]
        said = subprocess.run([*command, "-m", "rlmods.cli.plan", *typed], **where)
        assert said.returncode == 0, said.stderr[-2000:]
        measured = json.loads((tmp_path / "run" / "summary.json").read_text())["peak_memory_mb"]
        return int(re.search(r"\((\d+) MiB\)", said.stdout)[1]), measured

    @pytest.mark.slow
    @pytest.mark.parametrize("overrides", [("kl=loss", "batch.token_budget=1024")])
    def test_on_the_cpu(self, overrides, tmp_path):
        width = ("policy=tiny", "policy.pretrained=false", "policy.hidden_size=768", "policy.num_layers=6")
        num = ("batch.prompts=8", "batch.samples=8", "data.level=3", "rollout.max_tokens=32", "sampling=fixed")
        predicted, measured = self.compared(tmp_path, "algo=dapo", *width, *num, *overrides)
        assert predicted == pytest.approx(measured, rel=0.15)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("overrides", [("algo=sft",), ("algo=grpo", "trainer.precision=bf16-mixed")])
    def test_on_the_gpu(self, overrides, tmp_path):
        """No interpreter is in this peak: the rest of the model alone."""
        width = ("policy=tiny", "policy.pretrained=false", "policy.hidden_size=1536", "policy.num_layers=12", "data.level=3")
        typed = [*overrides, *width, "batch.prompts=64", "trainer.max_iterations=2", "validation.max_prompts=8"]
        ran = subprocess.run(
            [sys.executable, "train.py", *typed, f"run_dir={tmp_path / 'run'}"], cwd=CONF.parent, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        measured = json.loads((tmp_path / "run" / "summary.json").read_text())["peak_memory_mb"]
        assert predict(typed).footprint.peak / 2**20 == pytest.approx(measured, rel=0.15)
