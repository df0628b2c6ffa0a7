"""Comparison of single values: numbers, percentages, units, expressions, words, and rounded
decimals."""

import re
from fractions import Fraction

from rlmods.grading.grader.evaluate import POINTS, evaluate, free_names, unknowns
from rlmods.grading.grader.literal import same_literal
from rlmods.grading.grader.numbers import Undefined, Value, as_mp, close, is_real
from rlmods.grading.grader.rules import STRICT, Rules
from rlmods.grading.grader.style import MAX_CHARS, TEXT_COMMAND, clean_pair
from rlmods.grading.grader.syntax import Node
from rlmods.grading.grader.units import read_unit

_PLAIN = re.compile(r"([-+]?(?:\d{1,100}(?:/\d{1,100}|\.\d{0,100})?|\.\d{1,100}))°?", re.ASCII)
_FRACTION = re.compile(r"(?<![\d.])\\[dt]?frac\{(\d{1,100})\}\{(\d{1,100})\}", re.ASCII)
_CHOICE_LABEL = re.compile(
    r"(?i:(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?:? ?)(?=\(?[A-Z]\b)"
)
_CHOICE = re.compile(r"\(?([A-Z])(?:\)|[.:](?:\s|\Z)|\Z)")
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z])(?:(?!A [a-z])[A-Z](?![A-Za-z'])|(?:or|and|not|nor)\b)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_SYMBOLS = re.compile(
    r"[a-z]{1,3}|(?:[a-z]{1,2}|[A-Z])(?: ?- ?(?:[a-z]{1,2}|[A-Z]))+|[A-Za-z](?: [A-Za-z])+"
)
"""Products or differences of symbols, which _WORDS matches too."""
_ANY_CASE = re.compile(r"[A-Z][a-z]+|.*[A-Za-z]{4}.*")
"""Words compared without regard to case: Yes, even; but not X and x, or AB and ab."""
_SHORT_WORDS = frozenset(("yes", "no", "odd", "even", "true", "false", "none"))
"""Words as short as symbols, compared without regard to case."""
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
NUMERALS = {word: str(number) for number, word in enumerate(_NUMERALS.split())}
_NOT_A_NUMBER = frozenset(("", "nan", "+nan", "-nan", "null"))


def is_gold(gold: str) -> bool:
    """Return False for a gold that no answer can equal: an empty text, or the NaN or null of a
    number that was never computed."""
    return gold.strip().strip("$").casefold() not in _NOT_A_NUMBER


def same_plain(answer: str, gold: str, rules: Rules = STRICT) -> bool | None:
    """Return the verdict if it needs no parser: the same text, two plain numbers, or a gold that is
    prose. Otherwise None."""
    if max(len(answer), len(gold)) > MAX_CHARS:
        return answer.strip() == gold.strip() != ""
    answer, gold = clean_pair(answer, gold)
    if not answer or not is_gold(gold):
        return False
    if answer == gold:
        return True
    gold_number = plain_number(gold)
    if gold_number is not None:
        answer = NUMERALS.get(strip_markup(answer).casefold(), answer)
    answer_number = plain_number(answer)
    if gold_number is None:
        literal = same_literal(answer, gold)
        return _same_text(answer, gold) if literal is None else literal
    if answer_number is None:
        return _same_text(answer, gold)
    if rules.form == "number" and not _is_reduced(answer, answer_number):
        return False
    digits = rules.repeating_digits
    return (
        answer_number == gold_number
        or _is_rounding(gold_number, answer, answer_number, digits)
        or _is_rounding(answer_number, gold, gold_number, digits)
    )


def plain_number(text: str) -> Fraction | None:
    """Return the value of an integer, decimal or simple fraction; None for any other text."""
    match = _PLAIN.fullmatch(_FRACTION.sub(r"\1/\2", text))
    try:
        return None if match is None else Fraction(match[1])
    except ZeroDivisionError:
        return None


def _is_reduced(text: str, value: Fraction) -> bool:
    """Return True for a plain number that is not a fraction, or one in lowest terms other than
    n/1."""
    _, slash, bottom = _FRACTION.sub(r"\1/\2", text).rstrip("°").partition("/")
    return not slash or value.denominator == int(bottom) > 1


def _same_text(answer: str, gold: str) -> bool | None:
    answer_words = strip_markup(answer)
    gold_words = strip_markup(gold)
    if answer_words == gold_words:
        return True
    if gold_words.casefold() in _SHORT_WORDS:
        return answer_words.casefold() == gold_words.casefold()
    answer_words = _without_label(answer_words)
    gold_words = _without_label(gold_words)
    choice = _CHOICE.match(answer_words)
    if choice is not None and re.fullmatch("[A-Z]", gold_words):
        other = _OTHER_CHOICE.search(answer_words, choice.end())
        return choice[1] == gold_words and other is None
    is_words = _WORDS.fullmatch(gold_words) is not None
    in_any_case = any(map(_ANY_CASE.fullmatch, (answer_words, gold_words)))
    same = in_any_case and answer_words.casefold() == gold_words.casefold()
    if same and (is_words or TEXT_COMMAND.fullmatch(gold)):
        return True
    return False if is_words and not _SYMBOLS.fullmatch(gold_words) else None


def _without_label(words: str) -> str:
    """Return "B" for "Option B" or "choice (B)", and other words unchanged."""
    label = _CHOICE_LABEL.match(words)
    return words if label is None else strip_markup(words[label.end() :])


def strip_markup(text: str) -> str:
    """Return `text` without markup of prose. Braces are removed only if no command is left whose
    arguments they could be."""
    while TEXT_COMMAND.search(text):
        text = TEXT_COMMAND.sub(r"\1", text)
    text = re.sub(r"\\[ ,;:!]|~", " ", text)
    if not re.search(r"[\\^_]", text):
        text = text.replace("{", " ").replace("}", " ")
    text = " ".join(text.split()).rstrip(" .")
    return text[1:-1] if re.fullmatch(r"\([A-Za-z]\)", text) else text


def same_value(gold: Node, answer: Node, rules: Rules) -> bool:
    """Return True if two single values are equal, with their units, percent signs and rounding."""
    if "base" in (gold.op, answer.op):
        return gold.op == "base" and answer.op == "number" and gold.text == answer.text
    if "text" in (gold.op, answer.op):
        return gold.op == answer.op and gold.text.casefold() == answer.text.casefold()
    word = letters(gold) if gold.text == "adjacent" else None
    if word is not None:
        return word == letters(answer)
    factor = _unit_factor(gold, answer, rules)
    if factor is None:
        return False
    has_unit = "unit" in (gold.op, answer.op)
    gold = gold.args[0] if gold.op == "unit" else gold
    answer = answer.args[0] if answer.op == "unit" else answer
    if has_unit and "%" in (gold.op, answer.op):
        return False
    if factor != 1:
        answer = Node("*", (answer, Node("number", value=factor)))
    if gold.op == "%" and answer.op != "%":
        return same_value(gold.args[0], answer, rules) or _equal(gold, answer)
    if answer.op == "%" and gold.op != "%":
        return _equal(gold, answer)
    return (
        _equal(gold, answer)
        or _is_rounded_decimal(gold, answer, rules)
        or _is_rounded_decimal(answer, gold, rules)
    )


def _unit_factor(gold: Node, answer: Node, rules: Rules) -> Fraction | None:
    """Return the size of the answer's unit in that of the gold, 1 where one of them has none, and
    None if they differ in kind.

    An answer's words are a unit only if they are known, or those of the gold.
    """
    if answer.op != "unit" or (gold.op == "unit" and _words(answer) == _words(gold)):
        return Fraction(1)
    unit = read_unit(answer.text)
    gold_unit = read_unit(gold.text) if gold.op == "unit" else unit
    if unit is None or gold_unit is None:
        return Fraction(1) if rules.any_unit else None
    return unit.factor / gold_unit.factor if unit.powers == gold_unit.powers else None


def _words(unit: Node) -> str:
    return " ".join(unit.text.casefold().split())


def letters(node: Node) -> str | None:
    """Return the letters of a product of single letters, in order: an arrangement, a word or a
    name. None for another node."""
    if node.op == "name" and not node.args and len(node.text) == 1:
        return node.text
    parts = list(map(letters, node.args)) if node.op == "*" else [None]
    return None if None in parts else "".join(map(str, parts))


def _equal(gold: Node, answer: Node) -> bool:
    """Return True if equal at every random point at which both are real or both complex."""
    compared = 0
    for point in range(POINTS if unknowns(gold) | unknowns(answer) else 1):
        is_optional = point >= POINTS - 2
        try:
            gold_value = evaluate(gold, point)
            answer_value = evaluate(answer, point)
        except Undefined:
            if not is_optional:
                raise
            continue
        # the logarithm or root of a negative number has several values
        are_real = is_real(gold_value) and is_real(answer_value)
        other_branch = is_optional and not are_real
        if not other_branch and not close(gold_value, answer_value):
            return False
        compared += 1
    return compared > 0


def _is_rounded_decimal(exact: Node, decimal: Node, rules: Rules) -> bool:
    literal = decimal.args[0] if decimal.op == "neg" else decimal
    if not re.fullmatch(r"\d*\.\d*", literal.text) or free_names(exact) - {"e"}:
        return False
    value = evaluate(exact)
    if not is_real(value):
        return False
    digits = rules.repeating_digits if isinstance(value, Fraction) else rules.irrational_digits
    return _is_rounding(value.real, literal.text, evaluate(decimal), digits)


def _is_rounding(exact: Value, literal: str, value: Fraction, digits: int) -> bool:
    """Return True if the decimal `literal` is `exact`, which has no finite decimal, rounded to its
    last place.

    Requires two decimal places and `digits` significant digits: 0.00 is not 1/300.
    """
    places = len(literal.partition(".")[2].rstrip("°"))
    num_digits = sum(map(str.isdigit, literal.lstrip("+-0.")))
    if places < 2 or num_digits < digits:
        return False
    if (
        isinstance(exact, Fraction)
        and 10 ** exact.denominator.bit_length() % exact.denominator == 0
    ):
        return False
    return bool(abs(as_mp(exact) - as_mp(value)) <= as_mp(Fraction(1, 2 * 10**places)))
