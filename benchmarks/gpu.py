"""The ImageNet-size problem on one GPU: seconds, share of what the device can do, and agreement with the CPU.

    python benchmarks/gpu.py                          # writes benchmarks/results/gpu-<device>.json and the page's table
    python benchmarks/gpu.py --library cupy
    python benchmarks/gpu.py --scale 0.01             # a rehearsal, on the CPU too; writes only where --out says
    python benchmarks/gpu.py --tables                 # writes the page's table again from the results, measures nothing

A stage that fails is a line of the table too. The exit code is 1 when a stage fails, disagrees with the CPU or, on the
full problem, misses its target.
"""

import argparse
import datetime
import gc
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the folder above is not looked into

from atypicality import __version__  # noqa: E402
from benchmarks.gpu_data import Size  # noqa: E402
from benchmarks.gpu_library import best_seconds, driver, library, measured_rates  # noqa: E402
from benchmarks.gpu_stages import Stage, stages  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "tables" / "gpu.md"
PACKAGES = ("numpy", "scipy", "array-api-compat", "torch", "cupy-cuda12x", "cupy-cuda13x", "cupy")
UNITS = {
    "fp64": "float64 products",
    "fp32": "float32 products",
    "tf32": "TF32 products",
    "half": "float16 products",
    "copy": "copy",
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; 0 when every stage did what it should."""
    chosen = parser().parse_args(arguments)
    if chosen.tables:
        write_page(RESULTS, PAGE)
        return 0
    lib, full = library(chosen.library), chosen.scale == 1.0
    if full and not lib.cuda:
        print(f"{lib.name} finds no CUDA device here. Rehearse on the CPU with --scale 0.01.", file=sys.stderr)
        return 2
    results = measure(lib, chosen.scale, chosen.only)
    print(page_of(results))
    folder = chosen.out or (RESULTS if full and not chosen.only else None)
    if folder is not None:
        write(results, folder)
    if folder == RESULTS:
        write_page(RESULTS, PAGE)
    return 0 if all(row["met"] for row in results["rows"]) else 1


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--library", choices=("torch", "cupy"), default="torch")
    made.add_argument("--scale", type=float, default=1.0, help="share of the rows; columns and classes by its root")
    made.add_argument("--only", default="", help="only stages whose name contains this")
    made.add_argument("--out", type=Path, help="folder for the results instead of benchmarks/results")
    made.add_argument("--tables", action="store_true", help="write the page's table from the results and stop")
    return made


def measure(lib: Any, scale: float, only: str = "") -> dict[str, Any]:
    """Everything that the results file holds."""
    gc.freeze()  # memory is freed after each stage: what imports made need not be looked at again
    rates = measured_rates(lib, scale)
    size = Size() if scale == 1.0 else Size.scaled(scale)
    rows = []
    for stage in stages(lib, size):
        if only in stage.name:
            rows.append(line(lib, stage, rates, scale))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {"machine": machine(lib), "scale": scale, "rates": rates, "rows": rows}


def line(lib: Any, stage: Stage, rates: dict[str, float], scale: float) -> dict[str, Any]:
    """One stage, measured and compared."""
    target = stage.target if lib.name == "torch" else None  # targets were set with prototypes in torch
    row: dict[str, Any] = {"stage": stage.name, "size": stage.size, "target": target}
    try:
        result, seconds = best_seconds(lib, stage.run, repeats=3 if scale == 1.0 else 1)
        agreement = stage.agree(result)
    except Exception as error:
        return {**row, "error": f"{type(error).__name__}: {error}"[:500], "met": False}
    finally:
        lib.free()
    in_time = scale != 1.0 or target is None or seconds <= target
    return {
        **row,
        "seconds": seconds,
        "rate": stage.rate,
        "fraction": stage.work(result) / seconds / rates[stage.rate],
        "compared": agreement.what,
        "difference": agreement.value,
        "limit": agreement.limit,
        "met": agreement.met and in_time,
    }


def machine(lib: Any) -> dict[str, Any]:
    """Where and with what this was measured."""
    installed = {"atypicality": __version__, **{name: version for name in PACKAGES if (version := _version(name))}}
    return {
        "device": lib.describe(),
        "library": lib.name,
        "driver": driver(),
        "python": platform.python_version(),
        "versions": installed,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def write(results: dict[str, Any], folder: Path) -> Path:
    """The results as a file named after the device and the library."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in results["machine"]["device"].lower()).strip("-")
    suffix = "" if results["machine"]["library"] == "torch" else f"-{results['machine']['library']}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-{slug}{suffix}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def write_page(results: Path, page: Path) -> None:
    """The tables of all results, for the documentation to include."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("gpu-*.json"))]
    tables = [page_of(one) for one in found] or ["No results are kept yet.\n"]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(tables), encoding="utf-8")


def page_of(results: dict[str, Any]) -> str:
    """One run as Markdown: what the device can do, then a line for every stage."""
    where, rates = results["machine"], results["rates"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    tera = ", ".join(f"{UNITS[name]} {rate / 1e12:.3g} TFLOP/s" for name, rate in rates.items() if name != "copy")
    lines = [
        f"{where['device']}, arrays of {where['library']}, {where['date']}; driver {where['driver'] or 'none'}, "
        f"Python {where['python']}, {versions}.",
        f"The device's own rates in the same run: {tera}, copy {rates['copy'] / 1e12:.3g} TB/s (read and written).",
        "",
        "| stage | size | seconds | target | share of | difference from the CPU |",
        "| --- | --- | ---: | ---: | --- | --- |",
        *(f"| {' | '.join(cells(row))} |" for row in results["rows"]),
        "",
    ]
    return "\n".join(lines)


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of one stage."""
    target = "" if row["target"] is None else f"{row['target']:g}"
    if "error" in row:
        return [row["stage"], row["size"], "failed", target, "", row["error"].replace("|", "/").replace("\n", " ")]
    share = f"{100 * row['fraction']:.3g} % of {UNITS[row['rate']]}"
    difference = f"{row['difference']:.1e}, limit {row['limit']:.2g}: {row['compared']}"
    return [row["stage"], row["size"], f"{row['seconds']:.3g}", target, share, difference]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
