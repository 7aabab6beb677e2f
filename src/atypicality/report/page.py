"""The HTML page: our style and script by hash, the data as JSON, everything else forbidden by its own policy."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape as _text
from typing import TYPE_CHECKING, Any

from atypicality.evaluation import Evaluation
from atypicality.evaluation.printing import each_signal
from atypicality.report.card_html import card_to_html
from atypicality.report.changed import summarise
from atypicality.report.data import page_data
from atypicality.report.examples import read_examples
from atypicality.report.next_steps import in_code, next_steps
from atypicality.report.pages import asset, html_page, write_page
from atypicality.report.summary import Name, Sentence, SourcedNumber
from atypicality.report.words import ANSWERS, words_of
from atypicality.validation import check_choice

if TYPE_CHECKING:
    from atypicality.head import ReliabilityHead

__all__ = ["render_report", "write_report"]

_SCRIPTS = ("base.js", "charts.js", "tables.js", "samples.js", "linked.js", "accepted.js", "sections.js")


def write_report(
    evaluation: Evaluation,
    path: str | os.PathLike[str],
    *,
    head: "ReliabilityHead | None" = None,
    title: str = "Reliability report",
    before: str | None = None,
    after: str | None = None,
    examples: Any = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write `render_report` to a file, whole or not at all.

    Parameters
    ----------
    evaluation : Evaluation
    path : path of the HTML file
    head, title, before, after, examples, about : as in `render_report`
        `about` gets the date of today (UTC) where it has none.

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
    told = {"date": f"{datetime.now(UTC):%Y-%m-%d}"} | dict(about or {})
    chosen: dict[str, Any] = {"head": head, "title": title, "before": before, "after": after, "examples": examples}
    write_page(path, lambda: render_report(evaluation, about=told, **chosen))


def render_report(
    evaluation: Evaluation,
    *,
    head: "ReliabilityHead | None" = None,
    title: str = "Reliability report",
    before: str | None = None,
    after: str | None = None,
    examples: Any = None,
    about: Mapping[str, str] | None = None,
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
    examples : sequence of n images or texts, mapping of rows to them, or columns of a table, optional
        The samples themselves, shown beside their predictions: images as uint8 arrays of shape (height, width) or
        (height, width, 3) or as paths (`pathlib.Path`, which needs Pillow), texts, or a mapping of column names to
        columns of shape (n,), as of a data frame. Those of the most harmful samples are shown where not all fit.
    about : mapping of str to str, optional
        What the header states beside what the evaluation knows: `model`, `data`, `purpose`, `date`, `head`, or anything
        else by its name. Of the first three it says "not stated" where they are not here.

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
    shown = None if examples is None else read_examples(examples, evaluation.n_samples)
    parts = [
        _header(evaluation, title, _facts(evaluation, head, after, about or {})),
        _navigation(evaluation),
        _summary(evaluation, before, after),
    ]
    data = page_data(evaluation, before, after, shown)
    images = "data:" if shown is not None and shown.kind == "image" else "'none'"
    body = "\n".join([*parts, *_sections(evaluation, head, after)])
    script = '(() => {\n"use strict";\n' + "\n".join(map(asset, _SCRIPTS)) + "})();\n"
    return html_page(title=title, style=asset("report.css"), body=body, data=data, script=script, images=images)


def _name(text: str) -> str:
    return f"<bdi>{_text(text)}</bdi>"


def _header(evaluation: Evaluation, title: str, facts: dict[str, str]) -> str:
    names = ", ".join(_name(method) for method in evaluation.methods)
    words = words_of(evaluation)
    how, classes = f"on {words['labelled']}", "" if words is ANSWERS else f", {evaluation.n_classes:,} classes"
    if evaluation.kind == "compare":
        how = f"refitted over {evaluation.n_splits} random halves; numbers are means over them"
    listed = "".join(f"<dt>{_name(name)}</dt><dd>{_name(text)}</dd>" for name, text in facts.items())
    return (
        f"<header><h1>{_text(title)}</h1>\n<p>{evaluation.n_samples:,} {words['samples']}{classes}. "
        f'Measured {how}: {names}.</p>\n<dl class="facts">{listed}</dl></header>'
    )


UNSTATED = "not stated"


def _facts(
    evaluation: Evaluation, head: "ReliabilityHead | None", after: str, about: Mapping[str, str]
) -> dict[str, str]:
    """What the page is about, by name: only what is known, and which of the things that a reader needs is not."""
    own = {} if head is None or not hasattr(head, "fingerprint_") else {after: head.fingerprint_}
    fitted = evaluation.settings.get("fitted_on") or own
    found = [about["head"]] if "head" in about else []
    found += [f"{name}: fitted on calibration rows with fingerprint {mark}" for name, mark in fitted.items()]
    known = {
        "written": about.get("date", ""),
        "measured with": f"atypicality {evaluation.version}",
        "model": about.get("model", UNSTATED),
        "head": "; ".join(found),
        "data": f"{about.get('data', UNSTATED)}; fingerprint {evaluation.settings.get('fingerprint', 'unknown')}",
        "purpose": about.get("purpose", UNSTATED),
    }
    more = {name: text for name, text in about.items() if name not in {"date", *known}}
    return {name: str(text) for name, text in (known | more).items() if text}


def _navigation(evaluation: Evaluation) -> str:
    """Links to the sections, outside of the header, so that they stay in sight."""
    places = {"summary": "Summary"} | _places(evaluation)
    links = "".join(f'<li><a href="#{place}">{words}</a></li>' for place, words in places.items())
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _summary(evaluation: Evaluation, before: str, after: str) -> str:
    if before in evaluation.settings.get("part", {}):
        before = after  # of other rows, which a change would be taken for
    summary = summarise(evaluation, None if before == after else before, after)
    good = f"What improved: {_name(before)} to {_name(after)}"
    cards = [
        ("good", good, _list(summary.improved, "No improvement is shown.")),
        ("bad", "What got worse", _list(summary.worse, "Nothing is shown to have got worse.")),
        ("warn", f"Where not to trust {_name(after)}", _list(summary.caution, _no_caution(evaluation))),
        ("next", "What to do next", _list(next_steps(evaluation, after), "The tables for it are empty.")),
        ("same", "No clear change", _list(summary.unclear, "Every change that was looked for is shown.")),
        ("same", f"How good {_name(after)} is", _list(summary.levels, "The tables for it are empty.")),
    ]  # fmt: skip
    if before == after:  # nothing to compare with
        cards = [("good", *cards[-1][1:]), *cards[2:4]]
    elif not summary.levels:
        cards.pop()
    drawn = "\n".join(f'<div class="card {kind}"><h2>{title}</h2>{sentences}</div>' for kind, title, sentences in cards)
    rule = "" if before == after else _rule(evaluation)
    return (
        f'<section id="summary" class="cards">\n{drawn}\n</section>{rule}\n<noscript><p>The views below are drawn by '
        "the script in this file; allow it to see them.</p></noscript>"
    )


def _rule(evaluation: Evaluation) -> str:
    """How changes were judged."""
    how = (
        "{sample} by {sample}: over all {samples} by the 95% interval of the difference, accuracy by the {predictions} "
    )
    how += "lost and gained"
    if evaluation.kind == "compare":
        how = "split by split: by the 95% interval of the mean difference, for new {samples}"
    told = (
        f"A change is shown where the two methods differ {how}. Groups are judged together, so that where nothing "
        "changed a group is named in at most 5% of the reports."
    )
    return f'<p class="quiet rule">{told.format_map(words_of(evaluation))}</p>'


def _no_caution(evaluation: Evaluation) -> str:
    """What is said where no group of samples is large enough to be judged."""
    if evaluation.tables["grid"]["value"]:
        return "No group has enough rows to be judged."
    return "This needs more rows; to tell rare ones apart it also needs embeddings, or atypicality."


def _list(sentences: tuple[Sentence, ...], empty: str) -> str:
    if not sentences:
        return f"<p>{empty}</p>"
    items = "".join(f"<li>{''.join(map(_part, sentence))}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>"


def _part(part: str | SourcedNumber | Name) -> str:
    if isinstance(part, Name):
        return _name(part.text)
    if isinstance(part, str):
        return _text(part)
    source = json.dumps([part.table, dict(part.where), part.column])
    return f'<data value="{part.value!r}" data-source="{_text(source)}">{_text(part.text)}</data>'


def _places(evaluation: Evaluation) -> dict[str, str]:
    """The sections that this evaluation fills, in order, by the id of their heading."""
    tables, words = evaluation.tables, words_of(evaluation)
    found = {
        "where": ("Where it can be trusted", any(tables[name]["value"] for name in ("grid", "quadrants", "advice"))),
        "accepted": ("What is accepted", words is not ANSWERS and "accepted_share" in tables["overall"]["metric"]),
        "chosen": ("The chosen {samples}", True),
        "by-group": ("By atypicality", bool(tables["atypicality_groups"]["value"] or tables["class_groups"]["value"])),
        "prediction-sets": ("Prediction sets", "coverage" in tables["overall"]["metric"]),
        "by-subgroup": ("Subgroups", bool(tables["subgroups"]["value"])),
        "risk-coverage": ("Keeping the most confident", bool(tables["risk_coverage"]["value"])),
        "to-check": ("Labels and duplicates", bool(tables["suspects"]["row"] or tables["duplicates"]["row"])),
        "numbers": ("All numbers", True),
        "about": ("About", True),
    }
    return {place: title.format_map(words) for place, (title, filled) in found.items() if filled}


_TOLD = {
    "where": "Rows: groups of {whose_confidence}, from the least confident (1). Columns: how rare the input is. Each "
    "method has groups of its own {confidence}: one row of two grids is not about the same {samples}.",
    "chosen": "Filters choose {samples} by what is known of them, and everything here follows. Reliability diagrams: "
    "on the dashed line {confidence} is honest, {below_the_line}; bars are 95% intervals, n is how many {samples} a "
    "mark stands for, and a mark chooses them. Sort a table by a column, and with Shift by several.",
    "accepted": "The guarantee is for all accepted {predictions} together, not for each class or subgroup. Advice "
    "reads one {prediction} at a time: an accepted one may still be “ask a person”. Sending those to a person too "
    "leaves fewer errors among the rest.",
    "by-group": "Groups of about equally many {samples}, how many under the axis (n). Bars are 95% intervals.",
    "prediction-sets": "A prediction set holds every class that cannot be ruled out. It should hold the true one as "
    "often as the target says, for rare inputs too.",
    "by-subgroup": "Groups of {samples} by the attributes that came with the outputs, with 95% intervals.",
    "risk-coverage": "If only the most confident {predictions} are kept and the others go to a person: how many of "
    "those kept are wrong?",
    "to-check": "For a person to look at. Labels are ranked by the probability of the label, recalibrated and with its "
    "neighbours; duplicates by their distance to the nearest training row.",
}
_CHOOSE = (
    " Choose a cell, a word of advice or one of the four kinds of {prediction}, by mouse or with the arrow keys "
    "and Enter: everything under “The chosen {samples}” follows."
)
_CHOOSE_BOX = "Choose a box: everything under “The chosen {samples}” follows."
_BODIES = {
    "where": '{grids}<h3>{advice}</h3>{rejected}<div class="pair" id="advice"></div>'
    '{quadrants}<p id="hint" role="status"></p>',
    "chosen": '<div id="selection"></div><div class="controls" id="filters"></div>'
    '<div class="pair" id="reliability"></div><div id="classes"></div><div id="samples"></div>',
    "by-group": '<div id="groups"></div>',
    "prediction-sets": '<div id="sets"></div>',
    "accepted": '<div id="accepted-tables"></div>',
    "by-subgroup": '<div id="subgroups"></div><div id="subgroup-gaps"></div>',
    "risk-coverage": '<div id="risk"></div>',
    "to-check": '<div id="suspects"></div>',
    "numbers": '<div id="overall"></div>',
}


def _sections(evaluation: Evaluation, head: "ReliabilityHead | None", after: str) -> list[str]:
    words = words_of(evaluation)
    grid = _TOLD["where"] if evaluation.tables["grid"]["value"] else ""
    choose = (_CHOOSE if grid else _CHOOSE_BOX) if evaluation.tables["samples"]["row"] else ""
    told = _TOLD | {"where": grid + choose, "accepted": f"{_decides(evaluation)} {_TOLD['accepted']}"}
    told = {place: text.format_map(words) for place, text in told.items()}
    parts = words | _where(evaluation)
    bodies = {place: body.format_map(parts) for place, body in _BODIES.items()} | {
        "about": _about(evaluation, head, after)
    }
    return [
        f'<section aria-labelledby="{place}"><h2 id="{place}">{title}</h2>'
        f"{f'<p class=quiet>{told[place]}</p>' if told.get(place) else ''}{bodies[place]}</section>"
        for place, title in _places(evaluation).items()
    ]


def _where(evaluation: Evaluation) -> dict[str, str]:
    """Parts of the first section: those for which there are tables."""
    tables, words = evaluation.tables, words_of(evaluation)
    grids = '<div class="controls" id="choices"></div><div id="ramp"></div><div class="pair" id="grids"></div>'
    kinds = f'<h3>Four kinds of {words["prediction"]}</h3><div class="pair" id="quadrants"></div>'
    accepted = words is ANSWERS and "max_risk" in evaluation.settings
    return {
        "grids": grids if tables["grid"]["value"] else "",
        "advice": "Accepted or not" if accepted else "Advice: what to do",
        "rejected": _rejected(evaluation),
        "quadrants": kinds if tables["quadrants"]["value"] else "",
    }


def _decides(evaluation: Evaluation) -> str:
    """What decides who goes to a person: with a risk the acceptance, unless it loses a class."""
    if "lost_accepted" in evaluation.settings:
        return (
            "The advice decides who goes to a person, since most {samples} of a class that is named under “What to do "
            "next” would be accepted as another one."
        )
    return "Whether a {prediction} is accepted decides who goes to a person; its advice is a finer reading."


def _rejected(evaluation: Evaluation) -> str:
    """What a risk that was asked for means for advice."""
    if "max_risk" not in evaluation.settings:
        return ""
    told = (
        "Every {prediction} of a head that is not accepted at a risk of at most {risk} counts as “ask a person”. "
        + _decides(evaluation)
    )
    if words_of(evaluation) is ANSWERS:
        told = "At a risk of at most {risk}, the allowed share of errors among all accepted {predictions} together."
    words = words_of(evaluation) | {"risk": f"{100 * evaluation.settings['max_risk']:.4g}%"}
    return f"<p class=quiet>{told.format_map(words)}</p>"


_SETTINGS = {
    "n_groups": "groups of atypicality",
    "grid": "grid: groups of atypicality by groups of {confidence}",
    "n_bins": "bins of {confidence}",
    "level": "level of intervals",
    "alpha": "{alpha}",
    "guaranteed": "coverage that is guaranteed, where it is less than the target",
    "density": "density, where a head chose it; its numbers are of the rows that chose it",
    "random_state": "random seed",
    "groups": "attribute given to methods as groups",
    "stored_edges": "edges of groups are those that a head has stored",
    "nothing_accepted": "why nothing is accepted",
    "lost_accepted": "classes that are accepted as another",
    "accepted_rows": "held-out {samples} that the guarantee of the accepted ones rests on",
    "cross_fitted": "cross-fitted (cv)",
    "covered_groups": "groups for which coverage is guaranteed",
    "max_risk": "allowed share of errors among what is accepted",
    "of": "what was evaluated",
    "part": "methods that were measured on some of it, and on how many",
    "fingerprint": "fingerprint of the outputs",
    "fitted_on": "fingerprint of a head's calibration rows",
}


_SHARES = ("level", "alpha", "guaranteed", "max_risk")  # settings that the page shows in percent


def _plainly(value: Any, share: bool = False) -> str:
    """A setting in words."""
    if isinstance(value, bool) or value is None:
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_plainly(one, share)}" for key, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " × ".join(map(_plainly, value)) or "none"
    if share:
        return f"{100 * value:.4g}%"
    return f"{value:g}" if isinstance(value, float) else str(value)


_LOOSE = re.compile(r"(?<=\d) %|(?<![\w.])-(?=\d)")


def _one_style(text: str) -> str:
    """Text of others with percentages and minus signs as on the rest of the page."""
    return _LOOSE.sub(lambda found: "%" if "%" in found[0] else "−", text)


def _about(evaluation: Evaluation, head: "ReliabilityHead | None", after: str) -> str:
    names = {key: text.format_map(words_of(evaluation)) for key, text in _SETTINGS.items()}
    shown = {key: _one_style(_plainly(value, key in _SHARES)) for key, value in evaluation.settings.items()}
    settings = "".join(
        f"<tr><td>{_text(names.get(key, key.replace('_', ' ')))}</td><td>{_text(text)}</td></tr>"
        for key, text in shown.items()
    )
    notes = "".join(f"<li>{_text(_one_style(note))}</li>" for note in (*each_signal(evaluation), *evaluation.notes))
    code, card = _text("\n".join(in_code(evaluation, after))), ""
    if head is not None:
        from atypicality.shipping.card import model_card

        card = f'<div class="prose" id="card">{card_to_html(model_card(head))}</div>'
    return (
        (f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "")
        + (f"<h3>Next steps in code</h3><pre>{code}</pre>" if code else "")
        + f'<div class="prose scroll"><table><caption>Settings</caption><tbody>{settings}</tbody></table></div>'
        + f"<p class=quiet>Measured with atypicality {_text(evaluation.version)}.</p>{card}"
    )
