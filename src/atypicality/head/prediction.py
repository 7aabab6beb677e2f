"""The verdict on all rows by a head's formula: block by block on threads, or on the device of the arrays."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from atypicality import blocks
from atypicality.arrays import namespace
from atypicality.conformal.scores import Selection
from atypicality.density.logdensity import check_scores
from atypicality.formula import HeadFormula, Verdict, moved
from atypicality.recalibration.prediction import check_known
from atypicality.validation import check_logit_maxima, check_normalisers
from atypicality.validation.device import to_device, to_host
from atypicality.validation.device_probs import BLOCK_BYTES

__all__ = ["verdict_rows"]

PRODUCT_ROWS = 1024
"""Rows that enter one matrix product on the host: enough for its full rate, few enough that what follows is cached."""
WIDE = ("proba", "prediction_set")


def verdict_rows(
    formula: HeadFormula, logits: Any, *, embeddings: Any = None, atypicality: Any = None, draws: Any = None
) -> Verdict:
    """What the formula says of checked rows; one number per row is (n,).

    Parameters
    ----------
    formula : HeadFormula
    logits : array of shape (n, k)
    embeddings : array of shape (n, d), optional
        Where the formula has a density.
    atypicality : array of shape (n,), optional
        Where it has none.
    draws : ndarray of shape (n,), optional
        Of randomised sets.
    """
    host = isinstance(logits, np.ndarray)
    rows = _Rows(formula, logits, embeddings, atypicality, draws)
    inner = blocks.block_rows(8 * logits.shape[1], budget=blocks.CACHE_BYTES if host else BLOCK_BYTES)
    outer = max(inner, PRODUCT_ROWS) if host and embeddings is not None else inner
    whole = Verdict(*blocks.compute(lambda part: rows.verdicts(part, inner), len(logits), block=outer, host=host))
    flat = {name: column[:, 0] for name, column in whole._asdict().items() if column is not None and name not in WIDE}
    return whole._replace(**flat)


class _Rows:
    """Rows and a formula beside them, on their device."""

    def __init__(self, formula: HeadFormula, logits: Any, embeddings: Any, atypicality: Any, draws: Any) -> None:
        self.xp, self.logits, self.embeddings = namespace(logits), logits, embeddings
        self.columns = [atypicality, draws]
        if isinstance(logits, np.ndarray):
            self.formula = dataclasses.replace(formula, sets=Selection(formula.sets))
        else:
            self.formula = moved(formula, lambda array: to_device(array, logits))
            self.columns = [None if part is None else to_device(part, logits) for part in self.columns]

    def verdicts(self, rows: slice, inner: int) -> Iterator[Verdict]:
        """Verdicts on consecutive parts of some rows: products of all of them, then what wants to be in the cache."""
        products = None
        if self.formula.density is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                products = self.formula.density.products(self.xp, self.embeddings[rows, :])
        for part in list(blocks.row_slices(rows.stop - rows.start, inner)) or [slice(0, 0)]:
            place = slice(rows.start + part.start, rows.start + part.stop)
            yield self._verdict(place, None if products is None else tuple(one[part, :] for one in products))

    def _verdict(self, rows: slice, products: Any) -> Verdict:
        xp, z, densities = self.xp, self.logits[rows, :], None
        check_logit_maxima(to_host(xp.max(z, axis=1)), first_row=rows.start)
        atypicality, draws = (None if column is None else column[rows, None] for column in self.columns)
        with np.errstate(invalid="ignore", over="ignore"):  # what does not fit shows in the results
            if products is not None:
                atypicality, densities = self.formula.rarity(xp, products)
                check_scores(xp, atypicality, self.embeddings, rows, self.formula.density)
            found = self.formula.answer(xp, z, atypicality, densities, draws)
        if found.known is not None:
            check_known(to_host(found.known), first_row=rows.start)
        check_normalisers(to_host(found.confidence), first_row=rows.start)
        return found._replace(known=None)
