"""Unicode characters of an answer in LaTeX and ASCII."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

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
    "∅": "emptyset",
    "∖": "setminus",
}
_SPACES = map(chr, (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000))
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
    **dict.fromkeys(_SPACES, " "),
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
