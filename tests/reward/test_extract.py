from __future__ import annotations

import time

import pytest

from rlmods.reward.grader import extract, extract_gold


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{7} remain", "7"),
        (r"\boxed 9$", "9"),
        (r"\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}", "(2,2), (6,2)"),
        (r"first \boxed{3}. Then the sum is \boxed{4}", "4"),
        (r"\boxed{6}. Answer: 5", "6"),
        ("<answer> 3 </answer> and <answer>4</answer>", "4"),
        ("sum\n#### 72", "72"),
        ("Answer: 18", "18"),
        ("**Answer:** 18", "18"),
        ("The final answer is $(0, 1)$. I hope it is correct.", "(0, 1)"),
        ("The answer is 3.5. Done", "3.5"),
        ("The answer is $28$ %", "28%"),
        ("Therefore $x \\geq 5$ is the solution.", r"x \geq 5"),
        ("1,000.99", "1,000.99"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"reasoning </think> \boxed{2}", "2"),
        (r"\boxed{2}<|im_end|> <|im_start|>user \boxed{3}", "2"),
    ],
)
def test_the_last_marked_answer_is_extracted(text: str, answer: str) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        r"<think>\boxed{5}",
        r"<think> a </think> <think> \boxed{5}",
        r"\boxed{}",
        r"\boxed{5} or rather \boxed{6",
        "word " * 100 + "so we get 5",
        r"\boxed{" + "1+" * 2000 + "1}",
    ],
)
def test_no_answer(text: str) -> None:
    assert extract(text) is None


def test_answer_of_a_gold_solution_is_its_box_or_last_line() -> None:
    assert extract_gold(r"Since $a = 3$, it is \boxed{14{,}916}.") == "14{,}916"
    assert extract_gold("5 + 7 = <<5+7=12>>12\n#### 12") == "12"
    assert extract_gold(" 12 ") == "12"


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "{", "<think>", "</think>", "<answer>", "$", "\\(", "answer is ", "#### \n", "\\boxed{1} and ", "a "]
)
def test_extraction_takes_linear_time(piece: str) -> None:
    start = time.perf_counter()
    extract(piece * 100_000)
    assert time.perf_counter() - start < 3
