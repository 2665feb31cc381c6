"""Build the documentation: `make docs`."""

import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import skebm

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # the gallery's scraper is in tools

about = tomllib.loads(
    (Path(__file__).parents[1] / "pyproject.toml").read_text()
)["project"]
project = "skebm"
author = "the skebm developers"
copyright = f"2026, {author}"
release = version = skebm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "myst_parser",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "tools.page_outputs",
]
# Pages whose programs run when they are read, with what these return below them.
page_outputs = [
    "install",
    "guide/anomalies",
    "guide/ask",
    "guide/choose",
    "guide/classify",
    "guide/columns",
    "guide/export",
    "guide/judge",
    "guide/log_partition",
    "guide/migrate",
    "guide/ood_images",
    "guide/report",
    "guide/sample",
    "guide/samplers",
    "guide/saving",
    "guide/scale_out",
    "guide/searches",
    "guide/tables",
    "guide/tracking",
    "guide/training",
    "guide/tutorial",
    "models/boltzmann",
    "models/columns",
    "models/rbm",
    "dev/extend",
]
exclude_patterns = ["_build", "_static", "_templates"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "skebm"
html_show_sourcelink = False
html_context = {
    "default_mode": "auto"
}  # light or dark, as the reader has it
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "github_url": about["urls"]["Source"],
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

# MathJax lies beside the pages: formulas need no network.
mathjax_path = "mathjax/tex-svg.js"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Its class is documented where PyOD is not installed, too.
autodoc_mock_imports = ["pyod"]
autodoc_typehints = (
    "none"  # the docstrings state types, with their ranges and shapes
)
numpydoc_show_class_members = (
    False  # _templates/autosummary/class.rst shows them
)
toc_object_entries_show_parents = (
    "hide"  # `fit`, not `RBMEstimator.fit`, beside its page
)

# Every example runs in every build, and one that fails ends it, as does one with an empty panel.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "subsection_order": [
        "../examples/rbms",
        "../examples/densities",
        "../examples/classifiers",
        "../examples/anomalies",
        "../examples/samplers",
        "../examples/sequences",
    ],
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("tools.gallery.whole_figures",),
    "reset_modules": ("matplotlib", "tools.gallery.use_style"),
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("skebm",),
    "remove_config_comments": True,
    "run_stale_examples": True,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "parallel": 2,  # processes: an example takes one thread
    "show_signature": False,
    "write_computation_times": False,  # pages whose tables come from the network
}


def reachable(sites):
    """The sites whose inventory can be had: without a network, names of others are not links."""
    found = {}
    for name, site in sites.items():
        try:
            urllib.request.urlopen(f"{site}objects.inv", timeout=5).close()
        except (urllib.error.URLError, TimeoutError):
            continue
        found[name] = (site, None)
    return found


intersphinx_mapping = reachable(
    {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "sklearn": "https://scikit-learn.org/stable/",
        "skorch": "https://skorch.readthedocs.io/en/stable/",
        "torch": "https://docs.pytorch.org/docs/stable/",
    }
)


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out the members that a class inherits from torch, scikit-learn or Python."""
    function = getattr(
        obj, "fget", obj
    )  # a property has no module of its own
    module = getattr(function, "__module__", None) or ""
    return None if module.startswith("skebm") else True


def setup(app):
    app.connect("autodoc-skip-member", skip_foreign)
