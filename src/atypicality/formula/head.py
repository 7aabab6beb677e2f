"""The whole prediction of a head on one block of rows."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from atypicality.formula.advice import ASK, AdviceRule
from atypicality.formula.density import aligned
from atypicality.formula.recalibration import Rows
from atypicality.formula.rows import Quadrant, Scale, Xp, row_tops

__all__ = ["HeadFormula", "Outcome", "Rarity", "guarded", "reads_of"]


def reads_of(recalibration: Any) -> frozenset[str]:
    """What a formula of recalibration reads of a row: "atypicality", "densities"; both where it does not say."""
    return getattr(recalibration, "reads", frozenset({"atypicality", "densities"}))


class Outcome(NamedTuple):
    """What a head says of n rows; one number per row is a column (n, 1), and None where the head has no atypicality.

    `covariate` is the atypicality that recalibration used, where it is another.
    """

    label: Any
    confidence: Any
    proba: Any
    prediction_set: Any
    known: Any
    atypicality: Any
    atypicality_quantile: Any
    quadrant: Any
    advice: Any
    accepted: Any
    covariate: Any = None


class Rarity(NamedTuple):
    """What a density says of n rows.

    Atypicality (n, 1) as sets, quadrants and drift use it, the one that recalibration uses or None where it is the
    same, and class log-densities (n, k) in the order of the logits' columns or None, with the largest of each row
    (n, 1) where it is known.
    """

    atypicality: Any = None
    covariate: Any = None
    densities: Any = None
    nearest: Any = None

    def rows(self, logits: Any, *, masked: bool = True, top: Any = None) -> Rows:
        """What recalibration reads."""
        given = self.atypicality if self.covariate is None else self.covariate
        return Rows(logits, given, self.densities, masked=masked, top=top, nearest=self.nearest)


@dataclass(frozen=True)
class HeadFormula:
    """Parameters of a fitted head: formulas of its parts."""

    density: Any  # None without one
    sources: Any  # int (k,), the density's column of each class, or one beyond its last; None where the two agree
    recalibration: Any
    sets: Any
    scale: Scale | None
    quadrant: Quadrant | None
    advice: AdviceRule

    def rarity(self, xp: Xp, products: Any) -> Rarity:
        """What the density says of rows, from its products: no more than recalibration and advice read."""
        reads, densities, covariate, nearest = reads_of(self.recalibration), None, None, None
        limited = self.advice.furthest_covariate is not None
        if "densities" in reads:
            densities = self.density.class_log_density(xp, products)
            if densities is not None and self.sources is not None:  # a class without a density gets the row minimum
                densities = aligned(xp, densities, self.sources)
            elif hasattr(self.density, "top"):
                nearest = self.density.top(products)
        if ("atypicality" in reads or limited) and hasattr(self.density, "covariate"):
            covariate = self.density.covariate(xp, products)
        return Rarity(self.density.atypicality(xp, products), covariate, densities, nearest)

    def answer(
        self, xp: Xp, logits: Any, rarity: Rarity, draws: Any = None, *, masked: bool = True, top: Any = None
    ) -> Outcome:
        """The verdict on rows of logits (n, k) with what is known of their rarity, and draws (n, 1).

        `masked` and `top` are those of `Rows`.
        """
        proba, known = self.recalibration(xp, rarity.rows(logits, masked=masked, top=top))
        atypicality = rarity.atypicality
        label, top = row_tops(xp, proba)
        wide = xp.astype(top, xp.float64, copy=False)
        confidence = xp.where(wide < 1.0, wide, 1.0)  # rounding may have put it a little above
        sets = self.sets(xp, proba, confidence, atypicality, draws, top=top)
        quantile = quadrant = None
        if self.scale is not None and self.quadrant is not None:
            quantile = self.scale.quantiles(xp, atypicality)
            quadrant = self.quadrant.index(xp, confidence, atypicality)
        advice = self.advice.index(xp, confidence, atypicality, sets, rarity.covariate)
        accepted = self.advice.accepted(confidence, atypicality, rarity.covariate)
        rare = atypicality, quantile, quadrant
        return Outcome(label, confidence, proba, sets, known, *rare, advice, accepted, rarity.covariate)


def guarded(xp: Xp, head: HeadFormula, logits: Any, embeddings: Any = None, atypicality: Any = None) -> Outcome:
    """The verdict where rows cannot be refused: bad ones are answered harmlessly, and `known` (n, 1) says which.

    A row with NaN, +inf, no finite logit, or a non-finite embedding or atypicality has the full set, label -1, NaN for
    every number, the last quadrant and the last advice, and is not accepted; other rows do not notice.
    """
    good = xp.any(xp.isfinite(logits), axis=1, keepdims=True)
    good = good & ~xp.any(xp.isnan(logits) | (logits == xp.inf), axis=1, keepdims=True)
    rarity = Rarity(atypicality)
    if head.density is not None:
        good = good & xp.all(xp.isfinite(embeddings), axis=1, keepdims=True)
        rows = xp.where(good, embeddings, xp.zeros_like(embeddings))
        rarity = head.rarity(xp, head.density.products(xp, rows))
    for column in (rarity.atypicality, rarity.covariate):  # finite embeddings may still overflow
        good = good if column is None else good & xp.isfinite(column)
    rarity = Rarity(*(None if part is None else xp.where(good, part, 0.0) for part in rarity))
    found = head.answer(xp, xp.where(good, logits, xp.zeros_like(logits)), rarity)
    good = good if found.known is None else good & found.known
    return Outcome(
        label=xp.where(good, found.label, -1),
        confidence=xp.where(good, found.confidence, xp.nan),
        proba=xp.where(good, found.proba, xp.nan * xp.ones_like(found.proba)),
        prediction_set=found.prediction_set | ~good,
        known=good,
        atypicality=None if found.atypicality is None else xp.where(good, found.atypicality, xp.nan),
        atypicality_quantile=None if found.quadrant is None else xp.where(good, found.atypicality_quantile, xp.nan),
        quadrant=None if found.quadrant is None else xp.where(good, found.quadrant, 3),
        advice=xp.where(good, found.advice, ASK),
        accepted=None if found.accepted is None else found.accepted & good,
    )
