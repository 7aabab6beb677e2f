"""Two heads on the same labelled rows: which has the lower log-loss, with an interval of the paired difference."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.metrics.intervals import mean_interval
from atypicality.metrics.rows import read_all
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.validation import caught_warnings

__all__ = ["compared"]


def compared(
    first: Any, second: Any, outputs: ModelOutputs | tuple[ModelOutputs, ModelOutputs], names: tuple[str, str]
) -> str:
    """A sentence about two fitted heads: better by how much, or no difference shown.

    The interval is Student's of the differences of the rows: it is shorter than those of the two heads suggest, since
    a row that is hard for one is hard for the other.

    Parameters
    ----------
    first, second : ReliabilityHead, or AnswerHead
        Fitted, of the same classes.
    outputs : ModelOutputs, or a pair of them
        Labelled rows that neither was fitted on; a pair has them as each head takes them, such as the outputs that two
        answer heads make of the same answers.
    names : pair of str

    Returns
    -------
    str

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(3000, temperature=2.0).outputs()
    >>> old, new = (
    ...     aty.ReliabilityHead(recalibration=part).fit(train=world[:1000], calibration=world[1000:2000])
    ...     for part in ("auto", aty.TemperatureScaling())
    ... )
    >>> compared(old, new, world[2000:], ("old", "new"))
    'log-loss of new minus that of old on the same 1,000 rows: ... (95 % interval ... to ...): ...'
    """
    one, other = outputs if isinstance(outputs, tuple) else (outputs, outputs)
    if len(one) != len(other):
        raise ValueError(f"outputs must be the same rows for both heads; got {len(one)} and {len(other)}.")
    differences = _losses(second, other) - _losses(first, one)
    _, low, high = mean_interval(differences)
    found = f"log-loss of {names[1]} minus that of {names[0]} on the same {differences.size:,} rows: "
    if np.isnan(low):
        return found + "not comparable, with fewer than two rows or a label of probability 0"
    verdict = f"{names[1]} is better" if high < 0 else f"{names[0]} is better" if low > 0 else "no difference shown"
    return f"{found}{differences.mean():+.4f} (95 % interval {low:+.4f} to {high:+.4f}): {verdict}"


def _losses(head: Any, outputs: ModelOutputs) -> NDArray[np.float64]:
    own = check_outputs(outputs).with_classes(head.class_names_, whose="those of the head")
    with caught_warnings():  # of drift, which the evaluation has told
        return read_all(head.predict(own).proba, own.need("labels"), n_bins=1).nll
