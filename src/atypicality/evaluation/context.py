"""What is known of the rows besides what a method says: outputs, atypicality, class densities, class atypicality."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import to_numpy
from atypicality.density import ClassAtypicality, GaussianAtypicality
from atypicality.density.columns import class_positions, in_columns
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.outputs.limits import check_room
from atypicality.validation import check_choice

__all__ = ["Context", "make_context"]


@dataclass(frozen=True)
class Context:
    """Labelled outputs of n rows with what `train` says of them; parts that nobody can know are None.

    Attributes
    ----------
    outputs : ModelOutputs
    train : ModelOutputs or a fitted density
        What a head is fitted with.
    atypicality : ndarray of shape (n,)
    class_log_density : ndarray of shape (n, k)
        Columns in the order of the logits.
    class_atypicality : ndarray of shape (k,)
    groups : ndarray of shape (n,)
        Given to methods as their groups.
    """

    outputs: ModelOutputs
    train: Any = None
    atypicality: NDArray[np.float64] | None = None
    class_log_density: NDArray[np.float64] | None = None
    class_atypicality: NDArray[np.float64] | None = None
    groups: NDArray[Any] | None = None

    def extras(self) -> dict[str, Any]:
        """What a recalibrator may ask for beside logits and labels."""
        return {
            "atypicality": self.atypicality,
            "class_log_density": self.class_log_density,
            "embeddings": self.outputs.embeddings,
            "groups": self.groups,
        }

    def take(self, rows: NDArray[Any]) -> "Context":
        """The same for some of the rows."""
        per_row = ("atypicality", "class_log_density", "groups")
        parts = {
            name: None if (part := getattr(self, name)) is None else blocks.take_rows(part, rows) for name in per_row
        }
        return replace(self, outputs=self.outputs[rows], **parts)

    def split(self, fraction: float, random_state: int) -> tuple["Context", "Context"]:
        """Two disjoint parts, cut as `ModelOutputs.split` cuts."""
        positions = ModelOutputs(ids=np.arange(len(self.outputs)))
        first, second = positions.split(fraction, random_state)
        return self.take(first.need("ids")), self.take(second.need("ids"))


def make_context(
    outputs: ModelOutputs, train: Any = None, groups: str | None = None, *, densities: bool = True
) -> Context:
    """Everything about labelled outputs that they and `train` can tell; given values win over estimated ones.

    With `densities=False` rows are not scored: somebody else will say how atypical they are.
    """
    _check_outputs(outputs)
    density = _density(train, outputs)
    context = Context(outputs, train=train, atypicality=outputs.atypicality)
    if density is not None and densities:
        context = _with_density(context, density)
    if groups is not None:
        groups = check_choice(groups, "groups", tuple(outputs.attributes))
        context = replace(context, groups=outputs.attributes[groups])
    return replace(context, class_atypicality=_class_atypicality(outputs, train, density))


def _check_outputs(outputs: Any) -> None:
    check_outputs(outputs).need("labels")
    if not len(outputs):
        raise ValueError("outputs must have at least one row; got none.")
    check_room(len(outputs), outputs.n_classes or 0, 0)


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


def _with_density(context: Context, density: Any) -> Context:
    given = context.atypicality
    if given is not None and context.outputs.embeddings is None:
        return context
    embeddings = context.outputs.need("embeddings")
    if given is None:
        context = replace(context, atypicality=np.asarray(density.atypicality(embeddings)))
    if hasattr(density, "class_log_density") and context.outputs.n_classes is not None:
        values = np.asarray(density.class_log_density(embeddings))
        positions = class_positions(density.classes_, context.outputs.n_classes, context.outputs.class_names)
        context = replace(context, class_log_density=in_columns(values, positions, context.outputs.n_classes))
    return context


def _class_atypicality(outputs: ModelOutputs, train: Any, density: Any) -> NDArray[np.float64] | None:
    if outputs.class_atypicality is not None or outputs.n_classes is None:
        return outputs.class_atypicality
    if isinstance(train, ModelOutputs):
        if train.class_atypicality is not None or train.labels is None:
            return train.class_atypicality
        labels = train.labels
    elif hasattr(density, "counts_"):
        positions = class_positions(density.classes_, outputs.n_classes, outputs.class_names)
        labels = np.repeat(positions, to_numpy(density.counts_, "counts_").astype(np.intp))
    else:
        return None
    return np.asarray(ClassAtypicality().fit(labels).atypicality(np.arange(outputs.n_classes)))
