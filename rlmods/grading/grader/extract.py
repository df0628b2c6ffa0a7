r"""Extraction of the final answer from a response: the last part that is marked as an answer, or
None.

Every pattern is linear: it is applied at one position, or each of its matches consumes the text
that it has read. So extraction needs no deadline. An unmarked last number in a long response is not
an answer, so that numbers in passing earn nothing.

A plain sentence states its only number after "is", "equals", "has" and similar verbs, or before
"remain": "The total is 18 dollars." A sentence that denies, doubts or restricts it states nothing:
"It cannot be 18.", "It is 18 if it rains." """

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlmods.grading.grader.style import (
    BOLD,
    MATH,
    MAX_CHARS,
    TEXT,
    WORD,
    closing_brace,
    plain_characters,
)
from rlmods.grading.grader.units import read_quantity, read_unit
from rlmods.grading.turns import after_thoughts

MAX_UNMARKED_CHARS = 300
"""A response without any marker counts as an answer only up to this length."""
MAX_GAP_CHARS = 120
"""Longer text between two marks does not join them."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s${}\\]+)")
_TAGS = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)
_DELIMITER = (
    r"[\s$~&]|\\[()\[\] ,;:!>/]|\\(?:q?quad|enspace|thinspace|hfill)(?![A-Za-z])"
    r"|\\[hv]space\*?\{[^{}]{0,20}\}|\\\\"
)
_AND = (
    r"\\(?:text|textrm|mathrm|mbox)\{\s*(?:and|or|[,;/])?\s*\}"
    r"|\\(?:l?or|l?and|vee|wedge)(?![A-Za-z])|and\b|or\b|[,;/|]"
)
_LABEL = r"(?:\([a-z0-9]{1,3}\)\s*|[-*]\s+)?(?:[A-Za-z](?:_\{?\d\}?)?\s*=\s*)?"
_JOINT = re.compile(
    rf"(?:{_DELIMITER})*(?:(?:[a-z]+\s+)?(?:{_AND})(?:{_DELIMITER}|{_AND})*)?{_LABEL}[\s$]*"
)
"""Text between two marks of one list."""
_HEDGE = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b", re.IGNORECASE)
_HEDGE_AFTER = re.compile(
    r"(?:[\s$.,;:!*)}\]]|\\[)\]])*\(?"
    r"(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b,?\s*"
    r"(?!equivalently|simply|approximately|about|more|less|fewer)"
    r"((?:[a-z]+\s+){0,3}(?:[-+$\d\\(*]|[a-zA-Z]\b)[^\n.]{0,80})",
    re.IGNORECASE,
)
_HEDGE_BEFORE = re.compile(
    r"([-+\w.\\${}]*[\w}$])[\s,;]*\b(?:or|alternatively|maybe|perhaps|possibly)\b[^\n.]{0,20}\Z",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_HEADING = re.compile(r"\A(?:the\s+)?(?:final\s+)?answer\b[\s:*]*", re.IGNORECASE)
_EMPHASIS = r"(?:[*_}]{1,3}|</[a-z]{1,6}>)?"
_SUBJECT = r"(?:answer|(?:correct|right) (?:choice|option))"
_STATED = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_SUBJECT}{_EMPHASIS}\s*(?:is\b|:)|ans\.?\s*:){_EMPHASIS}[:\s]*"
    r"|\banswer\*\*\s*\n\s*"
    r"|^[#*_ \t]{0,20}(?:the[ \t]+)?(?:final[ \t]+)?answer[*_ \t]*\n\s*",
    re.IGNORECASE | re.MULTILINE,
)
_PERCENT_AFTER = re.compile(r"(?:\$|\\[)\]])?\s{0,3}(?:\\?%|percent\b|pct\b)")
_SCRIPT_AFTER = re.compile(
    r"(?:\s?[_^]\s?(?:\{[^{}]{1,20}\}|\\circ|\w))+"
    r"|\s?\\(?:pi|sqrt|[dt]?frac)(?![A-Za-z])[^\s$]{0,40}"
)
_UNIT_AFTER = re.compile(
    rf"\$?(?:\s|~|\\[,; ]){{0,5}}{TEXT}\{{([^{{}}\n]{{1,40}})\}}(?:\^\{{?[23]\}}?)?"
)
_SENTENCE_END = re.compile(
    r"\.(?=\s|$)|[。｡]|\n|,?\s(?:because|since)\b"
    r"|,\s(?:as (?:required|desired|claimed|needed)|which)\b"
)
_FILLER = re.compile(
    r"\A(?:(?:therefore|thus|then|hence|simply|exactly|just|indeed|clearly|given by|equal to)\b"
    r"[\s,:]*)+",
    re.IGNORECASE,
)


_QED = re.compile(r"(\$?)\\(?:blacksquare|square|Box|qed)\1\Z")
_JOY = "✅✓✔⭐✨🎉🎊👍\ufe0f" + "".join(map(chr, range(0x1F600, 0x1F610))) + " \t\r\n"
"""Signs of joy, and the space between them."""
_QUOTED = re.compile(r"^> ?(?=\*\*|[A-Za-z$\\])", re.MULTILINE)
_STRUCK = re.compile(
    "|".join(
        rf"{start}(?:(?!{start}).)*?{end}"
        for start, end in (
            ("<!--", "-->"),
            ("<s>", "</s>"),
            ("<del>", "</del>"),
            ("<strike>", "</strike>"),
        )
    ),
    re.DOTALL,
)
"""Comments, and text that is struck out."""
_TILDES = re.compile(r"(?<![\w}~\\])~~(?=[^\s~])[^~\n]{1,80}~~(?!\w)")
_CLAUSE = re.compile(r",?\s*\b(?:where|which|because|since|as|so|obtained|giving)\b|[(\[]")
"""Beginnings of what only explains an answer."""
_CHANGED_AFTER = re.compile(
    r"(?:[ \t$*_]|\\[)\]])*(?:(?:squared|cubed|factorial)\b"
    r"|(?:times|minus|plus|over|divided by|multiplied by|to|through|mod|[-+*/^]"
    r"|\\(?:times|cdot|div)(?![A-Za-z]))\s*(?:[-\d$\\]|\((?![A-Za-z]{2})))",
    re.IGNORECASE,
)
"""What makes an answer a part of an expression."""
_SCALED = re.compile(
    r"(?:[ \t$*_~]|\\[)\]])*((?P<scale>hundred|thousand|million|billion|trillion|dozen)\b"
    r"(?: [a-z]+)?|[A-Za-z]{2,}(?:/[A-Za-z]+)?(?:\^\{?[23]\}?)?)(?=[\s$.,;:!)*]|\Z)"
)
_JOINER = re.compile(r"\s*(?:,\s*(?:(?:and|or)\b)?|;|and\b|or\b)\s*")
_CHOICES = re.compile(r"\(?[A-Z]\)?(?:[.,;/\s]+\(?[A-Z]\)?){1,10}[.\s]*", re.ASCII)
_LINE = re.compile(r"\s*\$?[-+]?[\d\\][^A-Za-z\n]{0,40}\$?\s*")


class Mark(NamedTuple):
    """A part of a text that is marked as an answer."""

    start: int
    end: int
    content: str | None
    """None if the mark is never closed."""


def extract(text: str) -> str | None:
    r"""Return the final answer in `text`, or None.

    Only the first turn (`first_turn`) after its last `</think>` counts; an unclosed `<think>` means
    no answer. Then the first of these rules that applies: the last `\boxed{}` (boxes side by side,
    or joined by "and", "or" or a comma, are one list), `<answer>`, `####`, "Answer:", a heading
    "Answer" or "the answer is", the number that a last sentence states which begins with
    "Therefore" , and for a short text its last formula, the number that its last
    sentence states, or the whole text. An alternative that follows the answer ("or 6") is a part of
    it; a marked answer that is denied beside its marker is none."""
    text = _TILDES.sub(" ", _STRUCK.sub(" ", after_thoughts(text)))
    text = _without_flourish(_QUOTED.sub("", text.strip()))
    rules = [_boxed, _tagged, _after_hashes, _after_words, concluded]
    if len(text) <= MAX_UNMARKED_CHARS:
        rules += [_last_formula, stated, without_lead]
    answers = (rule(text) for rule in rules)
    answer = next((answer for answer in answers if answer is not None), "")
    answer = answer.strip().strip("*_`").strip()
    return _without_remark(answer) if 0 < len(answer) <= MAX_CHARS else None


def _without_flourish(text: str) -> str:
    """Return the text without the end of a proof and signs of joy, such as ` ✅` or `! 🎉`."""
    plain = text.rstrip(_JOY)
    if plain != text.rstrip():
        plain = plain.removesuffix("!")
    return _QED.sub("", plain).rstrip()


def _without_remark(answer: str) -> str:
    """Return an answer such as `12 (see above)` without the remark; words that change or doubt the
    answer stay, and so do units."""
    remark = _REMARK.search(answer)
    if remark is None or _DOUBT.search(remark[1]) or read_unit(remark[1]) is not None:
        return answer
    return answer[: remark.start()]


def extract_gold(gold: str) -> str:
    r"""Return the answer of a gold text: the `\boxed{}`, `####` line or stated final answer of a
    whole solution, otherwise all of it."""
    marks = boxes(gold)
    if marks:
        _, contents = _joined(gold, marks, _JOINT.fullmatch)
        contents[-1] += _suffix(gold, marks[-1].end)
        return ", ".join(contents).strip()
    answer = _after_hashes(gold)
    if answer is None and len(gold) > MAX_UNMARKED_CHARS:
        answer = _after_words(gold)
    return (gold if answer is None else answer).strip()


def boxes(text: str) -> list[Mark]:
    marks: list[Mark] = []
    match = _BOX.search(text)
    while match is not None:
        end: int | None = match.end()
        content: str | None = match[1].rstrip(".,;")
        if match[1] == "{":
            end = closing_brace(text, match.end())
            content = None if end is None else text[match.end() : end]
        position = len(text) if end is None else end + (match[1] == "{")
        marks.append(Mark(match.start(), position, content))
        match = _BOX.search(text, position)
    return marks


def _joined(
    text: str, marks: Sequence[Mark], joins: Callable[[str], object]
) -> tuple[int, list[str]]:
    """Return the contents of the last mark and of those before it that are joined to it, and where
    the first of them starts."""
    start = marks[-1].start
    contents = [marks[-1].content or ""]
    for mark in reversed(marks[:-1]):
        gap = text[mark.end : start]
        too_long = len(gap) > MAX_GAP_CHARS or len(contents) > MAX_CHARS
        if mark.content is None or too_long or not joins(gap):
            break
        start = mark.start
        if mark.content not in contents:
            contents.insert(0, mark.content)
    return start, contents


def _joins(gap: str) -> bool:
    """Return True if the text between two marks makes them one list, or leaves open which one is
    meant."""
    return _JOINT.fullmatch(gap) is not None or _HEDGE.search(gap) is not None


def _boxed(text: str) -> str | None:
    return _marked(text, boxes(text))


def _marked(text: str, marks: Sequence[Mark]) -> str | None:
    """Return the content of the last mark, or of the marks joined to it, with the alternatives
    beside them."""
    if not marks:
        return None
    start, contents = _joined(text, marks, _joins)
    if marks[-1].content is None or is_denied(text, start):
        return ""
    contents[-1] += _suffix(text, marks[-1].end)
    return _with_alternatives(text, start, ", ".join(contents), marks[-1].end)


def _with_alternatives(text: str, start: int, answer: str, end: int) -> str:
    """Return `answer` with the alternatives before `start` and after `end` of `text`; "" if it is
    taken back there."""
    if is_taken_back(text, end) or _CHANGED_AFTER.match(text, end):
        return ""
    before = _HEDGE_BEFORE.search(text[max(0, start - CONTEXT_CHARS) : start])
    after = _HEDGE_AFTER.match(text, end)
    parts = [before and before[1], answer, after and after[1]]
    return ", ".join(filter(None, parts))


def _suffix(text: str, end: int) -> str:
    r"""Return what belongs to the mark that ends at `end`, such as `_2`, `\pi` or a unit."""
    script = _SCRIPT_AFTER.match(text, end)
    if script is not None:
        return script[0]
    if _PERCENT_AFTER.match(text, end):
        return "%"
    unit = _UNIT_AFTER.match(text, end)
    words = _SCALED.match(text, end)
    if unit is None and words is not None:
        is_unit = words[1] not in ("in", "per") and read_unit(words[1]) is not None
        return rf"\text{{ {words[1]}}}" if words["scale"] or is_unit else ""
    if unit is None or read_unit(unit[1].replace("~", " ")) is None:
        return ""
    return unit[0].replace("$", "")


def _tagged(text: str) -> str | None:
    """Return the content of the last `<answer>...</answer>`, or of the last two if a hedge joins
    them."""
    marks = []
    for tag in list(_TAGS.finditer(text))[-2:]:
        content = _after_words(tag[1]) or stated(tag[1]) or tag[1]
        marks.append(Mark(tag.start(), tag.end(), content))
    if not marks:
        return None
    _, contents = _joined(text, marks, _HEDGE.search)
    if is_denied(text, marks[-1].start):
        return ""
    # a question before the tag is no alternative, and a unit behind it no part of the answer
    return _with_alternatives(text, 0, ", ".join(contents), marks[-1].end)


def _after_hashes(text: str) -> str | None:
    """Return the last `####` line that is not a heading without content, without the word
    "Answer"."""
    for match in reversed(list(_HASHES.finditer(text))):
        line = _HEADING.sub("", match[1])
        if line.strip():
            return "" if is_taken_back(text, match.end()) else line
    return None


def _after_words(text: str) -> str | None:
    """Return the text after the last "Answer:", "the answer is" or heading "Answer", up to the end
    of its sentence."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return None
    if is_denied(text, statements[-1].start()):
        return ""
    rest = text[statements[-1].end() :].strip().strip("*_").strip()
    rest = _FILLER.sub("", rest)
    formula = MATH.match(rest)
    if formula is not None:
        answer, end = _to_sentence_end(rest, formula)
        return _with_alternatives(rest, 0, answer, end)
    first_line = rest.partition("\n")[0]
    if _CHOICES.fullmatch(first_line):
        return first_line
    sentence = _SENTENCE_END.split(rest, maxsplit=1)[0]
    before, _, answer = sentence.rpartition(" is ")
    if _HEDGE.search(before):
        answer = sentence
    lines = rest.split("\n", maxsplit=10)
    if len(lines) > 1 and _LINE.fullmatch(lines[0]) and _LINE.fullmatch(lines[1]):
        answer = ", ".join(line.strip() for line in lines if _LINE.fullmatch(line))
    return _with_alternatives(rest, 0, answer, len(sentence))


def _to_sentence_end(rest: str, formula: re.Match[str]) -> tuple[str, int]:
    """Return the answer that a formula begins, and where it ends: with its unit, and with the
    formulas of its list or product, up to the end of the sentence.

    Another number and a condition stay beside the formula, which is then not the answer by
    itself."""
    answer = formula[formula.lastindex or 0]
    position = formula.end()
    answer += _suffix(rest, position)
    for _ in range(MAX_FORMULAS):
        joiner = _JOINER.match(rest, position)
        start = position if joiner is None else joiner.end()
        gap = rest[start : start + MAX_GAP_CHARS]
        start += len(gap) - len(gap.lstrip(" \t"))
        following = MATH.match(rest, start)
        if following is None:
            break
        joined = "," if joiner is not None else ""
        content = following[following.lastindex or 0]
        answer = f"{answer}{joined} {content}{_suffix(rest, following.end())}"
        position = following.end()
    tail = _SENTENCE_END.split(rest[position:], maxsplit=1)[0]
    words = _CLAUSE.split(tail, maxsplit=1)[0].strip()
    if _FURTHER.search(words):
        answer = f"{answer} {words}"
    return answer, position


MAX_FORMULAS = 10
"""Formulas that one answer may join."""
_FURTHER = re.compile(r"[\d$]|\A(?:if|unless|or)\b", re.IGNORECASE)
"""Another number or formula, or a condition, beside an answer, which is then not all of it."""


def _last_formula(text: str) -> str | None:
    marks = [Mark(x.start(), x.end(), x[x.lastindex or 0]) for x in MATH.finditer(text)]
    return _marked(text, marks)


MAX_WORDS_AFTER = 12
"""Words that may follow the number of a sentence: "18 marbles left in the bag"."""

_END = re.compile(r"\.(?=\s|\Z)|[。｡!\n]|,?\s(?:because|since|as)\b")
_LEAD = re.compile(
    r"(?:and\s+|so\s+)?"
    r"(?:so|therefore|thus|hence|then|finally|consequently|in (?:total|conclusion))\b[,:]?\s+",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(r"\b(?:Therefore|Thus|Hence)\b,?")
_POLITE = re.compile(r"\s*I hope it is correct\.?\s*\Z")
_NUMBER = r"(?:\\?[$€£]\s?)?[-−]?(?:\\?[$€£]\s?)?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?"
_VERB = (
    r"(?:(?:must|will)\s+be|is|are|was|were|equals?|has|have|had|gets?|got|makes?|made|costs?"
    r"|needs?|takes?|took|earns?|earned|pays?|paid|spends?|spent|weighs?)"
)
_ADVERBS = (
    r"(?:(?:therefore|thus|then|hence|simply|exactly|just|indeed|now|equal to|given by|a total of)"
    r"[\s,:]+)*"
)
_SENTENCE = re.compile(
    rf"[^\d=<>]*\b{_VERB}\s+{_ADVERBS}(?P<number>{_NUMBER})(?![\w^*+=!(\\])"
    r"(?P<after>[^\d=<>+*^]*(?:\^\{?[23]\}?)?)",
    re.ASCII | re.IGNORECASE,
)
_REMAIN = re.compile(
    rf"(?P<number>{_NUMBER})"
    r"(?P<after>\s+(?:[a-z]+\s+){0,3}(?:remains?|are left|is left|are needed|are possible)"
    r"(?:\s+[a-z]+){0,6})",
    re.ASCII,
)


_DOUBTS = r"""
not never no none nor neither nobody nothing hardly barely scarcely rarely seldom cannot
without if unless whether until when except but only doubt\w* fail\w* den(?:y|ies|ied)
refus\w* reject\w* unlikely likely impossible wrong\w* incorrect\w* false\w* untrue
inaccura\w* mistake\w* mistaken errors? lies? lying might may can could would should ought
seem\w* appear\w* suppos\w* assum\w* guess\w* think\w* thought believ\w* hop(?:e|es|ed|ing)
wish\w* wonder\w* unsure unclear unknown say\w* said claim\w* pretend\w* imagin\w* almost
nearly about around approximately roughly perhaps maybe possibly probably either or rather
instead than least most more less fewer over under between times squared cubed factorial
plus minus negative opposite hundred thousand million billion trillion dozen half quarter
too far off short
"""
_DOUBT = re.compile(rf"\b(?:{'|'.join(_DOUBTS.split())})\b|n['’]t\b|\?", re.IGNORECASE)
"""Denials, conditions, doubts, comparisons, and words that change the number beside them."""
_THAT = re.compile(
    r"(?<!see)(?<!find)(?<!found)(?<!conclude)(?<!know)(?<!get)(?<!shows)(?<!means)(?<!follows)"
    r"\s+that\s+(?:it|this|these|those|there|the (?:answer|result|total|value|sum))\b",
    re.IGNORECASE,
)
"""A statement inside another one, as in "It is rare that it is 7", unless that one is an
inference."""

_MARKUP = r"(?:[ \t$*_{(\[\"']|\n(?!\s*\n)|\\[(\[]|\\(?:text|textbf|mathbf)\{)"
_BEFORE_ANSWER = (
    r"(?:think|believe|say|write|gives?|claim|conclude|that|it|this|the|an?|my|our|answer|final"
    r"|value|result|total|sum|number|be|is|are|was|equals?|to|correct|exactly|really|simply"
    r"|necessarily|[a-z]\s*=)"
)
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:(?<!or )not|never|cannot|nor|neither|rather than|instead of|other than|anything but"
    r"|unlike|except|rules? out|ruled out|mistake (?:is|would be)|mistake to (?:think|believe|say)"
    r"|nobody should|almost|refuse to)\b|n['’]t\b"
    r"|❌|✗|\\neq?(?![A-Za-z])|≠"
    r"|\b(?:unlikely|impossible|false|untrue|wrong|incorrect)"
    r"\s+(?:(?:that|answer|solution|value|result|total|sum)(?: would)?\b|\Z)"
    r"|(?<!no )(?<!without )(?<!without a )\bdoubt(?:s|ed|ful)?\b)"
    rf"(?:\s+{_BEFORE_ANSWER}){{0,8}}{_MARKUP}*\Z",
    re.IGNORECASE,
)
_WRONG = r"(?:wrong|incorrect|false|untrue|mistaken|invalid|a mistake|an error)\b"
_DENIED_AFTER = re.compile(
    r"(?:[-\s$.,;:!?*_)}\]\"']|\\[)\]]|</[a-z]{1,6}>)*\(?(?:"
    r"(?:(?:but|and|although|which|that|this|it|the answer)[,\s]+){0,3}"
    rf"(?:is|was|are|were|seems|looks)\s+(?:\w+\s+)?{_WRONG}"
    r"|(?:(?:but|which|that|this|it)[,\s]+){0,2}(?:is|was|are|were)(?:\s+not|n['’]t)\s+"
    r"(?:it|right|correct|true|(?:the|an?) (?:answer|solution))\b"
    rf"|(?:would|must|will|should|could|can(?:not|['’]t))\s+be\s+{_WRONG}"
    r"|can(?:not|['’]t)\s+be\s+(?:right|correct|true)\b"
    r"|(?:is|are|has|have|must)\s+(?:to\s+)?(?:be\s+)?rejected\b|❌|✗"
    r"|(?:is|are)\s+(?:not possible|impossible)\b"
    r"|(?:does|do|did|can)(?:\s*not|n['’]t)\s+(?:work|fit|hold|be|satisfy)\b"
    rf"|(?:but\s+)?(?:that|this|it)['’]s\s+{_WRONG}|i disagree\b"
    rf"|[^.,\n]{{0,60}},\s*but\s+(?:it|that|this)\s+(?:is|was)\s+{_WRONG}"
    r"|(?:hmm,?\s+)?no\b(?=\s*[,.!:;]|\s+(?:it|wait|that)\b)"
    r"|(?:actually|wait|sorry|oops|correction|scratch that|i mean|on second thoughts?"
    rf"|i was wrong|just kidding)\b|{_WRONG})",
    re.IGNORECASE,
)
CONTEXT_CHARS = 100
"""Characters before and after an answer that may deny it or name an alternative."""


_REMARK = re.compile(
    r"(?<=[\w}%)])(?:(?:\s|~|\\[,;: ]|\\q?quad)+|(?=\\text))(?:\\text\s*\{\s*)?"
    r"\(((?!(?:mod|base|and|if|for|where)\b)[A-Za-z]{2,}(?: [A-Za-z]+){0,6})\)\}?\s*\Z",
    re.ASCII,
)


def is_denied(text: str, start: int) -> bool:
    """Return True if the answer that begins at `start` of `text` is denied right before it."""
    return _DENIED_BEFORE.search(text[max(0, start - CONTEXT_CHARS) : start]) is not None


def is_taken_back(text: str, end: int) -> bool:
    """Return True if the answer that ends at `end` of `text` is called wrong or corrected right
    after it."""
    return _DENIED_AFTER.match(text[end : end + CONTEXT_CHARS]) is not None


def concluded(text: str) -> str | None:
    """Return the number that a last sentence states which begins with "Therefore", "Thus" or
    "Hence"."""
    end = _POLITE.sub("", text[-2 * MAX_UNMARKED_CHARS :]).strip()
    *before, sentence = _CONCLUSION.split(end)
    return _of_sentence(sentence) if before else None


def stated(text: str) -> str | None:
    """Return the number that the last sentence of a short text states."""
    return _of_sentence(re.split(r"[.!]\s+|\n", text.strip())[-1])


def without_lead(text: str) -> str:
    """Return `text` without a first word such as "Thus" or "So"."""
    lead = _LEAD.match(text)
    return text if lead is None else text[lead.end() :]


def _of_sentence(sentence: str) -> str | None:
    sentence = BOLD.sub("", plain_characters(sentence)).strip()
    sentence = without_lead(sentence.rstrip(".!*_ ").strip("*_ "))
    if _END.search(sentence):
        return None
    match = _SENTENCE.fullmatch(sentence) or _REMAIN.fullmatch(sentence)
    if match is None or _DOUBT.search(sentence) or _THAT.search(sentence, 0, match.start("number")):
        return None
    words = match["after"].split()
    for count in range(len(words), 0, -1):
        quantity = f"{match['number']} {' '.join(words[:count])}"
        if words[count - 1] != "in" and read_quantity(quantity.lstrip("$€£\\")) is not None:
            return quantity
    is_prose = len(words) <= MAX_WORDS_AFTER and all(map(WORD.fullmatch, words))
    return match["number"] if is_prose else None
