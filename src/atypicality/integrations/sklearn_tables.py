"""Tables as dense, finite numbers: what atypicality is measured on where the user names no embedder."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_is_fitted

__all__ = ["TableEmbedder", "default_embedder", "inner_estimator"]

WIDEST = 100  # sparse columns that are made dense as they are; more are projected to half as many
RAREST, MOST_CATEGORIES = 5, 20
"""Rows that a category of its own needs, and such categories of a column; others are one category together."""


class TableEmbedder(TransformerMixin, BaseEstimator):
    """Dense, finite numbers from a table with categories, missing values or sparse columns.

    Numbers stay as they are, missing ones become their column's median, and a column that has some is followed by one
    that says where. Categories (text, pandas categories) are one-hot; rare ones are one category, and a new one
    belongs to it, or has zeros everywhere where none is rare.
    Sparse columns become dense; more than 100 are projected to 50 (`TruncatedSVD`).

    Attributes
    ----------
    encoder_ : fitted transformer, or None for sparse columns that become dense

    Examples
    --------
    >>> rows = np.array([["Oslo", 1.0], ["Oslo", np.nan], ["Rome", 3.0], ["Rome", 5.0]] * 5, dtype=object)
    >>> TableEmbedder().fit_transform(rows)[:2]
    array([[1., 0., 1., 0.],
           [3., 1., 1., 0.]])
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the medians and categories of rows X (n, d); y is ignored."""
        if hasattr(X, "toarray"):  # sparse
            wide = X.shape[1] > WIDEST
            self.encoder_ = TruncatedSVD(WIDEST // 2, random_state=0).fit(X) if wide else None
            return self
        numbers, words = _columns(X)
        encoder = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=RAREST,
            max_categories=MOST_CATEGORIES,
            sparse_output=False,
        )
        imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        self.encoder_ = ColumnTransformer([("numbers", imputer, numbers), ("words", encoder, words)]).fit(X)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Numbers (n, e) of rows X (n, d)."""
        check_is_fitted(self, "encoder_")
        rows = X.toarray() if self.encoder_ is None else self.encoder_.transform(X)
        return np.asarray(rows, np.float64)


def _columns(X: Any) -> tuple[list[int], list[int]]:
    """Positions of columns of numbers, and of all others, which are categories."""
    frame = hasattr(X, "iloc")
    X = X if frame else np.asarray(X)
    kept: tuple[list[int], list[int]] = [], []
    for j in range(X.shape[1]):
        column = X.iloc[:, j] if frame else X[:, j]
        kind = getattr(column.dtype, "kind", "O")
        if kind in "mMc":
            name = X.columns[j] if frame else j
            raise TypeError(
                f"embedder must be given where X holds {column.dtype}; column {name!r} does, and its density is not "
                "that of a number. Derive numbers from it first, or name an embedder."
            )
        kept[not _is_number(column)].append(j)
    return kept


def _is_number(column: Any) -> bool:
    if getattr(column.dtype, "name", "") == "category":
        return False
    try:
        check_array(np.asarray(column, dtype=np.float64).reshape(-1, 1), ensure_all_finite=False)
    except (TypeError, ValueError):
        return False
    return True


def inner_estimator(estimator: Any) -> Any:
    """What was fitted in the end, behind searches and frozen estimators: a pipeline or a single estimator."""
    while True:
        inner = estimator.estimator if isinstance(estimator, FrozenEstimator) else None
        inner = getattr(estimator, "best_estimator_", inner)
        if inner is None:
            return estimator
        estimator = inner


def default_embedder(estimator: Any, X: Any) -> Any:
    """A transformer to dense, finite numbers, fitted on rows X as far as it must be; None where X is that already.

    It is what comes before the last step of a pipeline, and a `TableEmbedder` where the numbers may have gaps.
    """
    inner = inner_estimator(estimator)
    steps = inner[:-1] if isinstance(inner, Pipeline) and len(inner) > 1 else None
    rows = X if steps is None else steps.transform(X)
    gaps = get_tags(inner if steps is None else inner[-1]).input_tags.allow_nan
    if _is_plain(rows) and not gaps:
        return steps
    table = TableEmbedder().fit(rows)
    return table if steps is None else make_pipeline(steps, table)


def _is_plain(rows: Any) -> bool:
    try:
        check_array(rows)
    except (TypeError, ValueError):
        return False
    return getattr(rows, "dtype", np.dtype(float)).kind in "biuf"
