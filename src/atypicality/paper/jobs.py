"""One seed of one experiment on one model's outputs: measured once, then read from the cache of finished results."""

import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from atypicality._version import __version__
from atypicality.evaluation import Evaluation
from atypicality.evaluation.context import Context, make_context
from atypicality.evaluation.cuts import Cuts, Edges
from atypicality.evaluation.methods import Answer, ask, fit, naming
from atypicality.evaluation.schema import Row
from atypicality.evaluation.scored import Options
from atypicality.evaluation.tables import assemble, measure
from atypicality.outputs import ModelOutputs
from atypicality.outputs.paths import replacing
from atypicality.paper.released import PriorFreeTemperature, authors_rmse, method_of
from atypicality.paper.sources import Data, Source
from atypicality.paper.theory import theorem_1, theorem_2
from atypicality.recalibration import ContentFreeCalibration
from atypicality.validation import caught_warnings, warn

__all__ = ["ALPHA", "FOLDS", "WITHOUT_CONTENT", "Estimated", "Job", "Result", "run_job"]

ALPHA = 0.05
FOLDS = 10  # parts of the test rows that are left out in turn where there is one split, and so no spread over splits
THEORY_DRAWS = 20  # training draws per seed: 200 over the paper's ten seeds
THEORY_NORMS = (0.5, 2.0)
WITHOUT_CONTENT = "content-free calibration is left out: add content_free.npz, as `atypicality llm` writes it."
SMALL_CELLS = (
    "some cells have fewer rows than alpha needs: their threshold is their largest score; without rows, sets are full."
)
GROUPS_FREE = ("uncalibrated", "ts", "adats", "group-ts", "content-free")
"""Methods that no estimator of atypicality enters: one fit serves all."""

Result = Evaluation | dict[str, Any]  # what one seed gave: an evaluation, or for the theorems their plain form


class Estimated:
    """A source's outputs with the atypicality of one estimator, worked out at the first use."""

    def __init__(self, source: Source, estimator: str) -> None:
        self.source = source
        self.estimator = estimator

    @cached_property
    def contexts(self) -> tuple[Context, Context | None]:
        """Test rows, and calibration rows where there is a validation split."""
        data = self.source.data
        estimated = self.estimator in ("GMM", "KNN")
        density = data.density(self.estimator) if estimated else None
        classes = data.class_atypicality()

        def context(part: ModelOutputs | None) -> Context | None:
            if part is None:
                return None
            part.need("logits", "labels")
            given = None if estimated else data.atypicality(part, self.estimator)
            return make_context(part._replaced(atypicality=given, class_atypicality=classes, ids=None), density)

        test, calibration = context(data.test), context(data.calibration)
        assert test is not None
        return test, calibration

    def parts(self, job: "Job") -> tuple[Context, Context]:
        """Rows to fit on and rows to measure: the validation split and the test set, or halves of the test set."""
        test, calibration = self.contexts
        if calibration is None:
            calibration, test = test.split(0.5, job.seed)
        if job.fold is not None:
            fold = np.random.default_rng(job.seed).permutation(len(test.outputs)) % FOLDS
            test = test.take(fold != job.fold)
        if job.attribute is None:
            return calibration, test
        first, second = (replace(part, groups=part.outputs.attributes[job.attribute]) for part in (calibration, test))
        return first, second


@dataclass(frozen=True)
class Job:
    """What to run: on a source with an estimator, these methods, with one seed. Without a source: the theorems.

    `attribute` is what names the groups that methods are given; `fold` is a part of the test rows to leave out.
    """

    estimated: Estimated | None
    methods: tuple[str, ...]
    n_groups: int
    attribute: str | None
    seed: int
    alpha: float = ALPHA
    fold: int | None = None

    def file_name(self) -> str:
        """Of the cached result: readable, and different for every other setting, data and version."""
        said: list[Any] = [__version__, self.methods, self.n_groups, self.attribute, self.seed, self.alpha, self.fold]
        name, more = "theory", [THEORY_DRAWS, THEORY_NORMS]
        if self.estimated is not None:
            source, estimator = self.estimated.source, self.estimated.estimator
            name, more = f"{source.name}-{estimator.replace(' ', '-')}", [estimator, source.data.fingerprint]
        digest = hashlib.sha256(json.dumps(said + more).encode()).hexdigest()[:16]
        return f"{name}-seed{self.seed}-{digest}.json"


def run_job(job: Job, cache: Path) -> Result:
    """The result of a job, from the cache if it is there; a damaged file there is made anew."""
    path = cache / job.file_name()
    read: Callable[[str], Result] = json.loads if job.estimated is None else Evaluation.from_json
    if path.exists():
        try:
            return read(path.read_text(encoding="utf-8"))
        except ValueError:
            path.unlink()
    result = _theory(job.seed) if job.estimated is None else _measured(job, job.estimated)
    with replacing(path) as temporary:
        text = result.to_json() if isinstance(result, Evaluation) else json.dumps(result)
        temporary.write_text(text, encoding="utf-8")
    return result


def _measured(job: Job, estimated: Estimated) -> Evaluation:
    """One split, as `compare` does it. Warnings become notes: the reader of the tables should see them there."""
    options = Options(job.n_groups, intervals=False, temperature=PriorFreeTemperature)
    with caught_warnings() as caught:
        calibration, test = estimated.parts(job)
        methods = _objects(job, estimated)
        more: list[tuple[str, Row]] = []
        found = measure(_answers(job, estimated, methods, calibration, test, more), test, options)
    for table, row in more:
        found.rows[table].append(row)
    notes = (SMALL_CELLS if "threshold rows in every region" in note else note for note in caught)
    found.notes = list(dict.fromkeys([*found.notes, *notes]))
    settings = {"random_state": job.seed, "groups": job.attribute, "stored_edges": False}
    return assemble("compare", found, test.outputs, list(methods), options, settings)


def _answers(
    job: Job,
    estimated: Estimated,
    methods: dict[str, Any],
    calibration: Context,
    test: Context,
    more: list[tuple[str, Row]],
) -> Iterator[tuple[str, Answer, Edges]]:
    """What every method says of the test rows; the paper's `rmse` of each goes into `more`."""
    cuts = Cuts(test, job.n_groups, (1, 1))
    axes = [axis for axis in (cuts.atypicality, cuts.classes) if axis is not None]
    for name, method in methods.items():
        estimator = "" if name in GROUPS_FREE else estimated.estimator
        fits, place = estimated.source.fitted, (name, estimator, job.seed, job.attribute, job.alpha)
        with naming(name):
            if place not in fits:
                fits[place] = fit(method, calibration, job.seed)
            answer = ask(fits[place], test)
        confidence, right = answer.probs.max(axis=1), answer.probs.argmax(axis=1) == test.outputs.need("labels")
        for axis in axes:
            for group, key in enumerate(axis.keys):
                rows = axis.codes == group
                more.append((axis.table, key | _rmse_row(name, confidence[rows], right[rows])))
        more.append(("overall", _rmse_row(name, confidence, right)))
        yield name, answer, Edges()  # nothing stored: the paper cuts the test half at its own quantiles


def _rmse_row(method: str, confidence: Any, right: Any) -> Row:
    value = authors_rmse(confidence, right) if len(right) else np.nan
    return {"method": method, "metric": "rmse", "count": len(right), "value": value}


def _objects(job: Job, estimated: Estimated) -> dict[str, Any]:
    """The methods as the paper has them: temperatures without a prior, and the sets of the released code."""
    data = estimated.source.data
    left_out = {"adats": _without_adats(data.test), "content-free": WITHOUT_CONTENT * (data.content_free is None)}
    for name in job.methods:
        if left_out.get(name):
            warn(left_out[name])
    return {name: _method(name, job, data) for name in job.methods if not left_out.get(name)}


def _method(name: str, job: Job, data: Data) -> Any:
    if name == "content-free":
        return ContentFreeCalibration().fit(np.asarray(data.content_free))
    return method_of(name, job.alpha, job.seed)


def _without_adats(test: ModelOutputs) -> str:
    if importlib.util.find_spec("torch") is None:
        return "adats is left out: it needs torch, pip install 'atypicality[torch]'."
    return "adats is left out: it needs embeddings." * (test.embeddings is None)


def _theory(seed: int) -> dict[str, Any]:
    rise = theorem_1(n_draws=THEORY_DRAWS, random_state=seed)
    temperatures = [theorem_2(norm=norm, n_draws=THEORY_DRAWS, random_state=seed) for norm in THEORY_NORMS]
    return {"theorem_1": rise.to_dict(), "theorem_2": [result.to_dict() for result in temperatures]}
