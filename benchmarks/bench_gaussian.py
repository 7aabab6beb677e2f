"""Gaussian atypicality: fit and scores, in float64 and in float32, and a file larger than its memory."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from atypicality import GaussianAtypicality
from benchmarks import authors
from benchmarks.data import clusters, text_of
from benchmarks.rows import AUTHORS, Peer, Row, contest


def rows(quick: bool = False) -> list[Row]:
    n_train, width, n_classes = (4000, 32, 20) if quick else (100_000, 512, 1000)
    found: list[Row] = []
    for precision in ("float64", "float32"):
        train, labels, queries = clusters(n_train, 2000, width, n_classes, np.dtype(precision).type)
        truth = Truth(train, labels)
        found += fit_rows(train, labels, truth, precision)
        if precision == "float32":
            found += fit_rows(train, labels, truth, "float64")
        found += score_rows(train, labels, queries, truth, precision)
    return found if quick else [*found, file_row()]


class Truth:
    """Means, covariance and scores in float64, by the textbook's formulas."""

    def __init__(self, x: np.ndarray, labels: np.ndarray) -> None:
        x = x.astype(np.float64)
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
        self.shares = np.bincount(labels) / len(labels)
        self.means = np.add.reduceat(x[order], starts) / np.bincount(labels)[:, None]
        x -= self.means[labels]
        self.covariance = x.T @ x / len(x)

    def scores(self, x: np.ndarray, *, marginal: bool = False) -> np.ndarray:
        """Minus the largest class-conditional log-density of every row, or minus the logarithm of their mixture."""
        factor = np.linalg.cholesky(self.covariance)
        means = solve_triangular(factor, self.means.T, lower=True).T
        whitened = solve_triangular(factor, x.T.astype(np.float64), lower=True).T
        squares = np.stack([((means - row) ** 2).sum(axis=1) for row in whitened])
        constant = x.shape[1] * math.log(2 * math.pi) + 2 * np.log(np.diag(factor)).sum()
        densities = -0.5 * (squares + constant)
        return -(logsumexp(densities, axis=1, b=self.shares) if marginal else densities.max(axis=1))


def fit_rows(train: np.ndarray, labels: np.ndarray, truth: Truth, precision: str) -> list[Row]:
    """Peers that compute in `precision` on these rows: scikit-learn sums in float64 whatever the rows are."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    plain = Peer(AUTHORS, "class means, covariance, inverse", lambda: authors.gaussian_fit(train, labels)[1])
    discriminant = Peer(
        "scikit-learn",
        'LinearDiscriminantAnalysis(solver="lsqr")',
        lambda: LinearDiscriminantAnalysis(solver="lsqr").fit(train, labels).covariance_,
    )
    peers = [plain] if train.dtype == precision else []
    factors, largest = train.astype(precision, copy=False), np.abs(truth.covariance).max()
    rows_of = "" if train.dtype == precision else f", {train.dtype} rows"
    return contest(
        "Gaussian fit",
        text_of(*train.shape, f"{len(truth.means):,} classes", f"{precision} products{rows_of}"),
        lambda: GaussianAtypicality(precision=precision).fit(train, labels).covariance_,
        [*peers, discriminant] if precision == "float64" else peers,
        bare=lambda: factors.T @ factors,
        bare_of="scatter product",
        accuracy="largest error of the covariance",
        error=lambda covariance: float(np.abs(covariance - truth.covariance).max() / largest),
        slack=1e-12,  # rounding of either sum
        targets=["bare <= 2"],
    )


def score_rows(train: np.ndarray, labels: np.ndarray, queries: np.ndarray, truth: Truth, precision: str) -> list[Row]:
    ours = GaussianAtypicality(precision=precision).fit(train, labels)
    whitening = np.linalg.inv(np.linalg.cholesky(truth.covariance)).T.astype(precision)
    means = np.ascontiguousarray((truth.means @ whitening).T, precision)
    theirs = authors.gaussian_fit(train, labels)
    few = queries[:500]
    expected = truth.scores(few)

    def bare(x: np.ndarray) -> object:
        return (x @ whitening) @ means

    common = {"bare_of": "two products", "accuracy": "largest relative error", "slack": 1e-12}
    shape = f"{len(truth.means):,} classes"
    return [
        *contest(
            "Gaussian score",
            text_of(*queries.shape, shape, precision),
            lambda: ours.atypicality(queries)[: len(few)],
            [],
            bare=lambda: bare(queries),
            error=lambda scores: float(np.abs(scores / expected - 1).max()),
            targets=["bare <= 1.5"],
            repeats=7,
            **common,
        ),
        *contest(
            "Gaussian score",
            text_of(*few.shape, shape, precision),
            lambda: ours.atypicality(few),
            [
                Peer(
                    AUTHORS,
                    "a quadratic form for every class",
                    lambda: authors.gaussian_scores(few, *theirs),
                    target="ratio >= 100",
                )
            ],
            bare=lambda: bare(few),
            error=lambda scores: float(np.abs(scores / expected - 1).max()),
            repeats=2,
            **common,
        ),
        *(marginal_rows(train, labels, few, truth, lambda: bare(few), common) if precision == "float64" else []),
    ]


def marginal_rows(train, labels, queries, truth: Truth, bare, common: dict) -> list[Row]:
    """scikit-learn has no largest class-conditional density; its mixture with tied covariance has the marginal one."""
    from sklearn.mixture import GaussianMixture

    ours = GaussianAtypicality(marginal=True).fit(train, labels)
    mixture = GaussianMixture(len(truth.means), covariance_type="tied")
    mixture.weights_, mixture.means_, mixture.covariances_ = truth.shares, truth.means, truth.covariance
    mixture.precisions_cholesky_ = np.linalg.inv(np.linalg.cholesky(truth.covariance)).T
    expected = truth.scores(queries, marginal=True)
    return contest(
        "Gaussian score, marginal density",
        text_of(*queries.shape, f"{len(truth.means):,} classes", "float64"),
        lambda: ours.atypicality(queries),
        [
            Peer(
                "scikit-learn",
                'GaussianMixture(covariance_type="tied").score_samples',
                lambda: -mixture.score_samples(queries),
            )
        ],
        bare=bare,
        error=lambda scores: float(np.abs(scores / expected - 1).max()),
        repeats=1,
        **common,
    )


PROGRAM = """
import json, sys, time
import numpy as np
import atypicality as aty
from benchmarks.timing import one_thread, peak_anonymous

rows = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(rows)) % 1000
with one_thread():
    scores, seconds, megabytes = peak_anonymous(lambda: aty.GaussianAtypicality().fit(rows, labels).atypicality(rows))
assert np.isfinite(scores).all() and scores.shape == (len(rows),)
print(json.dumps({"megabytes": megabytes, "seconds": seconds}))
"""


def file_row(n_rows: int = 500_000, width: int = 512) -> Row:
    """Peak anonymous memory while a file of one gigabyte is fitted and scored, in a process of its own."""
    size = text_of(n_rows, width, "1,000 classes, float32 file")
    print(f"Gaussian fit and score, {size}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder) / "rows.npy", np.random.default_rng(0)
        mapped = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, width))
        for start in range(0, n_rows, 20_000):
            mapped[start : start + 20_000] = rng.standard_normal((20_000, width), dtype=np.float32)
        del mapped
        command = [sys.executable, "-c", PROGRAM, str(path)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return Row("Gaussian fit and score", size, target="megabytes <= 600", **found)
