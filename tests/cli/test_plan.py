"""`python -m rlmods.plan`: its formulas by hand, its output and its messages. Comparisons with
measured memory are in docs/scaling.md."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rlmods.cli.plan import advise, main, predict, report, table
from rlmods.config.options import CONF
from rlmods.memory.footprint import SHARDED, Transformer
from rlmods.memory.inputs import Devices, Rows, generation, microbatches
from rlmods.policy import Tiny
from rlmods.policy.linear_logprobs import LogitTransform, linear_logprobs
from tests.support.large_tensors import LargeTensors

RANDOM = (
    "policy=tiny",
    "policy.pretrained=false",
    "policy.hidden_size=64",
    "policy.num_layers=2",
    "data.level=1",
)
WIDTH, INNER, WORDS, LAYERS = 64, 8 * 64 // 3, 102, 2
WEIGHTS = WORDS * WIDTH + LAYERS * (4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH) + WIDTH
"""Llama with tied embeddings: 4 h^2 of attention, 3 h i of the feed-forward layer and two norms in
each layer, and a norm."""
SIZES = Transformer(
    layers=LAYERS,
    hidden=64,
    heads=2,
    query=64,
    key_value=64,
    inner=INNER,
    vocabulary=WORDS,
    chunk=2**26,
)


def parts(*overrides: str, stage: str = "update") -> dict[str, int]:
    return dict(predict(["algo=dapo", *RANDOM, *overrides]).footprint.device[stage])


class TestPersistent:
    def test_adamw_takes_16_bytes_per_parameter(self):
        held = parts()
        buffers = 2 * 16 * 4  # inverse frequencies of rotary positions, and their original values
        assert held["weights"] == 4 * WEIGHTS + buffers
        assert (held["gradients"], held["optimizer state"]) == (4 * WEIGHTS, 8 * WEIGHTS)
        assert held["reference"] == 0
        assert parts("algo=grpo")["reference"] == held["weights"]

    def test_sgd_keeps_momentum_only(self):
        sgd = ("optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps")
        assert parts(*sgd)["optimizer state"] == 0
        assert parts(*sgd, "+optimizer.momentum=0.9")["optimizer state"] == 4 * WEIGHTS

    def test_ranks_share_state_under_fsdp_only(self):
        whole, ddp = parts("algo=grpo"), parts("algo=grpo", "trainer=ddp", "num_gpus=8")
        assert ddp["gradient buckets"] == ddp["gradients"] == whole["gradients"]
        for ranks, replicas in ((2, 1), (8, 1), (8, 4)):
            held = parts(
                "algo=grpo",
                "trainer=fsdp",
                f"num_gpus={ranks}",
                f"trainer.strategy.replicas={replicas}",
            )
            assert all(held[part] == whole[part] * replicas // ranks for part in SHARDED)

    def test_offload_moves_state_to_the_host(self):
        memory = predict(
            ["algo=grpo", *RANDOM, "trainer=fsdp", "trainer.strategy.offload=true", "num_gpus=4"]
        ).footprint
        assert all(memory.device["update"][part] == 0 for part in SHARDED)
        kept = predict(["algo=grpo", *RANDOM, "trainer=fsdp", "num_gpus=4"]).footprint
        assert memory.host["checkpoint"] > kept.host["checkpoint"] == 12 * WEIGHTS

    def test_shards_are_read_from_files(self):
        def loading(*overrides: str) -> int:
            return predict(
                ["algo=grpo", "num_gpus=4", "data.num_train=256", *overrides]
            ).footprint.host["loading"]

        full = loading("trainer=ddp")
        # with a reference
        assert full == loading("trainer=fsdp", "policy.pretrained=false") > 2 * 4 * 1.7e6
        largest = 8 * 192 // 3 * 192
        assert (
            loading("trainer=fsdp") == loading("trainer=fsdp", "adapter=lora") == 4 * largest // 4
        )
        assert loading("trainer=fsdp", "trainer.strategy.offload=true") == full // 4
        separate = ("algo=ppo", "trainer=fsdp")
        assert loading(*separate) == 4 * largest // 4
        # the critic starts from merged weights
        assert loading(*separate, "adapter=lora") > 2 * 4 * 1.7e6

    def test_an_adapter_trains_little_and_serves_as_reference(self):
        pytest.importorskip("peft")
        held = parts("algo=grpo", "adapter=lora")
        assert held["reference"] == held["gradients"] < held["weights"] / 2

    def test_a_reference_and_a_teacher_of_their_own_count(self):
        def small(group: str) -> tuple[str, ...]:
            sizes = ("pretrained=false", "hidden_size=32", "num_layers=1")
            return (f"+policy@{group}.policy=tiny", *(f"{group}.policy.{size}" for size in sizes))

        weights = 4 * (WORDS * 32 + 4 * 32**2 + 3 * 32 * (8 * 32 // 3) + 3 * 32)
        buffers = 2 * 16 * 4
        assert (
            parts("algo=grpo", "reference=model", *small("reference"))["reference"]
            == weights + buffers
        )
        held = parts("algo=distill", *small("teacher"))
        assert (held["reference"], held["teacher"]) == (0, weights + buffers)
        hint = ("teacher=self", "teacher.demonstration=answer")
        assert parts("algo=gkd", *hint)["teacher"] == held["weights"]
        assert parts("algo=gkd", *hint, "teacher.weights=current")["teacher"] == 0

    def test_a_reward_model_is_whole_on_every_rank(self, tmp_path):
        from rlmods.policy import ScalarModel, Tiny

        ScalarModel.from_policy(Tiny(pretrained=False, hidden_size=64, num_layers=2)()).export(
            tmp_path
        )
        reward = ("reward=neural", f"reward.terms.neural.reward.model={tmp_path}")
        assert parts(*reward, "trainer=fsdp", "num_gpus=4")["reward models"] == pytest.approx(
            4 * WEIGHTS, rel=0.01
        )
        assert parts("algo=iterative_grpo", *reward)["reward models"] == pytest.approx(
            4 * WEIGHTS, rel=0.01
        )

    def test_reward_models_inside_other_parts_count(self, tmp_path):
        from rlmods.policy import ScalarModel, Tiny

        ScalarModel.from_policy(Tiny(pretrained=False, hidden_size=64, num_layers=2)()).export(
            tmp_path
        )
        sources = [f"+data@data.sources.{name}=arithmetic" for name in "ab"]
        rewards = [f"+reward@reward.rewards.{name}=neural" for name in "ab"]
        models = [f"reward.rewards.{name}.terms.neural.reward.model={tmp_path}" for name in "ab"]
        sources += [f"data.sources.{name}.level=1" for name in "ab"]
        memory = predict(
            [
                "algo=dapo",
                *RANDOM[:-1],
                "data=mixture",
                *sources,
                "reward=by_source",
                *rewards,
                *models,
            ]
        ).footprint
        assert memory.device["update"]["reward models"] == pytest.approx(2 * 4 * WEIGHTS, rel=0.01)
        judge = (
            "reward=preference",
            "+judge@reward.judge=neural",
            f"reward.judge.model={tmp_path}",
        )
        assert parts(*judge)["reward models"] == pytest.approx(4 * WEIGHTS, rel=0.01)


class TestFormulas:
    def test_saved_activations_of_a_layer(self):
        assert SIZES.layer(10) == 24 * 64 + 4 * (4 * 64 + 4 * INNER)
        assert replace(SIZES, itemsize=2).layer(10) == 16 * 64 + 2 * (4 * 64 + 4 * INNER)
        assert replace(SIZES, itemsize=2, autocast=True).layer(10) == 26 * 64 + 2 * (
            4 * 64 + 4 * INNER
        )
        assert replace(SIZES, eager=True).layer(10) - SIZES.layer(10) == 4 * 2 * 10
        assert replace(SIZES, experts=2).layer(10) - SIZES.layer(10) == 4 * 2 * 2 * 64
        assert replace(SIZES, qk_norm=True).layer(10) - SIZES.layer(10) == 8 * (64 + 64)

    def test_training_step(self):
        rows = Rows(num=100, length=30, response=20)
        layer = 3000 * SIZES.layer(30)
        # a small vocabulary: a layer decides
        assert 4 * WORDS * WIDTH + layer // 2 > 5 * 4 * 2000 * WORDS
        assert SIZES.training(rows) == LAYERS * layer + 4 * WORDS * WIDTH + layer // 2
        assert (
            replace(SIZES, checkpointing=True).training(rows)
            == LAYERS * 3000 * 64 * 4 + 4 * WORDS * WIDTH + layer // 2 + layer
        )
        adapted = replace(SIZES, chunk=0)
        assert adapted.training(rows) == SIZES.training(rows)
        # one chunk of logits
        assert replace(adapted, vocabulary=50_000).training(rows) == LAYERS * layer + 5 * 4 * 2**26

    def test_output_layer(self):
        """A plain linear layer has chunks of its own, and the gradient of its matrix with them."""
        rows, large = (
            Rows(num=100, length=30, response=20),
            replace(SIZES, vocabulary=50_000, chunk=2**23),
        )
        weights = 4 * 50_000 * WIDTH
        assert large.output_layer(rows) == 2 * 4 * 2**23 + weights
        few = Rows(num=1, length=30, response=60)
        assert (
            large.output_layer(few, entropy=True)
            == replace(large, capped=True).output_layer(few)
            == 4 * 4 * 60 * 50_000 + weights
        )
        # 4 tensors of half as many logits
        assert large.output_layer(rows, entropy=True) == 2 * 4 * 2**23 + weights
        wide = replace(large, checkpointing=True, layers=1, inner=1, chunk=2**26)
        for entropy in (False, True):
            assert wide.training(rows, entropy=entropy) == 3000 * WIDTH * 4 + wide.output_layer(
                rows, entropy=entropy
            )
        assert replace(large, itemsize=2).output_layer(rows) == 2 * 4 * 2**23 + 2 * weights
        assert (
            replace(large, itemsize=2, autocast=True).output_layer(rows) == 2 * 4 * 2**23 + weights
        )
        assert (
            large.output_layer(Rows(num=1, length=30, response=20)) == 2 * 4 * 20 * 50_000 + weights
        )
        forward = 3000 * 4 * (4 * WIDTH + 3 * INNER)
        assert large.scoring(rows) == forward + 2 * 4 * 2**23
        assert replace(large, itemsize=2).scoring(rows) == forward // 2 + 2 * 4 * 2**23 + weights
        assert replace(large, chunk=0).scoring(rows) == forward + 3 * 4 * 2**26

    @pytest.mark.parametrize("cap", [0.0, 5.0])
    @pytest.mark.parametrize("entropy", [False, True])
    def test_tensors_of_logits_of_a_plain_output_layer(self, entropy, cap):
        """The prediction counts as many as there are."""
        hidden, weight = (torch.randn(n, 8, requires_grad=True) for n in (40, 300))
        with LargeTensors(numel=40 * 300) as found:
            scores = linear_logprobs(
                hidden,
                weight,
                None,
                torch.arange(40),
                LogitTransform(cap=cap),
                entropy_gradient=entropy,
            )
            in_forward = found.peak
            (scores.logprobs + scores.entropy * entropy).sum().backward()
        sizes = replace(SIZES, vocabulary=300, hidden=8, capped=cap > 0)
        rows = Rows(num=40, length=2, response=1)
        assert sizes.output_layer(rows, entropy=entropy) == 4 * (
            found.peak * 40 * 300 + weight.numel()
        )
        assert (
            sizes.scoring(rows) - replace(sizes, vocabulary=0).scoring(rows)
            == 4 * in_forward * 40 * 300
        )

    def test_output_layers_of_runs(self, monkeypatch):
        def sizes(devices):
            with torch.device("meta"):
                return Transformer.from_network(
                    Tiny(pretrained=False, hidden_size=64, num_layers=2)(), devices, {}
                )

        assert sizes(Devices()) == SIZES
        assert sizes(Devices(on_cpu=True)) == replace(SIZES, chunk=2**23)
        with torch.device("meta"):
            hooked = Tiny(pretrained=False, hidden_size=64, num_layers=2)()
            hooked.model.get_output_embeddings().register_forward_hook(lambda *_: None)
            assert Transformer.from_network(hooked, Devices(), {}) == replace(SIZES, chunk=0)
        plans = []
        monkeypatch.setattr(
            Transformer,
            "training",
            lambda self, rows, divergence=0, *, entropy=False: plans.append(entropy) or 1,
        )
        for coefficient in (0.0, 0.1):
            predict(["algo=grpo", *RANDOM, f"algo.entropy_coefficient={coefficient}"])
        assert plans == [False, True]

    def test_divergences_over_the_vocabulary_add_logits_of_the_other_model(self):
        rows = Rows(num=100, length=30, response=20)
        large = replace(SIZES, vocabulary=50_000)
        layer, states = LAYERS * 3000 * SIZES.layer(30), 4 * 2000 * WIDTH
        # a chunk holds the logits of both models
        assert large.training(rows, divergence=4) == layer + states + 9 * 4 * 2**25
        few = Rows(num=1, length=30, response=20)
        assert (
            replace(SIZES, vocabulary=10**6).output_layer(few, divergence=4) == 9 * 4 * 20 * 10**6
        )
        hint = ("teacher=self", "teacher.demonstration=answer")
        for divergence, overrides in (
            (0, ("algo=grpo", "kl=loss")),
            (4, ("algo=grpo", "kl=full")),
            (0, ("algo=dpo",)),
            (4, ("algo=dpo", "algo.kl_coefficient=0.1")),
            (8, ("algo=gkd", *hint)),
            (4, ("algo=gkd", *hint, "algo.beta=1")),
        ):
            memory = predict(
                [
                    *overrides,
                    *RANDOM,
                    *(() if "algo=dpo" in overrides else ("rollout.max_tokens=100",)),
                ]
            ).footprint
            expected = SIZES.training(memory.microbatch, divergence)
            assert memory.device["update"]["activations"] == expected, overrides
            assert (expected > SIZES.training(memory.microbatch)) == (divergence > 0)

    def test_a_divergence_gathers_the_output_layer_of_the_other_model(self):
        estimated, full = (
            parts("algo=grpo", f"kl={kl}", "trainer=fsdp") for kl in ("loss", "full")
        )
        assert full["gathered weights"] - estimated["gathered weights"] == 4 * WORDS * WIDTH
        half = ("trainer=fsdp", "trainer.precision=bf16-mixed")
        estimated, full = (parts("algo=grpo", f"kl={kl}", *half) for kl in ("loss", "full"))
        assert full["gathered weights"] - estimated["gathered weights"] == (2 + 4) * WORDS * WIDTH

    def test_the_teacher_scores_its_own_prompts(self):
        hint = (
            "teacher=self",
            "teacher.demonstration=answer",
            "teacher.weights=current",
            "rollout.max_tokens=20",
            "batch.prompts=32",
        )
        encoder = Tiny()()
        for algorithm, weights in (
            ("distill", "current"),
            ("distill", "start"),
            ("gkd", "current"),
        ):
            template = 30 * "x" + "{prompt}{demonstration}"
            overrides = [
                f"algo={algorithm}",
                *RANDOM,
                *hint,
                f"teacher.weights={weights}",
                f"teacher.template='{template}'",
            ]
            prediction = predict([*overrides, "batch.token_budget=600"])
            train, part = prediction.plan.splits.train, prediction.plan.parts["teacher"]
            own, shown = (
                max(len(encoder.encode(p)) for p in prompts)
                for prompts in (train, [part.prompt(p) for p in train])
            )
            assert shown > own + 30
            rows = prediction.footprint.microbatch
            assert rows == Rows(600 // ((shown if algorithm == "gkd" else own) + 20), own + 20, 20)
            seen = Rows(600 // (shown + 20), shown + 20, 20)
            assert prediction.footprint.device["scoring"]["activations"] == max(
                SIZES.scoring(seen), SIZES.scoring(rows)
            )

    def test_gkd_trains_on_responses_of_the_data_too(self):
        hint = (
            "algo=gkd",
            "teacher=self",
            "teacher.demonstration=answer",
            *RANDOM,
            "rollout.max_tokens=1",
        )
        sampled, both = (
            predict([*hint, f"algo.on_policy_fraction={x}"]).footprint.microbatch.response
            for x in (1, 0.5)
        )
        assert sampled == 1 < both

    def test_what_an_environment_adds_to_prompts_counts(self):
        plan = predict(
            ["data=hidden_number", "reward=environment", "environment=guess_number", *RANDOM[:-1]]
        ).plan
        rollout, encoder, splits = plan.parts["rollout"], Tiny()(), plan.splits

        def lengths():
            return microbatches(plan, encoder, splits.train, 1)[0].length, generation(
                plan, encoder, splits, 1
            )["sampling"][1].length

        plain = lengths()
        rollout.environment = SimpleNamespace(
            start=lambda prompt, key: SimpleNamespace(
                prompt=replace(prompt, text=f"1234{prompt.text}"), tools=()
            )
        )
        assert lengths() == tuple(length + 4 for length in plain)

    def test_validation_may_have_longer_responses(self):
        def lengths(*typed):
            plan = predict(["algo=dapo", *RANDOM, "rollout.max_tokens=50", *typed]).plan
            return {
                stage: rows.response
                for stage, (_, rows) in generation(plan, Tiny()(), plan.splits, 1).items()
            }

        assert lengths() == {"sampling": 50, "validation": 50}
        assert lengths("validation.max_tokens=80") == {"sampling": 50, "validation": 80}

    def test_cache_and_decoding(self):
        memory = predict(
            [
                "algo=dapo",
                *RANDOM,
                "rollout.max_tokens=50",
                "rollout.batch_size=64",
                "batch.samples=8",
            ]
        ).footprint
        prompt = memory.microbatch.length - 50
        assert (
            memory.device["sampling"]["key-value cache"]
            == 64 * (prompt + 50) * 2 * LAYERS * WIDTH * 4
        )
        turns = predict(
            ["data=hidden_number", "reward=environment", "environment=guess_number", *RANDOM[:-1]]
        )
        rows = generation(turns.plan, Tiny()(), turns.plan.splits, 1)["sampling"][1]
        per_row = rows.length * 2 * LAYERS * WIDTH * 4
        # of a batch, and of its earlier turns
        assert turns.footprint.device["sampling"]["key-value cache"] == 2 * rows.num * per_row
        assert SIZES.decoding(8, Rows(64, prompt + 50, 50)) == max(
            8 * prompt * 4 * (4 * WIDTH + 3 * INNER), 20 * 64 * WORDS
        )

    def test_sampling_on_a_processor_copies_the_weights(self, monkeypatch):
        monkeypatch.setattr("rlmods.policy.cpu_linear._has_onednn", lambda: True)
        monkeypatch.setattr("rlmods.policy.cpu_linear._has_bfloat16", lambda: True)
        layers = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * INNER)
        on_cpu = "trainer.accelerator=cpu"
        assert parts(on_cpu, stage="sampling")["packed weights"] == 4 * layers + 4 * WORDS * WIDTH
        assert (
            parts(on_cpu, "trainer.precision=bf16-mixed", stage="validation")["packed weights"]
            == 2 * layers + 4 * WORDS * WIDTH
        )
        assert "packed weights" not in parts(stage="sampling") | parts(on_cpu)
        monkeypatch.setattr("rlmods.policy.cpu_linear._has_bfloat16", lambda: False)
        assert (
            parts(on_cpu, "trainer.precision=bf16-mixed", stage="validation")["packed weights"]
            == 4 * WORDS * WIDTH
        )
        monkeypatch.setattr("rlmods.policy.cpu_linear._has_onednn", lambda: False)
        assert parts(on_cpu, stage="sampling")["packed weights"] == 0

    def test_an_engine_has_weights_and_a_cache_of_its_own(self):
        buffers = 2 * 16
        for strategy in ((), ("trainer=fsdp", "num_gpus=4")):
            held = parts("rollout=vllm", "rollout.cache_gib=0.5", *strategy)
            assert held["sampling engine"] == 4 * (WEIGHTS + buffers) + 2**29
        assert (
            parts("rollout=vllm", "rollout.dtype=bfloat16")["sampling engine"]
            == 2 * (WEIGHTS + buffers) + 2**30
        )
        server = predict(
            ["algo=dapo", *RANDOM, "rollout=vllm_server", "rollout.urls=[http://localhost:1]"]
        ).footprint
        assert "sampling" not in server.device
        assert "sampling engine" not in server.device["update"]

    def test_fsdp_gathers_blocks_and_for_generation_everything(self):
        block, outside = 4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH, WORDS * WIDTH + WIDTH
        for precision, itemsize in (("32-true", 4), ("bf16-mixed", 2)):
            memory = predict(
                [
                    "algo=dapo",
                    *RANDOM,
                    "trainer=fsdp",
                    "num_gpus=8",
                    f"trainer.precision={precision}",
                ]
            ).footprint
            assert memory.device["sampling"]["gathered weights"] == itemsize * (WEIGHTS + 32)
            assert memory.device["update"]["gathered weights"] == itemsize * (
                outside + 32 + 2 * block
            )
            assert memory.device["update"]["gathered gradients"] == itemsize * (
                outside + block
            ) + 4 * max(outside, block)


class TestMonotonicity:
    BATCH = (
        "data.level=3",
        "data.num_train=600",
        "data.num_val=8",
        "batch.prompts=512",
        "batch.token_budget=1000000",
        "trainer=fsdp",
    )

    @pytest.mark.parametrize(
        ("less", "more"),
        [
            ("batch.token_budget=512", "batch.token_budget=1024"),
            ("rollout.max_tokens=8", "rollout.max_tokens=64"),
            ("batch.samples=4", "batch.samples=8"),
            ("policy.hidden_size=64", "policy.hidden_size=128"),
            ("policy.num_layers=2", "policy.num_layers=4"),
            ("num_gpus=8", "num_gpus=4"),
            ("policy.gradient_checkpointing=true", "policy.gradient_checkpointing=false"),
            ("trainer.precision=bf16-mixed", "trainer.precision=32-true"),
        ],
    )
    def test_more_work_needs_more_memory(self, less, more):
        small, large = (
            predict(["algo=dapo", *RANDOM, *self.BATCH, override]).footprint.peak
            for override in (less, more)
        )
        assert small < large

    @pytest.mark.parametrize(
        "name",
        sorted(
            path.stem for path in (CONF / "algo").glob("*.yaml") if path.stem != "iterative_grpo"
        ),
    )
    def test_every_algorithm_composes(self, name):
        teacher = ["+policy@teacher.policy=tiny"] if name in ("distill", "gkd") else []
        memory = predict([f"algo={name}", *teacher, *RANDOM, "batch.prompts=32"]).footprint
        assert (
            memory.peak
            == max(sum(stage.values()) for stage in memory.device.values())
            == memory.total(memory.peak_stage)
            > 16 * WEIGHTS
        )


class TestCommand:
    def test_advice_lowers_the_peak(self):
        overrides = ["algo=dapo", *RANDOM, "batch.prompts=128"]
        first, second = (
            predict([*overrides, *more]) for more in ((), advise(predict(overrides))[:1])
        )
        assert second.footprint.peak < first.footprint.peak
        large = [
            "algo=sft",
            "policy=tiny",
            "policy.pretrained=false",
            "policy.hidden_size=2048",
            "policy.num_layers=2",
        ]
        large += ["batch.prompts=8", "data.num_train=100"]
        assert advise(predict(large))[0] == "trainer=fsdp"
        assert "trainer=fsdp" not in advise(predict([*large, "trainer=fsdp"]))

    def test_prints_table_peak_and_advice(self, capsys):
        main(["algo=dapo", *RANDOM])
        out = capsys.readouterr().out
        assert re.search(r"^\| \*\*all\*\* \| \*\*", out, re.MULTILINE)
        assert re.search(
            r"^peak: [\d.]+ GiB \(\d+ MiB\) in \w+; fits 1 x 80 GiB, of which 72 GiB are usable$",
            out,
            re.MULTILINE,
        )
        assert "to lower it, type " in out
        assert "does not fit 1 x 0.001 GiB" in report(
            predict(["algo=sft", *RANDOM, "gpu_gib=0.001"])
        )

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["num_gpus=0"], "num_gpus=0: must be a whole number"),
            (["gpu_gib=-1"], "gpu_gib=-1: must be a number above 0"),
            (
                ["trainer=fsdp", "num_gpus=8", "trainer.strategy.replicas=3"],
                "replicas=3 does not divide 8 ranks",
            ),
            (
                ["num_gpus=8"],
                "num_gpus=8, but this trainer has 1: type trainer=fsdp or trainer=ddp",
            ),
            (["trainer=fsdp", "num_gpus=3"], "type batch.prompts=33"),
            (
                ["trainer.devices=4"],
                "several devices need a strategy: type trainer=fsdp or trainer=ddp",
            ),
            (["trainer.strategy=ddp", "trainer.devices=2"], "trainer=ddp or trainer=fsdp"),
            (["algo=sft", "ratio=symmetric"], "does not use ratio"),
            (["batch.promts=3"], "batch.promts"),
            (["+policy.depth=3"], "policy: "),
            (["policy=hf", "policy.name=./nowhere"], "no such directory"),
            (["--table", "algo=sft"], "takes no overrides"),
        ],
    )
    def test_a_mistake_is_one_line(self, capsys, overrides, message):
        with pytest.raises(SystemExit) as end:
            main(overrides)
        assert message in str(end.value.code)
        assert "\n" not in str(end.value.code)
        assert capsys.readouterr().out == ""

    def test_docs_show_the_table(self):
        assert table() in (CONF.parent / "docs" / "scaling.md").read_text(), (
            "python -m rlmods.plan --table"
        )
