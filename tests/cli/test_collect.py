"""`python -m rlmods.collect`: output rows, and continuing after an interruption."""

import json

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.cli import collect as module
from rlmods.cli.collect import collect, deduplicate
from rlmods.errors import UserError
from rlmods.policy import Tiny
from rlmods.policy.files import fingerprint
from rlmods.policy.hf import load
from rlmods.rollout import Local
from rlmods.run.files import read_rows
from rlmods.types import Prompt, Response

pytestmark = pytest.mark.slow

PROMPT = Prompt(id="0", text="?")
SMALL = (
    "data.level=1",
    "num_prompts=12",
    "batch.samples=4",
    "batch.prompts=3",
    "rollout.max_tokens=3",
    "min_candidates=3",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model whose responses differ in length and may be empty."""
    torch.manual_seed(0)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=2)()
    policy.model.generation_config.eos_token_id = list(range(1, 25))
    folder = tmp_path_factory.mktemp("model")
    policy.export(folder)
    return str(folder)


@pytest.fixture(scope="module")
def complete(model, tmp_path_factory):
    """Kept rows, dropped rows and summary of an uninterrupted command."""
    out = tmp_path_factory.mktemp("complete") / "rows.jsonl"
    summary = collect(model, [*SMALL, f"out={out}"])
    return out.read_bytes(), out.with_name("rows.jsonl.dropped.jsonl").read_bytes(), summary


def test_long_prompts_are_left_out_and_counted(model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"prompt": "1" * length, "id": str(length)}) + "\n" for length in range(1, 9)
        )
    )
    typed = [
        "data=jsonl",
        f"data.train={rows}",
        "data.num_val=0",
        "data.answer=null",
        "data.id=id",
        "batch.samples=2",
        "min_candidates=1",
    ]
    summary = collect(
        model,
        [*typed, "data.max_prompt_tokens=5", f"out={tmp_path}/out.jsonl", "rollout.max_tokens=2"],
    )
    assert summary["long_prompts"] == 3
    assert summary["prompts"] == 5


class TestDeduplicate:
    def test_by_hand(self):
        texts = ["1 + 1 = 2", " ", "1 + 1 = 2", "1  +  1 = 2", "It is 2", "it IS 2", "", "2 is It"]
        kept, dropped = deduplicate([Response(PROMPT, text=text) for text in texts])
        assert [r.text for r in kept] == ["1 + 1 = 2", "It is 2", "2 is It"]
        assert dropped == {"empty": 2, "duplicate": 3}

    @given(st.lists(st.text("ab 1", max_size=4), max_size=8))
    def test_counts_every_response_and_keeps_no_duplicates(self, texts):
        kept, dropped = deduplicate([Response(PROMPT, text=text) for text in texts])
        assert len(kept) + dropped.total() == len(texts)
        normalized = [" ".join(r.text.casefold().split()) for r in kept]
        assert len(set(normalized)) == len(normalized)
        assert {" ".join(t.split()) for t in texts} - {""} == set(normalized)


class TestRows:
    def test_contain_the_sampled_responses(self, complete, model):
        rows = [json.loads(line) for line in complete[0].splitlines()]
        policy, rollout = load(model), Local(max_tokens=3, seed=1)
        rollout.sync(policy, iteration=0)
        assert rows
        for row in rows:
            responses = rollout.generate(
                [Prompt(id=row["id"], text=row["prompt"])], samples=4, iteration=0
            )
            kept, dropped = deduplicate(responses)
            assert row["dropped"] == {"empty": dropped["empty"], "duplicate": dropped["duplicate"]}
            for candidate, response in zip(row["candidates"], kept, strict=True):
                assert candidate["logprob"] == pytest.approx(
                    sum(response.behavior_logprobs), abs=1e-4
                )
                assert {k: v for k, v in candidate.items() if k != "logprob"} == {
                    "text": response.text,
                    "tokens": list(response.tokens),
                    "num_tokens": len(response.tokens),
                    "finish": response.finish,
                }
            assert eval(row["prompt"][:-1]) == int(row["answer"])
            assert (row["model"], row["weights"]) == (model, fingerprint(policy))
            expected = {"samples": 4, "max_tokens": 3, "temperature": 1.0, "min_candidates": 3}
            assert (expected | {"seed": 1}).items() <= row["sampling"].items()
            assert row["data"]["level"] == 1
        assert {c["finish"] for row in rows for c in row["candidates"]} == {"stop", "length"}

    def test_with_too_few_candidates_are_dropped(self, complete):
        kept, dropped = ([json.loads(line) for line in part.splitlines()] for part in complete[:2])
        assert all(len(row["candidates"]) >= 3 for row in kept)
        assert all(len(row["candidates"]) < 3 for row in dropped)
        assert dropped
        assert len(kept) + len(dropped) == 12

    def test_summary(self, complete):
        summary = complete[2]
        kept, dropped = ([json.loads(line) for line in part.splitlines()] for part in complete[:2])
        lengths = [c["num_tokens"] for row in kept for c in row["candidates"]]
        assert (summary["prompts"], summary["dropped_prompts"], summary["candidates"]) == (
            12,
            len(dropped),
            len(lengths),
        )
        assert summary["mean_tokens"] == pytest.approx(sum(lengths) / len(lengths))
        assert summary["empty"] > 0
        assert (
            summary["empty"]
            + summary["duplicate"]
            + len(lengths)
            + sum(len(row["candidates"]) for row in dropped)
            == 48
        )

    def test_chat_messages(self, tmp_path, monkeypatch):
        policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        policy.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
        policy.export(tmp_path / "model")
        out = tmp_path / "rows.jsonl"
        collect(
            str(tmp_path / "model"),
            [
                "data=stories",
                "num_prompts=1",
                "batch.samples=2",
                "rollout.max_tokens=4",
                f"out={out}",
            ],
        )
        [row] = read_rows(out)
        assert [turn["role"] for turn in row["prompt"]] == ["user"]

    @pytest.mark.slow
    def test_source_of_a_mixture(self, model, tmp_path):
        mixture = (
            "data=mixture",
            "+data@data.sources.easy=arithmetic",
            "+data@data.sources.hard=arithmetic",
            "data.sources.hard.level=2",
        )
        typed = [
            *mixture,
            "num_prompts=4",
            "batch.samples=2",
            "min_candidates=1",
            "rollout.max_tokens=2",
            f"out={tmp_path}/out.jsonl",
        ]
        collect(model, typed)
        kept = {row["id"]: row["source"] for row in read_rows(tmp_path / "out.jsonl")}
        assert kept
        assert all(key.startswith(source) for key, source in kept.items())
        assert set(kept.values()) == {"easy", "hard"}

    def test_policy_option_instead_of_a_model(self, tmp_path):
        options = ("policy.pretrained=false", "policy.hidden_size=32", "policy.num_layers=1")
        summaries = [
            collect(None, [*SMALL, *options, f"out={tmp_path}/{i}.jsonl"]) for i in range(2)
        ]
        assert summaries[0]["prompts"] == 12
        assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()


class TestInterruption:
    def test_no_prompt_is_lost_or_sampled_twice(self, complete, model, tmp_path, monkeypatch):
        out, prompt_ids = tmp_path / "rows.jsonl", []
        real = Local.generate

        def interrupted(self, prompts, **kwargs):
            if len(prompt_ids) == 6:
                raise KeyboardInterrupt
            prompt_ids.extend(p.id for p in prompts)
            return real(self, prompts, **kwargs)

        monkeypatch.setattr(Local, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collect(model, [*SMALL, f"out={out}"])
        rows = [*read_rows(out), *read_rows(out.with_name("rows.jsonl.dropped.jsonl"))]
        assert len(rows) == 6
        assert {row["id"] for row in rows} == set(prompt_ids)
        prompt_ids.append("no longer six, so that generate() runs")
        typed = [*SMALL, f"out={out}", "rollout.batch_size=4"]
        assert collect(model, typed) == {**complete[2], "out": str(out)}
        assert len(prompt_ids) == len(set(prompt_ids)) == 13
        assert (
            out.read_bytes(),
            out.with_name("rows.jsonl.dropped.jsonl").read_bytes(),
        ) == complete[:2]

    def test_num_prompts_may_grow(self, complete, model, tmp_path):
        out = tmp_path / "rows.jsonl"
        assert collect(model, [*SMALL, f"out={out}", "num_prompts=5"])["prompts"] == 5
        assert collect(model, [*SMALL, f"out={out}"])["prompts"] == 12
        assert sorted(out.read_bytes().splitlines()) == sorted(complete[0].splitlines())


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("num_prompts=0", "num_prompts=0: must be at least 1"),
        ("min_candidates=1.5", "min_candidates=1.5"),
        ("min_candidates=9", "type batch.samples=9"),
        ("rollout.temperature=0", "type rollout.temperature=1"),
        ("environment=tools", "type environment=single_turn"),
        ("colour=red", "colour"),
    ],
)
def test_mistakes_are_refused_before_the_model_loads(typed, words, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "load", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError) as error:
        collect(
            str(tmp_path),
            [
                *[s for s in SMALL if s.split("=")[0] != typed.split("=")[0]],
                f"out={tmp_path}/rows.jsonl",
                typed,
            ],
        )
    assert words in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_source_is_optional(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        module, "collect", lambda source, overrides: calls.append((source, overrides)) or {}
    )
    (tmp_path / "lr=1").mkdir()
    for arguments in (["runs/a", "seed=1"], ["policy=tiny", "seed=1"], [f"{tmp_path}/lr=1"]):
        module.main(arguments)
    assert calls == [
        ("runs/a", ["seed=1"]),
        (None, ["policy=tiny", "seed=1"]),
        (f"{tmp_path}/lr=1", []),
    ]
