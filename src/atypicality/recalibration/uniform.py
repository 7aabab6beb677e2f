"""How much of the uniform distribution is mixed into every row: the labels that nothing predicts.

A softmax rules classes out; a label that it ruled out costs as many nats as its logits are apart. With the share w of
the uniform distribution over k classes no label costs more than log(k / w), and a share that is not needed costs at
most w a row. Its prior is Beta(0.05, 1). The mixture is linear in w, so the posterior mean is all that prediction
needs: about 0.05 / n after n rows without such a label, and 1 / n more for each that there is.
"""

import numpy as np

from atypicality.recalibration.parameters import Vector

__all__ = ["MOST_ROWS", "uniform_share"]

PRIOR = 0.05
"""Rows that the prior is worth: one such label in twenty sets of calibration rows."""
MOST_ROWS = 4096
"""Rows that the share is learnt from; of more, evenly spaced ones."""
NODES = 256
LARGEST = 700.0
"""Loss beyond which a label has no probability to speak of."""


def uniform_share(losses: Vector, counts: Vector, n_classes: int) -> float:
    """Posterior mean of the share of labels that are uniform over the classes.

    Losses (n,) are the cross-entropy of each row's label, counts (n,) the rows that each stands for.

    >>> losses = np.zeros(200)
    >>> round(200 * uniform_share(losses, np.ones(200), 1000), 2)
    0.05
    >>> losses[0] = 50.0
    >>> round(200 * uniform_share(losses, np.ones(200), 1000), 2)
    1.05
    """
    shares = ((np.arange(NODES) + 0.5) / NODES) ** (1 / PRIOR)  # a uniform number has the prior, to this power
    gains = np.exp(np.minimum(losses, LARGEST)) / n_classes - 1
    logs = np.array([counts @ np.log1p(share * gains) for share in shares])
    weights = np.exp(logs - logs.max())
    return float(weights @ shares / weights.sum())
