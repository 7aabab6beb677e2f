"""How charts become HTML: as pages under the report's policy, in which names are data and never script.

Altair writes the specification of a chart into a script element as it is, where a class name may end that element and
begin another, and loads its libraries from a network. Charts of this package are Altair's in all but this.
"""

import functools
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from atypicality.charts.style import Chart, altair
from atypicality.outputs.paths import replacing
from atypicality.report.pages import html_page, script_safe
from atypicality.validation import require

__all__ = ["public_chart"]

P = ParamSpec("P")
HTML_RENDERERS = ("default", "html", "colab", "kaggle", "zeppelin", "olli", "browser")
"""Those of Altair that write the specification into HTML; others pass it on as JSON or as a picture."""
COMBINING = ("__add__", "__and__", "__or__", "facet", "repeat")
"""Methods that make another kind of chart; all others give a copy, which is of our kind too."""
EMBED = {"mode": "vega-lite", "ast": True, "actions": False, "defaultStyle": False}
"""Expressions are interpreted, because compiling them needs `unsafe-eval`; nothing is opened or sent elsewhere."""
STYLE = """
body { margin: 1rem; font-family: sans-serif; background: #fff; }
#vg-tooltip-element { position: fixed; visibility: hidden; z-index: 1000; padding: 8px; border: 1px solid #d9d9d9;
  border-radius: 3px; background: rgba(255, 255, 255, 0.95); box-shadow: 2px 2px 4px rgba(0, 0, 0, 0.1);
  font-size: 11px; pointer-events: none; }
#vg-tooltip-element.visible { visibility: visible; }
#vg-tooltip-element td.key { color: #808080; max-width: 150px; text-align: right; padding-right: 4px; }
#vg-tooltip-element td.value { max-width: 300px; overflow-wrap: anywhere; }
"""
START = """
const { spec, options } = JSON.parse(document.getElementById("data").textContent);
vegaEmbed("#chart", spec, { ...options, tooltip: { disableDefaultStyle: true } }).catch(console.error);
"""


_OF = "Parameters\n----------\nevaluation : Evaluation"
DOCUMENTED = {
    "{parameters}": _OF,
    "{samples}": f"{_OF}\n    From `evaluate`, which keeps samples.",
    "{methods}": "methods : str or sequence of str, optional\n    All by default.",
    "{returns}": "Returns\n-------\naltair chart\n\nExamples\n--------",
    "{evaluation}": """>>> import atypicality as aty
>>> world = aty.datasets.make_world(600, temperature=2.0)
>>> outputs = world.outputs()
>>> evaluation = aty.evaluate({"model": (world.probs, world.probs > 0.1)}, outputs, train=outputs)""",
}
"""What the docstrings of charts have in common: parameters, the result, and the evaluation of their examples."""


def public_chart(draw: Callable[P, Chart]) -> Callable[P, Chart]:
    """Have the charts of a function save and show themselves as `SafeChart` does; fill in its docstring."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> Chart:
        return _safe(draw(*args, **options))

    text = inspect.cleandoc(draw.__doc__ or "")
    for mark, shared in DOCUMENTED.items():
        text = text.replace(mark, shared)
    drawn.__doc__ = text
    return drawn


class SafeChart:
    """What is different about our charts; a subclass of each of Altair's classes begins with it."""

    def save(self, fp: Any, format: str | None = None, **options: Any) -> None:
        """Save as Altair does (JSON, PNG, SVG, PDF), and as HTML the page of `to_html`, whole or not at all."""
        path = Path(fp) if isinstance(fp, (str, os.PathLike)) else None
        if (format or (path.suffix.lstrip(".") if path else None)) != "html":
            super().save(fp, format, **options)  # type: ignore[misc]
        elif path is None:
            fp.write(self.to_html(**options))
        else:
            with replacing(path) as temporary:
                temporary.write_text(self.to_html(**options), encoding="utf-8")

    def to_html(self, *, embed_options: dict[str, Any] | None = None, inline: bool = True) -> str:
        """A self-contained page, with Vega inside and a policy that lets it reach nothing.

        `embed_options` are vega-embed's, as {"renderer": "svg"}; `inline` is Altair's: these pages hold everything.
        """
        alt = altair()
        with alt.data_transformers.enable("default", max_rows=None):
            spec = self.to_dict()  # type: ignore[attr-defined]
        data = {"spec": spec, "options": (embed_options or {}) | EMBED}
        script = _vega(alt.SCHEMA_VERSION) + START
        return html_page(
            title="Chart", style=STYLE, body='<div id="chart"></div>', data=data, script=script, images="data:"
        )

    def _repr_mimebundle_(self, *args: Any, **kwds: Any) -> Any:
        renderers = altair().renderers
        extra = {"json_kwds": {"cls": _ScriptEncoder}} if renderers.active in HTML_RENDERERS else {}
        with renderers.enable(**(renderers.options | extra)):
            return super()._repr_mimebundle_(*args, **kwds)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (type(self).__mro__[2], self.__dict__)


class _ScriptEncoder(json.JSONEncoder):
    def encode(self, o: Any) -> str:
        return script_safe(super().encode(o))


def _safe(chart: Chart) -> Chart:
    if not isinstance(chart, SafeChart):
        object.__setattr__(chart, "__class__", _kind(chart.__class__))  # Altair takes plain attributes for its own
    return chart


@functools.cache
def _kind(of: type) -> type:
    combining = {name: _combining(name) for name in COMBINING if hasattr(of, name)}
    return type(of.__name__, (SafeChart, of), {"__module__": __name__, **combining})


def _combining(name: str) -> Callable[..., Chart]:
    def method(self: Any, *args: Any, **options: Any) -> Chart:
        return _safe(getattr(super(SafeChart, self), name)(*args, **options))

    return method


def _restored(kind: type, state: dict[str, Any]) -> Chart:
    chart: Chart = object.__new__(kind)
    chart.__dict__.update(state)
    return _safe(chart)


@functools.cache
def _vega(schema: str) -> str:
    """Vega, Vega-Lite of the chart's own version, and vega-embed in one script."""
    bundled = require("vl_convert", extra="charts", feature="saving charts as HTML").javascript_bundle
    return str(bundled(vl_version="_".join(schema.split(".")[:2])))
