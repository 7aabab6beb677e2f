"""Prediction sets for 1000 classes: RAPS, fit and sets, against a full argsort in NumPy and against MAPIE's APS."""

import numpy as np

from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.conformal.threshold import conformal_threshold
from benchmarks.timing import Row, best_times

N, K, ALPHA, K_REG, PENALTY = 12_500, 1000, 0.1, 5, 0.01


def rows() -> list[Row]:
    probs, labels = _outputs()
    calibration, test = slice(0, N), slice(N, 2 * N)
    atypicality = np.random.default_rng(1).random(2 * N)
    fixed = SplitConformal(alpha=ALPHA, k_reg=K_REG, penalty=PENALTY)
    aware = AtypicalityAwareConformal(alpha=ALPHA, k_reg=K_REG, penalty=PENALTY)
    given, known = (probs[calibration], labels[calibration]), probs[test]

    contestants = {
        "ours": lambda: fixed.fit(*given).predict_set(known),
        "ours, tuned": lambda: SplitConformal(alpha=ALPHA).fit(*given).predict_set(known),
        "ours, aware": lambda: aware.fit(*given, atypicality=atypicality[calibration]).predict_set(
            known, atypicality=atypicality[test]
        ),
        "argsort": lambda: _argsort_raps(*given, known),
    }
    np.testing.assert_array_equal(contestants["ours"](), contestants["argsort"]())
    peer = _mapie_aps(*given, known)
    if peer is not None:
        contestants["MAPIE"] = peer
    seconds = best_times(contestants, repeats=3)
    argsort, size = "a full argsort in NumPy", f"{N} + {N} x {K}, {seconds['ours'] * 1e3:.0f} ms"
    table = [
        Row("RAPS fit and sets", argsort, seconds["argsort"] / seconds["ours"], ">= 5", size),
        Row("RAPS tuned, fit and sets", argsort, seconds["argsort"] / seconds["ours, tuned"], ">= 5", size),
        Row("aware RAPS fit and sets", argsort, seconds["argsort"] / seconds["ours, aware"], ">= 5", size),
    ]
    if peer is not None:
        table.append(Row("RAPS fit and sets", "MAPIE's APS", seconds["MAPIE"] / seconds["ours"], ">= 12", size))
    return table


def _outputs() -> tuple[np.ndarray, np.ndarray]:
    """Float32 probabilities of a model with an accuracy near 0.75, and labels drawn from them."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((2 * N, K)).astype(np.float32)
    logits[np.arange(2 * N), rng.integers(0, K, 2 * N)] += rng.gamma(6.0, 2.5, 2 * N).astype(np.float32)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    below = np.cumsum(probs, axis=1, dtype=np.float64) <= rng.random((2 * N, 1))
    return probs, np.minimum(below.sum(axis=1), K - 1)


def _argsort_raps(probs: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The same sets as most tutorials write them: sort the indices, sum along the order, put the answers back."""
    order, scores = _sorted_scores(probs)
    at = (order == labels[:, None]).argmax(axis=1)
    found = scores[np.arange(len(labels)), at]
    found[at == 0] = 0.0
    threshold = conformal_threshold(found, ALPHA)
    order, scores = _sorted_scores(test)
    accepted = scores <= threshold
    accepted[:, 0] = True
    sets = np.empty_like(accepted)
    np.put_along_axis(sets, order, accepted, axis=1)
    return sets


def _sorted_scores(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-probs, axis=1)
    sums = np.cumsum(np.take_along_axis(probs, order, axis=1), axis=1, dtype=np.float64)
    return order, sums + PENALTY * np.maximum(np.arange(1, K + 1) - K_REG, 0)


def _mapie_aps(probs: np.ndarray, labels: np.ndarray, test: np.ndarray):
    """MAPIE's APS on the same probabilities, or None where it is not installed."""
    try:
        from mapie.classification import SplitConformalClassifier
    except ModuleNotFoundError:
        return None
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """A classifier whose inputs are its probabilities."""

        def fit(self, X, y=None):
            self.classes_, self.is_fitted_ = np.arange(K), True
            return self

        def predict_proba(self, X):
            return X

        def predict(self, X):
            return X.argmax(axis=1)

    def run() -> object:
        peer = SplitConformalClassifier(
            Given().fit(None), confidence_level=1 - ALPHA, conformity_score="aps", prefit=True
        )
        return peer.conformalize(probs, labels).predict_set(test)

    return run
