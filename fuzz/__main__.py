"""One target, or all, under a coverage-guided fuzzer."""

import subprocess
import sys
from pathlib import Path

import fuzz

FOUND = Path(".fuzz")
"""Inputs that reached something new, by target, and the ones that broke the rule."""
LIMITS = ("-timeout=5", "-rss_limit_mb=1500", "-max_len=32768")  # 1 GB, beside what the libraries take


def main(arguments: list[str]) -> int:
    """Run `NAME [options] [files]`; files are replayed, and without any the target is fuzzed from its corpus."""
    if not arguments or arguments[0].startswith("-"):
        sys.exit(fuzz.__doc__)
    name, *options = arguments
    return _all(options) if name == "all" else _one(name, options)


def _all(options: list[str]) -> int:
    from fuzz.targets import TARGETS

    codes = {name: subprocess.call([sys.executable, "-m", "fuzz", name, *options]) for name in TARGETS}
    return int(any(codes.values()))


def _one(name: str, options: list[str]) -> int:
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["atypicality"]):
        from fuzz.rule import run
        from fuzz.targets import CORPUS, TARGETS, seeds

        target = TARGETS[name]
        for data in seeds(name).values():  # modules that load when first used must be instrumented too
            run(target, data)
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    files = [] if any(not option.startswith("-") for option in options) else [str(found), str(CORPUS / name)]

    def once(data: bytes) -> None:
        run(target, data)

    atheris.Setup(["fuzz", *LIMITS, f"-artifact_prefix={found}-", *options, *files], once)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
