"""Two evaluations as one, so that a report shows them beside each other: two days, two sites, two versions of data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atypicality.evaluation.result import Evaluation
from atypicality.evaluation.schema import TABLES, Row, to_columns

__all__ = ["beside", "with_part"]

OF_METHODS = (
    *("alpha", "guaranteed", "nothing_accepted", "accepted_rows", "lost_accepted"),
    *("cross_fitted", "covered_groups", "fitted_on"),
)
"""Settings that have a value for each method."""


def beside(first: Evaluation, second: Evaluation, names: tuple[str, str]) -> Evaluation:
    """One evaluation with the methods of both, each called "METHOD, NAME", and the samples of both.

    Parameters
    ----------
    first, second : Evaluation
        Of the same classes, with the same groups, grid and bins.
    names : pair of str
        What to call them: two days, say.

    Returns
    -------
    Evaluation
        What a method of the one said of the samples of the other is not known.

    Examples
    --------
    >>> import atypicality as aty
    >>> monday, tuesday = (aty.datasets.make_world(300, random_state=day).outputs() for day in (0, 1))
    >>> both = beside(*(aty.evaluate("uncalibrated", day) for day in (monday, tuesday)), ("monday", "tuesday"))
    >>> both.methods, both.n_samples
    (('uncalibrated, monday', 'uncalibrated, tuesday'), 600)
    """
    _check_alike(first, second)
    if names[0] == names[1]:
        raise ValueError(f"names must differ; got {names[0]!r} twice.")
    parts = [_renamed(one, name) for one, name in zip((first, second), names, strict=True)]
    tables = {table: _joined(table, parts[0][table], parts[1][table], first.n_samples) for table in TABLES}
    _renumber_subgroups(tables, first, second)
    levels = {
        key: {
            f"{method}, {name}": value
            for one, name in zip((first, second), names, strict=True)
            for method, value in one.settings.get(key, {}).items()
        }
        for key in OF_METHODS
        if key in (*first.settings, *second.settings)
    }
    prints = [str(one.settings.get("fingerprint")) for one in (first, second)]
    return Evaluation(
        kind=first.kind,
        methods=tuple(
            f"{method}, {name}" for one, name in ((first, names[0]), (second, names[1])) for method in one.methods
        ),
        n_samples=first.n_samples + second.n_samples,
        n_classes=first.n_classes,
        n_splits=first.n_splits,
        settings=dict(first.settings) | levels | {"fingerprint": ", ".join(prints)},
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        tables={table: to_columns(table, rows) for table, rows in tables.items()},
    )


def with_part(whole: Evaluation, part: Evaluation, method: str, rows: Sequence[int]) -> Evaluation:
    """An evaluation with one more `method`, the first, from an evaluation of some of its `rows`.

    `settings["part"]` of what it gives has the number of these rows.

    >>> import atypicality as aty
    >>> outputs = aty.datasets.make_world(300).outputs()
    >>> whole = aty.evaluate({"all": "uncalibrated"}, outputs)
    >>> part = aty.evaluate({"few": "uncalibrated"}, outputs[:50])
    >>> [row["count"] for row in with_part(whole, part, "few", range(50)).table("overall", metric="accuracy")]
    [50.0, 300.0]
    """
    kept = set(whole.tables["samples"]["row"])

    def more(table: str) -> list[Row]:
        found = part.table(table, method=method) if "method" in TABLES[table] else []
        if "row" not in TABLES[table]:
            return found
        return [row | {"row": place} for row in found if (place := int(rows[row["row"]])) in kept]

    tables = {table: to_columns(table, more(table) + whole.table(table)) for table in TABLES}
    settings = dict(whole.settings) | {"part": {method: part.n_samples}}
    return replace(whole, methods=(method, *whole.methods), tables=tables, settings=settings)


def _check_alike(first: Evaluation, second: Evaluation) -> None:
    names = [one.tables["class_info"]["name"] for one in (first, second)]
    if names[0] != names[1] or first.kind != second.kind:
        raise ValueError("both evaluations must be of the same kind and of the same classes, in the same order.")
    for key in ("n_groups", "grid", "n_bins"):
        pair = first.settings.get(key), second.settings.get(key)
        if pair[0] != pair[1]:
            raise ValueError(f"both evaluations must have the same {key}; got {pair[0]} and {pair[1]}.")


def _renamed(evaluation: Evaluation, name: str) -> dict[str, list[Row]]:
    def row_of(row: Row) -> Row:
        known = (column for column in ("method", "reference") if row.get(column) is not None)
        return row | {column: f"{row[column]}, {name}" for column in known}

    return {table: [row_of(row) for row in evaluation.table(table)] for table in TABLES}


def _joined(table: str, first: list[Row], second: list[Row], offset: int) -> list[Row]:
    """Rows of both; those that speak of no method are the same for both and stay once, but for samples."""
    if "row" in TABLES[table]:
        return first + [row | {"row": row["row"] + offset} for row in second]
    if "method" not in TABLES[table]:
        return first
    return first + [row for row in second if row["method"] is not None]


def _renumber_subgroups(tables: Mapping[str, list[Row]], first: Evaluation, second: Evaluation) -> None:
    """Give the second evaluation's samples the numbers of their subgroups in the joint table."""
    joint, own = _numbers(tables["subgroups"]), _numbers(second.table("subgroups"))
    lists = {attribute: list(found) for attribute, found in own.items()}
    if list(joint) != list(own) and any(row["subgroups"] for row in tables["samples"]):
        raise ValueError("both evaluations must have the same attributes; leave out those that one of them lacks.")
    for row in tables["samples"][len(first.table("samples")) :]:
        codes = (row["subgroups"] or "").split()
        known = zip(lists, codes, strict=False)
        row["subgroups"] = " ".join(str(joint[name][lists[name][int(code)]]) for name, code in known) or None


def _numbers(rows: list[Row]) -> dict[str, dict[str, int]]:
    """The number of every subgroup in the order of the table, by attribute."""
    found: dict[str, dict[Any, int]] = {}
    for row in rows:
        own = found.setdefault(row["attribute"], {})
        own.setdefault(row["subgroup"], len(own))
    return found
