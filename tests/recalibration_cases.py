"""What the tests of recalibration share: small worlds, every convex recalibrator, and an independent optimum."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from atypicality import (
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)

CONVEX_CALIBRATORS = {
    "temperature": TemperatureScaling(),
    "grouped": GroupTemperatureScaling(),
    "vector": VectorScaling(),
    "bias": VectorScaling(scale=False),
    "shrunk vector": VectorScaling(strength=0.01),
    "ensemble": EnsembleTemperatureScaling(),
    "paper": AtypicalityAwareRecalibration.paper(),
    "aware": AtypicalityAwareRecalibration(),
}


def rows_like(n, k, seed=0, *, scale=2.0, dtype=np.float64):
    """Noisy logits that favour the label, labels with every class, and an atypicality that widens the logits."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % k)
    logits = scale * rng.normal(size=(n, k))
    logits[np.arange(n), labels] += scale
    atypicality = rng.normal(size=n)
    return (logits * (1 + 0.2 * np.tanh(atypicality))[:, None]).astype(dtype), labels, atypicality


class Reference:
    """The solver's problem written out plainly, in float64, for a general-purpose minimiser."""

    def __init__(
        self,
        logits,
        labels,
        *,
        features=None,
        terms=(),
        class_scores=False,
        mixing=None,
        ridge=0.0,
        weights=None,
        scale=1.0,
        term_scales=None,
        pseudo_rows=False,
    ):
        z = np.asarray(logits, dtype=np.float64)
        self.n, self.k = z.shape
        ones = np.ones((self.n, 1))
        self.hidden = np.isneginf(z)
        centred = z - np.where(self.hidden, 0, z).sum(axis=1, keepdims=True) / (~self.hidden).sum(axis=1, keepdims=True)
        self.x = np.where(self.hidden, 0, centred) / scale
        self.features = ones if features is None else features
        self.terms = [
            (term.matrix / term_scales[term.name], ones if term.features is None else term.features) for term in terms
        ]
        self.mixing, self.class_scores, self.ridge = mixing, class_scores, ridge
        self.labels, rows = labels, np.arange(self.n)
        self.w = np.full(self.n, 1 / self.n) if weights is None else weights / weights.sum()
        self.y = np.zeros_like(z)
        self.y[rows, labels] = 1
        if pseudo_rows:  # one right and one wrong row, spread over all; huge margins count as ten medians
            n = self.n if weights is None else weights.sum()
            order = np.argsort(z, axis=1)
            margin = z[rows, order[:, -1]] - z[rows, order[:, -2]]
            limit = 10 * np.quantile(margin, 0.5, method="inverted_cdf", weights=self.w)
            share = np.minimum(1, limit / margin) / (n + 2)
            self.y *= (1 - 2 * share)[:, None]
            for place in (-1, -2):
                self.y[rows, order[:, place]] += share
        sizes = [self.features.shape[1], *(features.shape[1] for _, features in self.terms)]
        sizes += [{None: 0, "diagonal": self.k, "full": self.k**2}[mixing], self.k if class_scores else 0]
        self.ends = np.cumsum(sizes)

    def predictor(self, theta):
        c, *unknowns, w, s, _ = np.split(theta, self.ends)
        found = (self.features @ c)[:, None] * self.x
        for (matrix, features), e in zip(self.terms, unknowns, strict=True):
            found = found + (features @ e)[:, None] * matrix
        if w.size:
            found = found + (self.x * w if self.mixing == "diagonal" else self.x @ w.reshape(self.k, self.k).T)
        return np.where(self.hidden, -np.inf, found + s if s.size else found)

    def __call__(self, theta):
        scores = self.predictor(theta)
        norm = logsumexp(scores, axis=1)
        residual = self.w[:, None] * (np.exp(scores - norm[:, None]) - self.y)
        parts = [self.features.T @ (residual * self.x).sum(axis=1)]
        parts += [features.T @ (residual * matrix).sum(axis=1) for matrix, features in self.terms]
        if self.mixing == "diagonal":
            parts.append((residual * self.x).sum(axis=0))
        if self.mixing == "full":
            parts.append((residual.T @ self.x).ravel())
        if self.class_scores:
            parts.append(residual.sum(axis=0))
        loss = self.w @ (norm - (self.y * np.where(self.hidden, 0, scores)).sum(axis=1))
        return loss + 0.5 * np.sum(self.ridge * theta**2), np.concatenate(parts) + self.ridge * theta

    def minimum(self, free=None):
        """The smallest objective; `free` maps parameters without constraints to those of the model."""
        function = self if free is None else lambda t: (lambda f, g: (f, free.T @ g))(*self(free @ t))
        start = np.zeros(self.ends[-1] if free is None else free.shape[1])
        start[0] = 1.0
        for _ in range(4):  # restarts clear the memory: the line search gives up early near the optimum
            found = minimize(
                function, start, jac=True, method="L-BFGS-B",
                options={"maxiter": 20000, "maxfun": 40000, "ftol": 0, "gtol": 1e-12, "maxcor": 30},
            )  # fmt: skip
            start = found.x
        return found.fun
