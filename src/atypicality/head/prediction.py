"""The verdict of a head on all rows: by its formula where every part has one, else by the methods of its parts."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, like, namespace, to_device, to_host
from atypicality.conformal.scores import Selection
from atypicality.conformal.split import row_draws
from atypicality.density.logdensity import check_scores
from atypicality.formula import ASK, AdviceRule, Given, HeadFormula, Outcome, Rarity, moved, speaks_for
from atypicality.formula.rows import row_maxima
from atypicality.head.acceptance import ambiguity_of, reads_ambiguity
from atypicality.head.advice import advice_of, advice_rule
from atypicality.head.parts import probabilities_of, sets_of
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import class_order
from atypicality.recalibration.class_mix import ClassMix, at_prior, estimated
from atypicality.recalibration.class_prior import is_estimated
from atypicality.recalibration.prediction import any_masked, check_known
from atypicality.validation import check_logit_maxima, check_matrix_shape, check_normalisers, numbered
from atypicality.validation.device import any_logits

__all__ = [
    "Nearest", "at_class_prior", "at_estimated_mix", "input_widths", "kept_by_score", "known_formula",
    "missing_formulas", "predicted", "verdict_rows",
]  # fmt: skip

CHUNK_BYTES = 4 * blocks.GEMM_BYTES
"""Of a chunk of rows that the parts' own methods answer: no intermediate array of all rows ever exists."""
FEW = 64
"""Rows up to which new memory for their products is as quick as that of a buffer."""
PRODUCT_ROWS = 1024
"""Rows that enter one matrix product on the host: enough for its full rate, few enough that what follows is cached."""
WIDE = ("proba", "prediction_set")
_formulas: WeakKeyDictionary[Any, "_Known"] = WeakKeyDictionary()
"""By head, what its formula was built from and the formula: building one takes as long as answering for a row."""
_on_devices: dict[int, tuple[ref[HeadFormula], Any, HeadFormula]] = {}
"""By the number of a formula, its parameters on a device: to move them takes as long as the products of 50,000 rows."""


def predicted(
    head: Any,
    outputs: ModelOutputs,
    first_row: int,
    *,
    max_risk: float | None = None,
    formula: HeadFormula | None = None,
    nearest: "Nearest | None" = None,
) -> Outcome:
    """The verdict of a fitted head, one number per row as (n,); classes are in the order of the outputs.

    `formula` is the head's at this risk, where it was made before; `nearest` collects the classes of some rows.
    """
    order = class_order(outputs.class_names, head.class_names_, "those of the head")
    with outputs._numbered():
        formula = formula or known_formula(head, max_risk)
        if formula is None:
            return _by_methods(head, outputs, first_row, order, advice_rule(head, max_risk))
        logits = any_logits(outputs.need("logits"), n_classes=head.n_classes_, scan=False)
        given = {}
        if formula.density is not None:
            given["embeddings"] = outputs.need("embeddings")
            check_matrix_shape(given["embeddings"].shape, "embeddings", width=head.density_.n_features_in_)
        elif formula.scale is not None:
            given["atypicality"] = outputs.need("atypicality")
        draws = row_draws(head.prediction_sets_, len(outputs), first_row)
        return verdict_rows(formula, logits, **given, draws=draws, order=order, nearest=nearest)


class Nearest:
    """The density's class whose log-density is largest, of every `step`-th row, from what its verdict takes anyway."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._parts: dict[int, Any] = {}

    def look(self, xp: Any, density: Any, products: tuple[Any, ...], rows: slice) -> None:
        """Add those among some rows, whose products these are."""
        first = -rows.start % self.step
        if first < rows.stop - rows.start:
            densities = density.class_log_density(xp, tuple(one[first :: self.step, ...] for one in products))
            if densities is not None:
                self._parts[rows.start] = xp.argmax(densities, axis=1)

    def classes(self) -> NDArray[np.intp] | None:
        """Columns of the density, in the order of the rows; None where the rows were not answered by a formula."""
        found = [to_host(self._parts[start]) for start in sorted(self._parts)]
        return np.concatenate(found) if found else None


def known_formula(head: Any, max_risk: float | None) -> HeadFormula | None:
    """The head's formula at this risk, or None where a part has none; built again when an attribute was replaced."""
    own, held = list(vars(head).values()), _formulas.get(head)
    if held is not None and held.risk == max_risk and _same(held.own, own) and _same(held.inner, held.now()):
        return held.formula
    parts = [vars(part) for part in own if hasattr(part, "__dict__")]
    with blocks.single_threaded_blas(getattr(head.density_, "n_features_in_", 0)):
        found = None if missing_formulas(head) else head.formula(max_risk)
    held = _formulas[head] = _Known(max_risk, own, parts, [], found)
    held.inner.extend(held.now())
    return found


class _Known(NamedTuple):
    """A head's formula at a risk, and what it was built from: attributes of the head, and those of its parts."""

    risk: float | None
    own: list[Any]
    parts: list[dict[str, Any]]
    inner: list[Any]
    formula: HeadFormula | None

    def now(self) -> list[Any]:
        """The attributes of the parts as they are now."""
        return list(chain.from_iterable(map(dict.values, self.parts)))


def _same(first: list[Any], second: list[Any]) -> bool:
    """Whether both hold the same objects."""
    return len(first) == len(second) and all(map(is_, first, second))


def at_estimated_mix(head: Any, outputs: ModelOutputs, first_row: int) -> tuple[Any, ClassMix | None]:
    """The head at the class mix of these rows, and that mix, where its recalibration is to estimate it."""
    if not is_estimated(getattr(head.recalibration_, "class_prior", None)):
        return head, None
    before = predicted(at_class_prior(head, None), outputs, first_row).proba
    order = class_order(outputs.class_names, head.class_names_, "those of the head")
    with numbered(None, head.class_names_):
        recalibration, mix = estimated(head.recalibration_, before if order is None else before[:, order])
    return at_class_prior(head, recalibration.class_prior), mix if order is None else mix.in_order(np.argsort(order))


def at_class_prior(head: Any, prior: Any) -> Any:
    """The same fitted head with another class prior of its recalibration."""
    other = copy.copy(head)
    other.recalibration_ = at_prior(head.recalibration_, prior)
    return other


def kept_by_score(head: Any, found: Outcome, outputs: ModelOutputs, max_risk: float) -> Outcome:
    """The verdict of a head with `acceptance`: what is not kept by its score is for a person to decide."""
    label, order = to_host(found.label), class_order(outputs.class_names, head.class_names_, "those of the head")
    with outputs._numbered():
        own = label if order is None else np.argsort(order)[label]
        ambiguity = ambiguity_of(head, outputs.need("embeddings"), own)
    kept = head.acceptance_(to_host(found.confidence), ambiguity) >= head.abstention_.threshold(max_risk)
    kept = like(kept, found.confidence)
    within = advice_rule(head).within(found.confidence, found.atypicality, found.covariate)
    kept = kept if within is None else kept & within
    return found._replace(accepted=kept, advice=namespace(kept).where(kept, found.advice, ASK))


def missing_formulas(head: Any, *, searched: bool = False) -> list[str]:
    """Which parts have no formula of fixed size, in words; neighbours count where they can be `searched`."""
    density, recalibration, sets = head.density_, head.recalibration_, head.prediction_sets_
    found = []
    if density is not None:
        if not speaks_for(density, "atypicality"):
            found.append(f"its density is {_name(density)}, which has no formula of its own")
        elif not searched and getattr(density, "searches", False):
            found.append(f"its density is {_name(density)}, and a search among training rows is of no fixed size")
    if not speaks_for(recalibration, "predict_proba"):
        found.append(f"its recalibration is {_name(recalibration)}, which has no formula of its own")
    elif isinstance(getattr(recalibration.formula(), "weighing", None), Given):
        found.append(
            f"its recalibration is {_name(recalibration)}, whose temperatures follow from given groups or from a "
            "network, and not from logits and atypicality alone"
        )
    elif reads_ambiguity(recalibration):
        found.append(f"its recalibration is {_name(recalibration)} with ambiguity, and a search is of no fixed size")
    if not speaks_for(sets, "predict_set"):
        found.append(f"its prediction_sets is {_name(sets)}, which has no formula of its own")
    elif getattr(sets, "reads_attributes", False):
        found.append(f"its prediction_sets is {_name(sets)} with groups= of an attribute, which comes with each row")
    return found


def _name(part: Any) -> str:
    return type(part).__name__


def _by_methods(
    head: Any, outputs: ModelOutputs, first_row: int, order: NDArray[np.intp] | None, rule: AdviceRule
) -> Outcome:
    logits = outputs.need("logits")
    width = 8 * (head.n_classes_ + (0 if outputs.embeddings is None else outputs.embeddings.shape[1]))

    def chunk(rows: slice) -> list[Outcome]:
        part = outputs._part(rows)._in_order(order)
        with part._numbered():
            probs, atypicality, covariate = probabilities_of(head, part)
            sets = sets_of(head, probs, atypicality, part.attributes, first_row + rows.start)
        xp = namespace(probs)
        label, top = xp.argmax(probs, axis=1), xp.astype(xp.max(probs, axis=1), xp.float64)
        confidence, quantile, quadrant = xp.where(top < 1.0, top, 1.0), None, None
        if head.quantiles_ is not None:
            quantile = head.quantiles_.formula().quantiles(np, to_host(atypicality))
            quadrant = head.quadrants_.formula().index(np, to_host(confidence), to_host(atypicality))
        advice = advice_of(rule, confidence, atypicality, sets, covariate)
        accepted = rule.accepted(confidence, atypicality, covariate)
        rare = atypicality, quantile, quadrant
        found = Outcome(label, confidence, probs, sets, None, *rare, advice, accepted, covariate)
        return [_reordered(xp, found, order)]

    height, host = blocks.block_rows(width, budget=CHUNK_BYTES), isinstance(logits, np.ndarray)
    found = blocks.compute(chunk, len(outputs), block=height, host=host, threads=1, work=blocks.PRODUCTS)
    return Outcome(*found)


def verdict_rows(
    formula: HeadFormula,
    logits: Any,
    *,
    embeddings: Any = None,
    atypicality: Any = None,
    draws: Any = None,
    order: NDArray[np.intp] | None = None,
    nearest: Nearest | None = None,
) -> Outcome:
    """What the formula says of checked rows, block by block, on their device; one number per row is (n,).

    Embeddings (n, d) are read where the formula has a density, atypicality (n,) where it has none, and draws (n,) by
    randomised sets; `order` (k,) is the column of the logits for each class of the formula, where the two differ.
    `nearest` is shown the rows where there is a density.
    """
    host = isinstance(logits, np.ndarray)
    rows = _Rows(formula, logits, embeddings, atypicality, draws, order, nearest)
    work = blocks.ENTRIES if embeddings is None else blocks.PRODUCTS
    threads = blocks.n_threads(work=work)
    cached = min(threads, 3) * blocks.CACHE_BYTES // 3  # the more hand a lock over, the longer calls should take
    inner = blocks.block_rows(8 * logits.shape[1], budget=cached if host else BLOCK_BYTES)
    outer = inner
    if host and embeddings is not None:
        widest = 8 * (2 * embeddings.shape[1] + logits.shape[1])
        outer = max(inner, min(PRODUCT_ROWS, blocks.block_rows(widest, budget=2 * blocks.GEMM_BYTES)))
    found = blocks.compute(
        lambda part: rows.verdicts(part, inner),
        logits.shape[0],
        block=outer,
        host=host,
        threads=threads,
        work=work,
        columns=logits.shape[1],
    )
    whole = Outcome(*found)
    flat = {name: column[:, 0] for name, column in whole._asdict().items() if column is not None and name not in WIDE}
    return whole._replace(**flat)


def _beside(formula: HeadFormula, logits: Any) -> HeadFormula:
    """The formula's parameters on the device of the logits; they stay there as long as the formula is alive."""
    from array_api_compat import device

    number, where = id(formula), (namespace(logits), device(logits))
    held = _on_devices.get(number)
    if held is None or held[0]() is not formula or held[1] != where:
        watch = ref(formula, lambda _: _on_devices.pop(number, None))
        held = _on_devices[number] = watch, where, moved(formula, lambda array: to_device(array, logits))
    return held[2]


class _Rows:
    """Rows and a formula beside them, on their device."""

    def __init__(
        self,
        formula: HeadFormula,
        logits: Any,
        embeddings: Any,
        atypicality: Any,
        draws: Any,
        order: Any,
        nearest: Nearest | None,
    ) -> None:
        self.xp, self.logits, self.embeddings, self.order = namespace(logits), logits, embeddings, order
        self.columns, self.nearest, self.workspace = [atypicality, draws], nearest, blocks.Workspace()
        if isinstance(logits, np.ndarray):
            faster = Selection.of(formula.sets, logits.shape[1])
            self.formula = formula if faster is None else dataclasses.replace(formula, sets=faster)
        else:
            self.formula = _beside(formula, logits)
            self.columns = [None if part is None else to_device(part, logits) for part in self.columns]

    def verdicts(self, rows: slice, inner: int) -> Iterator[Outcome]:
        """Verdicts on consecutive parts of some rows: products of all of them, then what wants to be in the cache."""
        many = isinstance(self.logits, np.ndarray) and rows.stop - rows.start > FEW
        lent = self.workspace.borrow() if many else contextlib.nullcontext()
        # what does not fit shows in the results
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"), lent as buffers:
            products = None
            if self.formula.density is not None:
                products = self.formula.density.products(self.xp, self.embeddings[rows, :], buffers)
                if self.nearest is not None:
                    self.nearest.look(self.xp, self.formula.density, products, rows)
            n = rows.stop - rows.start
            if n <= inner:
                yield self._verdict(rows, products)
                return
            for part in blocks.row_slices(n, inner):
                place = slice(rows.start + part.start, rows.start + part.stop)
                yield self._verdict(place, None if products is None else tuple(one[part, :] for one in products))

    def _verdict(self, rows: slice, products: Any) -> Outcome:
        xp, z = self.xp, self.logits[rows, :]
        top = row_maxima(xp, z)
        check_logit_maxima(to_host(top)[:, 0], first_row=rows.start)
        if self.order is not None:
            z = xp.take(z, to_device(self.order, z), axis=1)
        atypicality, draws = (None if column is None else column[rows, None] for column in self.columns)
        rarity = Rarity(atypicality) if products is None else self.formula.rarity(xp, products)
        for scores in rarity[:2] if products is not None else ():
            if scores is not None:
                check_scores(xp, scores, self.embeddings, rows, self.formula.density)
        found = self.formula.answer(xp, z, rarity, draws, masked=any_masked(z), top=top)
        if found.known is not None:
            check_known(to_host(found.known), first_row=rows.start)
        check_normalisers(to_host(found.confidence), first_row=rows.start)
        return _reordered(xp, found._replace(known=None), self.order)


def _reordered(xp: Any, found: Outcome, order: NDArray[np.intp] | None) -> Outcome:
    """The verdict with classes in the order of the outputs again."""
    if order is None:
        return found
    columns, back = to_device(order, found.proba), to_device(np.argsort(order), found.proba)
    label = xp.reshape(xp.take(columns, xp.reshape(found.label, (-1,)), axis=0), found.label.shape)
    sets = xp.take(found.prediction_set, back, axis=1)
    return found._replace(label=label, proba=xp.take(found.proba, back, axis=1), prediction_set=sets)


def input_widths(head: Any) -> dict[str, int]:
    """Columns of the arrays that a fitted `ReliabilityHead` reads, by name; 0 for one number per row."""
    found = {"logits": int(head.n_classes_)}
    if head.density_ is not None:
        found["embeddings"] = int(head.density_.n_features_in_)
    elif head.quantiles_ is not None:
        found["atypicality"] = 0
    return found
