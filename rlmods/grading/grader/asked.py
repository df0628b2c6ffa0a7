"""What an answer takes from its question: the words that are counted, as in "72 clips" where the
question asks for clips, the unit that is asked, as in "40%", and the name of what is asked, as in
"m + n = 33" or "dy/dx = 2x"."""

import re
from functools import lru_cache

from rlmods.grading.grader.style import BOLD, WORD, compact, flat
from rlmods.grading.grader.syntax import word_set
from rlmods.grading.grader.units import read_unit
from rlmods.grading.grader.values import NUMERALS, plain_number

_NUMBER = rf"[-+]?\\?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?|{'|'.join(NUMERALS)}"
_COUNTED = re.compile(
    r"(?P<before>(?:[A-Za-z][A-Za-z',:-]* ){0,12})"
    rf"(?P<number>{_NUMBER})\\?\$? ?"
    r"(?P<words>(?<= )[A-Za-z][A-Za-z' -]{1,60}|)\.?",
    re.ASCII | re.IGNORECASE,
)
"""A sentence with one number."""
_FILLER = word_set(
    "of the a an in total altogether all are is was were left remaining there so thus therefore "
    "she he they it we answer needs need has have get gets got"
)
_CHANGES = word_set(
    "more less fewer than half halves third quarter twice thrice double triple per times dozen "
    "score gross pair hundred thousand million billion trillion percent over under plus minus not "
    "no never negative to out or nor squared cubed factorial about almost nearly approximately "
    "around least most mod base power fifth sixth seventh eighth ninth tenth hundredth "
    "fourth twelfth thousandth if unless except cannot without"
)
"""Words that change a number, compare it with another, or restrict it."""
_SCALE_ASKED = re.compile(
    r"\bhow many (dozen|score|pair|hundred|thousand|million|billion|trillion)", re.IGNORECASE
)
_PERCENT_ASKED = re.compile(r"\b(?:what|how many) percent(?:age)?\b", re.IGNORECASE)
_PERCENT = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?) ?(?:\\?%|percent)", re.ASCII)
_RESIDUE = re.compile(
    r"(?:[^=<>]*\\equiv)?\s*(\d+)\s*(?:\\[pb]?mod\s*\{?|\(\s*mod\b)\s*(\d+)\s*[})]?", re.ASCII
)
_IS_GIVEN = re.compile(r"=|is-?\d|equals")
"""What follows a name, in a text without spaces, whose value the question gives."""
_VALUE = re.compile(r"[-\d.,/ ]+")
"""A number instead of a sum: an equation of two numbers states neither."""
_LABEL = re.compile(r"((?:[^=<>!~(\[\\]|\\(?:[(\[]|(?![(\[]))|[(\[][^()\[\]]*[)\]]){1,60})=(?!=)")
_SET = r"[A-Z](?:\\c[ua]p[A-Z])*"
_VECTOR = r"(?:\\(?:vec|mathbf|bm|overrightarrow))"
_D = r"(?:(?:\\mathrm)?d|\\partial)"
_NAMES = re.compile(
    rf"\\frac{_D}(?:\^\d)?[a-zA-Z]?(?:\([a-z]\))?{_D}[a-z].*"
    rf"|\|{_VECTOR}[A-Za-z]+\||\\\|{_VECTOR}?[A-Za-z]+\\\||\|{_SET}\||\\#{_SET}|n\({_SET}\)"
    r"|(?:P|E|\\Pr|\\(?:mathbb|mathrm)[PE]|\\operatorname(?:E|Var))[(\[].*[)\]]"
    r"|(?:[a-zA-Z]|\\(?:var)?phi)(?:'+|\^\(\d\)|\^-1)?\((?:-?\d+(?:,\d+)*|[a-z])\)"
    r"|\([fgh]\\circ[fgh]\)\(.*\)"
    r"|\\(?:text|mathrm|operatorname)?(?:det|deg|dim|max|min|tr|rank)"
    r"\(?(?:[A-Za-z](?:\([a-z]\))?)?\)?"
    r"|\[[^\[\]]*\]_.*"
)
"""Names of what is asked, in a text without spaces and braces: derivatives, norms, sizes of sets,
probabilities, values of functions."""
_FUNCTION = re.compile(r"[yfghp](?:\([a-z]\))?")


def as_asked(answer: str, gold: str, question: str) -> str:
    """Return an answer without the name of what the question asks for, and beside a gold that is a
    plain number without words of the question. Other answers are unchanged.

    A percent sign is left out where the question asks what percent, unless the gold is a part of
    one, and a modulus where it is that of the question. Other units of measurement stay, as they
    are converted. So do words that change the number, unless the question asks how many dozens
    there are."""
    gold = gold.strip(" $.")
    answer = _without_label(answer, gold, question)
    wanted = plain_number(gold)
    if not question or wanted is None:
        return answer
    words = flat(answer).strip(" $")
    percent = _PERCENT.fullmatch(words)
    if percent is not None and _PERCENT_ASKED.search(question):
        return answer if plain_number(percent[1]) == 100 * wanted else percent[1]
    residue = _RESIDUE.fullmatch(words)
    if residue is not None and _asks_modulo(residue[2], question):
        return residue[1]
    return _number_stated(answer, question) or answer


def _asks_modulo(modulus: str, question: str) -> bool:
    return re.search(rf"(?:mod(?:ulo)?|divided by)\W{{0,5}}{modulus}(?!\d)", question) is not None


def _without_label(answer: str, gold: str, question: str) -> str:
    """Return an answer such as `m+n=33` without its left side, if the question asks for it or its
    form tells that it is a name. Beside a gold `f(x)=2x`, another name of the function becomes
    `f(x)`."""
    label = _LABEL.match(answer)
    if label is None:
        return answer
    name = compact(label[1])
    value = answer[label.end() :]
    if "=" not in gold:
        return value if _NAMES.fullmatch(name) or _asks_for(name, question) else answer
    gold_name, _, _ = gold.partition("=")
    are_functions = all(map(_FUNCTION.fullmatch, (name, compact(gold_name))))
    return f"{gold_name}={value}" if are_functions and "=" not in value else answer


def _number_stated(answer: str, question: str) -> str | None:
    """Return the number of an answer whose words all occur in the question, such as "Ann sold 17 +
    34 = 51 crates"; None if there is a word that is not in the question or changes the number."""
    computed, _, sentence = flat(BOLD.sub("", answer)).strip(" $").rpartition("= ")
    match = _COUNTED.fullmatch(sentence)
    if match is None or _VALUE.fullmatch(computed) or read_unit(match["words"]) is not None:
        return None
    words = WORD.findall(f"{computed} {match['before']} {match['words']}")
    nouns = {_stem(word) for word in words if word.casefold() not in _FILLER}
    spoken = nouns | set(map(str.casefold, words))
    scales_asked = set(_SCALE_ASKED.findall(question.casefold()))
    changes = (_CHANGES | NUMERALS.keys()) & spoken - scales_asked
    if changes or not nouns <= _stems(question):
        return None
    return NUMERALS.get(match["number"].casefold(), match["number"])


def _asks_for(name: str, question: str) -> bool:
    """Return True if a name of several characters occurs in the question, and is not a side of an
    equation there."""
    text = compact(question)
    start = text.find(name) if len(name) > 2 else -1
    return start >= 0 and not _IS_GIVEN.match(text, start + len(name))


@lru_cache(maxsize=1024)
def _stems(question: str) -> frozenset[str]:
    return frozenset(map(_stem, WORD.findall(question)))


def _stem(word: str) -> str:
    """Return a word in small letters without the `s` of its plural."""
    return word.casefold().removesuffix("s").removesuffix("'")
