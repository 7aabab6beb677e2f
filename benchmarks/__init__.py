"""Ratios against what a user would otherwise run, measured in one run: `make bench`."""

STAGES = ("gaussian", "neighbors", "temperature", "aware", "vector", "metrics", "conformal", "head", "llm")
"""Each is a module `bench_<stage>` with `rows(quick) -> list[Row]`."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "ATYPICALITY_NUM_THREADS",
)
"""Read by libraries when they load: a script sets them to 1 before it imports anything that counts."""
