"""Settings of the documentation site: `make docs`."""

import sys
from pathlib import Path

from atypicality import __version__

sys.path.insert(0, str(Path(__file__).parent))  # for figures and gallery_altair

import figures
import versions

project = "atypicality"
author = "The atypicality developers"
release = __version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax itself, so that formulas need no network
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/\d\d_",  # run all
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("gallery_altair.altair_scraper",),
    "ignore_repr_types": r"altair\.|atypicality\.charts\.",
    "reset_modules": (),  # nothing here draws with matplotlib
    "backreferences_dir": "_generated/examples",
    "doc_module": ("atypicality",),
    "reference_url": {"atypicality": None},
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 3600,
    "write_computation_times": False,  # its page would load scripts from a network
    "download_all_examples": False,
}
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
autosummary_generate = True
templates_path = ["_templates"]
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_typehints = "none"
nitpicky = True
default_role = "code"  # single backticks in docstrings
toc_object_entries_show_parents = "hide"
exclude_patterns = ["_build", "tables"]
html_theme = "pydata_sphinx_theme"
html_title = f"atypicality {release}"
html_theme_options = {
    "header_links_before_dropdown": 7,
    "search_as_you_type": True,
    "navbar_align": "left",
    "navigation_with_keys": True,
    "secondary_sidebar_items": ["page-toc"],
    "logo": {"text": project},
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    "switcher": {"json_url": "", "version_match": versions.CURRENT},  # the address is another on every page
    "check_switcher": False,
    "show_toc_level": 2,
}
html_static_path = ["_static"]
html_css_files = ["site.css", "gallery.css"]
html_show_sourcelink = False
html_scaled_image_link = False
html_sidebars = {"index": [], "quickstart": [], "idea": []}


def _skip(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator for its own routing."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def _draw(app):
    """Draw the figures from the bundled outputs."""
    figures.write(Path(app.srcdir) / "_figures")


def _switch(app, page, template, context, doctree):
    """Give the theme's menu of versions its entries for this page."""
    context["theme_switcher"] = context["theme_switcher"] | {"json_url": versions.address(page)}


def setup(app):
    """Register the functions above."""
    app.connect("autodoc-skip-member", _skip)
    app.connect("builder-inited", _draw)
    app.connect("html-page-context", _switch, priority=100)  # before the theme reads it
