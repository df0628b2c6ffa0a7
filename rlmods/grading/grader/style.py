"""Removal of what an answer looks like: styles, colours, boxes, spaces, math delimiters, currency
signs and unusual Unicode.

All patterns are applied to texts of at most `MAX_CHARS` characters.
"""

from __future__ import annotations

import re

from rlmods.grading.grader.characters import plain_characters

MAX_CHARS = 1000
"""Longer texts are not answers; this bounds the input of every pattern and of the parser."""

_SWITCH = re.compile(
    r"\\(?:(?:display|text|script|scriptscript)style|footnotesize|scriptsize|normalsize|normalfont|tiny|small|[lL]arge|LARGE|[hH]uge|"
    r"bf(?:series)?|it(?:shape)?|rm(?:family)?|sf|tt|em|boldmath|centering|(?:math)?strut|nonumber|notag|noindent|no?limits|limits|"
    r"left\.?|right\.?|middle|[bB]igg?[lrm]?|thinspace)(?![A-Za-z])"
)
"""Commands that only change how what follows looks."""
_APART = re.compile(
    r"\\(?:hfill|enspace|therefore)(?![A-Za-z])|\\q?quad(?![A-Za-z](?!_))|\\(?:hspace|vspace|kern|[hv]?phantom|label|tag)\*?\s*\{[^{}]*\}"
)
"""Wide spaces, and invisible commands with their argument. They become form feeds, over which no
product reaches (`tokenize`)."""
_COLOUR = re.compile(
    r"\\(?:text)?color(?:box)?\s*(?:\[[^\[\]{}]*\]\s*)?\{[^{}]*\}|\\fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}"
)
_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|framebox|makebox|underline|uline|emph|ensuremath|bm|pmb|boldsymbol|mathnormal|mathop|mathord|vec|overrightarrow|"
    r"smash)\*?(?![A-Za-z])\s*"
)
"""Commands whose argument, in braces, is what counts."""
_NUMBER_SETS = re.compile(
    r"\\(?:mathbb|mathbf|mathds|Bbb|bb)\s*(?:\{\s*([RZNQC])\s*\}|([RZNQC])(?![A-Za-z]))|\\([RZNQ])(?![A-Za-z])|([ℝℤℕℚℂ])"
)
_NUMBER_SET = {
    **dict.fromkeys("Rℝ", r"\reals "),
    **dict.fromkeys("Zℤ", r"\integers "),
    **dict.fromkeys("Nℕ", r"\naturals "),
    **dict.fromkeys("Qℚ", r"\rationals "),
    **dict.fromkeys("Cℂ", r"\complexes "),
}
_DEGREES = re.compile(
    r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}|°)|\\degree\b|(?<=[\d)}])\s*\\circ(?![A-Za-z])"
)
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
_CURRENCIES = {r"\$": "dollars", "€": "euros", "£": "GBP", "¥": "yen", "₹": "rupees"}
_CURRENCY_SIGN = re.compile(r"\\\$|[€£¥₹]")
_CURRENCY = re.compile(r"(\\\$|[€£¥₹])\s*([0-9][0-9,.]*)")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SIGN_IN_TEXT = re.compile(
    r"\\(?:text|mathrm|textrm|mathbin|mathrel|mathord)\s*\{\s*\\?([-+%=])\s*\}"
)
_SIGN_IN_BRACES = re.compile(r"(?<![\^_A-Za-z])\{\s*([-+])\s*\}")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MATH_DELIMITERS = re.compile(r"(?:\s?(?:(?<!\\)\\[()\[\]]|\\?\$))+\s?")
_NEGATIVE_SPACE = re.compile(r"\\!\s*")
_SPACED_THOUSANDS = re.compile(
    r"(?<![\d.,/^_])[1-9]\d{0,2}(?:(?:\\[,; ]|[ ~])\d{3})+(?!\d|\s*/|\s*\\[dt]?frac)", re.ASCII
)
_SPACE = re.compile(r"\\[,; ]|[ ~]")
HALF_DAYS = frozenset(("am", "pm"))
_HALF_DAY = re.compile(
    r"(\d)(?:\s|~|\\[,;: ])*"
    r"(?:\\(?:text|textrm|textsc|mathrm|rm)\s*\{\s*([aApP])(?:\.\s?)?[mM]\.?\s*\}|([AP])M\b|([apAP])\.\s?[mM]\b\.?|(?<=[\d "
    r"~])([ap])m\b)"
)
_LEADING = re.compile(r"(?:\s|~=|=(?![=<>])|\\(?:approx|therefore)(?![A-Za-z]))+")
_NO_SOLUTION = re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?\.?", re.IGNORECASE)
_ALL_REALS = re.compile(
    r"(?:[a-z] (?:is|can be) )?(?:any|all|every|(?:the )?set of(?: all)?)(?: the)? "
    r"reals?(?: numbers?)?(?: [a-z])?\.?",
    re.IGNORECASE,
)
_LETTER_CHOICE = re.compile(r"\A(?:\W|\\text\w*)*[A-Z]\W*\Z")
_BOLD_LETTER = re.compile(r"\\mathbf\s*\{\s*(\(?[A-Z]\)?)\s*\}")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_TRAILING = re.compile(
    r"(?:\\[ ,;:!]|[\s,;:~]|\\\\?\Z)*(?:(?<!\.)\.(?:\\[ ,;:!]|[\s,;:~]|\\\\?\Z)*)?\Z"
)
_BRACED_MARK = re.compile(r"\s*\\?\{\s*([,:=.])\s*\\?\}\s*")


def clean(text: str) -> str:
    """Return `text` without style. `^\\circ` becomes a degree sign."""
    text = plain_characters(text)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _SIGN_IN_BRACES.sub(r"\1", _SIGN_IN_TEXT.sub(r"\1", text))
    text = _NUMBER_SETS.sub(lambda match: _NUMBER_SET[next(filter(None, match.groups()))], text)
    text = _NEGATIVE_SPACE.sub("", _DEGREES.sub("°", _MATH_DELIMITERS.sub(_between_formulas, text)))
    if "\\" in text:
        text = _WRAPPER.sub(" ", _COLOUR.sub(" ", _SWITCH.sub(" ", _APART.sub("\f", text))))
    text = _SPACED_THOUSANDS.sub(
        lambda match: _SPACE.sub("", match[0]), _BRACED_MARK.sub(r"\1", text)
    )
    text = _HALF_DAY.sub(_half_day, _TRAILING.sub("", text).strip())
    if "real" in text.lower() and _ALL_REALS.fullmatch(
        " ".join(_TEXT_COMMAND.sub(r" \1 ", text).split())
    ):
        return r"\reals"
    if "solution" in text.lower() and _NO_SOLUTION.fullmatch(
        " ".join(_TEXT_COMMAND.sub(r" \1 ", text).split())
    ):
        return r"\emptyset"
    if text.startswith(("=", "~", "\\")) and (leading := _LEADING.match(text)) is not None:
        text = text[leading.end() :]
    while text.startswith("{") and text.endswith("}") and closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _between_formulas(match: re.Match[str]) -> str:
    """Return a form feed for delimiters beside a space or another delimiter, as of two formulas,
    and nothing for those of `2$\\pi$`."""
    return "" if match[0] in ("$", r"\$", r"\(", r"\)", r"\[", r"\]") else "\f"


def _half_day(match: re.Match[str]) -> str:
    letter = next(filter(None, match.groups()[1:]))
    return rf"{match[1]}\text{{ {letter.lower()}m}}"


def clean_pair(answer: str, gold: str) -> tuple[str, str]:
    """Return an answer and its gold without style. Currency signs become units where the other text
    has another one, or words."""
    marks, gold_marks = (set(_CURRENCY_SIGN.findall(text)) for text in (answer, gold))
    others = (answer if not marks else "", gold if not gold_marks else "")
    if marks != gold_marks and ((marks and gold_marks) or any(map(_LETTER.search, others))):
        answer, gold = (_CURRENCY.sub(_currency_unit, text) for text in (answer, gold))
    if _LETTER_CHOICE.search(answer) or _LETTER_CHOICE.search(gold):
        answer, gold = (_BOLD_LETTER.sub(r"\1", text) for text in (answer, gold))
    return clean(answer), clean(gold)


def _currency_unit(match: re.Match[str]) -> str:
    return rf"{match[2]}\text{{ {_CURRENCIES[match[1]]}}}"


def closing_brace(text: str, start: int) -> int | None:
    """Return the position of the brace that closes the group whose content begins at `start`, or
    None."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
