import warnings

import pytest

from rlmods.data import Preferences
from rlmods.errors import UserError
from rlmods.types import Prompt
from tests.support.rows import write_rows

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}
HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
GOOD, BAD = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}
PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
RANKING = {"prompt": "2+2?", "candidates": ["4", "5", "22"]}
VERDICT = {"prompt": "2+2?", "response": "4", "label": True}
STEPS = {"prompt": "2+2?", "steps": ["2+2=4", "so 4"], "step_labels": [1, 0]}


@pytest.fixture
def read(tmp_path):
    def read(*rows, **fields):
        path = write_rows(tmp_path / "data.jsonl", rows)
        return list(Preferences(str(path), **{"num_val": 0, **fields})().train)

    return read


def annotations(candidates, ranks, finished=None, **more):
    return {
        "candidates": candidates,
        "ranks": ranks,
        "finished": finished or (True,) * len(ranks),
        **more,
    }


class TestPairs:
    def test_chosen_is_first_and_the_response(self, read):
        (prompt,) = read({**PAIR, "source": "x", "answer": 4})
        assert prompt == Prompt(
            id="train-1",
            text="2+2?",
            answer="4",
            meta={"source": "x", **annotations(("4", "5"), (0, 1), response="4")},
        )

    def test_renamed_columns_and_margin(self, read):
        row = {"q": "2+2?", "good": "4", "bad": "5", "by": 2, "chosen": 7}
        (prompt,) = read(row, prompt="q", chosen="good", rejected="bad", margin="by")
        assert prompt.meta == {
            "chosen": 7,
            **annotations(("4", "5"), (0, 1), margin=2.0, response="4"),
        }

    def test_response_column_is_the_response(self, read):
        (prompt,) = read({**PAIR, "response": "It is 4."})
        assert prompt.meta == annotations(("4", "5"), (0, 1), response="It is 4.")

    @pytest.mark.parametrize("context", [[USER], [SYSTEM, USER], [*HELLO, USER]])
    @pytest.mark.parametrize("prompt_column", [None, "2+2?", "same", "all"])
    def test_chat_messages_share_the_prompt(self, read, context, prompt_column):
        row = {"chosen": [*context, GOOD], "rejected": [*context, BAD]}
        if prompt_column == "all":
            row = {"prompt": context, "chosen": [GOOD], "rejected": [BAD]}
        elif prompt_column is not None:
            row["prompt"] = context if prompt_column == "same" else prompt_column
        (prompt,) = read(row)
        assert prompt == Prompt(
            id="train-1", messages=context, meta=annotations(("4", "5"), (0, 1), response="4")
        )

    def test_transcripts_hold_the_prompt(self, read):
        dialogue = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 2+2?\n\nAssistant:"
        row = {"chosen": f"{dialogue} 4", "rejected": f"{dialogue} 5"}
        meta = annotations(("4", "5"), (0, 1), response="4")
        assert read(row) == [Prompt(id="train-1", messages=[*HELLO, USER], meta=meta)]
        with pytest.raises(UserError, match="must end with an assistant turn"):
            read({**row, "chosen": f"{dialogue} 4\n\nHuman: so?"})


class TestRankings:
    @pytest.mark.parametrize(
        ("columns", "ranks"),
        [
            ({}, (0, 1, 2)),
            ({"ranks": [0, 1, 1]}, (0, 1, 1)),
            ({"ranks": [2, 1, 3]}, (1, 0, 2)),
            ({"scores": [0.5, 3, -1]}, (1, 0, 2)),
            ({"scores": [1, 1, 0]}, (0, 0, 1)),
            ({"ranks": [0, 1, 2], "scores": [0, 1, 2]}, (0, 1, 2)),
        ],
    )
    def test_best_first_by_rank_or_by_score(self, read, columns, ranks):
        (prompt,) = read({**RANKING, **columns})
        assert prompt.meta["ranks"] == ranks
        assert prompt.meta["candidates"] == ("4", "5", "22")
        assert prompt.meta["response"] == ("4", "5", "22")[ranks.index(0)]

    def test_rows_written_by_label(self, read):
        def candidate(text, finish="stop"):
            return {"text": text, "finish": finish, "logprob": -1.5, "tokens": 3}

        rows = [
            {
                "prompt": "a",
                "id": "x-1",
                "answer": "4",
                "candidates": [candidate("4"), candidate("22", "length")],
                "ranks": [0, 1],
            },
            {
                "prompt": [USER],
                "id": "x-2",
                "answer": None,
                "candidates": [candidate(t) for t in "123"],
                "ranks": [1, None, 0],
            },
            {
                "prompt": "c",
                "id": "x-3",
                "candidates": [candidate("4", "length"), candidate("4!"), candidate("5")],
                "ranks": [0, 0, 1],
            },
            {
                "prompt": "d",
                "id": "x-4",
                "candidates": [candidate("4", "length"), candidate("5")],
                "ranks": [0, 1],
            },
        ]
        first, second, third, fourth = read(*rows, id="id")
        assert first == Prompt(
            id="x-1",
            text="a",
            answer="4",
            meta=annotations(("4", "22"), (0, 1), (True, False), response="4"),
        )
        assert second == Prompt(
            id="x-2",
            messages=[USER],
            meta=annotations(("1", "3"), (1, 0), response="3"),
        )
        assert third.meta == annotations(
            ("4", "4!", "5"), (0, 0, 1), (False, True, True), response="4!"
        )
        assert fourth.meta == annotations(("4", "5"), (0, 1), (False, True))

    def test_rows_without_a_preference_are_counted_and_left_out(self, read):
        def row(candidates, ranks):
            return {"prompt": "q", "candidates": candidates, "ranks": ranks}

        flat = [
            row(["a", "b"], [1, 1]),
            row(["a", "b"], None),
            row(["a", "b"], [0, None]),
            row(["a"], [0]),
            row([], []),
        ]
        first = "data.jsonl:1: no candidate is preferred to another"
        with pytest.warns(UserWarning, match=rf"5 rows left out, the first: .*{first}"):
            assert [p.id for p in read(*flat, row(["a", "b"], [0, 1]))] == ["train-6"]
        with pytest.raises(UserError, match="nothing to learn: 5 rows left out"):
            read(*flat)

    def test_a_repeated_text_at_one_rank_is_allowed(self, read):
        (prompt,) = read({**RANKING, "candidates": ["4", "4", "5"], "ranks": [0, 0, 1]})
        assert prompt.meta["ranks"] == (0, 0, 1)


@pytest.mark.parametrize(("label", "rank"), [(True, 0), (1, 0), (1.0, 0), (False, 1), (0, 1)])
def test_desirable_is_rank_0_and_the_response(read, label, rank):
    (prompt,) = read({**VERDICT, "label": label})
    assert prompt.meta == annotations(("4",), (rank,), **({"response": "4"} if rank == 0 else {}))


class TestSteps:
    @pytest.mark.parametrize("labels", [[1, 0], [True, False], ["+", "-"], [1.0, 0.0]])
    def test_label_formats(self, read, labels):
        (prompt,) = read({**STEPS, "step_labels": labels})
        assert prompt.meta == {"steps": ("2+2=4\n", "so 4"), "step_labels": (1.0, 0.0)}

    def test_soft_labels_and_step_ends(self, read):
        (prompt,) = read({**STEPS, "steps": ["a\n", "b", "c"], "step_labels": [1, 0.25, 0]})
        assert prompt.meta == {"steps": ("a\n", "b\n", "c"), "step_labels": (1.0, 0.25, 0.0)}
        (prompt,) = read(STEPS, step_end="")
        assert prompt.meta["steps"] == ("2+2=4", "so 4")

    def test_with_pairs_or_a_response(self, read):
        (prompt,) = read({**PAIR, **STEPS})
        assert prompt.meta == {
            **annotations(("4", "5"), (0, 1), response="4"),
            "steps": ("2+2=4\n", "so 4"),
            "step_labels": (1.0, 0.0),
        }
        (prompt,) = read({**STEPS, "response": "4"})
        assert prompt.meta["response"] == "4"


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


TURNS = [USER, GOOD]
CASES = [
    (
        [PAIR, without(PAIR, "rejected")],
        {},
        r'2: no column "rejected"; columns: prompt, chosen; type data.rejected=',
    ),
    (
        [{"prompt": "q", "chosen": "a", "rejected_one": "b"}],
        {},
        r'1: no column "rejected"; .*; type data.rejected=rejected_one',
    ),
    (
        [{"question": "q", "chosen": "a", "rejected": "b"}],
        {},
        r'1: no column "prompt"; columns: question, .*; type data.prompt=COLUMN',
    ),
    (
        [{"turns": "q", "chosen": "a", "rejected": "b"}],
        {"prompt": "turn"},
        r'1: no column "turn"; .*; type data.prompt=turns',
    ),
    (
        [{"question": "q", "candidates": [{"text": "a"}, {"text": "b"}]}],
        {},
        r'1: no column "prompt"; .*; type data.prompt=',
    ),
    (
        [{"prompt": "q", "response": "a"}],
        {},
        r"1: no preferences in the columns prompt, response; type data.chosen=.*or data=jsonl",
    ),
    (
        [{"question": "q", "good": "a", "bad": "b"}],
        {},
        r"1: no preferences in the columns question, good, bad; type data.chosen=COLUMN",
    ),
    (
        [{"prompt": "q", "candidates": ["a", "b"], "rank": [1, 0]}],
        {"ranks": "rnk"},
        r'1: no column "rnk"; .*type data.ranks=rank',
    ),
    ([PAIR], {"margin": "margn"}, r'1: no column "margn"; columns: .*; type data.margin='),
    ([PAIR, {**PAIR, "chosen": " "}], {}, r'2: column "chosen" is empty'),
    ([PAIR, {**PAIR, "rejected": 5}], {}, r'2: column "rejected" must hold text, found a number'),
    (
        [PAIR, {**PAIR, "rejected": "4"}],
        {},
        r'2: column "rejected" repeats a response at another rank',
    ),
    ([{**PAIR, "margin": "big"}], {}, r'1: column "margin" must hold numbers, found a string'),
    ([PAIR], {"label": "thmub"}, r'1: no column "thmub"'),
    ([{**RANKING, "ranks": [0, 1, 2]}], {"scores": "qualty"}, r'1: no column "qualty"'),
    (
        [{**PAIR, "margin": 1}, PAIR],
        {},
        r'2: column "margin" is in this row or in the first, but not in both',
    ),
    (
        [RANKING, {**RANKING, "ranks": [0, 1, 2]}],
        {},
        r'2: column "ranks" is in this row or in the first',
    ),
    (
        [{"chosen": TURNS, "rejected": [SYSTEM, USER, BAD]}],
        {},
        "1: the prompt is not the same in all columns",
    ),
    (
        [{"prompt": [SYSTEM, USER], "chosen": TURNS, "rejected": TURNS}],
        {},
        "1: the prompt is not the same in all columns",
    ),
    (
        [{"chosen": [USER], "rejected": TURNS}],
        {},
        r'1: column "chosen" must end with an assistant turn, found the role user',
    ),
    (
        [{"chosen": [*TURNS, GOOD], "rejected": [*TURNS, BAD]}],
        {},
        "1: the prompt must end with a user turn",
    ),
    ([{**PAIR, "prompt": TURNS}], {}, "1: the prompt must end with a user turn"),
    ([{"prompt": "q", "chosen": [], "rejected": TURNS}], {}, r'1: column "chosen" is empty'),
    (
        [{"prompt": "q", "chosen": ["4"], "rejected": ["5"]}],
        {},
        r'1: column "chosen" must list messages such as',
    ),
    ([{**PAIR, "prompt": " "}], {}, r'1: column "prompt" is empty'),
    (
        [{**RANKING, "candidates": "4"}],
        {},
        r'1: column "candidates" must hold a list, found a string',
    ),
    (
        [{**RANKING, "candidates": ["4", None]}],
        {},
        r'1: column "candidates" must hold text, found null',
    ),
    (
        [{**RANKING, "candidates": ["4", "5", "4"]}],
        {},
        r'1: column "candidates" repeats a response at another rank',
    ),
    (
        [{**RANKING, "candidates": [{"txt": "4"}, "5"]}],
        {},
        r'1: column "candidates" must hold text, found null',
    ),
    (
        [RANKING | {"ranks": [0, 1]}],
        {},
        r'1: column "ranks" has 2 entries, and column "candidates" has 3',
    ),
    ([RANKING | {"ranks": 0}], {}, r'1: column "ranks" must hold a list, found a number'),
    (
        [RANKING | {"ranks": [0, "1", 2]}],
        {},
        r'1: column "ranks" must hold numbers, found a string',
    ),
    (
        [RANKING | {"ranks": [0, True, 2]}],
        {},
        r'1: column "ranks" must hold numbers, found true/false',
    ),
    (
        [RANKING | {"scores": [0, float("inf"), 2]}],
        {},
        r'1: column "scores" must hold finite numbers, found inf',
    ),
    (
        [VERDICT, without(VERDICT, "response")],
        {},
        r'2: no column "response"; columns: prompt, label; type data.response=',
    ),
    (
        [VERDICT, VERDICT | {"label": 2}],
        {},
        r'2: column "label" must hold true or false, or 1 or 0; found 2',
    ),
    ([VERDICT | {"label": "yes"}], {}, r"found 'yes'"),
    ([VERDICT | {"response": ""}], {}, r'1: column "response" is empty'),
    (
        [STEPS, without(STEPS, "step_labels")],
        {},
        r'2: no column "step_labels"; columns: prompt, steps; type data.step_labels=',
    ),
    (
        [STEPS | {"step_labels": [1]}],
        {},
        r'1: column "step_labels" has 1 entries, and column "steps" has 2',
    ),
    (
        [STEPS | {"step_labels": [1, 2]}],
        {},
        r'1: column "step_labels" must hold numbers from 0 to 1, true or false, "\+" or "-"; '
        r"found 2",
    ),
    ([STEPS | {"steps": ["a", 3]}], {}, r'1: column "steps" must hold text, found a number'),
    ([STEPS | {"steps": [], "step_labels": []}], {}, r'1: column "steps" is empty'),
    ([PAIR, PAIR], {"num_val": 1}, r"cannot hold out data.num_val=1 of 2 rows"),
]


class TestErrors:
    @pytest.mark.parametrize(("rows", "fields", "message"), CASES)
    def test_name_row_and_column(self, read, rows, fields, message):
        with pytest.raises(UserError, match=message) as error:
            read(*rows, **fields)
        assert "\n" not in str(error.value)
        assert "data.jsonl" in str(error.value)

    def test_skip_invalid_leaves_out_invalid_rows(self, read):
        bad = [PAIR | {"rejected": "4"}, PAIR | {"chosen": ""}]
        with pytest.warns(
            UserWarning,
            match=r'2 rows left out, the first: .*data.jsonl:1: column "rejected" repeats',
        ):
            assert [p.id for p in read(*bad, PAIR, skip_invalid=True)] == ["train-3"]
        with pytest.raises(UserError, match=r'1: column "rejected" repeats'):
            read(*bad, skip_invalid=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(PAIR, skip_invalid=True)


def test_unranked_candidates_are_refused(read):
    """Candidates written by `collect` are in the order of sampling, which is not a ranking."""
    row = {
        "prompt": "2+2=",
        "candidates": [{"text": text, "logprob": -1.0, "finish": "stop"} for text in "45"],
    }
    with pytest.raises(
        UserError, match=r"candidates are not ranked: type python -m rlmods\.label FILE"
    ):
        read(row)
    assert read({**row, "ranks": [0, 1]})[0].meta["candidates"] == ("4", "5")
