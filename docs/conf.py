"""Settings of the documentation site: `make docs`."""

from atypicality import __version__

project = "atypicality"
author = "The atypicality developers"
release = __version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
autosummary_generate = True
templates_path = ["_templates"]
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_typehints = "none"
exclude_patterns = ["_build"]
html_theme = "pydata_sphinx_theme"
html_title = "atypicality"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": True, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False


def _skip(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator for its own routing."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app):
    """Register the filter above."""
    app.connect("autodoc-skip-member", _skip)
