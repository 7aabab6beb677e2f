"""API keys: read from the environment, refused where they cannot be one, and hidden in text that others wrote."""

import base64
import html
import itertools
import json
import os
import re
from collections.abc import Iterator
from urllib.parse import quote

__all__ = ["hide_key", "read_key"]

WINDOW = 8  # characters in a row of a key, or of a spelling of it, that are hidden wherever they appear
ESCAPES = ("%{:02x}", "\\x{:02x}", "\\u{:04x}", "\\{:03o}", "&#{};", "&#x{:x};", "{:02x}")


def read_key(variable: str | None) -> str:
    """The key in an environment variable, "" without one; ValueError, which does not show it, if it cannot be a key.

    >>> read_key(None)
    ''
    >>> read_key("sk-123")
    Traceback (most recent call last):
    ValueError: api_key_env must be the name of an environment variable (letters, digits and _); what came is not, ...
    """
    if variable is None:
        return ""
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError(
            "api_key_env must be the name of an environment variable (letters, digits and _); what came is not, and is "
            "not shown in case it is the key itself. Set OPENAI_API_KEY, or another variable, and give its name."
        )
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch("[!-~]*", key):
        raise ValueError(
            f"the environment variable {variable} must hold a key of printable ASCII characters without spaces; it "
            "holds a space, a control character or a character beyond ASCII (it is not shown). Set it to the key alone."
        )
    return key


def hide_key(text: str, key: str) -> str:
    """The text with *** for whatever spells the key or a part of it: plain, escaped, percent-encoded, base64 or hex.

    >>> hide_key("wrong key sk-0123456789, header QmVhcmVyIHNrLTAxMjM0NTY3ODk=", "sk-0123456789")
    'wrong key ***, header QmVhcmVyIH***k='
    """
    if not key:
        return text
    size = min(WINDOW, len(key))
    parts = {spelling[i : i + size] for spelling in _spellings(key) for i in range(len(spelling) - size + 1)}
    seen = "".join(c.lower() if c.isascii() else c for c in text)  # hexadecimal digits come in both cases
    hidden = [False] * len(text)
    for i in range(len(text) - size + 1):
        if seen[i : i + size] in parts:
            hidden[i : i + size] = [True] * size
    runs = itertools.groupby(zip(text, hidden, strict=True), lambda pair: pair[1])
    return "".join("***" if secret else "".join(c for c, _ in run) for secret, run in runs)


def _spellings(key: str) -> Iterator[str]:
    escaped = json.dumps(key)[1:-1]
    plain = (key, repr(key)[1:-1], escaped, escaped.replace("/", "\\/"), quote(key, safe=""), html.escape(key))
    every = ("".join(escape.format(byte) for byte in key.encode()) for escape in ESCAPES)
    for spelling in (*plain, *every, *_base64(key.encode())):
        yield spelling.lower()


def _base64(data: bytes) -> Iterator[str]:
    """The characters that depend on the data alone, for each of the three places at which it may begin."""
    for before in range(3):
        size = before + len(data)
        whole = slice(-(-before * 8 // 6), size * 8 // 6)
        for altchars in (b"+/", b"-_"):
            yield base64.b64encode(bytes(before) + data, altchars).decode()[whole]
