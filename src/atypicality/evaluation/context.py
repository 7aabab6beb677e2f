"""What is known of the rows besides what a method says: outputs, atypicality, class densities, class atypicality."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import to_numpy
from atypicality.density import ClassAtypicality, GaussianAtypicality
from atypicality.density.columns import class_positions, class_sources, in_columns
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.outputs.class_names import refuse_two_readings
from atypicality.outputs.limits import check_room
from atypicality.validation import check_choice

__all__ = ["GIVEN", "TRAIN", "Context", "make_context", "measured_by"]

GIVEN = "given with the outputs"
TRAIN = "estimated from train"


@dataclass(frozen=True)
class Context:
    """Labelled outputs of n rows with what `train` says of them; parts that nobody can know are None."""

    outputs: ModelOutputs
    train: Any = None  # what a head is fitted with
    atypicality: NDArray[np.float64] | None = None
    scale: str | None = None  # whose atypicality it is: `GIVEN`, `TRAIN`, or `measured_by` a method
    covariate: NDArray[np.float64] | None = None  # atypicality for recalibrators, where a head has another for them
    class_log_density: NDArray[np.float64] | None = None  # (n, k), in the order of the logits
    class_atypicality: NDArray[np.float64] | None = None  # (k,)
    groups: NDArray[Any] | None = None  # given to methods as their groups
    max_risk: float | None = None  # at which heads are asked what they accept

    def extras(self) -> dict[str, Any]:
        """What a recalibrator may ask for beside logits and labels."""
        return {
            "atypicality": self.atypicality if self.covariate is None else self.covariate,
            "class_log_density": self.class_log_density,
            "embeddings": self.outputs.embeddings,
            "groups": self.groups,
            "class_log_prior": None if self.class_atypicality is None else -self.class_atypicality,
        }

    def take(self, rows: NDArray[Any]) -> "Context":
        """The same for some of the rows."""
        per_row = ("atypicality", "covariate", "class_log_density", "groups")
        parts: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else blocks.take_rows(part, rows) for name in per_row
        }
        return replace(self, outputs=self.outputs._part(rows), **parts)

    def split(self, fraction: float, random_state: int) -> tuple["Context", "Context"]:
        """Two disjoint parts, cut as `ModelOutputs.split` cuts."""
        chosen = self.outputs._chosen(fraction, random_state)
        return self.take(chosen), self.take(~chosen)


def make_context(
    outputs: ModelOutputs,
    train: Any = None,
    groups: str | None = None,
    *,
    densities: bool = True,
    owner: tuple[str, NDArray[Any] | None] | None = None,
    scored: Callable[[Any], tuple[Any, Any, Any]] | None = None,
) -> Context:
    """Everything about labelled outputs that they and `train` can tell; given values win over estimated ones.

    With `densities=False` rows are not scored: somebody else will say how atypical they are. `owner` is the name of
    the method that `train` is the density of, and the names of its classes; `scored` gives atypicality, that for
    recalibration, and class log-densities of embeddings, where the method has another score for recalibration.
    """
    check_outputs(outputs).need("labels")
    if not len(outputs):
        raise ValueError("outputs must have at least one row; got none.")
    check_room(len(outputs), outputs.n_classes or 0, 0, fitted=False)
    if isinstance(train, ModelOutputs):
        train = train.with_classes(outputs.class_names, whose="those of the outputs")
    density = _density(train, outputs)
    context = Context(outputs, train=train, atypicality=outputs.atypicality)
    positions = _positions(outputs, density, owner)
    if density is not None and densities:
        context = _with_density(context, density, positions, scored)
    if groups is not None:
        groups = check_choice(groups, "groups", tuple(outputs.attributes))
        context = replace(context, groups=outputs.attributes[groups])
    estimated = TRAIN if owner is None else measured_by(owner[0])
    scale = None if context.atypicality is None else estimated if outputs.atypicality is None else GIVEN
    return replace(context, scale=scale, class_atypicality=_class_atypicality(outputs, train, density, positions))


def measured_by(name: str) -> str:
    """The scale of a method that has a density of its own."""
    return f"measured by {name}"


def _density(train: Any, outputs: ModelOutputs) -> Any:
    """A fitted density, fitted here from training outputs where they have embeddings."""
    if train is None or (hasattr(train, "atypicality") and not isinstance(train, ModelOutputs)):
        return train
    if not isinstance(train, ModelOutputs):
        raise TypeError(
            f"train must be ModelOutputs with embeddings and labels, or a fitted density; got {type(train).__name__}."
        )
    if outputs.atypicality is not None and train.embeddings is None:
        return None  # atypicality is given, and training labels say how rare the classes are
    return GaussianAtypicality().fit(*train.need("embeddings", "labels"))


def _positions(outputs: ModelOutputs, density: Any, owner: tuple[str, Any] | None) -> NDArray[np.intp] | None:
    """Columns of the outputs for the classes of a density, which counts those of its owner if it has one."""
    if not hasattr(density, "classes_") or density.classes_ is None or outputs.n_classes is None:
        return None
    classes = to_numpy(density.classes_, "classes_")
    if owner is None and outputs.class_names is not None and classes.dtype.kind in "iu":
        refuse_two_readings(classes, outputs.class_names, "labels that a density was fitted with")
    return class_positions(classes, outputs.n_classes, outputs.class_names, None if owner is None else owner[1])


def _with_density(
    context: Context,
    density: Any,
    positions: NDArray[np.intp] | None,
    scored: Callable[[Any], tuple[Any, Any, Any]] | None,
) -> Context:
    given, n_classes = context.atypicality, context.outputs.n_classes
    if given is not None and context.outputs.embeddings is None:
        return context
    embeddings = context.outputs.need("embeddings")
    atypicality, covariate, densities = (None,) * 3 if scored is None else map(np.asarray, scored(embeddings))
    if given is None:
        atypicality = np.asarray(density.atypicality(embeddings)) if atypicality is None else atypicality
        context = replace(context, atypicality=atypicality, covariate=covariate)
    if hasattr(density, "class_log_density") and n_classes is not None and positions is not None:
        densities = np.asarray(density.class_log_density(embeddings)) if densities is None else densities
        context = replace(context, class_log_density=in_columns(densities, class_sources(positions, n_classes)))
    return context


def _class_atypicality(
    outputs: ModelOutputs, train: Any, density: Any, positions: NDArray[np.intp] | None
) -> NDArray[np.float64] | None:
    if outputs.class_atypicality is not None or outputs.n_classes is None:
        return outputs.class_atypicality
    if isinstance(train, ModelOutputs):
        if train.class_atypicality is not None or train.labels is None:
            return train.class_atypicality
        labels = train.labels
    elif hasattr(density, "counts_") and positions is not None:
        labels = np.repeat(positions, to_numpy(density.counts_, "counts_").astype(np.intp))
    else:
        return None
    return np.asarray(ClassAtypicality().fit(labels).atypicality(np.arange(outputs.n_classes)))
