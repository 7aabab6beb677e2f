"""One runner for every experiment: outputs in, tables beside the paper's and verdicts on its claims out."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from atypicality.blocks.progress import track
from atypicality.evaluation import Evaluation
from atypicality.evaluation.methods import KNOWN
from atypicality.outputs.paths import check_target, replacing
from atypicality.paper.claims import CLAIMS, ESTIMATOR_FREE, Spread, Verdict, judge, untested
from atypicality.paper.jobs import ALPHA, FOLDS, Estimated, Job, Result, run_job
from atypicality.paper.readings import Printed, Values, paper_values, read_values
from atypicality.paper.settings import EXPERIMENTS, SEEDS, SETTINGS, SHOWN, Setting
from atypicality.paper.sources import Source, find_sources, is_one_model, missing, of_dataset, plain_name
from atypicality.paper.tables import Table, make_tables, to_csv, to_latex, to_markdown, to_records, to_text
from atypicality.paper.verdicts import counted, judged
from atypicality.terminal import listed
from atypicality.validation import check_alpha, check_choice, check_integer

__all__ = ["Reproduction", "reproduce"]

NOTES_OF = {"the temperature of g": ("temperatures",), "the atypicality of t": ("imbalanced", "class-scores")}
"""Beginnings of an evaluation's notes that matter to some experiments only."""
_LONG_TAILED = "outputs of a model with long-tailed training classes, and its training rows"
OUTPUTS = dict.fromkeys(EXPERIMENTS, "outputs of a model with balanced classes, and its training rows") | {
    "imbalanced": _LONG_TAILED,
    "class-scores": _LONG_TAILED,
    "llm": "outputs of a language model, and likelihoods of its prompts",
    "subgroups": "outputs with an attribute that names groups, and training rows",
}
"""What an experiment needs that found nothing to run on."""
FEW, FEW_HALVES = 5, "few halves: wide intervals; the documentation uses 10"
Read = tuple[Result, Values]


@dataclass(frozen=True)
class NameFilter:
    """Which data sets and models the user asked for: those whose name holds a text, all where it is None."""

    dataset: str | None
    model: str | None

    def has(self, given: Source | Setting) -> bool:
        """Whether a source, by its own name or the paper's for its model, or a setting of the paper is among them."""
        name = given.folder if isinstance(given, Setting) else given.name
        paper = given.setting.model if isinstance(given, Source) and given.setting else ""
        return _holds(self.dataset, given.dataset, name) and _holds(self.model, given.model, paper, name)


@dataclass(frozen=True)
class Run:
    """One experiment on one model's outputs with one estimator; no source for the theorems."""

    experiment: str
    source: Source | None
    estimator: str
    alpha: float

    @property
    def title(self) -> str:
        """Model, data set and estimator, in words; with sets also what they shall cover."""
        if self.source is None:
            return "simulation"
        covered = f", {100 * (1 - self.alpha):g} %" if self.experiment == "conformal" else ""
        return _title(self.source.title, self.estimator) + covered

    @property
    def printed(self) -> Printed:
        """What the paper prints of the same: its sets are at 95 %."""
        same = self.source is not None and (self.experiment != "conformal" or self.alpha == ALPHA)
        return paper_values(self.experiment, self.source.setting if self.source and same else None, self.estimator)


@dataclass(frozen=True)
class Finished:
    """The results of a run: of every seed, and of every fold of the test rows where there is one split."""

    seeds: list[Result] = field(default_factory=list)
    folds: list[Result] = field(default_factory=list)


@dataclass(frozen=True)
class Reproduction:
    """Tables, verdicts, what to put where for settings without outputs yet, and what to know, by experiment."""

    tables: dict[str, list[Table]] = field(default_factory=dict)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def to_text(self, errors: bool = False) -> str:
        """Everything, for a terminal, with standard errors or not."""
        absent = dict.fromkeys(line for lines in self.missing.values() for line in lines)
        sections = [self._section(name, errors) for name in self.tables]
        return "\n\n".join([*sections, _list("Missing", absent)] if absent else sections)

    def to_json(self, indent: int | None = None) -> str:
        """Everything, by experiment: `paper` (where it shows it), `cells`, `verdicts`, `missing` and `notes`."""
        content = {
            name: {
                "title": SHOWN[name].title,
                "paper": SHOWN[name].shown,
                "cells": to_records(tables),
                "verdicts": [_known(asdict(v) | {"verdict": v.verdict}) for v in self.verdicts[name]],
                "missing": self.missing[name],
                "notes": self.notes[name],
            }
            for name, tables in self.tables.items()
        }
        return json.dumps({"schema": 2, "experiments": content}, indent=indent, allow_nan=False)

    def write(self, out: Path) -> list[Path]:
        """Write NAME.csv, NAME.md and NAME.tex for every experiment that has tables, and return their paths."""
        written = []
        for name, tables in ((name, tables) for name, tables in self.tables.items() if tables):
            texts = to_csv(tables), self._markdown(name), "\n".join(map(to_latex, tables))
            for path, text in zip(_files(out, name), texts, strict=True):
                with replacing(path) as temporary:
                    temporary.write_text(text, encoding="utf-8")
                written.append(path)
        return written

    def _section(self, name: str, errors: bool) -> str:
        title, shown = SHOWN[name].title, SHOWN[name].shown
        parts = [f"{title}\n{'=' * len(title)}\nIn the paper: {shown}."]
        parts += [to_text(table, errors) for table in self.tables[name]]
        if not self.tables[name]:
            parts.append("Nothing to run: see notes and what is missing below. The paper's own numbers: --paper.")
        parts += [_list(heading, lines) for heading, lines in self._claims(name)]
        return "\n\n".join([*parts, *([_list("Notes", self.notes[name])] if self.notes[name] else [])])

    def _markdown(self, name: str) -> str:
        lists = [*self._claims(name), ("Missing", self.missing[name]), ("Notes", self.notes[name])]
        parts = [f"# {SHOWN[name].title}", "", f"In the paper: {SHOWN[name].shown}.", ""]
        parts += map(to_markdown, self.tables[name])
        for heading, lines in lists:
            parts += [f"## {heading}", "", *(f"- {line}" for line in lines), ""] if lines else []
        return "\n".join(parts)

    def _claims(self, name: str) -> list[tuple[str, list[str]]]:
        """Every claim; below it for each model and data set how many of its statements hold, and the statements."""
        found = []
        by_claim = sorted(self.verdicts[name], key=lambda verdict: verdict.claim)
        for claim, group in groupby(by_claim, key=lambda verdict: verdict.claim):
            lines = []
            for _, members in groupby(group, key=lambda verdict: verdict.where.partition(", ")[0]):
                verdicts = list(members)
                lines += [counted(verdicts)] if any(verdict.n for verdict in verdicts) else []
                lines += map(judged, verdicts)
            found.append((f"Claim {claim}. {CLAIMS[claim]}", lines))
        return found


def reproduce(
    names: str | Sequence[str] = "all",
    *,
    outputs: Path | None = None,
    dataset: str | None = None,
    model: str | None = None,
    seeds: Iterable[int] = SEEDS,
    methods: Sequence[str] = (),
    without: Sequence[str] = (),
    alpha: float = ALPHA,
    names_of: Mapping[str, str] | None = None,
    paper: bool = False,
    out: Path = Path("reproduction"),
) -> Reproduction:
    """Run the paper's experiments on outputs and lay the paper's numbers beside ours.

    Parameters
    ----------
    names : str or sequence of str
        Experiments (`EXPERIMENTS`), or "all".
    outputs : path, optional
        Folder with a folder of outputs per model (see `atypicality.paper.sources`), one model's own folder, or a
        file. By default the bundled outputs, which the paper does not have.
    dataset, model : str, optional
        Only settings whose data set or model contains this text. Of one model whose name tells no data set, `dataset`
        says which it is, one of the paper or another.
    seeds : iterable of int
        Seeds of the random halves; 0 to 9 in the paper. With a validation split there is nothing to draw, and only
        the first seed is run.
    methods : sequence of str
        Further methods of `compare`, such as "aware".
    without : sequence of str
        Methods to leave out, such as "adats", which takes most of the time.
    alpha : float, default=0.05
        Allowed miscoverage of prediction sets; the paper's table is at 0.05.
    names_of : mapping, optional
        Our name to the files' name of an array, where they differ: `{"logits": "scores"}`.
    paper : bool
        Also show what the paper printed of settings that have no outputs here.
    out : path
        Folder whose `cache` keeps every finished seed: a run that was interrupted goes on where it stopped.

    Returns
    -------
    Reproduction

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = reproduce("temperatures", seeds=[0], out=Path(folder))
    >>> _, trend, _ = found.verdicts["temperatures"]
    >>> trend.statement, trend.statistic, trend.verdict
    ('the temperature tends to rise with atypicality', 'rank correlation', 'holds')
    """
    asked = names if not isinstance(names, str) else EXPERIMENTS if names == "all" else [names]
    chosen = [check_choice(name, "names", tuple(EXPERIMENTS)) for name in asked]
    for method in methods:
        check_choice(method, "methods", KNOWN)
    for method in without:
        check_choice(method, "without", tuple({name for e in EXPERIMENTS.values() for name in e.methods}))
    target = float(check_alpha(alpha))
    wanted = [check_integer(seed, "seeds", low=0) for seed in seeds]
    if not wanted:
        raise ValueError("seeds must hold at least one seed; got none.")
    check_target(Path(out) / "cache", folder=True)
    for path in (path for name in chosen for path in _files(Path(out), name)):
        check_target(path)
    found = Reproduction()
    sources = _sources(outputs, dataset, names_of or {})
    runs = _plan(chosen, NameFilter(dataset, model), found, sources, outputs, target)
    wanted_methods = {
        name: tuple(one for one in dict.fromkeys((*EXPERIMENTS[name].methods, *methods)) if one not in without)
        for name in chosen
    }
    results = _run_all(runs, wanted, wanted_methods, Path(out) / "cache")
    for run in runs:
        _add(found, run, results[run])
    _add_untested(found, wanted_methods)
    _add_cautions(found, runs, len(wanted))
    if paper:
        _add_paper(found, NameFilter(dataset, model), {run.source.setting for run in runs if run.source})
    return found


def _files(out: Path, name: str) -> list[Path]:
    """What `Reproduction.write` writes for an experiment."""
    return [out / f"{name}{ending}" for ending in (".csv", ".md", ".tex")]


def _holds(text: str | None, *words: str) -> bool:
    return text is None or any(plain_name(text) in plain_name(word) for word in words)


def _title(model: str, estimator: str) -> str:
    words = {"given": "given atypicality", "total": "total likelihood", "per token": "likelihood per token"}
    return f"{model}, {words.get(estimator, estimator)}"


def _sources(root: Path | None, dataset: str | None, names: Mapping[str, str]) -> list[Source]:
    """All there are; one model whose name tells no data set belongs to the one that is named."""
    found = find_sources(root, names)
    if is_one_model(root) and dataset is not None and found[0].setting is None:
        return [of_dataset(found[0], dataset)]
    return found


def _plan(
    names: list[str], wanted: NameFilter, found: Reproduction, known: list[Source], root: Path | None, alpha: float
) -> list[Run]:
    """What to run, the experiments in order; fills in what is missing."""
    sources = [source for source in known if wanted.has(source)]
    settings = [setting for setting in SETTINGS if wanted.has(setting)]
    if not sources and not settings:
        there = sorted({setting.dataset for setting in SETTINGS} | {source.dataset for source in known})
        models = sorted({setting.model for setting in SETTINGS} | {source.model for source in known})
        raise ValueError(f"dataset and model match nothing; data sets: {listed(there)}; models: {listed(models)}.")
    runs = []
    for name in names:
        experiment = EXPERIMENTS[name]
        found.tables[name], found.verdicts[name], found.notes[name] = [], [], []
        found.missing[name] = missing(experiment, settings, sources, root)
        if not experiment.kinds:
            runs.append(Run(name, None, "", alpha))
        for source in (source for source in sources if source.serves(name, experiment)):
            lacks = source.lacks(experiment.estimators)
            found.missing[name] += [lacks] if lacks else []
            runs += [Run(name, source, estimator, alpha) for estimator in source.estimators(experiment.estimators)]
        found.notes[name] += _left_out(name, sources if root and experiment.kinds else [])
    return runs


def _left_out(name: str, sources: list[Source]) -> list[str]:
    """Why given outputs are not in an experiment: all where none is, else those of no setting of the paper."""
    used = {source.name for source in sources if source.serves(name, EXPERIMENTS[name])}
    rest = (source for source in sources if source.name not in used)
    return [source.left_out(name) for source in rest if not used or source.setting is None]


def _run_all(
    runs: list[Run], seeds: list[int], methods: Mapping[str, tuple[str, ...]], folder: Path
) -> dict[Run, Finished]:
    """Results of every run and seed; atypicality is estimated once for all runs on the same outputs."""
    ordered = sorted(runs, key=lambda run: ("" if run.source is None else run.source.name, run.estimator))
    estimated = cache(Estimated)
    jobs = [(run, job) for run in ordered for job in _jobs(run, estimated, seeds, methods[run.experiment])]
    results = {run: Finished() for run in runs}
    for run, job in track(jobs, "Reproducing", unit="runs"):
        kept = results[run].seeds if job.fold is None else results[run].folds
        kept.append(run_job(job, folder))
    return results


def _jobs(run: Run, estimated: Callable[..., Estimated], seeds: list[int], methods: tuple[str, ...]) -> list[Job]:
    """One job per seed: a half of the rows, a split with a model of its own, or the one validation split there is.

    One split alone has no spread: then parts of its test rows are left out in turn.
    """
    experiment, source = EXPERIMENTS[run.experiment], run.source
    if source is None:
        return [Job(None, (), experiment.n_groups, None, seed) for seed in seeds]
    attribute = source.data.subgroup_attribute() if run.experiment == "subgroups" else None
    fixed = not source.splits and source.data.calibration is not None
    rows = source.splits or (source,) * (1 if fixed else len(seeds))
    jobs = [
        Job(estimated(part, run.estimator), methods, experiment.n_groups, attribute, seed, run.alpha)
        for part, seed in zip(rows, seeds, strict=False)
    ]
    return jobs if len(jobs) > 1 else [*jobs, *(replace(jobs[0], fold=fold) for fold in range(FOLDS))]


def _add(found: Reproduction, run: Run, finished: Finished) -> None:
    """The tables, verdicts and notes of one run."""
    name, source = run.experiment, run.source
    model, dataset = ("", "") if source is None else (source.model, source.dataset)
    naming = _naming(name, run.estimator, model, dataset, run.title)
    seeds, folds = ([(one, read_values(name, one)) for one in part] for part in (finished.seeds, finished.folds))
    found.tables[name] += make_tables(naming, [values for _, values in seeds], run.printed)
    found.verdicts[name] += _verdicts(found.verdicts[name], run, seeds, folds)
    notes = [note for result in finished.seeds if isinstance(result, Evaluation) for note in result.notes]
    wanted = (f"{run.title}: {note}" for note in notes if name in NOTES_OF.get(note[:20], (name,)))
    found.notes[name] += [line for line in _said_once(wanted) if line not in found.notes[name]]


def _said_once(notes: Iterable[str]) -> list[str]:
    """The notes of all seeds, those that differ in their numbers alone as one.

    >>> _said_once(["rank 3 of 5", "rank 4 of 5", "few rows", "few rows"])
    ['rank 3 of 5 (other seeds: the same with other numbers)', 'few rows']
    """
    alike: dict[str, set[str]] = {}
    for note in notes:
        alike.setdefault(re.sub(r"\d[\d.,]*", "#", note), set()).add(note)
    more = " (other seeds: the same with other numbers)"
    return [sorted(same)[0] + more * (len(same) > 1) for same in alike.values()]


def _verdicts(known: list[Verdict], run: Run, seeds: list[Read], folds: list[Read]) -> list[Verdict]:
    """On every claim once: not again for another estimator where none enters."""
    name, source, found = run.experiment, run.source, []
    spread: Spread = "folds" if folds else "draws" if source is None else "splits" if source.splits else "halves"
    for claim in EXPERIMENTS[name].claims:
        once = source is not None and (name, claim) in ESTIMATOR_FREE
        where = source.title if source is not None and once else run.title
        if not once or not any((other.claim, other.where) == (claim, where) for other in known):
            whole = seeds[0] if folds else None
            found += judge(name, [claim], folds or seeds, where, spread=spread, paper=run.printed, whole=whole)
    return found


def _add_untested(found: Reproduction, methods: Mapping[str, tuple[str, ...]]) -> None:
    """Every claim of an experiment that nothing here could test, by name."""
    for name, verdicts in found.verdicts.items():
        for claim in EXPERIMENTS[name].claims:
            if not any(verdict.claim == claim for verdict in verdicts):
                ran = bool(found.tables[name])
                lacking = f"the methods it compares (run were {', '.join(methods[name])})" if ran else OUTPUTS[name]
                verdicts.append(untested(claim, EXPERIMENTS[name].title, lacking))


def _add_cautions(found: Reproduction, runs: list[Run], n_seeds: int) -> None:
    """What to know of a model that is the paper's by its name alone, and of few halves: each once."""
    said: dict[str, str] = {}
    for run, source in ((run, run.source) for run in runs if run.source is not None):
        if source.setting is not None and source.setting.folder == source.name:
            said.setdefault(f"{source.title}: same architecture; weights not checked", run.experiment)
        if differs := source.other_classes():
            said.setdefault(differs, run.experiment)
        if n_seeds < FEW and not source.splits and source.data.calibration is None:
            said.setdefault(FEW_HALVES, run.experiment)
    for line, name in said.items():
        found.notes[name].append(line)


def _add_paper(found: Reproduction, wanted: NameFilter, have: set[Setting | None]) -> None:
    """The paper's tables of the settings that were not run."""
    absent = [setting for setting in SETTINGS if wanted.has(setting) and setting not in have]
    for name in found.tables:
        for estimator in EXPERIMENTS[name].estimators:
            for setting in (s for s in absent if s.kind in EXPERIMENTS[name].kinds):
                title = _title(f"{setting.model} / {setting.dataset}", estimator) + ", 95 %" * (name == "conformal")
                naming = _naming(name, estimator, setting.model, setting.dataset, title)
                found.tables[name] += make_tables(naming, [], paper_values(name, setting, estimator))


def _naming(experiment: str, atypicality: str, model: str, dataset: str, title: str) -> dict[str, str]:
    """The texts of a `Table`."""
    return {"experiment": experiment, "atypicality": atypicality, "model": model, "dataset": dataset, "title": title}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """The same with None for what is not a number, which JSON does not have."""
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in values.items()}


def _list(heading: str, lines: Iterable[str]) -> str:
    return "\n".join([heading, *(f"  - {line}" for line in lines)])
