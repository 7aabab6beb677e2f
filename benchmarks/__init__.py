"""Ratios against what a user would otherwise run, measured in one run: `make bench`."""

STAGES = ("gaussian", "neighbors", "temperature", "aware", "vector", "metrics", "conformal", "head", "llm")
"""Each is a module `bench_<stage>` with `rows(quick) -> list[Row]`."""
