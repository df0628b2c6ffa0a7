"""Removal of what an answer looks like: styles, colours, boxes, spaces, math delimiters, currency
signs and unusual Unicode.

All patterns are applied to texts of at most `MAX_CHARS` characters.
"""

import re
import unicodedata
from functools import lru_cache, partial

MAX_CHARS = 1000
"""Longer texts are not answers; this bounds the input of every pattern and of the parser."""

TEXT = (
    r"\\(?:text(?:bf|it|rm|sf|tt|up|md|normal)?|math(?:rm|bf|it|sf)|[mh]box|operatorname|bold|rm)"
    r"(?![A-Za-z])\*?\s*"
)
"""A command whose argument, in braces, is prose or a unit."""
TEXT_COMMAND = re.compile(TEXT + r"\{([^{}]*)\}")
MATH = re.compile(
    r"\$\$((?:[^$\\]|\\.)+)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
"""A formula between its delimiters."""
BOLD = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_SPACES = re.compile(r"(?:\\[ ,;:!]|[\s~\f])+")
_STYLE = (
    # commands that only change how what follows looks
    re.compile(
        r"\\(?:(?:display|text|script|scriptscript)style|footnotesize|scriptsize|normalsize"
        r"|normalfont|tiny|small|[lL]arge|LARGE|[hH]uge|bf(?:series)?|it(?:shape)?|rm(?:family)?"
        r"|sf|tt|em"
        r"|boldmath|centering|(?:math)?strut|nonumber|notag|noindent|no?limits|limits|left\.?"
        r"|right\.?|middle|[bB]igg?[lrm]?|thinspace)(?![A-Za-z])"
    ),
    re.compile(
        r"\\(?:text)?color(?:box)?\s*(?:\[[^\[\]{}]*\]\s*)?\{[^{}]*\}"
        r"|\\fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}"
    ),
    # commands with an argument, in braces, that is what counts
    re.compile(
        r"\\(?:boxed|fbox|framebox|makebox|underline|uline|emph|ensuremath|bm|pmb|boldsymbol"
        r"|mathnormal|mathcal|mathop|mathord|vec|overrightarrow|smash)\*?(?![A-Za-z])\s*"
    ),
)
_APART = re.compile(
    r"\\(?:hfill|enspace|therefore)(?![A-Za-z])|\\q?quad(?![A-Za-z](?!_))"
    r"|\\(?:hspace|vspace|kern|[hv]?phantom|label|tag)\*?\s*\{[^{}]*\}"
)
"""Wide spaces, and invisible commands with their argument. They become form feeds, over which no
product reaches (`tokenize`)."""
_NUMBER_SETS = re.compile(
    r"\\(?:mathbb|mathbf|mathds|Bbb|bb)\s*(?:\{\s*([RZNQC])\s*\}|([RZNQC])(?![A-Za-z]))"
    r"|\\([RZNQ])(?![A-Za-z])|([ℝℤℕℚℂ])"
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
_INSIGNIFICANT = re.compile(
    r"\\(?:left|right|displaystyle|limits)(?![A-Za-z])|\\q?quad(?![A-Za-z])"
    r"|\\[()\[\],;:! ]|[\s${}]"
)
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
_CURRENCIES = {r"\$": "dollars", "€": "euros", "£": "GBP", "¥": "yen", "₹": "rupees"}
_CURRENCY_SIGN = re.compile(r"\\\$|[€£¥₹]")
_CURRENCY = re.compile(r"(\\\$|[€£¥₹])\s*([0-9][0-9,.]*)")
_CURRENCY_AFTER = re.compile(r"([0-9](?:[0-9,.]*[0-9])?)\s*([€£¥₹])")
_LONE_DOLLAR = re.compile(r"\A([^$]*?)(?<!\\)\$(?=\s?[\d.][^$]*\Z)")
"""A dollar sign that does not begin a formula."""
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MATH_DELIMITERS = re.compile(r"(?:\s?(?:(?<!\\)\\[()\[\]]|\\?\$))+\s?")
_SPACED_THOUSANDS = re.compile(
    r"(?<![\d.,/^_])[1-9]\d{0,2}(?:(?:\\[,; ]|[ ~])\d{3})+(?!\d|\s*/|\s*\\[dt]?frac)", re.ASCII
)
_SPACE = re.compile(r"\\[,; ]|[ ~]")
_HALF_DAY = re.compile(
    r"(\d)(?:\s|~|\\[,;: ])*(?:"
    r"\\(?:text|textrm|textsc|mathrm|rm)\s*\{\s*([aApP])(?:\.\s?)?[mM]\.?\s*\}"
    r"|([AP])M\b|([apAP])\.\s?[mM]\b\.?|(?<=[\d ~])([ap])m\b)"
)
_HOUR = re.compile(r"\d{1,2}", re.ASCII)
_LEADING = re.compile(
    r"\A(?:\s|~=|=(?![=<>])|\\(?:approx|therefore)(?![A-Za-z])"
    r"|\\text\s*\{\s*[Tt]he (?:set|line|point|interval)(?: is)?:?\s*\})*"
)
_NOTATIONS = (
    (re.compile(r"\\\\\[\s*-?[\d.]{1,6}\s*(?:pt|em|ex|mm|cm|in)\s*\]"), r"\\\\ "),
    (
        re.compile(
            r"\\(?:text|mathrm|textrm|mathbin|mathrel|mathord)"
            r"\s*\{\s*\\?([-+%=,;:](?:\s*(?:and|or)\b)?)\s*\}"
        ),
        r"\1",
    ),
    (re.compile(r"(?<![\^_A-Za-z])\{\s*([-+])\s*\}"), r"\1"),
    (re.compile(r"\\!\s*"), ""),
    (re.compile(r"(?<=[\w)}])\*\*(?=[\w({-])"), "^"),
    (re.compile(r"(?<=\d) ?x ?(?=10 ?\^)"), "*"),
    (
        re.compile(
            r"\\[dt]?frac\s*\{\s*\\(?:text|mathrm)\s*\{([a-z ]+)\}\s*\}"
            r"\s*\{\s*\\(?:text|mathrm)\s*\{([a-z ]+)\}\s*\}"
        ),
        r"\\text{\1/\2}",
    ),
    (re.compile(r"(?<=\.\d\d)(\d*)\s*(?:\.\.\.|\\[lc]?dots)\s*\Z"), r"\1"),
)
"""Other ways to write the same, with what takes their place."""
_MEANINGS = (
    (re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?\.?", re.IGNORECASE), r"\emptyset"),
    (
        re.compile(
            r"(?:[a-z] (?:is|can be) )?(?:any|all|every|(?:the )?set of(?: all)?)(?: the)? "
            r"reals?(?: numbers?)?(?: [a-z])?\.?",
            re.IGNORECASE,
        ),
        r"\reals",
    ),
    (re.compile(r"(?:the |this )?(?:limit )?does not exist\.?|DNE", re.IGNORECASE), r"\text{DNE}"),
)
_MEANINGFUL = re.compile(r"real|solution|exist|\bdne\b", re.IGNORECASE)
_LETTER_CHOICE = re.compile(r"\A(?:\W|\\text\w*)*[A-Z]\W*\Z")
_BOLD_LETTER = re.compile(r"\\mathbf\s*\{\s*(\(?[A-Z]\)?)\s*\}")
_TRAILING = re.compile(
    r"(?:\\[ ,;:!]|[\s,;:~]|\\\\?\Z)*(?:(?<!\.)\.(?:\\[ ,;:!]|[\s,;:~]|\\\\?\Z)*)?\Z"
)
_BRACED_MARK = re.compile(r"\s*\\?\{\s*([,:=.])\s*\\?\}\s*")


def clean(text: str) -> str:
    """Return `text` without style. `^\\circ` becomes a degree sign."""
    text = plain_characters(text)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    for notation, replacement in _NOTATIONS:
        text = notation.sub(replacement, text)
    text = _NUMBER_SETS.sub(lambda match: _NUMBER_SET[match[match.lastindex or 0]], text)
    text = _MATH_DELIMITERS.sub(_between_formulas, text)
    text = _DEGREES.sub("°", text)
    if "\\" in text:
        text = _APART.sub("\f", text)
        for pattern in _STYLE:
            text = pattern.sub(" ", text)
    text = _BRACED_MARK.sub(r"\1", text)
    text = _SPACED_THOUSANDS.sub(lambda match: _SPACE.sub("", match[0]), text)
    text = _TRAILING.sub("", text).strip()
    return _in_words(text) or _without_braces(_LEADING.sub("", text))


def flat(text: str) -> str:
    """Return a text with the words of its commands, and with one space for each gap."""
    return _SPACES.sub(" ", TEXT_COMMAND.sub(r" \1 ", text)).strip()


def compact(text: str) -> str:
    """Return `text` with one way to write products, fractions and degrees, and without spaces and
    braces."""
    text = _DEGREES.sub("°", _FRACTIONS.sub(r"\\frac", plain_characters(text)))
    return _INSIGNIFICANT.sub("", _TIMES.sub("*", text))


def _in_words(text: str) -> str | None:
    """Return the set or symbol that an answer in words means, None for other answers."""
    if not _MEANINGFUL.search(text):
        return None
    words = flat(text)
    return next((value for phrase, value in _MEANINGS if phrase.fullmatch(words)), None)


def _without_braces(text: str) -> str:
    while text.startswith("{") and closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _between_formulas(match: re.Match[str]) -> str:
    """Return a form feed for delimiters beside a space or another delimiter, as of two formulas,
    and nothing for the delimiters of `2$\\pi$`."""
    return "" if match[0] in ("$", r"\$", r"\(", r"\)", r"\[", r"\]") else "\f"


def clean_pair(answer: str, gold: str) -> tuple[str, str]:
    """Return an answer and its gold without style. Currency signs become units where the other text
    has another one, or words. Half of the day (`3:25 PM`) may be left out."""
    texts = list(map(partial(_LONE_DOLLAR.sub, r"\1\\$"), (answer, gold)))
    marks = set(_CURRENCY_SIGN.findall(texts[0]))
    gold_marks = set(_CURRENCY_SIGN.findall(texts[1]))
    has_words = _LETTER.search(texts[1 if marks else 0]) is not None
    if marks != gold_marks and (has_words or (marks and gold_marks)):
        texts = list(map(partial(_CURRENCY_AFTER.sub, r"\2\1"), texts))
        texts = list(map(partial(_CURRENCY.sub, _currency_unit), texts))
    if any(map(_LETTER_CHOICE.search, texts)):
        texts = list(map(partial(_BOLD_LETTER.sub, r"\1"), texts))
    answer, gold = map(clean, texts)
    hours = (_HALF_DAY.sub(r"\1", answer), _HALF_DAY.sub(r"\1", gold))
    halves = _half_days(answer)
    gold_halves = _half_days(gold)
    are_times = (":" in answer and ":" in gold) or all(map(_HOUR.fullmatch, hours))
    are_same = halves == gold_halves or (are_times and not (halves and gold_halves))
    return hours if are_same else (answer, gold)


def _half_days(text: str) -> list[str]:
    """Return "a" or "p" for each time of a text with am or pm."""
    return [match[match.lastindex or 0].lower() for match in _HALF_DAY.finditer(text)]


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


_GREEK = (
    "α:alpha β:beta γ:gamma δ:delta ε:epsilon ζ:zeta η:eta θ:theta κ:kappa λ:lambda μ:mu ν:nu ξ:xi "
    "π:pi ρ:rho σ:sigma τ:tau φ:phi ϕ:phi χ:chi ψ:psi ω:omega"
)
_COMMANDS = {
    **dict(entry.split(":") for entry in _GREEK.split()),
    "±": "pm",
    "∓": "mp",
    "√": "sqrt",
    "∞": "infty",
    "…": "ldots",
    "∠": "angle",
    "∪": "cup",
    "∩": "cap",
    "∈": "in",
    "¢": "text{ cents}",
    "∅": "emptyset",
    "∖": "setminus",
}
_BLANKS = map(chr, (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000))
_SYMBOLS = {
    **{character: rf"\{command} " for character, command in _COMMANDS.items()},
    **dict.fromkeys("−‐‒–➖", "-"),
    **dict.fromkeys("×·⋅∗", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("≤⩽", "<="),
    **dict.fromkeys("≥⩾", ">="),
    **dict.fromkeys("’′", "'"),
    **{"≠": "!=", "≈": "~=", "∶": ":", "。": ". ", "、": ", "},
    **dict.fromkeys("€£¥₹\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys(_BLANKS, " "),
    **dict(zip("ℝℤℕℚℂ", "ℝℤℕℚℂ", strict=True)),  # not plain letters, as NFKC would have it
}
_COMPATIBLE = frozenset(("<wide>", "<narrow>", "<font>", "<small>", "<noBreak>"))
"""Decompositions that only change how a character looks. Others change its meaning: ² is not 2, ①
not 1."""
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SCRIPTS = re.compile(f"(?P<up>[{''.join(_SUPERSCRIPTS)}]+)|[{''.join(_SUBSCRIPTS)}]+")
_FRACTION = re.compile(f"([{''.join(_SUPERSCRIPTS)}]+)⁄([{''.join(_SUBSCRIPTS)}]+)")
_PLAIN_SCRIPTS = str.maketrans(_SUPERSCRIPTS | _SUBSCRIPTS)


def plain_characters(text: str) -> str:
    """Return `text` with LaTeX in place of mathematical characters, and with full-width and styled
    characters made plain.

    A superscript is an exponent, also after a digit: 5² is not 52. ½ is a fraction, after a digit
    the fraction of a mixed number: 1½ is not 11/2."""
    if text.isascii():
        return text
    text = _SCRIPTS.sub(_script, _FRACTION.sub(_fraction, text))
    return "".join(map(_replacement, text))


def _fraction(match: re.Match[str]) -> str:
    top, bottom = (scripts.translate(_PLAIN_SCRIPTS) for scripts in match.groups())
    return rf"\frac{{{top}}}{{{bottom}}} "


def _script(match: re.Match[str]) -> str:
    digits = match[0].translate(_PLAIN_SCRIPTS)
    return ("^" if match["up"] else "_") + (f"{digits} " if len(digits) == 1 else f"{{{digits}}}")


@lru_cache(maxsize=4096)
def _replacement(character: str) -> str:
    if character.isascii() or character in _SYMBOLS:
        return _SYMBOLS.get(character, character)
    tag, _, codes = unicodedata.decomposition(character).partition(" ")
    if tag == "<fraction>":
        top, _, bottom = "".join(chr(int(code, 16)) for code in codes.split()).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}} " if bottom else character
    if tag not in _COMPATIBLE:
        return character
    return "".join(map(_replacement, unicodedata.normalize("NFKC", character)))
