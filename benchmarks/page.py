"""Results as tables for the documentation: `python -m benchmarks.page` writes `docs/tables/<name>.md`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, read

__all__ = ["TABLES", "markdown", "tables", "write_tables"]

TABLES = Path(__file__).parents[1] / "docs" / "tables"


def write_tables(folder: Path = TABLES, kept: Path = RESULTS) -> list[Path]:
    """Write a table for every results file that has columns; the files that changed."""
    changed = []
    for name, text in tables(kept).items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def tables(kept: Path = RESULTS) -> dict[str, str]:
    """Tables by name; results in another layout have a page and a script of their own."""
    documents = {path.stem: read(path) for path in sorted(kept.glob("*.json"))}
    return {name: markdown(content) for name, content in documents.items() if "columns" in content}


def markdown(content: Mapping[str, Any]) -> str:
    """One results document as a table, and a line that says where, with what and when it was measured.

    >>> print(markdown({"title": "Speed", "columns": ["n", "s"], "rows": [[10, 0.25]], "date": "2024-05-01"}))
    | n | s |
    |---|---|
    | 10 | 0.25 |
    <BLANKLINE>
    *Speed. Measured 2024-05-01.*
    <BLANKLINE>
    """
    columns, rows = content["columns"], content["rows"]
    cells = [[row[name] for name in columns] if isinstance(row, Mapping) else row for row in rows]
    lines = [_line(columns), "|" + "---|" * len(columns), *map(_line, cells)]
    return "\n".join(lines) + f"\n\n*{_source(content)}*\n"


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = format(value, ".4g") if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def _source(content: Mapping[str, Any]) -> str:
    parts = [str(content["title"])]
    if "date" in content:
        parts.append(f"Measured {content['date']}")
    parts += [_listed(content[key]) for key in ("machine", "versions") if content.get(key)]
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _listed(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items()) if isinstance(values, Mapping) else str(values)


if __name__ == "__main__":
    for written in write_tables():
        print(f"wrote {written.name}", file=sys.stderr)
