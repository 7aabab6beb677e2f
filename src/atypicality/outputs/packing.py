"""What outputs hold, as numbers that show a mistake: which arrays, which classes, and whether labels fit the logits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import to_host
from atypicality.outputs.model_outputs import ModelOutputs
from atypicality.validation import check_probs, common_sum

__all__ = ["describe", "findings", "from_probabilities", "shuffled_accuracy"]

BLOCK_ROWS = 4096
ENOUGH_ROWS = 100  # for an accuracy that is not clearly above chance to be told from one of few rows
CLEARLY = 4  # standard errors above chance


def from_probabilities(outputs: ModelOutputs) -> ModelOutputs:
    """The same outputs, whose logits are probabilities (n, k), with their logarithms; a 0 masks the class.

    >>> from_probabilities(ModelOutputs([[0.5, 0.5]])).logits.round(3).tolist()
    [[-0.693, -0.693]]
    """
    probs = check_probs(to_host(outputs.need("logits")))
    with np.errstate(divide="ignore"):
        return outputs._replaced(logits=np.log(probs))


def describe(outputs: ModelOutputs) -> dict[str, Any]:
    """Rows, arrays with type and shape, classes with their counts, and the accuracy of the bare model.

    >>> described = describe(ModelOutputs([[2.0, 0.0], [0.0, 1.0]], labels=[0, 1]))
    >>> described["arrays"], described["accuracy"], described["chance"]
    ({'logits': ['float64', [2, 2]], 'labels': ['int64', [2]]}, 1.0, 0.5)
    """
    arrays = {name: [str(to_host(array[:1]).dtype), list(array.shape)] for name, array in outputs._per_row().items()}
    found: dict[str, Any] = {"rows": len(outputs), "classes": outputs.n_classes, "arrays": arrays}
    if outputs.class_names is not None:
        found["class_names"] = outputs.class_names.tolist()
    if outputs.labels is not None and len(outputs):
        found["label_counts"] = np.bincount(outputs.labels, minlength=outputs.n_classes or 0).tolist()
    if outputs.logits is not None and len(outputs):
        found |= _of_logits(outputs)
    if outputs.embeddings is not None:
        found["rows_with_bad_embeddings"] = sum(
            int((~np.isfinite(block).all(axis=1)).sum()) for block in _host_blocks(outputs.embeddings)
        )
    return found


def _of_logits(outputs: ModelOutputs) -> dict[str, Any]:
    """Rows that no head answers, whether all are probabilities, and how often the largest is the label's."""
    bad, totals, places = 0, set(), []
    for block in _host_blocks(outputs.logits):
        top = block.max(axis=1)
        bad += int((~np.isfinite(top)).sum())
        totals.add(common_sum(block))
        places.append(block.argmax(axis=1))
    found: dict[str, Any] = {"rows_with_bad_logits": bad, "logits_look_like_probabilities": totals == {1.0}}
    if len(totals) == 1 and totals != {1.0} and (total := totals.pop()) is not None:
        found["logits_sum_to"] = total
    if outputs.labels is None or bad:
        return found
    predicted, shares = np.concatenate(places), outputs.n_classes or 0
    counts = (np.bincount(each, minlength=shares) for each in (predicted, outputs.labels))
    chance, error = shuffled_accuracy(*counts)
    accuracy = float((predicted == outputs.labels).mean())
    return found | {"accuracy": accuracy, "chance": chance, "chance_error": error}


def shuffled_accuracy(predicted: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy if labels were shuffled, from rows of each class (k,), twice.

    >>> shuffled_accuracy(np.array([50, 50]), np.array([50, 50]))
    (0.5, 0.0502...)
    """
    a, b = predicted.astype(np.float64), labels.astype(np.float64)
    n, hits = a.sum(), a @ b
    variance = (hits - a @ (b * (a + b)) / n + (hits / n) ** 2) / max(n - 1, 1)  # Hoeffding (1951), of n times it
    return float(hits / n**2), float(np.sqrt(max(variance, 0.0)) / n)


def _host_blocks(array: Any) -> Any:
    for rows in blocks.row_slices(array.shape[0], BLOCK_ROWS):
        yield to_host(array[rows, ...]).astype(np.float64)


def findings(described: dict[str, Any]) -> list[str]:
    """What of `describe` is likely a mistake, in words; empty where nothing is.

    >>> findings(describe(ModelOutputs([[0.9, 0.1], [0.2, 0.8]], labels=[1, 0])))[0]
    'logits lie between 0 and 1 and sum to 1 in every row: ... Pass --probabilities ...'
    """
    found = []
    if described.get("logits_look_like_probabilities"):
        found.append(
            "logits lie between 0 and 1 and sum to 1 in every row: these are probabilities. Pass --probabilities to "
            "store their logarithms."
        )
    if total := described.get("logits_sum_to"):
        found.append(
            f"logits are not negative and sum to {total:g} in every row: these are percentages or votes. Divide them "
            f"by {total:g} and pass --probabilities."
        )
    for name in ("logits", "embeddings"):
        if bad := described.get(f"rows_with_bad_{name}"):
            found.append(f"{name} of {bad:,} rows are not numbers (NaN or infinite), and no head answers such rows.")
    if (accuracy := described.get("accuracy")) is not None and accuracy < _least(described):
        found.append(
            f"the largest logit is the label's in {accuracy:.1%} of the rows, and {described['chance']:.1%} would be "
            "chance: are rows or columns in another order?"
        )
    counts = described.get("label_counts", [])
    if unseen := sum(count == 0 for count in counts):
        found.append(f"{unseen:,} of {len(counts):,} classes have no label among the rows.")
    return found


def _least(described: dict[str, Any]) -> float:
    """The accuracy that is clearly above chance, or chance itself where there are few rows."""
    clearly = CLEARLY if described["rows"] >= ENOUGH_ROWS else 0
    return float(described["chance"] + clearly * described["chance_error"] - 1e-12)  # of one class: chance
