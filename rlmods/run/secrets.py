"""What is written about a run, without the passwords and keys in its settings."""

from __future__ import annotations

import re

_SCHEME = r"[A-Za-z0-9+.-]*://"
_URL = re.compile(rf"({_SCHEME})((?:(?!['\",]*{_SCHEME})\S)*)")
"""A URL up to white space or the next URL."""
_CLOSING = re.compile(r"['\"\]),]*$")
"""Quotes and brackets after a URL in an override."""
MIN_LENGTH = 4
"""Length from which a value of the environment is replaced in messages; shorter ones are part of
ordinary words and numbers."""


environment_values: dict[str, str] = {}
"""Variables that settings have read with `${oc.env:NAME}` in this process."""


def clean(text: str) -> str:
    """Return a message with clean URLs, and with `${oc.env:NAME}` in place of the values that
    settings have read from the environment."""
    for name, value in environment_values.items():
        if len(value) >= MIN_LENGTH:
            text = text.replace(value, f"${{oc.env:{name}}}")
    return clean_urls(text)


def clean_urls(text: str) -> str:
    """Return a text whose URLs have no user name, password, query and fragment."""
    return _URL.sub(_clean_url, text)


def _clean_url(match: re.Match[str]) -> str:
    scheme, rest = match.groups()
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2]
    if "@" in host:
        rest = rest[host.rindex("@") + 1 :]
    elif ":" in host and not re.match(r"\d+\b|$", port):
        # a password with `/`, `?` or `#`
        rest = rest[rest.rfind("@") + 1 :]
    kept = re.split(r"[?#]", rest, maxsplit=1)[0]
    closing = _CLOSING.findall(rest)[0] if len(kept) < len(rest) else ""
    return scheme + kept + closing
