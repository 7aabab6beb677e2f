"""How rare the rows of a head are: its density, fitted or chosen, their scores, and the shares of training rows."""

from operator import is_not
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import like, namespace, to_host
from atypicality.blocks import progress
from atypicality.density import GaussianAtypicality, RelativeAtypicality
from atypicality.density.choice import GAUSSIAN, choose_density
from atypicality.density.columns import class_positions, class_sources, in_columns
from atypicality.density.family import DensityFamily
from atypicality.density.logdensity import score_rows
from atypicality.density.ratio import NeighborRatio
from atypicality.estimators import check_is_fitted, clone
from atypicality.formula import RelativeDensity, TwoDensities
from atypicality.head.acceptance import ambiguity_of, reads_ambiguity
from atypicality.head.calibration_parts import warn_of_training_rows
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.recalibration.prediction import softmax_rows
from atypicality.validation import check_choice, warn
from atypicality.validation.device import any_matrix

__all__ = [
    "READING", "Scores", "class_columns", "density_formula", "fit_density", "fitted_ratio", "rarity_of", "scores_of",
    "sources_of", "training_shares",
]  # fmt: skip

Scores = tuple[Any, Any, Any]
"""Atypicality (n,), that for recalibration, and class log-densities (n, m) in the order of the density."""
READING = 2
"""What recalibration reads beside a chosen density: class log-densities of it, the Gaussian of its nearest class."""
GAUSSIANS = (GaussianAtypicality, RelativeAtypicality)
_pairs: WeakKeyDictionary[Any, tuple[tuple[Any, Any], TwoDensities]] = WeakKeyDictionary()
"""By Gaussian, what it and the density chosen learnt, and the formula of both: it takes an eigendecomposition."""


def fit_density(head: Any, train: Any, calibration: ModelOutputs, first: ModelOutputs) -> Scores | None:
    """Fit the density of a head, and choose it where it is to be; scores of the `first` rows, which recalibrate."""
    if train is None or train is not getattr(head, "density_", None):
        head.density_choice_ = head.recalibration_density_ = None
    head.density_, scored = _chosen(head, _fitted(head.density, train, calibration), first)
    if head.density_ is None or scored is not None:
        return scored
    with first._numbered():
        return scores_of(head, first.need("embeddings"))


def _fitted(density: Any, train: Any, calibration: ModelOutputs) -> Any:
    """The density fitted on training rows, or where it is to be chosen the family of those to choose among."""
    if density is None or (train is None and calibration.atypicality is not None):
        if density is None:
            _warn_without_atypicality("density=None")
        return None
    if train is None:
        _warn_without_atypicality("no train= and no atypicality in the calibration outputs")
        return None
    if isinstance(train, DensityFamily):
        return train
    if hasattr(train, "atypicality") and not isinstance(train, ModelOutputs):
        check_is_fitted(train)
        return train
    check_outputs(train, "train, where it is not a fitted density,")
    if train.embeddings is None and train.atypicality is not None:
        raise ValueError("train must have embeddings; it has atypicality instead, which needs no train=. Leave it out.")
    embeddings, labels = train.need("embeddings", "labels")
    warn_of_training_rows(embeddings, calibration.embeddings)
    progress.stage("fitting the density")
    auto = isinstance(density, str) and check_choice(density, "density, where it is text,", ("auto",))
    with train._numbered():
        return (DensityFamily() if auto else clone(density)).fit(embeddings, labels)


def _warn_without_atypicality(reason: str) -> None:
    warn(
        f"{reason}: the head works without atypicality, so there are no quadrants and no drift warning, and the sets "
        "are valid on average only, not for rare inputs."
    )


def _chosen(head: Any, density: Any, first: ModelOutputs) -> tuple[Any, Scores | None]:
    """The member of a family that finds errors best among some rows, which carry no guarantee; others as they are.

    Also the scores of those rows, which the choice took.
    """
    if not isinstance(density, DensityFamily):
        return density, None
    progress.stage("choosing the density")
    with first._numbered():
        embeddings, labels = first.need("embeddings", "labels")
        probs = softmax_rows(first.need("logits"))
        scored = density.scored(embeddings)
        scores = {name: to_host(one.atypicality)[:, 0] for name, one in scored.items()}
        head.density_choice_ = choose_density(density, embeddings, probs, labels, scores=scores)
    chosen = head.density_choice_.name
    head.recalibration_density_ = None if chosen == GAUSSIAN else density.members_[GAUSSIAN]
    atypicality, covariate, densities = (like(found, embeddings) for found in scored[chosen])
    return density.members_[chosen], (atypicality[:, 0], covariate[:, 0], densities)


def fitted_ratio(head: Any, train: Any) -> NeighborRatio | None:
    """The training rows by class, where acceptance or recalibration of a head looks at them."""
    if head.acceptance is None and not reads_ambiguity(head.recalibration):
        return None
    if isinstance(train, ModelOutputs):
        ratio = NeighborRatio() if head.acceptance is None else clone(head.acceptance)
        with train._numbered():
            fitted: NeighborRatio = ratio.fit(*train.need("embeddings", "labels"))
        return fitted
    known: NeighborRatio | None = getattr(head, "neighbor_ratio_", None)
    if known is None or train is not head.density_:
        raise ValueError(
            "acceptance and a recalibration with ambiguity need train= with embeddings and labels: they search "
            "among training rows, which a fitted density has not. Give the outputs, or leave both out."
        )
    return known


def rarity_of(
    head: Any, outputs: ModelOutputs, scored: Scores | None = None
) -> tuple[NDArray[np.float64] | None, dict[str, Any]]:
    """Atypicality (n,) for sets, quadrants and drift, and what recalibration is offered beside the logits."""
    given = None if head.density is None else outputs.atypicality
    offered = {"atypicality": given, "class_log_density": None, "embeddings": outputs.embeddings}
    if reads_ambiguity(head.recalibration) and head.neighbor_ratio_ is not None:
        label = to_host(namespace(outputs.need("logits")).argmax(outputs.need("logits"), axis=1))
        offered["ambiguity"] = ambiguity_of(head, outputs.need("embeddings"), label)
    if head.density_ is None:
        return given, offered
    embeddings = outputs.need("embeddings")
    atypicality, offered["atypicality"], densities = scores_of(head, embeddings) if scored is None else scored
    if densities is not None:
        offered["class_log_density"] = in_columns(densities, sources_of(head))
    return atypicality, offered


def scores_of(head: Any, embeddings: Any) -> Scores:
    """Scores of rows (n, d) by the density of a head, and by the Gaussian beside it."""
    density = head.density_
    if type(density) not in GAUSSIANS:  # a user's own, by its methods
        atypicality, scored = density.atypicality(embeddings), hasattr(density, "class_log_density")
        return atypicality, atypicality, density.class_log_density(embeddings) if scored else None
    what = ["atypicality", "class_log_density"] + ([] if head.recalibration_density_ is None else ["covariate"])
    x = any_matrix(embeddings, "embeddings", width=density.n_features_in_)
    atypicality, densities, *covariate = (
        like(found, embeddings) for found in score_rows(density_formula(head), x, *what)
    )
    return atypicality[:, 0], (covariate or [atypicality])[0][:, 0], densities


def density_formula(head: Any) -> Any:
    """Of the density of a head, and of the Gaussian beside it."""
    density, gaussian = head.density_, head.recalibration_density_
    formula = density.formula()
    if gaussian is None:
        relative = type(formula) is RelativeDensity and formula.centre.dtype == np.float64
        return formula.linear() if relative else formula  # float32 measures the nearest class in float64
    own, held = (density._solved(), gaussian._solved()), _pairs.get(gaussian)
    if held is None or any(map(is_not, held[0], own)):
        held = _pairs[gaussian] = own, TwoDensities.of(formula.linear(), gaussian.formula())
    return held[1]


def sources_of(head: Any) -> NDArray[np.intp] | None:
    """As `class_sources`, of the density of a head."""
    if not hasattr(head.density_, "class_log_density"):
        return None
    return class_sources(class_columns(head), head.n_classes_)


def training_shares(head: Any) -> NDArray[np.float64] | None:
    """Share of each class (k,) among the rows of the density of a head; None where it does not count them."""
    if not hasattr(head.density_, "counts_"):
        return None
    shares = np.zeros(head.n_classes_)
    shares[class_columns(head)] = head.density_.counts_
    return np.asarray(shares / shares.sum())


def class_columns(head: Any) -> NDArray[np.intp]:
    """Column of each class of the density of a head."""
    return class_positions(head.density_.classes_, head.n_classes_, head.class_names_)
