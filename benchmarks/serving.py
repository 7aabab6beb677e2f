"""Requests that the service answers: `python -m benchmarks.serving [--seconds 60]`; needs Debian's `wrk`.

`wrk`, a C program, sends single rows on 50 connections, as fast as they are answered and then at about 1,000 a second,
and compares every answer with that of the head in Python: label and set equal, probabilities to 1e-6. In the middle of
each run the bundle is replaced by that of another head, and the service reads it on SIGHUP. No answer may be wrong or
lost.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import atypicality as aty
from atypicality.datasets import load_fashion_mnist_lt
from benchmarks import results

__all__ = ["main", "measure"]

SCRIPT = Path(__file__).with_suffix(".lua")
CONNECTIONS = 50
RATE = 1000
ROWS = 200
COLUMNS = (
    *("load", "requests a second", "p50, ms", "p99, ms", "wrong", "lost", "by the first head", "by the second"),
    *("MB", "processor, ms a request"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 where an answer is wrong or lost, or fewer than 1,000 a second were answered."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two runs")
    parser.add_argument("--out", type=Path, help="folder for the results, which are else printed only")
    options = parser.parse_args(arguments)
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.seconds)
    print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=1))
    if options.out:
        title = f"The service under wrk, {CONNECTIONS} connections, {options.seconds:g} s each"
        packages = ("uvicorn", "starlette", "httptools", "uvloop")
        results.write(options.out / "serving.json", results.document(title, COLUMNS, rows, packages=packages))
    return int(any(row[4] or row[5] for row in rows) or rows[0][1] < RATE)


def measure(folder: Path, seconds: float) -> list[list[Any]]:
    """One row for requests as fast as they are answered, one for `RATE` a second."""
    train, calibration, test = load_fashion_mnist_lt()
    heads = [
        aty.ReliabilityHead().fit(train=train, calibration=part) for part in (calibration[:3000], calibration[2000:])
    ]
    rows = []
    for load, delay in (("all at once", 0), (f"about {RATE} a second", round(900 * CONNECTIONS / RATE))):
        heads[0].save(folder / "head")
        command = [sys.executable, "-m", "atypicality", "serve", str(folder / "head"), "--port", "0"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None
            found = re.search(r"http://[\d.]+:\d+", service.stdout.readline())
            assert found
            rows.append([load, *_run(service, found[0], heads, test[:ROWS], folder, delay, seconds)])
        finally:
            service.send_signal(signal.SIGTERM)
            assert service.wait() == 0
    return rows


def _run(
    service: Any, address: str, heads: list[Any], test: aty.ModelOutputs, folder: Path, delay: int, seconds: float
) -> list[Any]:
    wide = aty.ModelOutputs(
        test.logits.astype(float), embeddings=test.embeddings.astype(float), class_names=test.class_names
    )
    seals = [aty.save(head, folder / f"copy{place}")[:12] for place, head in enumerate(heads)]
    (folder / "rows.lua").write_text(_script(wide, heads, seals))

    def replace() -> None:
        time.sleep(seconds / 2)
        heads[1].save(folder / "head")
        service.send_signal(signal.SIGHUP)

    other = threading.Thread(target=replace)
    other.start()
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--timeout", "10s", "-s", str(SCRIPT)]
    done = subprocess.run(
        [*command, f"{address}/predict", "--", str(folder / "rows.lua"), str(delay)],
        capture_output=True,
        text=True,
        check=True,
    )
    other.join()
    found = json.loads(done.stdout.strip().splitlines()[-1])
    memory, processor = (_metric(address, f"process_{name}") for name in ("resident_memory_bytes", "cpu_seconds_total"))
    names = ("p50_ms", "p99_ms", "wrong", "lost", "first_head", "second_head")
    shown = [round(found["requests"] / found["seconds"]), *(found[name] for name in names), round(memory / 2**20)]
    return [*shown, round(1000 * processor / found["requests"], 3)]


def _metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"{address}/metrics") as response:
        found = re.search(rf"^{name} (\S+)", response.read().decode(), re.M)
    assert found
    return float(found[1])


def _script(test: aty.ModelOutputs, heads: list[Any], seals: list[str]) -> str:
    """The bodies, and what each head answers, as a table of Lua."""
    pairs = zip(test.logits.tolist(), test.embeddings.tolist(), strict=True)  # type: ignore[union-attr]
    bodies = [json.dumps({"rows": [{"id": str(i), "logits": z, "embeddings": x}]}) for i, (z, x) in enumerate(pairs)]
    parts = [f"return {{bodies={{{','.join(f'[==[{body}]==]' for body in bodies)}}},expected={{"]
    for place, (head, seal) in enumerate(zip(heads, seals, strict=True)):
        rows = []
        for i, row in enumerate(head.predict(test).records()):
            sets, proba = json.dumps(row["prediction_set"]), ",".join(map(repr, row["proba"]))
            first = "true" if place == 0 else "false"
            rows.append(f'["{i}"]={{label="{row["label"]}",set=[==[{sets}]==],proba={{{proba}}},first={first}}}')
        parts.append(f'["{seal}"]={{{",".join(rows)}}},')
    return "".join([*parts, "}}"])


if __name__ == "__main__":
    sys.exit(main())
