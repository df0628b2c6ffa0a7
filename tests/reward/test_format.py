import pytest

from rlmods.reward import Format
from tests.reward.samples import response


@pytest.mark.parametrize(
    ("style", "text", "score"),
    [
        ("think_answer", "<think>a</think><answer>5</answer>", 1.0),
        ("think_answer", "  <think>a\nb</think>\n\n<answer>\n5\n</answer>\n", 1.0),
        ("think_answer", "Well, <think>a</think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer>5</answer> so 5", 0.0),
        ("think_answer", "<think>a</think> so <answer>5</answer>", 0.0),
        ("think_answer", "<think> </think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer> </answer>", 0.0),
        ("think_answer", "<think>a</think><think>b</think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer>5</answer><answer>6</answer>", 0.0),
        ("think_answer", "<think>a<answer>5</answer></think>", 0.0),
        ("think_answer", "<answer>5</answer><think>a</think>", 0.0),
        ("think_answer", "<think>a", 0.0),
        ("answer", "so <answer>5</answer>.", 1.0),
        ("answer", "<answer>5</answer><answer>5</answer>", 0.0),
        ("answer", "<answer></answer>", 0.0),
        ("answer", "</answer>5<answer>", 0.0),
        ("answer", "<answer>5", 0.0),
        ("boxed", r"so \boxed{\frac{1}{2}}.", 1.0),
        ("boxed", r"\boxed{1} \boxed{2}", 0.0),
        ("boxed", r"\boxed{ }", 0.0),
        ("boxed", r"\boxed{1", 0.0),
        ("boxed", "5", 0.0),
        ("answer", "<think>so <answer>5</answer>", 0.0),
        ("answer", "<think>is it <answer>4</answer>?</think> no: <answer>5</answer>", 1.0),
        ("boxed", r"[THINK] so \boxed{5}", 0.0),
        ("boxed", r"<think>\boxed{4}?</think> no: \boxed{5}", 1.0),
    ],
)
def test_requires_each_part_once_and_not_empty(style: str, text: str, score: float) -> None:
    assert list(Format(style)([response(text)])) == [score]  # type: ignore[arg-type]
