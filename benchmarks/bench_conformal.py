"""Prediction sets, threshold included: each score against the same score of the peers, and the paper's own sets."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from atypicality import AtypicalityAwareConformal, ConditionalConformal, SplitConformal
from benchmarks import authors
from benchmarks.data import softmax, text_of
from benchmarks.models import ProbabilitiesAreInputs
from benchmarks.rows import AUTHORS, Peer, Row, contest

ALPHA, K_REG, PENALTY = 0.1, 5, 0.01
LEVELS = 6
"""Groups of atypicality by which coverage is shown, and parts of the conditional guarantee."""


def rows(quick: bool = False) -> list[Row]:
    half, n_classes = (400, 20) if quick else (12_500, 1000)
    problem = Problem(half, n_classes)
    few = Problem(300 if quick else 2000, n_classes)
    fewest = Problem(60 if quick else 200, 20 if quick else 100)
    fixed = {"k_reg": K_REG, "penalty": PENALTY}
    drawn = {"nonempty": None, "randomized": True}
    return [
        *problem.contest("APS", problem.ours("aps"), [mapie(problem, "aps")]),
        *problem.contest(
            "APS, randomised",
            problem.ours("aps", **drawn),
            [
                mapie(problem, "aps", include_last_label="randomized"),
                torchcp(problem, "APS"),
                torch_uncertainty(problem, "ConformalClsAPS", enable_ts=False),
            ],
        ),
        *problem.contest("RAPS, penalty tuned", problem.ours("raps"), [mapie(problem, "raps")]),
        *problem.contest(
            "RAPS, given penalty, randomised",
            problem.ours("raps", **fixed, **drawn),
            [
                torchcp(problem, "RAPS", penalty=PENALTY, kreg=K_REG),
                torch_uncertainty(problem, "ConformalClsRAPS", penalty=PENALTY, regularization_rank=K_REG),
            ],
        ),
        *problem.contest("the paper's RAPS", problem.aware(n_groups=(1, 1), **fixed), [paper_sets(problem, fixed, 1)]),
        *problem.contest("the paper's AA-RAPS, 6 x 6 groups", problem.aware(**fixed), [paper_sets(problem, fixed, 6)]),
        *few.contest(
            "least ambiguous sets",
            few.ours("lac", nonempty=None),
            [Peer("crepes", "ConformalClassifier, hinge", crepes(few)), mapie(few, "lac"), torchcp(few, "LAC")],
        ),
        *fewest.contest("conditional sets", fewest.conditional(), [conditional_conformal(fewest)]),
    ]


class Problem:
    """Probabilities and labels for a threshold and for sets, and how answers are judged."""

    def __init__(self, half: int, n_classes: int) -> None:
        self.size = f"{half:,} + {text_of(half, n_classes, 'float32')}"
        probs, self.labels, self.atypicality = _outputs(2 * half, n_classes)
        self.given, self.test, self.half = (probs[:half], self.labels[:half]), probs[half:], half
        self.inside = np.empty(probs.shape, bool)

    def ours(self, score: str, **options: Any) -> Callable[[], np.ndarray]:
        """One threshold."""
        return lambda: SplitConformal(score, ALPHA, **options).fit(*self.given).predict_set(self.test)

    def aware(self, **fixed: Any) -> Callable[[], np.ndarray]:
        """The paper's procedure: drawn scores, the crossing class in every set, no cell merged."""
        return self._by_atypicality(lambda: AtypicalityAwareConformal(alpha=ALPHA, mode="paper", **fixed))

    def conditional(self) -> Callable[[], np.ndarray]:
        """Ours, whose soft groups follow atypicality and confidence."""
        return self._by_atypicality(lambda: ConditionalConformal(ALPHA))

    def _by_atypicality(self, method: Callable[[], Any]) -> Callable[[], np.ndarray]:
        first, second = self.atypicality[: self.half], self.atypicality[self.half :]
        return lambda: method().fit(*self.given, atypicality=first).predict_set(self.test, atypicality=second)

    def contest(self, stage: str, ours: Callable[[], np.ndarray], peers: list[Peer]) -> list[Row]:
        """Sets that cover at least 1 - alpha, less four standard deviations, are judged by their mean size."""
        return contest(
            stage,
            self.size,
            ours,
            peers,
            bare=self._bare,
            bare_of="one comparison of every probability",
            accuracy="mean set size (inf if it covers less than asked)",
            error=self.judged,
            quality=self.covered,
            slack=1e-9,
        )

    def _bare(self) -> None:
        np.greater(self.given[0], 0.5, out=self.inside[: self.half])
        np.greater(self.test, 0.5, out=self.inside[self.half :])

    def judged(self, sets: np.ndarray) -> float:
        """Mean size, or infinity where coverage is below what a valid method reaches."""
        hits = self._hits(sets)
        noise = np.sqrt(2 * ALPHA * (1 - ALPHA) / self.half)  # of the threshold and of the rows counted
        return float(self._shaped(sets).sum(axis=1).mean()) if hits.mean() >= 1 - ALPHA - 4 * noise else np.inf

    def covered(self, sets: np.ndarray) -> str:
        """Coverage on average and in the worst sixth of atypicality."""
        hits, rarity = self._hits(sets), self.atypicality[self.half :]
        group = np.searchsorted(np.quantile(rarity, np.arange(1, LEVELS) / LEVELS), rarity)
        worst = min(hits[group == g].mean() for g in range(LEVELS))
        return f"covers {hits.mean():.3f}, worst sixth {worst:.3f}"

    def _shaped(self, sets: np.ndarray) -> np.ndarray:
        return np.asarray(sets, bool).reshape(self.test.shape)

    def _hits(self, sets: np.ndarray) -> np.ndarray:
        return self._shaped(sets)[np.arange(self.half), self.labels[self.half :]]


def paper_sets(problem: Problem, fixed: dict[str, Any], n_groups: int) -> Peer:
    """The released procedure, written with `argsort`: the same sets up to its draws."""
    first, second = problem.atypicality[: problem.half], problem.atypicality[problem.half :]
    return Peer(
        AUTHORS,
        "as released, argsort",
        lambda: authors.aware_sets(*problem.given, first, problem.test, second, ALPHA, n_groups=n_groups, **fixed),
        target="ratio >= 5",
        if_worse="the same procedure with other draws",
    )


def mapie(problem: Problem, score: str, **params: Any) -> Peer:
    """MAPIE around a fitted model, as its documentation has it for split conformal classification."""
    (probs, labels), test = problem.given, problem.test

    def run() -> np.ndarray:
        from mapie.classification import SplitConformalClassifier

        model = ProbabilitiesAreInputs(probs.shape[1])
        peer = SplitConformalClassifier(model, confidence_level=1 - ALPHA, conformity_score=score, random_state=0)
        return peer.conformalize(probs, labels).predict_set(test, conformity_score_params=params)[1]

    said = "".join(f", {name}={value!r}" for name, value in params.items())
    return Peer("mapie", f'SplitConformalClassifier(conformity_score="{score}"){said}', run, if_worse=_DRAWS)


def torchcp(problem: Problem, score: str, **options: Any) -> Peer:
    """TorchCP on logits that are already there: logarithms of the probabilities."""
    logits, labels, test = _tensors(problem)

    def run() -> np.ndarray:
        import torch
        import torchcp.classification.score
        from torchcp.classification.predictor import SplitPredictor

        torch.manual_seed(0)
        peer = SplitPredictor(getattr(torchcp.classification.score, score)(**options), alpha=ALPHA)
        peer.calculate_threshold(logits(), labels())
        return peer.predict_with_logits(test()).numpy()

    return Peer("torchcp", f"SplitPredictor({score}({_said(options)}))", run, if_worse=_DRAWS)


def torch_uncertainty(problem: Problem, name: str, **options: Any) -> Peer:
    """torch-uncertainty on a loader of logits, in one batch: its fastest."""
    logits, labels, test = _tensors(problem)

    def run() -> np.ndarray:
        import torch
        import torch_uncertainty.post_processing as package

        torch.manual_seed(0)
        peer = getattr(package, name)(ALPHA, model=torch.nn.Identity(), **options)
        peer.fit([(logits(), labels())])
        return peer.conformal(test()).numpy() > 0

    return Peer("torch-uncertainty", f"{name}({_said(options)})", run, if_worse=_DRAWS)


def crepes(problem: Problem) -> Callable[[], np.ndarray]:
    (probs, labels), test = problem.given, problem.test

    def run() -> np.ndarray:
        from crepes import ConformalClassifier
        from crepes.extras import hinge

        fitted = ConformalClassifier().fit(hinge(probs, np.arange(probs.shape[1]), labels))
        return fitted.predict_set(hinge(test), confidence=1 - ALPHA, smoothing=False)

    return run


def conditional_conformal(problem: Problem) -> Peer:
    """Gibbs, Cherian and Candes: exact coverage in every sixth of atypicality, one linear program per test row."""
    (probs, labels), test = problem.given, problem.test
    edges = np.quantile(problem.atypicality[: problem.half], np.arange(1, LEVELS) / LEVELS)

    def groups(x: np.ndarray) -> np.ndarray:
        return np.eye(LEVELS)[np.searchsorted(edges, np.asarray(x).reshape(-1))]

    def run() -> np.ndarray:
        from conditionalconformal import CondConf

        scores = 1.0 - probs[np.arange(len(labels)), labels].astype(np.float64)
        peer = CondConf(lambda x, y: scores, groups)
        rarity = problem.atypicality[problem.half :].reshape(-1, 1, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cvxpy, about what its next version will do
            peer.setup_problem(problem.atypicality[: problem.half].reshape(-1, 1), labels)
            cutoffs = [peer.predict(1 - ALPHA, x, lambda cutoff, _: cutoff, 0.0, 1.0, exact=False) for x in rarity]
        return 1.0 - test <= np.array(cutoffs, np.float64).reshape(-1, 1)

    return Peer(
        "conditionalconformal",
        "CondConf, LAC, six groups of atypicality, exact=False",
        run,
        note="its exact=True does not run with NumPy 2.4",
        if_worse="ours also holds in groups of confidence, for which it pays in size",
    )


_DRAWS = "another convention at the threshold or other draws; ours holds its coverage with the size that is shown"


def _said(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _tensors(problem: Problem) -> list[Callable[[], Any]]:
    """Logits and labels of the threshold rows and logits of the others as tensors, made once, before the clock."""
    kept: list[Any] = []

    def made() -> list[Any]:
        import torch

        if not kept:
            with np.errstate(divide="ignore"):
                arrays = [np.log(problem.given[0]), problem.given[1], np.log(problem.test)]
            kept.extend(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        return kept

    return [lambda place=place: made()[place] for place in range(3)]


def _outputs(n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32 probabilities of a model with an accuracy near 0.75, labels drawn from them, and an atypicality."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n_rows, n_classes)).astype(np.float32)
    logits[np.arange(n_rows), rng.integers(0, n_classes, n_rows)] += rng.gamma(6.0, 2.5, n_rows).astype(np.float32)
    probs = softmax(logits)
    below = np.cumsum(probs, axis=1, dtype=np.float64) <= rng.random((n_rows, 1))
    return probs, np.minimum(below.sum(axis=1), n_classes - 1), np.random.default_rng(1).random(n_rows)
