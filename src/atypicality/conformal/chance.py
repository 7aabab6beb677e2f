"""Where chance enters prediction sets: which rows tune, and the draws of randomised scores, each from its own seed."""

import operator
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.validation import check_groups, check_integer, check_number

__all__ = ["Seeds", "marked_rows", "split_rows"]


class Seeds:
    """Independent generators for splitting, fitting and predicting, all children of one seed sequence.

    A generator is made afresh at each use, so that a second call of `predict_set` draws what the first one drew, and
    the draw of a row depends on its number alone. `Seeds(None)` takes its seed from the machine; `seed` makes the same
    again.

    >>> seeds = Seeds(0)
    >>> bool((seeds.draws("predict", 3) == seeds.draws("predict", 3)).all())
    True
    >>> bool((seeds.draws("fit", 3) == seeds.draws("predict", 3)).any())
    False
    >>> bool((seeds.draws("predict", 3, first_row=2) == seeds.draws("predict", 5)[2:]).all())
    True
    """

    CHILDREN = ("split", "fit", "predict")

    def __init__(self, random_state: Any) -> None:
        given = None if random_state is None else check_integer(random_state, "random_state", low=0)
        sequence = np.random.SeedSequence(given)
        self.seed = operator.index(cast(int, sequence.entropy))
        self._children = dict(zip(self.CHILDREN, sequence.spawn(len(self.CHILDREN)), strict=True))

    def generator(self, purpose: str) -> np.random.Generator:
        """A new generator for "split", "fit" or "predict"."""
        return np.random.Generator(self._stream(purpose))

    def draws(self, purpose: str, n: int, *, first_row: int = 0) -> NDArray[np.float64]:
        """Uniform draws (n,) of the rows with numbers `first_row`, `first_row` + 1, and so on."""
        stream = self._stream(purpose).advance(check_integer(first_row, "first_row", low=0))
        return np.random.Generator(stream).random(n)

    def _stream(self, purpose: str) -> np.random.PCG64:
        """Named, not NumPy's default, which may change: it can be advanced, and a double takes one step of it."""
        return np.random.PCG64(self._children[purpose])


def split_rows(
    n: int, fraction: Any, name: str, generator: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Two disjoint random parts of n rows, in row order: about `fraction` of them, and the rest; neither is empty.

    >>> first, second = split_rows(10, 0.2, "tuning_fraction", np.random.default_rng(0))
    >>> first.size, sorted({*first.tolist(), *second.tolist()}) == list(range(10))
    (2, True)
    """
    share = check_number(fraction, name, low=0, high=1, low_open=True, high_open=True)
    size = min(max(1, round(share * n)), n - 1)
    order = generator.permutation(n)
    return np.sort(order[:size]), np.sort(order[size:])


def marked_rows(edge_rows: ArrayLike, n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of the edge rows and of the threshold rows, from a mask (n,) of the former.

    >>> [part.tolist() for part in marked_rows([True, False, False], 3)]
    [[0], [1, 2]]
    """
    mask = check_groups(edge_rows, "edge_rows", n_rows=n)
    if mask.dtype != bool or mask.all() or not mask.any():
        raise ValueError(
            "edge_rows must be a bool mask that marks some rows and leaves others; "
            f"got {int(np.count_nonzero(mask))} marked of {n}, dtype {mask.dtype}."
        )
    return np.flatnonzero(mask), np.flatnonzero(~mask)
