"""The prompt that the teacher sees."""

import pytest

from rlmods.errors import UserError
from rlmods.teacher import Local, SelfTeacher
from rlmods.teacher.demonstration import TEMPLATE
from rlmods.types import Prompt


def teacher(**options):
    return Local(name="a/model", **options)


def test_without_a_demonstration_it_is_the_same() -> None:
    prompt = Prompt(id="0", text="1+1=", answer="2")
    assert teacher().prompt(prompt) is prompt


def test_a_text() -> None:
    prompt = Prompt(id="0", text="1+1={}", answer="2", meta={"hint": "count {fingers}"})
    assert (
        teacher(demonstration="answer", template="{demonstration};{prompt}").prompt(prompt).text
        == "2;1+1={}"
    )
    assert (
        teacher(demonstration="hint", template="{{{prompt}}} {demonstration}").prompt(prompt).text
        == "{1+1={}} count {fingers}"
    )
    assert teacher(demonstration="hint").prompt(prompt).text == TEMPLATE.format(
        prompt="1+1={}", demonstration="count {fingers}"
    )


def test_the_last_user_message_of_a_chat() -> None:
    turns = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    messages = tuple({"role": role, "content": text} for role, text in turns)
    prompt = Prompt(id="0", messages=messages, meta={"hint": "h"})
    seen = teacher(demonstration="hint", template="{prompt}|{demonstration}").prompt(prompt)
    assert [m["content"] for m in seen.messages] == ["s", "a", "b", "c|h"]
    assert messages[3]["content"] == "c"


def test_a_row_without_one() -> None:
    assert teacher(demonstration="hint").shows(Prompt(id="0", text="1")) is None
    assert teacher(demonstration="answer").shows(Prompt(id="0", text="1")) is None
    assert teacher(demonstration="hint").shows(Prompt(id="0", text="1", meta={"hint": 0})) == "0"


@pytest.mark.parametrize(
    "template",
    ["{prompt}", "{demonstration}", "{prompt}{demonstration}{answer}", "{prompt", "{}{prompt}"],
)
def test_invalid_templates_are_refused(template: str) -> None:
    with pytest.raises(
        UserError, match=r"^teacher\.template: .*(write a literal brace twice|add it)$"
    ):
        SelfTeacher(demonstration="answer", template=template)


def test_a_template_alone_is_refused() -> None:
    with pytest.raises(UserError, match=r"type teacher\.demonstration=COLUMN, or drop it"):
        teacher(template="{prompt}{demonstration}")
