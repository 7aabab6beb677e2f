"""One runner for every experiment: outputs in, tables beside the paper's and verdicts on its claims out."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from atypicality.blocks.progress import track
from atypicality.evaluation import Evaluation
from atypicality.evaluation.methods import KNOWN
from atypicality.outputs.paths import check_target, replacing
from atypicality.paper.claims import CLAIMS, HOLDS, Verdict, judge
from atypicality.paper.jobs import Estimated, Job, Result, run_job
from atypicality.paper.readings import ROW_NAMES, paper_values, read_values
from atypicality.paper.settings import EXPERIMENTS, SEEDS, SETTINGS, Setting
from atypicality.paper.sources import Source, find_sources, missing, subgroup_attribute
from atypicality.paper.tables import Table, make_tables, to_csv, to_latex, to_markdown, to_records, to_text
from atypicality.terminal import listed
from atypicality.validation import check_choice, check_integer

__all__ = ["Reproduction", "reproduce"]

NOTES_OF = {"the temperature of g": ("temperatures",), "the atypicality of t": ("imbalanced", "class-scores")}
"""Beginnings of an evaluation's notes that matter to some experiments only."""


@dataclass(frozen=True)
class NameFilter:
    """Which data sets and models the user asked for: those whose name holds a text, all where it is None."""

    dataset: str | None
    model: str | None

    def has(self, given: Source | Setting) -> bool:
        """Whether a source, by its own name or the paper's for its model, or a setting of the paper is among them."""
        name = given.folder if isinstance(given, Setting) else given.name
        paper = given.setting.model if isinstance(given, Source) and given.setting else ""
        return _holds(self.dataset, given.dataset, name) and _holds(self.model, given.model, paper)


@dataclass(frozen=True)
class Run:
    """One experiment on one model's outputs with one estimator; no source for the theorems."""

    experiment: str
    source: Source | None
    estimator: str

    @property
    def title(self) -> str:
        """Model, data set and estimator, in words."""
        return "simulation" if self.source is None else _title(self.source.title, self.estimator)


@dataclass(frozen=True)
class Reproduction:
    """Tables, verdicts, what is missing and what to know, by experiment.

    Attributes
    ----------
    tables : dict of str to list of Table
    verdicts : dict of str to list of Verdict
    missing : dict of str to list of str
        What to put where for the settings of the paper that have no outputs yet.
    notes : dict of str to list of str
    """

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
                "title": EXPERIMENTS[name].title,
                "paper": EXPERIMENTS[name].shown,
                "cells": to_records(tables),
                "verdicts": [_known(asdict(verdict)) for verdict in self.verdicts[name]],
                "missing": self.missing[name],
                "notes": self.notes[name],
            }
            for name, tables in self.tables.items()
        }
        return json.dumps({"schema": 1, "experiments": content}, indent=indent, allow_nan=False)

    def write(self, out: Path) -> list[Path]:
        """Write NAME.csv, NAME.md and NAME.tex for every experiment that has tables, and return their paths."""
        written = []
        for name, tables in ((name, tables) for name, tables in self.tables.items() if tables):
            texts = {".csv": to_csv(tables), ".md": self._markdown(name), ".tex": "\n".join(map(to_latex, tables))}
            for path in _files(out, name):
                with replacing(path) as temporary:
                    temporary.write_text(texts[path.suffix], encoding="utf-8")
                written.append(path)
        return written

    def _section(self, name: str, errors: bool) -> str:
        title, shown = EXPERIMENTS[name].title, EXPERIMENTS[name].shown
        parts = [f"{title}\n{'=' * len(title)}\nIn the paper: {shown}."]
        parts += [to_text(table, errors) for table in self.tables[name]]
        if not self.tables[name]:
            parts.append("Nothing to run: see what is missing below. The paper's own numbers: --paper.")
        parts += [_list(heading, lines) for heading, lines in self._claims(name)]
        return "\n\n".join([*parts, *([_list("Notes", self.notes[name])] if self.notes[name] else [])])

    def _markdown(self, name: str) -> str:
        lists = [*self._claims(name), ("Missing", self.missing[name]), ("Notes", self.notes[name])]
        parts = [f"# {EXPERIMENTS[name].title}", "", f"In the paper: {EXPERIMENTS[name].shown}.", ""]
        parts += map(to_markdown, self.tables[name])
        for heading, lines in lists:
            parts += [f"## {heading}", "", *(f"- {line}" for line in lines), ""] if lines else []
        return "\n".join(parts)

    def _claims(self, name: str) -> list[tuple[str, list[str]]]:
        """Every claim with how many of its statements hold, and the statements."""
        found = []
        for claim, group in groupby(sorted(self.verdicts[name], key=lambda v: v.claim), key=lambda v: v.claim):
            verdicts = list(group)
            held = sum(verdict.verdict == HOLDS for verdict in verdicts)
            title = f"Claim {claim}. {CLAIMS[claim]}: {held} of {len(verdicts)} statements hold"
            found.append((title, [_judged(verdict) for verdict in verdicts]))
        return found


def reproduce(
    names: str | Sequence[str] = "all",
    *,
    outputs: Path | None = None,
    dataset: str | None = None,
    model: str | None = None,
    seeds: Iterable[int] = SEEDS,
    methods: Sequence[str] = (),
    paper: bool = False,
    out: Path = Path("reproduction"),
) -> Reproduction:
    """Run the paper's experiments on outputs and lay the paper's numbers beside ours.

    Parameters
    ----------
    names : str or sequence of str
        Experiments (`EXPERIMENTS`), or "all".
    outputs : path, optional
        Folder with a folder of outputs per model (see `atypicality.paper.sources`), or one model's own folder.
        By default the bundled outputs, which the paper does not have.
    dataset, model : str, optional
        Only settings whose data set or model contains this text.
    seeds : iterable of int
        Seeds of the random halves; 0 to 9 in the paper. With a validation split there is nothing to draw, and only
        the first seed is run.
    methods : sequence of str
        Further methods of `compare`, such as "adats" (a minute per fit) or "aware".
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
    >>> found.verdicts["temperatures"][0].verdict
    'holds'
    """
    chosen = [check_choice(name, "names", tuple(EXPERIMENTS)) for name in _listed(names)]
    for method in methods:
        check_choice(method, "methods", KNOWN)
    wanted = [check_integer(seed, "seeds", low=0) for seed in seeds]
    if not wanted:
        raise ValueError("seeds must hold at least one seed; got none.")
    check_target(Path(out) / "cache", folder=True)
    for path in (path for name in chosen for path in _files(Path(out), name)):
        check_target(path)
    found = Reproduction()
    runs = _plan(chosen, NameFilter(dataset, model), found, outputs)
    results = _run_all(runs, wanted, tuple(methods), Path(out) / "cache")
    for run in runs:
        _add(found, run, results[run])
    if paper:
        _add_paper(found, NameFilter(dataset, model), {run.source.setting for run in runs if run.source})
    return found


def _files(out: Path, name: str) -> list[Path]:
    """What `Reproduction.write` writes for an experiment."""
    return [out / f"{name}{ending}" for ending in (".csv", ".md", ".tex")]


def _holds(text: str | None, *words: str) -> bool:
    return text is None or any(text.lower() in word.lower() for word in words)


def _title(model: str, estimator: str) -> str:
    return f"{model}, {'prompt likelihood' if estimator == 'given' else estimator}"


def _listed(names: str | Sequence[str]) -> list[str]:
    if isinstance(names, str):
        return list(EXPERIMENTS) if names == "all" else [names]
    return list(names)


def _plan(names: list[str], wanted: NameFilter, found: Reproduction, root: Path | None) -> list[Run]:
    """What to run, the experiments in order; fills in what is missing."""
    sources = [source for source in find_sources(root) if wanted.has(source)]
    settings = [setting for setting in SETTINGS if wanted.has(setting)]
    if not sources and not settings:
        known = sorted({setting.dataset for setting in SETTINGS} | {source.dataset for source in find_sources(root)})
        raise ValueError(f"dataset and model match nothing; data sets: {listed(known)}.")
    runs = []
    for name in names:
        experiment = EXPERIMENTS[name]
        usable: list[Source | None] = [source for source in sources if source.serves(name, experiment)]
        if not experiment.kinds:
            usable = [None]
        found.tables[name], found.verdicts[name], found.notes[name] = [], [], []
        found.missing[name] = missing(experiment, settings, sources, root)
        for source in usable:
            for estimator in experiment.estimators:
                lacks = _lacks(source, estimator)
                if lacks:
                    found.missing[name].append(lacks)
                else:
                    runs.append(Run(name, source, estimator))
    return runs


def _lacks(source: Source | None, estimator: str) -> str | None:
    """What a source must still be given for an estimator."""
    if source is None:
        return None
    data = source.data
    enough = {
        "GMM": data.train is not None or data.statistics is not None,
        "KNN": data.train is not None,
        "given": data.test.atypicality is not None,
    }
    needed = "atypicality in test.npz" if estimator == "given" else "train.npz (embeddings, labels)"
    return None if enough[estimator] else f"{source.title}, {estimator}: put {needed} into {source.folder}."


def _run_all(runs: list[Run], seeds: list[int], methods: tuple[str, ...], folder: Path) -> dict[Run, list[Result]]:
    """Results of every run and seed; atypicality is estimated once for all runs on the same outputs."""
    ordered = sorted(runs, key=lambda run: ("" if run.source is None else run.source.name, run.estimator))
    estimated = cache(Estimated)
    jobs = [(run, job) for run in ordered for job in _jobs(run, estimated, seeds, methods)]
    results: dict[Run, list[Result]] = {run: [] for run in runs}
    for run, job in track(jobs, "Reproducing"):
        results[run].append(run_job(job, folder))
    return results


def _jobs(
    run: Run, estimated: Callable[[Source, str], Estimated], seeds: list[int], methods: tuple[str, ...]
) -> list[Job]:
    """One job per seed: a half of the rows, a split with a model of its own, or the one validation split there is."""
    experiment, source = EXPERIMENTS[run.experiment], run.source
    if source is None:
        return [Job(None, (), experiment.n_groups, None, seed) for seed in seeds]
    wanted = tuple(dict.fromkeys(experiment.methods + methods))
    attribute = subgroup_attribute(source.data) if run.experiment == "subgroups" else None
    fixed = not source.splits and source.data.calibration is not None
    rows = source.splits or (source,) * (1 if fixed else len(seeds))
    return [
        Job(estimated(part, run.estimator), wanted, experiment.n_groups, attribute, seed)
        for part, seed in zip(rows, seeds, strict=False)
    ]


def _add(found: Reproduction, run: Run, results: list[Result]) -> None:
    """The tables, verdicts and notes of one run."""
    name, source = run.experiment, run.source
    model, dataset, setting = ("", "", None) if source is None else (source.model, source.dataset, source.setting)
    printed = paper_values(name, setting, run.estimator)
    naming = _naming(name, run.estimator, model, dataset, run.title)
    found.tables[name] += make_tables(naming, ROW_NAMES[name], [read_values(name, r) for r in results], printed)
    found.verdicts[name] += judge(name, EXPERIMENTS[name].claims, results, run.title)
    for result in results:
        for note in result.notes if isinstance(result, Evaluation) else ():
            line = f"{run.title}: {note}"
            if name in NOTES_OF.get(note[:20], (name,)) and line not in found.notes[name]:
                found.notes[name].append(line)


def _add_paper(found: Reproduction, wanted: NameFilter, have: set[Setting | None]) -> None:
    """The paper's tables of the settings that were not run."""
    absent = [setting for setting in SETTINGS if wanted.has(setting) and setting not in have]
    for name in found.tables:
        for estimator in EXPERIMENTS[name].estimators:
            for setting in (s for s in absent if s.kind in EXPERIMENTS[name].kinds):
                title = _title(f"{setting.model} / {setting.dataset}", estimator)
                naming = _naming(name, estimator, setting.model, setting.dataset, title)
                found.tables[name] += make_tables(naming, ROW_NAMES[name], [], paper_values(name, setting, estimator))


def _naming(experiment: str, atypicality: str, model: str, dataset: str, title: str) -> dict[str, str]:
    """The texts of a `Table`."""
    return {"experiment": experiment, "atypicality": atypicality, "model": model, "dataset": dataset, "title": title}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """The same with None for what is not a number, which JSON does not have."""
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in values.items()}


def _judged(verdict: Verdict) -> str:
    spread = "" if verdict.n_seeds == 1 else f" ± {verdict.standard_error:.2g}"
    return (
        f"{verdict.verdict.upper()}: {verdict.statement} ({verdict.where}; by {verdict.margin:.3g}{spread}, "
        f"true for {verdict.n_true} of {verdict.n_seeds} seeds)"
    )


def _list(heading: str, lines: Iterable[str]) -> str:
    return "\n".join([heading, *(f"  - {line}" for line in lines)])
