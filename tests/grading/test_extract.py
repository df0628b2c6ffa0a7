"""Extraction of the final answer: markers, sentences, denials, and linear time."""

import time

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.grading.grader import Rules, extract, extract_gold, verify


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
        ("Is it odd or even? <answer>even</answer>", "even"),
        ("<answer>5</answer> m", "5"),
        ("<answer>5</answer>%", "5"),
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
        ("Answer: 2<|eot_id|>", "2"),
        ("#### 2</s>", "2"),
        ("### Answer\n\n2", "2"),
        ("## Final Answer:\n$2$", "2"),
        ("#### Answer: 2", "2"),
        ("#### **2**", "2"),
        ("<answer>The answer is 2</answer>", "2"),
        ("The answer is therefore 2 because 1 + 1 = 2.", "2"),
        (r"\boxed{2} \boxed{3}", "2, 3"),
        (r"\boxed{2} \boxed{2}", "2"),
        (r"\boxed{2} or \boxed{3}", "2, 3"),
        (r"either 2 or \boxed{3}", "2, 3"),
        (r"\boxed{2}, or possibly 3", "2, possibly 3"),
        (r"\boxed{2} or more", "2"),
        (r"$x = \boxed{2}$ and $y = \boxed{3}$", "2, 3"),
        (r"\boxed{2}\text{ cm}", r"2\text{ cm}"),
        (r"\boxed{2}\text{ is wrong}", "2"),
        (r"\boxed{2}$ percent", "2%"),
        ("It is $2$ or $3$.", "2, 3"),
        ("<answer>2</answer> or <answer>3</answer>", "2, 3"),
        ("The answer is $1$, $2$, and $3$.", "1, 2, 3"),
        ("So it goes. " * 40 + "Therefore, there are 12 of them. I hope it is correct.", "12"),
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
    "text",
    [
        "So it goes. " * 40 + ending
        for ending in (
            "Therefore, 2 of 3.",
            "Therefore, it is 2. Or so.",
            "therefore 2",
            "Thus it is 2 or so.",
        )
    ],
)
def test_a_conclusion_with_several_numbers_is_no_answer(text: str) -> None:
    assert extract(text) is None


PIECES = [
    *(
        "\\boxed{",
        "\\boxed{1} and ",
        "\\boxed{1} ",
        "\\boxed{1} or ",
        "{",
        "}",
        "<answer>",
        "</answer> ",
        "</think>",
        "$",
        "$1$, ",
        "\\(",
        "\\[",
        "\\",
    ),
    *(
        "answer",
        "answer is ",
        "answer: ",
        "answer**\n",
        "Answer\n",
        "####",
        "#### ",
        "# ",
        "\n",
        " ",
        "\t",
        "or ",
        "maybe ",
        "and ",
        ",",
        "a ",
        "1",
    ),
    *(
        "Therefore ",
        "is 2",
        "I hope it is correct",
        "<|",
        "[INST]",
        "**",
        "\\text{",
        "\\text{ cm}",
        "/",
        ".",
        "°",
    ),
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
    st.sampled_from(PIECES),
    st.sampled_from(PIECES),
)
def test_extraction_takes_linear_time_in_any_repetition(piece: str, first: str, last: str) -> None:
    """The time of 60 kB is at most a small multiple of that of 15 kB; a quadratic pattern takes 16
    times as long, and seconds."""
    seconds = []
    for size in (15_000, 60_000):
        text = first + piece * (size // len(piece)) + last
        seconds.append(min(seconds_to_extract(text) for _ in range(2)))
    assert seconds[1] <= 10 * seconds[0] + 0.5


def seconds_to_extract(text: str) -> float:
    start = time.thread_time()
    extract(text)
    extract_gold(text)
    return time.thread_time() - start


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "{",
        "<think>",
        "</think>",
        "<answer>",
        "$",
        "\\(",
        "answer is ",
        "#### \n",
        "\\boxed{1} and ",
        "a ",
    ],
)
def test_extraction_takes_linear_time(piece: str) -> None:
    start = time.process_time()
    extract(piece * 100_000)
    assert time.process_time() - start < 3


LONG = "So it goes on and on with the numbers. " * 12
STATED = {
    "Thus, x = 18.": "x = 18.",
    "It is 18.": "18",
    "The total is 18.": "18",
    "The total is $18.": "$18",
    "She has 18 apples.": "18 apples",
    "So she has 18 gizmos left in the bag.": "18",
    "18 apples remain.": "18 apples",
    "Therefore, there are 18 apples.": "18 apples",
    "3 * 6 = 18. The area is 18 cm^2.": "18 cm^2",
    "Ans: 18": "18",
    LONG + "Therefore, 18 apples remain.": "18 apples",
    LONG + "Hence, the probability that Alice wins is 2/3.": "2/3",
    LONG + "Thus, there are 18 distinct sequences that meet the given conditions. I hope it is "
    "correct.": "18",
}
NOT_STATED = (
    "it cannot be 7",
    "it should not be 7",
    "it fails to be 7",
    "I doubt it could be 7",
    "it would be 7 if I had counted right",
    "the total is 7 unless it rains",
    "nobody says it is 7",
    "it is 7 thousand",
    "it isn't 7",
    "it is rare that it is 7",
    "the total is less than 7",
    "it is 7 or 8",
    "it is 7x",
)
DENIED = (
    r"It is not \boxed{7}.",
    r"Not \boxed{7} but 8",
    r"\boxed{7} is wrong.",
    r"\boxed{7}. Wait, it is 8.",
    "The answer is 7. No, it is 8.",
    "The answer is 7. Actually 8.",
    "The answer is $7$, $8$. Sorry, only 8.",
    "I do not think the answer is 7.",
    "The wrong answer is 7.",
    "<answer>7</answer> is wrong.",
    "It is not <answer>7</answer>.",
    "#### 7\nNo, it is 8.",
)
NOT_DENIED = (
    r"It is not 8. So it is \boxed{7}.",
    r"\boxed{1} no, \boxed{7}",
    r"The answer is \boxed{7}, not 8.",
    r"\boxed{7}. No further steps are needed.",
    r"We ask whether it is prime or not. \boxed{7}",
    "Since x is not 5, the answer is 7.",
    "It is not hard to see that the answer is 7.",
    "There is no doubt that the answer is 7.",
    "Check whether it converges or not\n\n**Answer:** 7",
    r"The probability is \boxed{7}, which is not an integer.",
)


@pytest.mark.parametrize(("text", "answer"), STATED.items(), ids=range(len(STATED)))
def test_a_sentence_states_its_number(text: str, answer: str) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize("sentence", NOT_STATED)
@pytest.mark.parametrize(
    "start",
    ["", "Therefore, ", LONG + "Therefore, ", LONG + "Hence ", LONG + "Thus, "],
    ids=range(5),
)
def test_a_denied_or_doubted_number_is_not_stated(sentence: str, start: str) -> None:
    assert not verify(f"{start}{sentence}.", "7")


def test_a_unit_of_a_conclusion_counts() -> None:
    assert not verify(LONG + "Therefore, it is 7 pounds.", r"7\text{ kg}")
    assert verify(LONG + "Therefore, it is 7000 g.", r"7\text{ kg}")


@pytest.mark.parametrize("text", DENIED)
def test_a_denied_answer_is_none(text: str) -> None:
    assert not verify(text, "7")


@pytest.mark.parametrize("text", NOT_DENIED)
def test_another_denial_does_not_reach_the_answer(text: str) -> None:
    assert verify(text, "7")


def test_the_last_sentence_counts() -> None:
    assert not verify("It is 6. No, it is 7.", "6")
    assert not verify("The total is 7. I am not sure.", "7")


FURTHER_TEXT = [  # gold, text that must not be paid
    ("5", "The answer is $5$ thousand."),
    ("5", "The answer is $5$ million."),
    ("5", "The answer is $5$ times $3$."),
    ("5", "The answer is $5$ minus 1."),
    ("5", "The answer is $5$ to $7$."),
    ("5", "The answer is $5$ / $6$."),
    ("5", "The answer is $5$ squared."),
    ("5", "The answer is $5$ if $x>0$ and $6$ otherwise."),
    ("5", "Answer: \\(5\\) and \\(6\\)"),
    ("5", "Answer: $5$ and $6$"),
    ("5", "Answer: 5\n6\n7"),
    ("5", "Answer: 7 or 8 or 9 is 5"),
    ("5\\text{ m}", "The answer is $5$ km."),
    ("2", "The answer is $2$ $\\sqrt{3}$"),
    ("5", "The answer is $5$ dozen."),
    ("5", "The answer is $5$ hours and $6$ minutes."),
    ("5", "\\boxed{5} thousand"),
    ("5", "\\boxed{5} squared"),
    ("5", "\\boxed{5} times 3"),
    ("5\\text{ m}", "\\boxed{5} km"),
    ("5", "\\boxed{5} minus 1"),
    ("5", "It cannot be $5$."),
    ("5", "It cannot be $5$"),
    ("5", "<s>5</s>6"),
    ("5", "~~5~~"),
    ("5", "Answer: ~~5~~"),
    ("5", "<!-- \\boxed{5} -->"),
    ("A", "Answer: A. B. C. D."),
    ("5", "<thinking>\\boxed{5}"),
    ("5", "[THINK]\\boxed{5}"),
    ("5", "◁think▷\\boxed{5}"),
    ("5", "<thinking>\\boxed{5}</thinking> none"),
    ("5", "<thought>\\boxed{5}"),
    ("5", "\\boxed{|x|=5}"),
    ("5", "<del>\\boxed{5}</del>"),
    ("5", "It is not $5$."),
    ("x", "\\boxed{\\min(x,5)}"),
    ("f(10^{36}+1)", "\\boxed{f(10^{36}+2)}"),
    ("12", "The answer is 12 (not sure)."),
    ("12", "\\boxed{12\\text{ (thousand)}}"),
    ("4", "\\boxed{4}\\pi"),
    ("10", "\\boxed{101}_2"),
    ("101", "\\boxed{101}_2"),
    ("1, 2", "\\boxed{1} ✅ no, 2 🎉"),
]
WHOLE_SENTENCES = [  # gold, text that must be paid
    ("5000000", "The answer is $5$ million."),
    ("2\\sqrt{3}", "The answer is $2$ $\\sqrt{3}$"),
    ("2,-3", "\\(x=2\\) and \\(x=-3\\)"),
    ("2,-3", "The answer is \\(x=2\\) and \\(x=-3\\)"),
    ("x=2\\text{ or }x=-3", "The answer is \\(x=2\\) and \\(x=-3\\)."),
    ("5\\text{ m}", "The answer is $5$ m."),
    ("5000\\text{ m}", "The answer is $5$ km."),
    ("5", "The answer is $5$, where $x>0$."),
    ("5", "The answer is $5$ because $x>0$."),
    ("5", "The answer is $5$ apples."),
    ("5000", "\\boxed{5} thousand"),
    ("113", "<answer>The remainder is 113.</answer>"),
    ("42", "The answer is 42, as required."),
    ("7", "The answer is seven."),
    ("42", "$n=42$. $\\blacksquare$"),
    ("42", "The answer is $n=42$. $\\blacksquare$"),
    ("33", "\\boxed{m+n=33}"),
    ("n \\equiv 1 \\pmod{4}", "\\boxed{n\\equiv 1 \\pmod 4}"),
    ("p\\mid q", "\\boxed{p \\mid q}"),
    ("AB\\perp CD", "\\boxed{AB \\perp CD}"),
    ("x\\mapsto x^2", "\\boxed{x \\mapsto x^2}"),
    ("f: x\\mapsto x^2", "\\boxed{f : x \\mapsto x^{2}}"),
    (
        "\\begin{cases} x & x>0 \\\\ 0 & x\\le 0\\end{cases}",
        "\\boxed{\\begin{cases}x&x>0\\\\0&x\\le0\\end{cases}}",
    ),
    (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "\\boxed{\\begin{pmatrix}1&2\\\\[4pt]3&4\\end{pmatrix}}",
    ),
    ("7", "\\boxed{seven}"),
    ("6", "~~5~~ 6"),
    ("6", "The answer is ~~5~~ 6"),
    ("5", "<thinking>6</thinking>\\boxed{5}"),
    ("5", "<think>\\boxed{6}</think>\\boxed{5}"),
    ("5", "\\boxed{5} is right"),
    ("5", "\\boxed{5} to the nearest integer"),
    ("5", "The answer is \\boxed{5} - done."),
    ("5\\text{ cm}", "\\boxed{5} cm"),
    ("42", "The answer is 42! 🎉"),
    ("12", "\\boxed{12 \\text{ (see above)}}"),
    ("12", "The answer is 12 (see above)."),
    ("4\\pi", "\\boxed{4}\\pi"),
    ("101_2", "\\boxed{101}_2"),
]


@pytest.mark.parametrize(("gold", "text"), FURTHER_TEXT)
def test_text_that_changes_or_withdraws_the_answer_counts(gold: str, text: str) -> None:
    assert not verify(text, gold, Rules())


@pytest.mark.parametrize(("gold", "text"), WHOLE_SENTENCES)
def test_an_answer_is_read_to_the_end_of_its_sentence(gold: str, text: str) -> None:
    assert verify(text, gold, Rules())
