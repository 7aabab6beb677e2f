"""`evaluate`: fitted things, and probabilities, on labelled rows that they have not seen; nothing is refitted."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from atypicality.blocks import progress
from atypicality.conformal.conditional import ConditionalConformal
from atypicality.conformal.guaranteed import Asked
from atypicality.conformal.threshold import conformal_rank
from atypicality.evaluation.context import GIVEN, TRAIN, Context, make_context, measured_by
from atypicality.evaluation.cuts import Edges, first_known, stored_edges
from atypicality.evaluation.methods import UNCALIBRATED, Answer, ask, is_head, named_methods, naming
from atypicality.evaluation.result import Evaluation
from atypicality.evaluation.schema import Row
from atypicality.evaluation.scored import Options
from atypicality.evaluation.suspects import suspect_tables
from atypicality.evaluation.tables import Measured, assemble, measure
from atypicality.head.calibration_parts import warn_of_other_labels
from atypicality.head.lost import lost_accepted
from atypicality.head.rarity import scores_of
from atypicality.metrics.laws import at_least_beta_binomial
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.outputs.class_names import class_order
from atypicality.validation import check_integer, warn

__all__ = ["evaluate"]

UNLIKELY, CLEARLY_LESS = 0.001, 3.09  # the chance, and the standard errors of as small a one
_SHARED = ("atypicality", "grid_atypicality")  # edges for all methods: those of the first method that has any


def evaluate(
    methods: Any,
    outputs: ModelOutputs,
    *,
    train: Any = None,
    n_groups: int = 5,
    grid: tuple[int, int] = (6, 6),
    n_bins: int = 10,
    groups: str | None = None,
    keep_samples: int = 10_000,
    suspects: int = 0,
    max_risk: float | None = None,
    random_state: int = 0,
) -> Evaluation:
    """Measure fitted methods on labelled outputs: every table, with sampling intervals.

    Parameters
    ----------
    methods : mapping of names to things, or one thing
        A thing is a fitted head, a fitted recalibrator, probabilities (n, k), "uncalibrated" for the model's own
        softmax, or a pair (any of those but a head, sets): sets is a fitted conformal predictor or bool (n, k).
    outputs : ModelOutputs
        Labels, and what the methods need.
    train : ModelOutputs or fitted density, optional
        Training embeddings and labels, or a density fitted on them: where atypicality, class densities and class
        atypicality come from, unless the outputs have them. Without it a head's own density is used, and beside
        training outputs too: `suspects` then looks for duplicates among these, and nothing else reads them.
    n_groups : int, default=5
        Groups of atypicality, of class atypicality (at most as many as classes), and of attributes that are floats or
        whole numbers of more than 20 values. Edges of atypicality that a head has stored are used instead of the
        quantiles of these rows, where they belong to the same atypicality. All methods are cut by one: that given with
        the outputs, or estimated from `train`, or else measured by the first head; `settings["atypicality"]` says
        which.
    grid : pair of int, default=(6, 6)
        Groups of atypicality and of confidence.
    n_bins : int, default=10
    groups : str, optional
        Name of an attribute of the outputs that methods are given as their groups.
    keep_samples : int, default=10_000
        Rows of the tables `samples` and `predictions`; of more rows, every one that a method gets wrong or for which it
        asks for a person, and that many of the others at random.
    suspects : int, default=0
        Most labels to list as perhaps wrong, by the probabilities of the last method and neighbouring rows (table
        `suspects`), and most rows to list as near-duplicates of training rows (table `duplicates`).
    max_risk : float in (0, 1), optional
        Heads are asked which predictions to accept at this risk, as by their `predict`: the tables `overall`,
        `classes`, `predicted_classes`, `advice` and `subgroups` then have `accepted_share` and `accepted_risk`, the
        share of the accepted that is wrong.
    random_state : int, default=0
        Of bootstrap intervals and of the rows kept.

    Returns
    -------
    Evaluation

    Warns
    -----
    UserWarning
        When a method remembers (`fingerprint_`) that it was fitted on these very rows, and where labels fit the logits
        as those of other rows or classes would.

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(3000, temperature=2.0)
    >>> train, test = world.take(slice(0, 1000)).outputs(), world.take(slice(1000, 3000)).outputs()
    >>> evaluation = aty.evaluate("uncalibrated", test, train=train)
    >>> [int(row["count"]) for row in evaluation.table("atypicality_groups", metric="ece")]
    [400, 400, 400, 400, 400]
    """
    named = {name: _fitted(name, method) for name, method in named_methods(methods).items()}
    seed = check_integer(random_state, "random_state", low=0)
    kept = check_integer(keep_samples, "keep_samples", low=0)
    options = Options.checked(n_groups, grid, n_bins, keep_samples=kept, seed=seed)
    _warn_of_calibration_data(named, check_outputs(outputs))
    warn_of_other_labels(outputs)
    if max_risk is not None and not any(map(is_head, named.values())):
        raise ValueError("max_risk needs a head among the methods: nothing else accepts predictions. Leave it out.")
    context, asked = _context(named, outputs, train, groups, max_risk)
    edges = {name: stored_edges(method, options.n_groups, options.grid[0]) for name, method in named.items()}
    edges, notes = _on_one_scale(edges, named, context)
    shared = Edges(*(first_known(getattr(own, axis) for own in edges.values()) for axis in _SHARED))
    last_probs: dict[str, Any] = {}
    answers = _answers(named, context, edges, asked, last_probs if suspects else None)
    measured = measure(answers, context, options, shared)
    measured.notes += notes + _notes_of_heads(named) + _notes_of_coverage(named, measured)
    progress.stage("looking for wrong labels and duplicates")
    listed = check_integer(suspects, "suspects", low=0)
    last = list(named)[-1]
    measured.rows |= suspect_tables(context, last_probs.pop(last, None), listed, seed)
    settings: dict[str, Any] = {
        "random_state": seed,
        "groups": groups,
        "stored_edges": shared != Edges(),
        "atypicality": context.scale,
        "density": {
            name: str(choice)
            for name, method in named.items()
            if is_head(method) and (choice := getattr(method, "density_choice_", None)) is not None
        },
    } | ({} if max_risk is None else {"max_risk": float(max_risk)})
    for name, method in named.items():
        for key, found in (_told_of(method, max_risk) if is_head(method) else {}).items():
            if found:
                settings.setdefault(key, {})[name] = found
    return assemble("evaluate", measured, outputs, list(named), options, settings)


def _answers(
    named: Mapping[str, Any],
    context: Context,
    edges: Mapping[str, Edges],
    asked: dict[str, Answer],
    last: dict[str, Any] | None,
) -> Iterator[tuple[str, Answer, Edges]]:
    """One answer at a time: probabilities of many classes are large. Whoever was asked before is not asked again.

    The probabilities of the last method are left in `last`, where there is one.
    """
    for name, method in named.items():
        if name not in asked:
            progress.stage(f"asking {name}")
            with naming(name):
                asked[name] = ask(method, context)
        if last is not None and name == list(named)[-1]:
            last[name] = asked[name].probs
        yield name, asked.pop(name), edges[name]


def _context(
    named: Mapping[str, Any], outputs: ModelOutputs, train: Any, groups: str | None, max_risk: float | None
) -> tuple[Context, dict[str, Answer]]:
    """Atypicality from the outputs, from `train`, or from the first head that has it; and what that head answered.

    A head scores the rows by itself, so its density is asked directly only where a recalibrator needs densities too.
    """
    heads = {name: method for name, method in named.items() if is_head(method)}
    for name, head in heads.items():
        with naming(name):
            class_order(outputs.class_names, getattr(head, "class_names_", None), "those of the head")
    dense = [name for name, head in heads.items() if hasattr(getattr(head, "density_", None), "atypicality")]
    density, owner, scored = None, None, None
    known = train if dense and isinstance(train, ModelOutputs) else None  # of duplicates alone: the head has a density
    train = train if known is None else None
    if dense and train is None:
        head = heads[dense[0]]
        density, owner = head.density_, (dense[0], getattr(head, "class_names_", None))
        if getattr(head, "recalibration_density_", None) is not None:
            scored = partial(scores_of, head)
    sources = (method[0] if isinstance(method, tuple) and method else method for method in named.values())
    shared = train is not None or any(hasattr(source, "predict_proba") for source in sources)
    given = density if train is None else train
    context = make_context(outputs, given, groups, densities=shared, owner=owner, scored=scored)
    if known is not None:
        context = replace(context, train=known.with_classes(outputs.class_names, whose="those of the outputs"))
    context = replace(context, max_risk=max_risk)
    asked: dict[str, Answer] = {}
    if context.atypicality is None and heads:
        name = (dense or list(heads))[0]
        progress.stage(f"asking {name}")
        with naming(name):
            asked[name] = ask(heads[name], context)
        said = asked[name].atypicality
        if said is not None:
            context = replace(context, atypicality=np.asarray(said, np.float64), scale=measured_by(name))
    return context, asked


def _on_one_scale(
    edges: Mapping[str, Edges], named: Mapping[str, Any], context: Context
) -> tuple[dict[str, Edges], list[str]]:
    """Edges without those of another atypicality than the one that the rows are cut by, and notes that say so."""
    own = {
        name: found if _fits(named[name], named, context) else Edges(confidence=found.confidence)
        for name, found in edges.items()
    }
    notes = [
        f"groups of atypicality are those of the values {context.scale}; the edges that {name} stores belong to other "
        "values and are not used."
        for name in edges
        if own[name] != edges[name]
    ]
    return own, notes


def _told_of(head: Any, max_risk: float | None) -> dict[str, Any]:
    """Settings of a head that a report's advice depends on; see the documentation page "Evaluation"."""
    rule, sets = getattr(head, "abstention_", None), getattr(head, "prediction_sets_", None)
    kept, known = getattr(rule, "kept", None), getattr(head, "fingerprint_", None)
    folds = type(sets).__name__ == "CrossConformal"  # its module needs scikit-learn
    return {
        "nothing_accepted": None if rule is None or max_risk is None else rule.why_none(max_risk),
        "accepted_rows": None if kept is None or max_risk is None else int(kept[-1]),
        "lost_accepted": None if max_risk is None else lost_accepted(head, max_risk),
        "cross_fitted": folds or getattr(head, "cross_fitted_", False),
        "covered_groups": str(Asked.of(sets.groups)) if isinstance(sets, ConditionalConformal) else None,
        "fitted_on": known if isinstance(known, str) else None,
    }


def _notes_of_heads(named: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is the head of a cross-fitted classifier: no coverage is guaranteed for its prediction sets. With "
        "ensemble=True the classifier has others, which its own evaluate(X, y) measures."
        for name, method in named.items()
        if getattr(method, "cross_fitted_", False)
    ]


def _notes_of_coverage(named: Mapping[str, Any], measured: Measured) -> list[str]:
    """Of heads that do clearly worse than on their calibration rows: as where these have trained the model."""
    found = {(row["method"], row["metric"]): row for row in measured.rows["overall"]}
    notes = []
    for name, alpha in measured.alphas.items():
        if not is_head(named[name]) or (name, "coverage") not in found:
            continue
        told = [*_rarely_covered(named[name], found[name, "coverage"], alpha)]
        told += _less_accurate(named[name], found[name, "accuracy"])
        if told:
            notes.append(
                f"{name}: {', and '.join(told)}. Were the calibration rows used to train the model? Then fit again "
                "with rows that it has not seen; if not, these rows differ from them."
            )
    return notes


def _rarely_covered(head: Any, coverage: Row, alpha: float) -> Iterator[str]:
    """That so few rows are covered that exchangeable ones would be as few by a chance below `UNLIKELY`."""
    n = getattr(head, "sizes_", {}).get("thresholds", 0)
    rank, rows = conformal_rank(n, alpha), coverage["count"]
    missed = round((1 - coverage["value"]) * rows)
    if 0 < rank <= n and at_least_beta_binomial(missed, round(rows), n + 1 - rank, rank) < UNLIKELY:
        target = f"target {100 * (1 - alpha):.4g}%"
        yield f"prediction sets hold the label in {coverage['value']:.1%} of these rows ({target})"


def _less_accurate(head: Any, here: Row) -> Iterator[str]:
    """That clearly fewer predictions are right than in the held-out calibration rows."""
    held_out = getattr(head, "reference_", None)
    if held_out is None:
        return
    n, rows = held_out.n_rows, here["count"]
    share = (n - held_out.errors + here["value"] * rows) / (n + rows)
    error = (share * (1 - share) * (1 / n + 1 / rows)) ** 0.5
    if held_out.accuracy - here["value"] > CLEARLY_LESS * error:
        yield f"{here['value']:.1%} of the predictions are right, where {held_out.accuracy:.1%} were in calibration"


def _fits(method: Any, named: Mapping[str, Any], context: Context) -> bool:
    """Whether the edges that a method stores belong to the atypicality that the rows are cut by."""
    if not is_head(method):
        return context.scale != TRAIN  # it is given that very atypicality
    owners = [other for name, other in named.items() if context.scale == measured_by(name)]
    density = getattr(method, "density_", None)
    if hasattr(density, "atypicality"):
        return any(getattr(owner, "density_", None) is density for owner in owners)
    return context.scale == GIVEN or any(owner is method for owner in owners)


def _fitted(name: str, method: Any) -> Any:
    if getattr(method, "cross_conformal_", None) is not None:
        raise ValueError(
            f"method {name!r} is a cross-fitted classifier, whose prediction sets need the answers of all of its "
            "estimators; outputs hold their mean. Use its evaluate(X, y), or pass its head_, which has sets of its own."
        )
    if not isinstance(method, str):
        return getattr(method, "head_", method)  # a scikit-learn classifier with a head behind it
    if method == UNCALIBRATED:
        return None
    raise ValueError(
        f"evaluate fits nothing, so {UNCALIBRATED!r} is the only name it knows; got {method!r} for {name!r}. "
        "Pass a fitted object or probabilities, or use compare, which fits."
    )


def _warn_of_calibration_data(named: Mapping[str, Any], outputs: ModelOutputs) -> None:
    known = {name: _fingerprints(method) for name, method in named.items()}
    if not any(known.values()):
        return
    fingerprint = outputs.fingerprint()
    for name, prints in known.items():
        if fingerprint in prints:
            warn(
                f"outputs are the calibration data of {name!r}: it will look better than it is. "
                "Evaluate on rows that it has not seen."
            )


def _fingerprints(method: Any) -> set[str]:
    """What a method remembers of the rows it was fitted on: one fingerprint, or several by the name of their part."""
    parts = method if isinstance(method, tuple) else (method,)
    found: set[str] = set()
    for part in parts:
        kept = getattr(part, "fingerprint_", None) or ()
        found.update([kept] if isinstance(kept, str) else kept.values() if isinstance(kept, Mapping) else kept)
    return found
