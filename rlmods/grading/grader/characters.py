"""Unicode characters of an answer in LaTeX and ASCII."""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    **dict.fromkeys("−‐‒–➖", "-"),
    **dict.fromkeys("×·⋅∗", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("≤⩽", "<="),
    **dict.fromkeys("≥⩾", ">="),
    **dict.fromkeys("’′", "'"),
    **{"≠": "!=", "≈": "~=", "∶": ":", "。": ". ", "、": ", "},
    **{
        "±": r"\pm ",
        "∓": r"\mp ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "…": r"\ldots ",
        "∠": r"\angle ",
    },
    **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus "},
    **dict.fromkeys("€£¥₹\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys(map(chr, (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)), " "),
    **dict(zip("ℝℤℕℚℂ", "ℝℤℕℚℂ", strict=True)),  # not plain letters, as NFKC would have it
    **{
        "α": r"\alpha ",
        "β": r"\beta ",
        "γ": r"\gamma ",
        "δ": r"\delta ",
        "ε": r"\epsilon ",
        "ζ": r"\zeta ",
        "η": r"\eta ",
    },
    **{
        "θ": r"\theta ",
        "κ": r"\kappa ",
        "λ": r"\lambda ",
        "μ": r"\mu ",
        "ν": r"\nu ",
        "ξ": r"\xi ",
        "π": r"\pi ",
        "ρ": r"\rho ",
    },
    **{
        "σ": r"\sigma ",
        "τ": r"\tau ",
        "φ": r"\phi ",
        "ϕ": r"\phi ",
        "χ": r"\chi ",
        "ψ": r"\psi ",
        "ω": r"\omega ",
    },
}
_COMPATIBLE = frozenset(("<wide>", "<narrow>", "<font>", "<small>", "<noBreak>"))
"""Decompositions that only change how a character looks. Others change its meaning: ² is not 2, ①
not 1."""
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SCRIPTS = re.compile(f"(?P<up>[{''.join(_SUPERSCRIPTS)}]+)|[{''.join(_SUBSCRIPTS)}]+")
_FRACTION = re.compile(f"([{''.join(_SUPERSCRIPTS)}]+)⁄([{''.join(_SUBSCRIPTS)}]+)")
_PLAIN_SCRIPTS = str.maketrans(_SUPERSCRIPTS | _SUBSCRIPTS)


class _Replacements(dict[int, str]):
    """Replacements of characters by their code, found when first needed."""

    def __missing__(self, code: int) -> str:
        self[code] = text = _replacement(chr(code))
        return text


_REPLACEMENTS = _Replacements()


def plain_characters(text: str) -> str:
    """Return `text` with LaTeX in place of mathematical characters, and with full-width and styled
    characters made plain.

    A superscript is an exponent, also after a digit: 5² is not 52. ½ is a fraction, after a digit
    that of a mixed number: 1½ is not 11/2."""
    if text.isascii():
        return text
    text = _FRACTION.sub(lambda match: rf"\frac{{{_plain(match[1])}}}{{{_plain(match[2])}}} ", text)
    return _SCRIPTS.sub(_script, text).translate(_REPLACEMENTS)


def _plain(scripts: str) -> str:
    return scripts.translate(_PLAIN_SCRIPTS)


def _script(match: re.Match[str]) -> str:
    digits = _plain(match[0])
    return ("^" if match["up"] else "_") + (f"{digits} " if len(digits) == 1 else f"{{{digits}}}")


def _replacement(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    tag, _, codes = unicodedata.decomposition(character).partition(" ")
    if tag == "<fraction>":
        top, _, bottom = "".join(chr(int(code, 16)) for code in codes.split()).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}} " if bottom else character
    if tag not in _COMPATIBLE:
        return character
    return "".join(map(_replacement, unicodedata.normalize("NFKC", character)))
