"""Synthetic worlds with known truth: what a model said, and the law that its labels were drawn from."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import chdtr, softmax

from atypicality.validation import check_integer, check_number

if TYPE_CHECKING:
    from atypicality.outputs import ModelOutputs

__all__ = ["World", "make_world"]

RADIUS = 2.5
"""Distance of the class means from the origin, in standard deviations: a Bayes accuracy near 0.8 for five classes."""
NOISE_POWER = 3
"""The noise grows with this power of the atypicality's rank: the typical half of the samples hardly feels it."""

PER_ROW = ("embeddings", "logits", "labels", "true_probs", "atypicality")


@dataclass(frozen=True)
class World:
    """Samples of a synthetic classification problem, what a model says of them, and the truth.

    Attributes
    ----------
    embeddings : ndarray of shape (n, d)
        Drawn from a mixture of unit Gaussians, one per class.
    logits : ndarray of shape (n, k)
        What the model says. `softmax(logits)` is the truth only for `temperature=1` and `atypical_noise=0`.
    labels : ndarray of shape (n,)
        Drawn from `true_probs`, row by row.
    true_probs : ndarray of shape (n, k)
        The law of the labels given the embeddings.
    atypicality : ndarray of shape (n,)
        The true class-conditional atypicality, the smallest over classes of -log p(x given y).
    class_names : tuple of str
    class_means : ndarray of shape (k, d)
    class_shares : ndarray of shape (k,)
        Weights of the mixture: the shares of the labels when there is no noise.

    Examples
    --------
    >>> world = make_world(100, n_classes=3)
    >>> world.probs.shape, world.outputs().n_classes
    ((100, 3), 3)
    """

    embeddings: NDArray[np.float64]
    logits: NDArray[np.float64]
    labels: NDArray[np.intp]
    true_probs: NDArray[np.float64]
    atypicality: NDArray[np.float64]
    class_names: tuple[str, ...]
    class_means: NDArray[np.float64]
    class_shares: NDArray[np.float64]

    @property
    def probs(self) -> NDArray[np.float64]:
        """The model's probabilities, softmax of its logits, of shape (n, k)."""
        return np.asarray(softmax(self.logits, axis=1))

    def __len__(self) -> int:
        return self.labels.size

    def take(self, rows: Any) -> Self:
        """The same world with some of its samples: `rows` is a slice, a boolean mask or row numbers.

        >>> len(make_world(100).take(slice(0, 30)))
        30
        """
        return replace(self, **{name: getattr(self, name)[rows] for name in PER_ROW})

    def outputs(self) -> "ModelOutputs":
        """What a user would have: logits, embeddings, labels and class names, without the truth."""
        from atypicality.outputs import ModelOutputs

        return ModelOutputs(self.logits, embeddings=self.embeddings, labels=self.labels, class_names=self.class_names)


def make_world(
    n_samples: int = 2000,
    n_classes: int = 5,
    *,
    n_features: int = 8,
    temperature: float = 1.0,
    class_imbalance: float = 1.0,
    atypical_noise: float = 0.0,
    random_state: int | np.random.Generator | None = 0,
) -> World:
    r"""Draw a classification problem whose truth is known, and a model that is wrong in known ways.

    Embeddings come from :math:`\sum_y \pi_y N(\mu_y, I)` and labels from

    .. math:: P(y \mid x) = (1 - w(x)) \, \mathrm{softmax}(z(x))_y + w(x) / k, \qquad
              z_y(x) = \log \pi_y - \|x - \mu_y\|^2 / 2,

    where :math:`w` is `atypical_noise` times the cube of the chi-squared rank of the squared distance to the
    nearest class mean. The model says `temperature` times z: it knows nothing of w.

    Parameters
    ----------
    n_samples, n_classes, n_features : int
    temperature : float, default=1.0
        The temperature that would calibrate the model when there is no noise; above 1 the model is overconfident.
    class_imbalance : float, default=1.0
        How many times likelier the first class is than the last; the classes between fall geometrically.
    atypical_noise : float in [0, 1], default=0.0
        The chance that the label of an extremely atypical sample is drawn at random, whatever the model says.
    random_state : int, Generator or None, default=0

    Returns
    -------
    World

    Examples
    --------
    >>> world = make_world(1000, temperature=2.0)
    >>> world.logits.shape, world.true_probs.shape
    ((1000, 5), (1000, 5))
    >>> bool(world.probs.max(axis=1).mean() > world.true_probs.max(axis=1).mean())    # overconfident
    True
    """
    n = check_integer(n_samples, "n_samples", low=1)
    k, d = check_integer(n_classes, "n_classes", low=2), check_integer(n_features, "n_features", low=1)
    scale = check_number(temperature, "temperature", low=0, low_open=True)
    noise = check_number(atypical_noise, "atypical_noise", low=0, high=1)
    log_prior = _log_prior(k, check_number(class_imbalance, "class_imbalance", low=1))
    rng = np.random.default_rng(random_state)

    means = rng.standard_normal((k, d))
    means *= RADIUS / np.linalg.norm(means, axis=1, keepdims=True)
    components = rng.choice(k, size=n, p=np.exp(log_prior))
    embeddings = means[components] + rng.standard_normal((n, d))
    distances = cdist(embeddings, means, "sqeuclidean")
    logits = log_prior - distances / 2
    nearest = distances.min(axis=1)
    flat = noise * chdtr(d, nearest)[:, None] ** NOISE_POWER
    truth = (1 - flat) * softmax(logits, axis=1) + flat / k
    return World(
        embeddings=embeddings,
        logits=scale * (logits - logits.mean(axis=1, keepdims=True)),
        labels=_draw(truth, rng),
        true_probs=truth,
        atypicality=(nearest + d * np.log(2 * np.pi)) / 2,
        class_names=tuple(f"class {index}" for index in range(k)),
        class_means=means,
        class_shares=np.exp(log_prior),
    )


def _log_prior(n_classes: int, imbalance: float) -> NDArray[np.float64]:
    """Log shares of the classes, falling geometrically from the first to the last by a factor of `imbalance`."""
    logs = -np.log(imbalance) * np.linspace(0, 1, n_classes)
    return np.asarray(logs - np.log(np.exp(logs).sum()))


def _draw(probs: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.intp]:
    """One label per row by inversion; the last class takes what rounding leaves of the unit interval."""
    below = np.cumsum(probs[:, :-1], axis=1) <= rng.random((probs.shape[0], 1))
    return np.asarray(below.sum(axis=1), dtype=np.intp)
