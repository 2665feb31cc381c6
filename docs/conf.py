"""Build the documentation: `make docs`."""

import skebm

project = "skebm"
author = "the skebm developers"
copyright = f"2026, {author}"
release = version = skebm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "myst_parser",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings state types, with their ranges and shapes
numpydoc_show_class_members = False  # _templates/autosummary/class.rst shows them

# Every example runs in every build, and one that fails ends it.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "run_stale_examples": True,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "parallel": 2,  # processes: an example takes one thread
    "show_signature": False,
}


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out the members that a class inherits from torch, scikit-learn or Python."""
    function = getattr(obj, "fget", obj)  # a property has no module of its own
    module = getattr(function, "__module__", None) or ""
    return None if module.startswith("skebm") else True


def setup(app):
    app.connect("autodoc-skip-member", skip_foreign)
