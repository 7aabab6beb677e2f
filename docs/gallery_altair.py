"""Altair charts in the gallery: a block that ends in a chart gets its picture, at two resolutions and with a text."""

import textwrap
from pathlib import Path

from sphinx_gallery.scrapers import figure_rst

LARGE = 2
"""For screens with small pixels, by the name that `srcset` gives them."""


def altair_scraper(block, block_vars, gallery_conf):
    """Markup of the chart that a block ended in, or an empty string.

    Parameters
    ----------
    block : tuple
        Of sphinx-gallery; not needed.
    block_vars : dict
        Its `example_globals` hold the value of the last expression as `___`, that of an earlier block included.
    gallery_conf : dict
    """
    variables = block_vars["example_globals"]
    chart = variables.get("___")
    if not is_chart(chart) or chart is variables.get("__drawn__"):
        return ""
    variables["__drawn__"] = chart
    path = Path(next(block_vars["image_path_iterator"]))
    large = path.with_name(f"{path.stem}_{LARGE}_00x.png")
    chart.save(path, scale_factor=1)
    chart.save(large, scale_factor=LARGE)
    sources = [{0: path, float(LARGE): large}]
    figure = figure_rst([path], gallery_conf["src_dir"], describe(chart), srcsetpaths=sources)
    return f"\n.. container:: wide-figure\n\n{textwrap.indent(figure, '    ')}\n"


def is_chart(thing):
    """Whether a thing is Altair's or, as the charts of the package are, of a class that adds to one of Altair's."""
    return any(kind.__module__.startswith("altair.") for kind in type(thing).__mro__)


def describe(chart):
    """A chart in words, for those who cannot see it: what is drawn against what."""
    titles = dict(_titles(chart.to_dict()))
    axes = [titles[axis] for axis in ("y", "x") if titles.get(axis)]
    return "Chart of " + " against ".join(axes) if axes else "Chart"


def _titles(part):
    """Axis and title of every axis in a specification, wherever it is nested; later ones first."""
    if isinstance(part, dict):
        for axis in ("x", "y"):
            place = part.get("encoding", {}).get(axis, {})
            if isinstance(place, dict) and isinstance(place.get("title"), str):
                yield axis, place["title"]
        for name, value in part.items():
            if name != "datasets":
                yield from _titles(value)
    elif isinstance(part, list):
        for value in part:
            yield from _titles(value)
