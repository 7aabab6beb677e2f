"""Two heads on the same labelled rows: which has the lower log-loss, with an interval of the paired difference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.metrics.intervals import mean_interval
from atypicality.metrics.rows import row_nll
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.validation import caught_warnings

__all__ = ["Comparison", "compared"]

LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """Mean difference of two heads' log-losses on the same rows, the second's minus the first's, with its interval.

    `low` and `high` are None where it has none: with fewer than two rows, or a label of probability 0.

    Examples
    --------
    >>> print(Comparison(("old", "new"), 1000, -0.02, -0.03, -0.01))
    log-loss of new minus that of old on the same 1,000 rows: -0.0200 (95 % interval -0.0300 to -0.0100): new is better
    """

    names: tuple[str, str]
    n_rows: int
    difference: float | None
    low: float | None
    high: float | None

    @property
    def better(self) -> str | None:
        """Name of the head that is shown to be better; None where no difference is shown."""
        if self.low is None or self.high is None:
            return None
        return self.names[1] if self.high < 0 else self.names[0] if self.low > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values.

        >>> Comparison(("old", "new"), 1000, -0.02, -0.03, -0.01).to_dict()["better"]
        'new'
        """
        numbers = {name: getattr(self, name) for name in ("n_rows", "difference", "low", "high")}
        return {"first": self.names[0], "second": self.names[1], **numbers, "level": LEVEL, "better": self.better}

    def __str__(self) -> str:
        found = f"log-loss of {self.names[1]} minus that of {self.names[0]} on the same {self.n_rows:,} rows: "
        if self.low is None:
            return found + "not comparable, with fewer than two rows or a label of probability 0"
        verdict = "no difference shown" if self.better is None else f"{self.better} is better"
        return f"{found}{self.difference:+.4f} (95 % interval {self.low:+.4f} to {self.high:+.4f}): {verdict}"


def compared(
    first: Any, second: Any, outputs: ModelOutputs | tuple[ModelOutputs, ModelOutputs], names: tuple[str, str]
) -> Comparison:
    """Two fitted heads on the same rows: better by how much, or no difference shown.

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
    Comparison
        As text a sentence.

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(3000, temperature=2.0).outputs()
    >>> old, new = (
    ...     aty.ReliabilityHead(recalibration=part).fit(train=world[:1000], calibration=world[1000:2000])
    ...     for part in ("auto", aty.TemperatureScaling())
    ... )
    >>> print(compared(old, new, world[2000:], ("old", "new")))
    log-loss of new minus that of old on the same 1,000 rows: ... (95 % interval ... to ...): ...
    """
    one, other = outputs if isinstance(outputs, tuple) else (outputs, outputs)
    if len(one) != len(other):
        raise ValueError(f"outputs must be the same rows for both heads; got {len(one)} and {len(other)}.")
    differences = _losses(second, other) - _losses(first, one)
    _, low, high = mean_interval(differences, LEVEL)
    if np.isnan(low):
        return Comparison(names, differences.size, None, None, None)
    return Comparison(names, differences.size, float(differences.mean()), low, high)


def _losses(head: Any, outputs: ModelOutputs) -> NDArray[np.float64]:
    own = check_outputs(outputs).with_classes(head.class_names_, whose="those of the head")
    with caught_warnings():  # of drift, which the evaluation has told
        return row_nll(head.predict(own).proba, own.need("labels"))
