"""Densities of the embeddings of prompts and answers, and the atypicality that they give as signals."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.density import GaussianAtypicality
from atypicality.estimators import clone
from atypicality.llm.answers import Answers
from atypicality.llm.signals import FEWEST
from atypicality.validation import check_choice

__all__ = ["EMBEDDED", "fit_densities", "scored"]

EMBEDDED = {"prompt_atypicality": "prompt_embeddings", "answer_atypicality": "answer_embeddings"}
"""Signals that a density gives, and what it is of."""
FOLDS = 5  # parts of the rows that are each scored by a density of the others

Vector = NDArray[np.float64]


def fit_densities(
    density: Any, answers: Answers, train: Answers | None, seed: int
) -> tuple[list[Any], dict[str, Vector]]:
    """For each of `EMBEDDED` a fitted density or None, and the atypicality of these rows by densities of other rows."""
    fitted: list[Any] = []
    found = {}
    for signal, part in EMBEDDED.items():
        rows = getattr(answers, part)
        if density is None or rows is None or np.count_nonzero(~np.isnan(rows[:, 0])) < FEWEST:
            fitted.append(None)
            continue
        reference = rows if train is None else getattr(train, part)
        if reference is None:
            raise ValueError(f"train must have {part}, as the answers have; it has none.")
        fitted.append(_fitted(density, reference))
        found[signal] = scored(fitted[-1], rows) if train is not None else _crossed(density, rows, seed)
    return fitted, found


def scored(density: Any, embeddings: Any) -> Vector:
    """Atypicality (n,), NaN of rows without an embedding."""
    found, known = np.full(len(embeddings), np.nan), ~np.isnan(embeddings[:, 0])
    if known.any():
        found[known] = density.atypicality(embeddings[known])
    return found


def _fitted(density: Any, embeddings: Any) -> Any:
    if isinstance(density, str):
        check_choice(density, "density, where it is text,", ("auto",))
        density = GaussianAtypicality(shrinkage="ledoit-wolf", normalize="l2")
    known = embeddings[~np.isnan(embeddings[:, 0])]
    return clone(density).fit(known, np.zeros(len(known), np.intp))


def _crossed(density: Any, embeddings: Any, seed: int) -> Vector:
    """Atypicality (n,) of each row by a density of other rows; its own would call it typical."""
    folds = np.random.default_rng(seed).permutation(len(embeddings)) % FOLDS
    found = np.full(len(embeddings), np.nan)
    for fold in range(FOLDS):
        found[folds == fold] = scored(_fitted(density, embeddings[folds != fold]), embeddings[folds == fold])
    return found
