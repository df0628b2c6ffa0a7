"""`python -m rlmods.label`: output rows, and continuing after an interruption."""

import json
from html import unescape

import pytest

from rlmods.cli import label as module
from rlmods.cli.label import kappa, label
from rlmods.data import Preferences
from rlmods.errors import UserError
from rlmods.judge import Rule
from rlmods.run.files import read_rows
from tests.judge.server import TEMPLATE, in_turn, longer, serve
from tests.judge.test_scores import saved

pytestmark = pytest.mark.slow

CANDIDATES = [
    (
        "0",
        "1+1=",
        "2",
        ["<answer>3</answer>", "<answer>2</answer>", "the answer is <answer>2</answer>"],
    ),
    ("1", "2+2=", "4", ["<answer>4</answer>", "6", "<answer>5</answer>"]),
    ("2", "3+3=", "6", ["<answer>7</answer>", "<answer>8</answer>"]),
    ("3", "4+4=", None, ["<answer>8</answer>", "<answer>9</answer>"]),
    (
        "4",
        [{"role": "user", "content": "5+5="}],
        "10",
        ["<answer>11</answer>", "<answer>10</answer>"],
    ),
]
RANKS = {"0": [1, 0, 0], "1": [0, 1, 1], "2": [0, 0], "3": [None, None], "4": [1, 0]}


def candidates(path, rows=CANDIDATES):
    lines = []
    for key, prompt, answer, texts in rows:
        listed = [
            {"text": text, "finish": "stop" if i else "length"} for i, text in enumerate(texts)
        ]
        lines.append(
            json.dumps(
                {
                    "id": key,
                    "prompt": prompt,
                    "answer": answer,
                    "meta": {"level": 1},
                    "candidates": listed,
                    "model": "m",
                }
            )
        )
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture
def source(tmp_path):
    return candidates(tmp_path / "candidates.jsonl")


@pytest.fixture(autouse=True)
def small_calls(monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_CALL", 2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def llm(server, *typed):
    return [
        "judge=llm",
        f"judge.url={server.url}",
        "judge.model=m",
        f"judge.template='{TEMPLATE}'",
        "judge.backoff_s=0",
        *typed,
    ]


class TestRows:
    def test_are_ranked(self, source, tmp_path):
        summary = label(source, [f"out={tmp_path}/out.jsonl"])
        rows = read_rows(tmp_path / "out.jsonl")
        assert {row["id"]: row["ranks"] for row in rows} == RANKS
        assert [row["verdicts"] for row in rows] == [
            [0.0, 0.0, 0.5],
            [1.0, 1.0, 0.5],
            [0.5],
            [None],
            [0.0],
        ]
        for row, original in zip(rows, read_rows(tmp_path / "candidates.jsonl"), strict=True):
            assert {key: row[key] for key in original} == original
            assert row["judge"] == {"_target_": "rlmods.judge.Rule", "reward": None, "tie": 0.0}
            assert row["keep_ties"] is True
        assert summary == {
            "out": f"{tmp_path}/out.jsonl",
            "rows": 5,
            "without_preference": 2,
            "dropped_rows": 0,
            "rejected_rows": 0,
            "pairs": 9,
            "ties": 3,
            "without_verdict": 1,
        }

    def test_are_readable_as_preferences(self, source, tmp_path):
        label(source, [f"out={tmp_path}/out.jsonl"])
        with pytest.warns(
            UserWarning, match="2 rows left out, the first: .* no candidate is preferred"
        ):
            prompts = Preferences(train=f"{tmp_path}/out.jsonl", num_val=0)().train
        assert [p.meta["ranks"] for p in prompts] == [(1, 0, 0), (0, 1, 1), (1, 0)]
        assert [p.meta["candidates"] for p in prompts] == [
            tuple(row[3]) for row in CANDIDATES if row[0] in "014"
        ]
        assert prompts[0].meta["finished"] == (False, True, True)
        assert [p.answer for p in prompts] == ["2", "4", "10"]

    def test_the_judge_receives_prompts_and_responses(self, source, tmp_path, monkeypatch):
        path = tmp_path / "mixed.jsonl"
        rows = [row | {"source": "sums"} for row in read_rows(tmp_path / "candidates.jsonl")]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        pairs = []
        monkeypatch.setattr(Rule, "compare", lambda self, x: pairs.extend(x) or [0.5] * len(x))
        label(str(path), [f"out={tmp_path}/out.jsonl"])
        seen = {prompt.id: prompt for prompt, *_ in pairs}
        first = (seen["0"].text, seen["0"].messages, seen["0"].answer, seen["0"].meta)
        assert first == ("1+1=", None, "2", {"level": 1})
        assert (seen["4"].text, seen["4"].messages) == (None, [{"role": "user", "content": "5+5="}])
        assert {prompt.source for prompt in seen.values()} == {"sums"}
        finishes = {(x.text, x.finish) for _, *both in pairs for x in both}
        assert ("<answer>3</answer>", "length") in finishes
        assert ("<answer>2</answer>", "stop") in finishes

    def test_rows_without_a_preference_are_dropped_if_not_keep_ties(self, source, tmp_path):
        typed = [f"out={tmp_path}/out.jsonl", "keep_ties=false"]
        summary = label(source, typed)
        assert (
            summary["rows"],
            summary["dropped_rows"],
            summary["without_preference"],
            summary["pairs"],
        ) == (5, 2, 2, 9)
        assert [row["id"] for row in read_rows(tmp_path / "out.jsonl")] == ["0", "1", "4"]
        assert [row["id"] for row in read_rows(tmp_path / "out.jsonl.dropped.jsonl")] == ["2", "3"]
        assert label(source, typed) == summary

    def test_neural_judge(self, tmp_path):
        saved(tmp_path / "model")
        source = candidates(tmp_path / "candidates.jsonl", CANDIDATES[:3])
        label(
            source, ["judge=neural", f"judge.model={tmp_path}/model", f"out={tmp_path}/out.jsonl"]
        )
        assert all(
            sorted(row["ranks"]) == list(range(len(row["candidates"])))
            for row in read_rows(tmp_path / "out.jsonl")
        )


class TestInterruption:
    def test_rows_are_written_as_they_are_judged(self, source, tmp_path, monkeypatch):
        out, calls = tmp_path / "out.jsonl", []
        real = Rule.compare

        def interrupted(self, pairs):
            calls.append(pairs)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, pairs)

        monkeypatch.setattr(Rule, "compare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            label(source, [f"out={out}"])
        assert [row["id"] for row in read_rows(out)] == ["0", "1"]
        assert label(source, [f"out={out}"])["rows"] == 5
        assert [row["id"] for row in read_rows(out)] == ["0", "1", "2", "3", "4"]

    def test_replies_of_the_llm_are_not_requested_again(self, source, tmp_path):
        out, transcript = tmp_path / "out.jsonl", tmp_path / "out.jsonl.judge.jsonl"
        with serve(lambda body, n: (401, b"") if n == 14 else longer(body, n)) as server:
            with pytest.raises(
                UserError,
                match=r"no reply to questions of 1 row, such as '3': HTTP 401",
            ):
                label(source, llm(server, f"out={out}", "judge.concurrency=1"))
            assert [row["id"] for row in read_rows(out)] == ["0", "1", "2", "4"]
            assert len(read_rows(transcript)) == 17
            summary = label(source, llm(server, f"out={out}"))
            assert summary["judge"] == {"requests": 1, "cached": 1}
            # The note that the first candidates are cut off makes them the longest.
            assert (summary["rows"], summary["ties"], summary["without_verdict"]) == (5, 0, 0)
            complete = sorted(out.read_bytes().splitlines())
            out.unlink()
            again = label(
                source,
                llm(
                    server,
                    f"out={out}",
                    "judge.retries=9",
                    "judge.concurrency=1",
                    "judge.timeout_s=9",
                ),
            )
            assert again == {**summary, "judge": {"cached": 18}}
            assert sorted(out.read_bytes().splitlines()) == complete
            assert label(source, llm(server, f"out={out}")).get("judge") is None
            assert len(server.bodies) == 19

    @pytest.mark.parametrize(("status", "number"), [(400, 0), (413, 1), (422, 4)])
    def test_a_row_that_the_server_rejects_is_dropped_with_a_count(
        self, number, status, source, tmp_path
    ):
        out, question = tmp_path / "out.jsonl", CANDIDATES[number][3][-1]
        with serve(
            lambda body, n: (
                (status, b"too long") if question in unescape(str(body)) else longer(body, n)
            )
        ) as server:
            typed = llm(server, f"out={out}", "judge.concurrency=1")
            summary = label(source, typed)
            assert (summary["rows"], summary["dropped_rows"], summary["rejected_rows"]) == (5, 1, 1)
            assert [row["id"] for row in read_rows(out)] == [
                row[0] for row in CANDIDATES if row is not CANDIDATES[number]
            ]
            [dropped] = read_rows(tmp_path / "out.jsonl.dropped.jsonl")
            assert (dropped["id"], dropped["rejected"][:8]) == (str(number), f"HTTP {status}")
            num_requests = len(server.bodies)
            assert label(source, typed)["rejected_rows"] == 1
            assert len(server.bodies) == num_requests

    def test_a_server_that_rejects_everything_is_an_error(self, source, tmp_path):
        with (
            serve(in_turn((400, b"no such parameter"))) as server,
            pytest.raises(UserError, match="HTTP 400, invalid request: change"),
        ):
            label(source, llm(server, f"out={tmp_path}/out.jsonl"))
        assert not list(tmp_path.glob("out.jsonl*"))

    def test_a_labelled_file_can_be_labelled_again(self, source, tmp_path):
        first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
        label(source, [f"out={first}"])
        again = [f"out={second}", "+reward@judge.reward=format"]
        summary = label(str(first), again)
        assert [row["ranks"] for row in read_rows(first)] != [
            row["ranks"] for row in read_rows(second)
        ]
        assert label(str(first), again) == summary

    def test_other_candidates_are_refused(self, source, tmp_path):
        out = tmp_path / "out.jsonl"
        label(source, [f"out={out}"])
        candidates(tmp_path / "candidates.jsonl", [(*CANDIDATES[0][:3], ["a", "b"])])
        with pytest.raises(UserError, match="the input of row 0 has changed"):
            label(source, [f"out={out}"])


class TestKappa:
    def test_by_hand(self, source, tmp_path):
        for name, typed in (("a", []), ("b", ["+reward@judge.reward=format"])):
            label(source, [f"out={tmp_path}/{name}.jsonl", *typed])
        # all pairs but the one without a gold answer; rule: 0 0 T | 1 1 T | T | 0, format: T T T |
        # 1 T 0 | T | T p_o = 3/8; rule: 2 first, 3 ties, 3 second; format: 1 first, 6 ties, 1
        # second; p_e = (2 * 1 + 3 * 6 + 3 * 1) / 64 = 23/64
        result = kappa(f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl")
        assert result == {
            "rows": 5,
            "pairs": 8,
            "agreement": 3 / 8,
            "kappa": pytest.approx((24 - 23) / (64 - 23)),
        }

    def test_file_with_ranks_only(self, source, tmp_path):
        label(source, [f"out={tmp_path}/a.jsonl"])
        rows = [
            {k: v for k, v in row.items() if k not in ("verdicts", "judge")}
            for row in read_rows(tmp_path / "a.jsonl")
        ]
        (tmp_path / "human.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
        assert kappa(f"{tmp_path}/a.jsonl", f"{tmp_path}/human.jsonl")["kappa"] == 1.0

    def test_unlabelled_or_different_rows_are_refused(self, source, tmp_path):
        label(source, [f"out={tmp_path}/a.jsonl"])
        with pytest.raises(UserError, match="row 0 is not labelled"):
            kappa(f"{tmp_path}/a.jsonl", source)
        other = candidates(tmp_path / "other.jsonl", [("9", *CANDIDATES[0][1:])])
        with pytest.raises(UserError, match="no row in common"):
            kappa(f"{tmp_path}/a.jsonl", other)
        other = candidates(tmp_path / "other.jsonl", [(*CANDIDATES[0][:3], ["x", "y"])])
        with pytest.raises(UserError, match="row 0 has other candidates"):
            kappa(f"{tmp_path}/a.jsonl", other)


GOOD = '{"id": "0", "prompt": "1+1=", "candidates": [{"text": "2"}, {"text": "3"}]}\n'
MISTAKES = {
    "no rows": ("", [], "no such file, or no rows"),
    "no candidates": (GOOD + '{"id": "1", "prompt": "?"}\n', [], 'row 2 needs a unique "id"'),
    "candidates that are texts": (
        '{"id": "1", "prompt": "?", "candidates": ["a"]}\n',
        [],
        '"candidates" with "text"',
    ),
    "no id": ('{"prompt": "?", "candidates": []}\n', [], 'row 1 needs a unique "id"'),
    "an id twice": (GOOD + GOOD, [], 'row 2 needs a unique "id"'),
    "no prompt": ('{"id": "1", "candidates": []}\n', [], 'a "prompt" and'),
    "a message without content": (
        GOOD.replace('"1+1="', '[{"role": "user"}]'),
        [],
        'row 1: column "prompt" must list messages',
    ),
    "a broken line": ("{\n" + GOOD, [], "in.jsonl:1: broken JSON"),
    "no gold answers": (GOOD, [], "no row has one: type judge=neural or judge=llm"),
    "no model": (GOOD, ["judge=neural"], "judge.model=RUN_OR_DIRECTORY"),
    "no address": (GOOD, ["judge=llm"], "judge.url=http://HOST/v1"),
    "no such judge": (GOOD, ["judge=oracle"], "judge=oracle: no such option"),
    "no such setting": (GOOD, ["colour=red"], "colour"),
    "not a boolean": (GOOD, ["keep_ties=2"], "keep_ties=2: must be true or false"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_errors_are_one_line_and_write_nothing(mistake, tmp_path):
    text, typed, words = MISTAKES[mistake]
    (tmp_path / "in.jsonl").write_text(text)
    with pytest.raises(SystemExit) as error:
        module.main([f"{tmp_path}/in.jsonl", f"out={tmp_path}/out.jsonl", *typed])
    assert str(error.value).startswith("error: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


class TestCommand:
    def test_does_not_overwrite_its_input(self, source):
        with pytest.raises(UserError, match="type another out=FILE"):
            label(source, [f"out={source}"])

    def test_prints_one_line(self, source, tmp_path, capsys):
        module.main([source, f"out={tmp_path}/a.jsonl"])
        module.main(["--kappa", f"{tmp_path}/a.jsonl", f"{tmp_path}/a.jsonl"])
        summary, agreement = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert summary["rows"] == 5
        assert agreement["kappa"] == 1.0
        with pytest.raises(SystemExit, match="--kappa FILE_A FILE_B"):
            module.main(["--kappa", f"{tmp_path}/a.jsonl"])
