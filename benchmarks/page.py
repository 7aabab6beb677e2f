"""Results as tables in the documentation: `python -m benchmarks.page`.

A page says where a table belongs with two comments, and everything between them is written anew:

    <!-- results: peers -->
    <!-- end of results -->
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, read

__all__ = ["fill", "markdown", "write_pages"]

DOCS = Path(__file__).parents[1] / "docs"
END = "<!-- end of results -->"
PLACE = re.compile(rf"(<!-- results: ([\w-]+) -->\n).*?{END}", re.DOTALL)


def write_pages(docs: Path = DOCS, results: Path = RESULTS) -> list[Path]:
    """Fill the tables of all pages that have a place for one; the pages that changed."""
    changed = []
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text()
        filled = fill(text, results)
        if filled != text:
            path.write_text(filled)
            changed.append(path)
    return changed


def fill(text: str, results: Path = RESULTS) -> str:
    """The text of a page with its tables as the files in `results` have them; a missing file leaves a sentence."""

    def table(place: re.Match[str]) -> str:
        path = results / f"{place[2]}.json"
        body = markdown(read(path)) if path.exists() else f"Not measured yet: no `benchmarks/results/{path.name}`.\n"
        return f"{place[1]}\n{body}\n{END}"

    return PLACE.sub(table, text)


def markdown(content: Mapping[str, Any]) -> str:
    """One results document as a table and a line that says where, with what and when it was measured.

    >>> print(markdown({"title": "Speed", "columns": ["n", "s"], "rows": [[10, 0.25]], "date": "2024-05-01"}))
    | n | s |
    |---|---|
    | 10 | 0.25 |
    <BLANKLINE>
    *Speed. Measured 2024-05-01.*
    <BLANKLINE>
    """
    rows = [list(row.values()) if isinstance(row, Mapping) else row for row in content["rows"]]
    columns = content.get("columns") or list(content["rows"][0])
    lines = [_line(columns), "|" + "---|" * len(columns), *map(_line, rows)]
    return "\n".join(lines) + f"\n\n*{_source(content)}*\n"


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = format(value, ".4g") if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _source(content: Mapping[str, Any]) -> str:
    parts = [str(content["title"])]
    if "date" in content:
        parts.append(f"Measured {content['date']}")
    if content.get("machine"):
        parts.append(_listed(content["machine"]))
    if content.get("versions"):
        parts.append(_listed(content["versions"]))
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _listed(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items()) if isinstance(values, Mapping) else str(values)


if __name__ == "__main__":
    for written in write_pages():
        print(f"wrote {written.name}", file=sys.stderr)
