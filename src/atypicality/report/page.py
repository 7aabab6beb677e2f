"""The HTML page: our style and script by hash, the data as JSON, everything else forbidden by its own policy."""

import html
import json
import os
from importlib import resources
from typing import TYPE_CHECKING

from atypicality.evaluation import Evaluation
from atypicality.outputs.paths import check_target, replacing
from atypicality.report.card_html import card_to_html
from atypicality.report.data import page_data
from atypicality.report.pages import html_page
from atypicality.report.summary import Name, Sentence, SourcedNumber, summarise
from atypicality.validation import check_choice

if TYPE_CHECKING:
    from atypicality.head import ReliabilityHead

__all__ = ["render_report", "write_report"]

_SCRIPTS = ("base.js", "charts.js", "tables.js", "linked.js", "sections.js")


def write_report(
    evaluation: Evaluation,
    path: str | os.PathLike[str],
    *,
    head: "ReliabilityHead | None" = None,
    title: str = "Reliability report",
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Write `render_report` to a file, whole or not at all.

    Parameters
    ----------
    evaluation : Evaluation
    path : path of the HTML file
    head, title, before, after : as in `render_report`

    Examples
    --------
    >>> import atypicality as aty, pathlib, tempfile
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "report.html")
    ...     write_report(aty.evaluate({"model": world.probs}, world.outputs()), path)
    ...     path.stat().st_size < 3_000_000
    True
    """
    check_target(path)
    text = render_report(evaluation, head=head, title=title, before=before, after=after)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def render_report(
    evaluation: Evaluation,
    *,
    head: "ReliabilityHead | None" = None,
    title: str = "Reliability report",
    before: str | None = None,
    after: str | None = None,
) -> str:
    """One self-contained page: a summary in words, linked views, prediction sets, subgroups and the model card.

    The page loads nothing and its Content-Security-Policy lets it reach nothing. Names and ids are shown as text.

    Parameters
    ----------
    evaluation : Evaluation
    head : ReliabilityHead, optional
        Its model card is shown at the end.
    title : str
    before, after : str, optional
        Methods to show side by side; by default the first and the last.

    Returns
    -------
    str
        HTML, the same for the same evaluation.

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> page = render_report(aty.evaluate({"model": world.probs}, world.outputs()))
    >>> page.startswith("<!doctype html>")
    True
    """
    methods = evaluation.methods
    before = check_choice(methods[0] if before is None else before, "before", methods)
    after = check_choice(methods[-1] if after is None else after, "after", methods)
    body = "\n".join([_header(evaluation, title), _summary(evaluation, before, after), *_sections(evaluation, head)])
    data = page_data(evaluation, before, after)
    return html_page(title=title, style=_asset("report.css"), body=body, data=data, script=_script())


def _asset(name: str) -> str:
    return resources.files("atypicality.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script() -> str:
    return '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"


def _text(text: str) -> str:
    return html.escape(text)


def _name(text: str) -> str:
    return f"<bdi>{_text(text)}</bdi>"


def _header(evaluation: Evaluation, title: str) -> str:
    names = ", ".join(_name(method) for method in evaluation.methods)
    how = "on labelled samples"
    if evaluation.kind == "compare":
        how = f"refitted over {evaluation.n_splits} random halves; numbers are means over them"
    links = "".join(f'<li><a href="#{place}">{words}</a></li>' for place, words in _places(evaluation).items())
    return (
        f"<header><h1>{_text(title)}</h1>\n<p>{evaluation.n_samples:,} samples, {evaluation.n_classes:,} classes. "
        f'Measured {how}: {names}.</p>\n<nav aria-label="Sections"><ul>{links}</ul></nav></header>'
    )


def _summary(evaluation: Evaluation, before: str, after: str) -> str:
    summary = summarise(evaluation, None if before == after else before, after)
    said = f"From {_name(before)} to {_name(after)}" if before != after else f"What {_name(after)} does"
    return (
        '<section id="summary" class="cards">\n'
        f'<div class="card good"><h2>{said}</h2>{_list(summary.improved)}</div>\n'
        f'<div class="card warn"><h2>Where not to trust {_name(after)}</h2>{_list(summary.caution)}</div>\n'
        "</section>\n<noscript><p>The views below are drawn by the script in this file; allow it to see them.</p>"
        "</noscript>"
    )


def _list(sentences: tuple[Sentence, ...]) -> str:
    if not sentences:
        return "<p>Nothing to say: the tables for it are empty.</p>"
    return "<ul>" + "".join(f"<li>{''.join(map(_part, sentence))}</li>" for sentence in sentences) + "</ul>"


def _part(part: str | SourcedNumber | Name) -> str:
    if isinstance(part, Name):
        return _name(part.text)
    if isinstance(part, str):
        return _text(part)
    source = json.dumps([part.table, dict(part.where), part.column])
    return f'<data value="{part.value!r}" data-source="{_text(source)}">{_text(part.text)}</data>'


def _places(evaluation: Evaluation) -> dict[str, str]:
    """The sections that this evaluation fills, in order, by the id of their heading."""
    tables = evaluation.tables
    found = {
        "where": ("Where it can be trusted", bool(tables["grid"]["value"] or tables["quadrants"]["value"])),
        "chosen": ("The chosen samples", True),
        "by-group": ("By atypicality", bool(tables["atypicality_groups"]["value"] or tables["class_groups"]["value"])),
        "prediction-sets": ("Prediction sets", "coverage" in tables["overall"]["metric"]),
        "by-subgroup": ("Subgroups", bool(tables["subgroups"]["value"])),
        "risk-coverage": ("Keeping the surest", bool(tables["risk_coverage"]["value"])),
        "numbers": ("All numbers", True),
        "about": ("About", True),
    }
    return {place: words for place, (words, filled) in found.items() if filled}


_WORDS = {
    "where": "Rows: the model’s confidence. Columns: how rare the input is.",
    "chosen": "Reliability diagrams: on the dashed line confidence is honest; below it the model is too sure. Bars are "
    "95% intervals.",
    "by-group": "Groups of about equally many samples. Bars are 95% intervals; hover for counts.",
    "prediction-sets": "A prediction set holds every class that cannot be ruled out. It should hold the true one as "
    "often as was asked for, for rare inputs too.",
    "by-subgroup": "Groups of samples by the attributes that came with the outputs, with 95% intervals.",
    "risk-coverage": "If only the surest predictions are kept and the others go to a person: how many of those kept "
    "are wrong?",
    "numbers": "",
    "about": "",
}
_CHOOSE = (
    " Choose a cell or one of the four kinds of prediction, by mouse or with the arrow keys and Enter: everything "
    "under “The chosen samples” follows."
)
_BODIES = {
    "where": '<div class="controls" id="choices"></div><div id="ramp"></div><div class="pair" id="grids"></div>'
    '<h3>Four kinds of prediction</h3><div class="pair" id="quadrants"></div><p id="hint" role="status"></p>',
    "chosen": '<div id="selection"></div><div class="pair" id="reliability"></div><div id="classes"></div>'
    '<div id="samples"></div>',
    "by-group": '<div id="groups"></div>',
    "prediction-sets": '<div id="sets"></div>',
    "by-subgroup": '<div id="subgroups"></div>',
    "risk-coverage": '<div id="risk"></div>',
    "numbers": '<div id="overall"></div>',
}


def _sections(evaluation: Evaluation, head: "ReliabilityHead | None") -> list[str]:
    words_of = _WORDS | ({"where": _WORDS["where"] + _CHOOSE} if evaluation.tables["samples"]["row"] else {})
    bodies = _BODIES | {"about": _about(evaluation, head)}
    return [
        f'<section aria-labelledby="{place}"><h2 id="{place}">{words}</h2>'
        f"{f'<p class=quiet>{words_of[place]}</p>' if words_of[place] else ''}{bodies[place]}</section>"
        for place, words in _places(evaluation).items()
    ]


def _about(evaluation: Evaluation, head: "ReliabilityHead | None") -> str:
    settings = "".join(
        f"<tr><td>{_text(key)}</td><td>{_text(json.dumps(value, ensure_ascii=False))}</td></tr>"
        for key, value in evaluation.settings.items()
    )
    notes = "".join(f"<li>{_text(note)}</li>" for note in evaluation.notes)
    card = ""
    if head is not None:
        from atypicality.shipping.card import model_card

        card = f'<div class="prose" id="card">{card_to_html(model_card(head))}</div>'
    return (
        (f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "")
        + f'<div class="prose scroll"><table><caption>Settings</caption><tbody>{settings}</tbody></table></div>'
        + f"<p class=quiet>Measured with atypicality {_text(evaluation.version)}.</p>{card}"
    )
