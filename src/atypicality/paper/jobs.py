"""One seed of one experiment on one model's outputs: measured once, then read from the cache of finished results."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from atypicality._version import __version__
from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.evaluation import Evaluation
from atypicality.evaluation.context import Context, make_context
from atypicality.evaluation.methods import by_name
from atypicality.evaluation.scored import Options
from atypicality.evaluation.splits import measure_split
from atypicality.evaluation.tables import assemble
from atypicality.outputs import ModelOutputs
from atypicality.outputs.paths import replacing
from atypicality.paper.sources import Source
from atypicality.paper.theory import theorem_1, theorem_2
from atypicality.recalibration import ContentFreeCalibration, TemperatureScaling
from atypicality.validation import caught_warnings, warn

__all__ = ["ALPHA", "Estimated", "Job", "Result", "run_job"]

ALPHA = 0.05
THEORY_DRAWS = 20
"""Training draws per seed: 200 over the paper's ten seeds."""
THEORY_NORMS = (0.5, 2.0)
WITHOUT_CONTENT = "content-free calibration is left out: add content_free.npz, the logits of prompts without content."

Result = Evaluation | dict[str, Any]
"""What one seed gave: an evaluation, or for the theorems their plain form."""


class Estimated:
    """A source's outputs with the atypicality of one estimator, worked out at the first use."""

    def __init__(self, source: Source, estimator: str) -> None:
        self.source = source
        self.estimator = estimator

    @cached_property
    def contexts(self) -> tuple[Context, Context | None]:
        """Test rows, and calibration rows where there is a validation split."""
        data, given = self.source.data, self.estimator == "given"
        density = None if given else data.density(self.estimator)
        parts = (data.test, data.calibration)
        known = [None if part is None else _prepared(part, data.class_atypicality(), given) for part in parts]
        test, calibration = (None if part is None else make_context(part, density) for part in known)
        assert test is not None
        return test, calibration

    def parts(self, job: "Job") -> tuple[Context, Context]:
        """Rows to fit on and rows to measure: the validation split and the test set, or halves of the test set."""
        test, calibration = self.contexts
        if calibration is None:
            calibration, test = test.split(0.5, job.seed)
        if job.attribute is None:
            return calibration, test
        first, second = (replace(part, groups=part.outputs.attributes[job.attribute]) for part in (calibration, test))
        return first, second


@dataclass(frozen=True)
class Job:
    """What to run: on a source with an estimator, these methods, with one seed. Without a source: the theorems.

    `attribute` is what names the groups that methods are given.
    """

    estimated: Estimated | None
    methods: tuple[str, ...]
    n_groups: int
    attribute: str | None
    seed: int

    def file_name(self) -> str:
        """Of the cached result: readable, and different for every other setting, data and version."""
        said: list[Any] = [__version__, self.methods, self.n_groups, self.attribute, self.seed, ALPHA]
        name = "theory"
        if self.estimated is not None:
            source, estimator = self.estimated.source, self.estimated.estimator
            said += [estimator, source.data.fingerprint]
            name = f"{source.name}-{estimator}"
        else:
            said += [THEORY_DRAWS, THEORY_NORMS]
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
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
    options = Options(job.n_groups, intervals=False)
    with caught_warnings() as caught:
        calibration, test = estimated.parts(job)
        methods = {name: by_name(method, ALPHA) for name, method in _objects(job, estimated).items()}
        found = measure_split(methods, calibration, test, job.seed, options)
    found.notes = list(dict.fromkeys([*found.notes, *caught]))
    settings = {"random_state": job.seed, "groups": job.attribute, "stored_edges": False}
    return assemble("compare", found, test.outputs, list(methods), options, settings)


def _prepared(part: ModelOutputs, class_atypicality: Any, given: bool) -> ModelOutputs:
    part.need("logits", "labels")
    atypicality = part.need("atypicality") if given else None
    return part._replaced(atypicality=atypicality, class_atypicality=class_atypicality, ids=None)


def _objects(job: Job, estimated: Estimated) -> dict[str, Any]:
    """Methods of `compare`; prediction sets as in the paper, which adds the top class afterwards."""
    objects: dict[str, Any] = {name: _paper_sets(name) or name for name in job.methods}
    if "content-free" in objects:
        logits = estimated.source.data.content_free
        if logits is None:
            warn(WITHOUT_CONTENT)
            del objects["content-free"]
        else:
            objects["content-free"] = ContentFreeCalibration().fit(logits)
    return objects


def _paper_sets(name: str) -> Any:
    score = name.removeprefix("aa-")
    if score not in ("aps", "raps"):
        return None
    if name == score:
        return TemperatureScaling(), SplitConformal(score, ALPHA, nonempty="after")
    return TemperatureScaling(), AtypicalityAwareConformal(score, ALPHA, mode="paper", nonempty="after")


def _theory(seed: int) -> dict[str, Any]:
    rise = theorem_1(n_draws=THEORY_DRAWS, random_state=seed)
    temperatures = [theorem_2(norm=norm, n_draws=THEORY_DRAWS, random_state=seed) for norm in THEORY_NORMS]
    return {"theorem_1": rise.to_dict(), "theorem_2": [result.to_dict() for result in temperatures]}
