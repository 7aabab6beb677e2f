"""Whether the parts of a stored head have what they need from each other."""

import inspect
from typing import Any

import numpy as np

from atypicality.density import GaussianAtypicality
from atypicality.density.choice import GAUSSIAN
from atypicality.density.columns import class_positions
from atypicality.head.acceptance import reads_ambiguity
from atypicality.head.rarity import READING, sources_of
from atypicality.stored import need

__all__ = ["check_consistent", "known_reading"]


def check_consistent(head: Any) -> None:
    """The parts have what they need from each other."""
    names, rare = head.class_names_, head.quantiles_ is not None
    need(names is None or names.dtype.kind == "U", "class names must be text.")
    need((head.quadrants_ is None) == (head.quantiles_ is None), "quadrants and quantiles come together.")
    need(rare or head.density_ is None, "a head with a density must have quantiles.")
    two = head.recalibration_density_ is not None or head.recalibration_quantiles_ is None
    need(two, "quantiles of recalibration's atypicality need its density.")
    need(head.density is not None or not rare, "density=None must go without quantiles.")
    need(rare or not _needs_atypicality(head), "the head must have atypicality, which a part of it needs.")
    both = head.metrics_.keys() == {"before", "after"}
    need(both and len(set(map(frozenset, head.metrics_.values()))) == 1, "metrics must be before and after.")
    used = getattr(head.recalibration_, "terms_", {}).get("class_density") == "used"
    _check_two_densities(head.density_, head.recalibration_density_)
    _check_acceptance(head)
    need(hasattr(head.density_, "class_log_density") or not used, "the density must have what recalibration needs.")
    sources_of(head)  # an error of its own where classes do not fit


def _check_two_densities(own: Any, other: Any) -> None:
    """A Gaussian beside the chosen density is that of the same rows."""
    if other is None:
        return
    need(isinstance(own, GaussianAtypicality), "a Gaussian for recalibration stands beside a chosen density.")
    need(str(other) == GAUSSIAN and own.n_features_in_ == other.n_features_in_, "the Gaussian must read the rows.")
    need(np.array_equal(own.classes_, other.classes_), "both densities must have the same classes.")


def _check_acceptance(head: Any) -> None:
    need((head.acceptance is None) == (head.acceptance_ is None), "acceptance comes with its score.")
    searches = head.acceptance is not None or reads_ambiguity(head.recalibration_)
    need((head.neighbor_ratio_ is not None) == searches, "what searches among training rows must have them.")
    if head.neighbor_ratio_ is not None:
        class_positions(head.neighbor_ratio_.classes_, head.n_classes_, head.class_names_)


def _needs_atypicality(head: Any) -> bool:
    recalibration, sets = head.recalibration_, head.prediction_sets_
    return (
        "atypicality" in inspect.signature(sets.predict_set).parameters
        or getattr(recalibration, "quantiles_", None) is not None
        or "atypicality" in getattr(getattr(recalibration, "polynomial_", None), "names", ())
    )


def known_reading(head: Any) -> int:
    """`reading_` of a stored head that does not state it."""
    need(
        head.recalibration_density_ is None,
        "it was saved by a version in development, whose recalibration read another density: fit the head again.",
    )
    return READING
