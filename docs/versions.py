"""Versions of the site for the menu at the top: `versions.json` lists them, each is a folder beside the others.

`make docs` builds the version "dev"; `make docs DOCS_VERSION=0.1` builds the site of a release, for a folder 0.1.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

CURRENT = os.environ.get("DOCS_VERSION", "dev")
LISTED: list[dict[str, str]] = json.loads(Path(__file__).with_name("versions.json").read_text("utf-8"))


def entries(page: str, current: str = CURRENT) -> list[dict[str, Any]]:
    """What the theme's menu of versions shows on a page: addresses are relative to it, wherever the site stands.

    >>> [entry["url"] for entry in entries("howto/report")]
    ['../']
    """
    top = "../" * page.count("/")
    return [
        {**entry, "url": top if entry["version"] == current else f"{top}../{entry['version']}/"} for entry in LISTED
    ]


def address(page: str) -> str:
    """The entries as an address that holds them: of a page that is opened from disk, a browser loads no other."""
    return "data:application/json," + quote(json.dumps(entries(page)))
