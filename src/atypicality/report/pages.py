"""Self-contained HTML pages that hold text of others: data as JSON, script and style by hash, all else forbidden."""

import base64
import hashlib
import html
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

from atypicality.outputs.paths import AnyPath, check_target, replacing

__all__ = ["as_script", "asset", "html_page", "script_safe", "write_page"]


def asset(name: str) -> str:
    """One of the report's own files: a script or a style."""
    return resources.files("atypicality.report").joinpath("assets", name).read_text(encoding="utf-8")


def write_page(path: AnyPath, render: Callable[[], str]) -> None:
    """Write what `render` gives to a file, whole or not at all; a bad path is refused before it is called."""
    check_target(path)
    text = render()
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def html_page(*, title: str, style: str, body: str, data: Any, script: str, images: str = "'none'") -> str:
    r"""A page with a body, data for its script in the element `data`, and a policy that lets it reach nothing.

    The title is any text, and is escaped; in the body text of others must be. Style and script are ours: the policy
    allows them by their hashes, and no other. `images` are sources of images in the policy.

    >>> page = html_page(title="<b>", style="", body="<p>Hi</p>", data={"name": "</script>"}, script="")
    >>> "<title>&lt;b&gt;</title>" in page, r"\u003c/script>" in page
    (True, True)
    """
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src {images}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{as_script(data)}</script>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def as_script(data: Any) -> str:
    r"""JSON that stays data inside a script element, whatever the texts in it.

    >>> as_script("</script>")
    '"\\u003c/script>"'
    """
    return script_safe(json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")))


def script_safe(text: str) -> str:
    """JSON with escapes for what would end a script element or a line of it."""
    for letter in "<&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate has no UTF-8 form


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
