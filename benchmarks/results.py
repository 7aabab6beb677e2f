"""Results on disk: one JSON document with a title, columns, rows, and where and when they were measured."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "document", "machine", "read", "versions", "write"]

RESULTS = Path(__file__).resolve().parent / "results"
MEASURED_WITH = ("numpy", "scipy", "scikit-learn", "torch")


def document(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, packages: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    """What a results file holds: rows are lists in the order of `columns`; `more` is kept beside them."""
    return {
        "title": title,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions(packages),
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        **more,
    }


def machine() -> dict[str, str]:
    """Processor, cores that this process may use, memory, system and Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _proc("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(cores),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Of this library, of what it computes with, and of `packages`, where installed."""
    found = {}
    for name in ("atypicality", *MEASURED_WITH, *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(path: Path, content: dict[str, Any]) -> None:
    """As JSON that a diff can show: one row to a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {key: value for key, value in content.items() if not isinstance(value, list)}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items()]
    for key, value in content.items():
        if isinstance(value, list):
            lines.append(f" {json.dumps(key)}: [\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> dict[str, Any]:
    """The document in a file."""
    return json.loads(path.read_text())


def _memory() -> str:
    total = _proc("/proc/meminfo", "MemTotal")
    return f"{int(total.split()[0]) / 1024**2:.0f} GiB" if total else "unknown"


def _proc(path: str, name: str) -> str:
    if not os.path.exists(path):
        return ""
    with open(path) as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")
