"""Whether calibration embeddings are of the model, mode and layer of the training rows, by what they look like."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.density import GaussianAtypicality
from atypicality.formula.rows import unit_rows
from atypicality.head.calibration_parts import some_rows, unlike
from atypicality.head.rarity import class_columns
from atypicality.outputs import ModelOutputs
from atypicality.outputs.packing import ENOUGH_ROWS
from atypicality.validation import warn

__all__ = ["ClassMoments", "warn_of_backwards", "warn_of_other_layer"]

MOVED = 0.5
"""Mean squared distance of class means, in variances of the embeddings, from which on these are of different layers.
In ten sets of outputs of networks it was at most 0.15, and from 1.1 on with permuted columns."""
COLUMNS = 128  # at most, evenly spaced, of embeddings that are compared with those of train
MEDIAN_ROWS = 500  # at most, that the medians of columns are taken of
RESCALED = 4  # times the squared distance from the centre, from which on they are; 0.8 to 1.6 there


def warn_of_other_layer(head: Any, train: Any, held_out: ModelOutputs) -> None:
    """Warn where embeddings of held-out rows have other class means, or another scale, than those of training rows.

    As those of another model or layer do, or of inputs that were prepared in another way. Other shares of the classes
    change neither, and held-out rows that are further from their means than training rows do not matter. `train` are
    the rows; where they are not there, what the density of the head stores of them is compared. Where labels do not
    fit the logits, as `check_order` says, there are no class means to compare.
    """
    trained = len(train) if isinstance(train, ModelOutputs) else ENOUGH_ROWS
    if min(trained, len(held_out)) < ENOUGH_ROWS:
        return
    some, k = some_rows(held_out, None)[0], head.n_classes_
    if unlike(to_host(some.need("logits")), to_host(some.need("labels"))):
        return
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        own = ClassMoments.of(some_rows(train, None)[0], k) if isinstance(train, ModelOutputs) else _of_head(head)
        if own is None:
            return
        other = ClassMoments.of(some, k, unit=own.unit)
        moved, times = own.apart(other), own.times(other)
    if moved > MOVED or times > RESCALED or times < 1 / RESCALED:
        whose = "train" if isinstance(train, ModelOutputs) else "the rows that the density was fitted on"
        warn(
            f"embeddings of the calibration rows are unlike those of {whose}: the mean squared distance of their class "
            f"means is {max(moved, 0.0):.2g} times the variance (about 0 expected), and they are {times**0.5:.2g} "
            "times as far from their centre. Are both of the same model and layer, with inputs prepared in the same "
            "way and model.eval()? If not, atypicality means nothing here. A model that was trained again needs a new "
            "head: `fit` with its own outputs of training and calibration rows, not `refit`."
        )


def warn_of_backwards(head: Any, train: Any) -> None:
    """Warn where the density that was chosen, in this fit, calls errors typical, as of a model in training mode."""
    if head.density_choice_ is not None and head.density_choice_.backwards and train is not head.density_:
        warn(
            "atypicality ranks errors backwards: calibration rows that look typical are wrong more often than rare "
            "ones (an AUROC clearly below 0.5, see print(head)). Were their outputs made with model.eval(), from the "
            "layer and with the preprocessing of train? If so, it is no sign of errors here: go by confidence."
        )


def _of_head(head: Any) -> "ClassMoments | None":
    """Of training rows, by the density of a head or the Gaussian beside it; None of others, or of projected rows."""
    density = head.density_ if head.recalibration_density_ is None else head.recalibration_density_
    if not isinstance(density, GaussianAtypicality) or density.components_ is not None:
        return None
    return ClassMoments.of_density(density, class_columns(head), head.n_classes_)


class ClassMoments(NamedTuple):
    """Rows (k,), means (k, d) and summed variances (k,) of classes, the summed variance of all rows, and their scale.

    The scale is the median squared distance of a row to the medians of the columns: one far row does not matter. A
    density does not store it. Rows of length 1 are `unit`.
    """

    counts: NDArray[np.intp]
    means: NDArray[np.float64]
    spreads: NDArray[np.float64]
    variance: float
    scale: float | None
    unit: bool = False

    @classmethod
    def of(cls, outputs: ModelOutputs, k: int, *, unit: bool = False) -> "ClassMoments":
        """Of rows with embeddings and labels."""
        embeddings, labels = to_host(outputs.need("embeddings")), to_host(outputs.need("labels"))
        x = (unit_rows(np, embeddings)[0] if unit else embeddings)[:, :: _step(embeddings.shape[1])]
        order, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=k)
        x, found = np.asarray(x, np.float64)[order], np.flatnonzero(counts)
        starts = np.r_[0, np.cumsum(counts[found])[:-1]]
        means, spreads = np.zeros((k, x.shape[1])), np.zeros(k)
        means[found] = np.add.reduceat(x, starts) / counts[found, None]
        own = x - means[labels[order]]
        squares, shares = np.add.reduceat(np.vecdot(own, own), starts), counts / len(x)
        spreads[found] = squares / np.maximum(counts[found] - 1, 1)
        variance = float(squares.sum() / len(x) + shares @ ((means - shares @ means) ** 2).sum(axis=1))
        away = np.subtract(x, np.median(x[:: -(-len(x) // MEDIAN_ROWS)], axis=0), out=own)
        return cls(counts, means, spreads, variance, float(np.median(np.vecdot(away, away))), unit)

    @classmethod
    def of_density(cls, density: GaussianAtypicality, positions: NDArray[np.intp], k: int) -> "ClassMoments":
        """Of the rows that a density was fitted on, whose classes have these positions (m,) among k."""
        step, diagonal = _step(density.n_features_in_), density.covariance_
        diagonal = diagonal if density.covariance == "diagonal" else np.diagonal(diagonal, axis1=-2, axis2=-1)
        counts, means, spreads = np.zeros(k, np.intp), np.zeros((k, density.means_[0, ::step].size)), np.zeros(k)
        counts[positions], means[positions] = density.counts_, density.means_[:, ::step]
        spreads[positions] = diagonal[..., ::step].sum(axis=-1)
        shares = counts / counts.sum()
        variance = float(shares @ (spreads + ((means - shares @ means) ** 2).sum(axis=1)))
        return cls(counts, means, spreads, variance, None, density.normalize is not None)

    def apart(self, other: "ClassMoments") -> float:
        """Mean squared distance of the means of a class, less what it is by chance, in variances of all rows."""
        both = np.flatnonzero((self.counts > 1) & (other.counts > 1))
        distance = ((self.means[both] - other.means[both]) ** 2).sum(axis=1)
        distance -= self.spreads[both] / self.counts[both] + other.spreads[both] / other.counts[both]
        weighted = float(other.counts[both] @ distance) / max(int(other.counts[both].sum()), 1)
        return weighted / min(self.variance, other.variance)

    def times(self, other: "ClassMoments") -> float:
        """How many times the scale of this the other's is; without a scale, its scale or its variance of this variance.

        The nearer to 1 of the two: where some rows are far, a variance is many times the scale.
        """
        if self.scale is not None and other.scale is not None:
            return float(np.float64(other.scale) / self.scale)
        low, high = np.sort([other.scale or other.variance, other.variance]) / self.variance
        return float(np.clip(1.0, low, high))


def _step(columns: int) -> int:
    return -(-columns // COLUMNS)
