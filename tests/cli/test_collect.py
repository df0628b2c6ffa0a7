"""`python -m rlmods.collect`: what it writes, and what an interruption costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlmods.cli import collect as module
from rlmods.cli.collect import collect, sift, similarity
from rlmods.policy import Tiny
from rlmods.policy.fingerprint import fingerprint
from rlmods.policy.hf import load
from rlmods.rollout import Local
from rlmods.run.jsonl import read_rows
from rlmods.types import Prompt, Response, UserError

PROMPT = Prompt(id="0", text="?")
SMALL = ("data.level=1", "num_prompts=12", "batch.samples=4", "batch.prompts=3", "rollout.max_tokens=3", "min_candidates=3")


def said(*texts):
    return [Response(PROMPT, text=text) for text in texts]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model whose answers differ in length, empty ones among them."""
    torch.manual_seed(0)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=2)()
    policy.model.generation_config.eos_token_id = list(range(1, 25))
    policy.export(tmp_path_factory.mktemp("model"))
    return str(tmp_path_factory.getbasetemp() / "model0")


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The output of an uninterrupted command, kept and dropped rows, and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "rows.jsonl"
    summary = collect(model, [*SMALL, f"out={out}"])
    return out.read_bytes(), out.with_name("rows.jsonl.dropped.jsonl").read_bytes(), summary


class TestSift:
    def test_by_hand(self):
        texts = ["1 + 1 = 2", " ", "1 + 1 = 2", "1  +  1 = 2", "It is 2", "it IS 2", "", "3"]
        kept, dropped = sift(said(*texts), 1.0)
        assert [r.text for r in kept] == ["1 + 1 = 2", "It is 2", "3"]
        assert dropped == {"empty": 2, "duplicate": 1, "near_duplicate": 2}

    def test_near(self):
        texts = ["the sum of one and two is 3", "the sum of one and two is 4", "three"]
        assert len(sift(said(*texts), 1.0)[0]) == 3
        assert similarity(*texts[:2]) == 7 / 11
        assert [r.text for r in sift(said(*texts), 7 / 11)[0]] == [texts[0], texts[2]]
        assert len(sift(said(*texts), 7 / 11 + 1e-9)[0]) == 3

    def test_what_reads_alike_is_not_the_same(self):
        assert len(sift(said("3-5", "5-3", "a a a b", "a a b"), 1.0)[0]) == 4

    @given(st.lists(st.text("ab 1", max_size=4), max_size=8), st.floats(0.1, 1.0))
    def test_loses_nothing_and_leaves_no_two_alike(self, texts, near):
        kept, dropped = sift(said(*texts), near)
        assert len(kept) + dropped.total() == len(texts)
        plain = [" ".join(r.text.casefold().split()) for r in kept]
        assert len(set(plain)) == len(plain)
        assert "" not in plain
        assert {" ".join(t.split()) for t in texts} - {""} <= set(plain) or near < 1


class TestSimilarity:
    @given(st.text("ab ."), st.text("ab ."))
    def test_is_symmetric_and_between_0_and_1(self, first, second):
        assert 0 <= similarity(first, second) == similarity(second, first) <= 1
        assert similarity(first, first) == similarity(first, first.upper()) == 1

    def test_sees_the_order(self):
        assert similarity("3-5", "5-3") < 1
        assert similarity("a b c", "x y z") == 0


class TestRows:
    def test_hold_what_was_sampled(self, whole, model):
        rows = [json.loads(line) for line in whole[0].splitlines()]
        policy, rollout = load(model), Local(max_tokens=3, seed=1)
        rollout.sync(policy, iteration=0)
        assert rows
        for row in rows:
            responses = rollout.generate([Prompt(id=row["id"], text=row["prompt"])], samples=4, iteration=0)
            kept, dropped = sift(responses, 1.0)
            assert row["dropped"] == {reason: dropped[reason] for reason in ("empty", "duplicate", "near_duplicate")}
            for candidate, response in zip(row["candidates"], kept, strict=True):
                assert candidate["logprob"] == pytest.approx(sum(response.behavior_logprobs), abs=1e-4)
                assert {k: v for k, v in candidate.items() if k != "logprob"} == {
                    "text": response.text, "tokens": list(response.tokens), "num_tokens": len(response.tokens), "finish": response.finish,
                }  # fmt: skip
            assert eval(row["prompt"][:-1]) == int(row["answer"])
            assert (row["model"], row["weights"]) == (model, fingerprint(policy))
            assert row["sampling"] | {"samples": 4, "max_tokens": 3, "temperature": 1.0, "near": 1.0} == row["sampling"]
        assert {c["finish"] for row in rows for c in row["candidates"]} == {"stop", "length"}

    def test_too_few_candidates_are_set_aside(self, whole):
        kept, dropped = ([json.loads(line) for line in part.splitlines()] for part in whole[:2])
        assert all(len(row["candidates"]) >= 3 for row in kept)
        assert all(len(row["candidates"]) < 3 for row in dropped)
        assert dropped
        assert len(kept) + len(dropped) == 12

    def test_are_summed_up(self, whole):
        summary = whole[2]
        kept, dropped = ([json.loads(line) for line in part.splitlines()] for part in whole[:2])
        lengths = [c["num_tokens"] for row in kept for c in row["candidates"]]
        assert (summary["prompts"], summary["dropped_prompts"], summary["candidates"]) == (12, len(dropped), len(lengths))
        assert summary["mean_tokens"] == pytest.approx(sum(lengths) / len(lengths))
        reasons = sum(summary[r] for r in ("empty", "duplicate", "near_duplicate"))
        assert summary["empty"] > 0
        assert reasons + len(lengths) + sum(len(row["candidates"]) for row in dropped) == 48

    def test_chat_messages(self, tmp_path, monkeypatch):
        policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        policy.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}:"
        policy.export(tmp_path / "model")
        out = tmp_path / "rows.jsonl"
        collect(str(tmp_path / "model"), ["data=stories", "num_prompts=1", "batch.samples=2", "rollout.max_tokens=4", f"out={out}"])
        [row] = read_rows(out)
        assert [turn["role"] for turn in row["prompt"]] == ["user"]

    def test_of_an_option(self, tmp_path):
        options = ("policy.pretrained=false", "policy.hidden_size=32", "policy.num_layers=1")
        summaries = [collect(None, [*SMALL, *options, f"out={tmp_path}/{i}.jsonl"]) for i in range(2)]
        assert summaries[0]["prompts"] == 12
        assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()


class TestInterruption:
    def test_nothing_is_lost_or_done_twice(self, whole, model, tmp_path, monkeypatch):
        out, asked = tmp_path / "rows.jsonl", []
        real = Local.generate

        def dies(self, prompts, **how):
            if len(asked) == 6:
                raise KeyboardInterrupt
            asked.extend(p.id for p in prompts)
            return real(self, prompts, **how)

        monkeypatch.setattr(Local, "generate", dies)
        with pytest.raises(KeyboardInterrupt):
            collect(model, [*SMALL, f"out={out}"])
        there = [*read_rows(out), *read_rows(out.with_name("rows.jsonl.dropped.jsonl"))]
        assert len(there) == 6
        assert {row["id"] for row in there} == set(asked)
        asked.append("not six any more")
        assert collect(model, [*SMALL, f"out={out}"]) == {**whole[2], "out": str(out)}
        assert len(asked) == len(set(asked)) == 13
        assert (out.read_bytes(), out.with_name("rows.jsonl.dropped.jsonl").read_bytes()) == whole[:2]

    def test_a_torn_line_is_sampled_again(self, whole, model, tmp_path):
        out, kept = tmp_path / "rows.jsonl", whole[0]
        last = kept[:-1].rfind(b"\n") + 1
        out.with_name("rows.jsonl.dropped.jsonl").write_bytes(whole[1])
        for cut in (last, last + 1, (last + len(kept)) // 2, len(kept) - 2):
            out.write_bytes(kept[:cut])
            assert collect(model, [*SMALL, f"out={out}"]) == {**whole[2], "out": str(out)}
            assert out.read_bytes() == kept

    def test_what_is_complete_is_left_alone(self, whole, model, tmp_path, monkeypatch):
        out = tmp_path / "rows.jsonl"
        out.write_bytes(whole[0])
        out.with_name("rows.jsonl.dropped.jsonl").write_bytes(whole[1])
        monkeypatch.setattr(Local, "generate", None)
        assert collect(model, [*SMALL, f"out={out}", "rollout.batch_size=4"]) == {**whole[2], "out": str(out)}

    def test_more_prompts_may_follow(self, whole, model, tmp_path):
        out = tmp_path / "rows.jsonl"
        assert collect(model, [*SMALL, f"out={out}", "num_prompts=5"])["prompts"] == 5
        assert collect(model, [*SMALL, f"out={out}"])["prompts"] == 12
        assert sorted(out.read_bytes().splitlines()) == sorted(whole[0].splitlines())

    @pytest.mark.parametrize(
        ("typed", "words"),
        [
            ("rollout.temperature=0.5", "sampling.temperature=1.0 (now 0.5)"),
            ("batch.samples=5", "sampling.samples=4 (now 5)"),
            ("data.level=2", "data.level=1 (now 2)"),
            ("near=0.5", "sampling.near=1.0 (now 0.5)"),
            ("seed=2", "sampling.seed=1 (now 2)"),
        ],
    )
    def test_other_settings_are_refused(self, typed, words, whole, model, tmp_path):
        out = tmp_path / "rows.jsonl"
        out.write_bytes(whole[0])
        with pytest.raises(UserError) as error:
            collect(model, [*SMALL, f"out={out}", typed])
        assert words in str(error.value)
        assert out.read_bytes() == whole[0]

    def test_other_weights_in_the_same_place_are_refused(self, whole, model, tmp_path, monkeypatch):
        out = tmp_path / "rows.jsonl"
        out.write_bytes(whole[0])

        def trained(source):
            policy = load(source)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter += 1e-5
            return policy

        monkeypatch.setattr(module, "load", trained)
        with pytest.raises(UserError, match=r"weights=\w+ \(now \w+\)"):
            collect(model, [*SMALL, f"out={out}"])

    def test_another_question_under_the_same_id_is_refused(self, whole, model, tmp_path, monkeypatch):
        out = tmp_path / "rows.jsonl"
        out.write_bytes(whole[0])
        monkeypatch.setattr(module, "_asked", lambda p, real=module._asked: real(replace(p, answer="7")))
        with pytest.raises(UserError, match="has changed since its row was written"):
            collect(model, [*SMALL, f"out={out}"])


class TestMistakes:
    @pytest.mark.parametrize(
        ("typed", "words"),
        [
            ("num_prompts=0", "num_prompts=0: must be null or a whole number"),
            ("min_candidates=1.5", "min_candidates=1.5"),
            ("near=0", "near=0"),
            ("near=2", "near=2"),
            ("min_candidates=9", "type batch.samples=9"),
            ("rollout.temperature=0", "type rollout.temperature=1"),
            ("colour=red", "colour"),
        ],
    )
    def test_are_found_before_the_model_loads(self, typed, words, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "load", None)
        with pytest.raises(UserError) as error:
            collect(str(tmp_path), [*[s for s in SMALL if s.split("=")[0] != typed.split("=")[0]], f"out={tmp_path}/rows.jsonl", typed])
        assert words in str(error.value)
        assert not list(tmp_path.iterdir())


class TestTheCommand:
    @pytest.mark.slow
    def test_prints_one_line(self, model, tmp_path):
        command = [sys.executable, "-m", "rlmods.cli.collect", model, *SMALL, "out=a/rows.jsonl"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["prompts"] == 12
        assert len(done.stdout.splitlines()) == 1
        assert (tmp_path / "a" / "rows.jsonl").exists()

    def test_takes_a_policy_or_an_option(self, tmp_path, monkeypatch):
        asked = []
        monkeypatch.setattr(module, "collect", lambda source, overrides: asked.append((source, overrides)) or {})
        (tmp_path / "lr=1").mkdir()
        for arguments in (["runs/a", "near=1"], ["policy=tiny", "near=1"], [f"{tmp_path}/lr=1"]):
            module.main(arguments)
        assert asked == [("runs/a", ["near=1"]), (None, ["policy=tiny", "near=1"]), (f"{tmp_path}/lr=1", [])]

    def test_says_what_is_wrong_in_one_line(self):
        with pytest.raises(SystemExit, match=r"^error: near=3: must be above 0 and at most 1$"):
            module.main(["no/such/model", "near=3"])

    def test_explains_its_settings(self, capsys):
        with pytest.raises(SystemExit):
            module.main(["--help"])
        assert {f"{f.name}=" for f in fields(module.Settings)} <= set(re.findall(r"\w+=", capsys.readouterr().out))
