"""A browser finds nothing wrong with the site, and finds what is planted in a page."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import full
from tools.browse_docs import browse, find_chromium, pages_of

ROOT = Path(__file__).parents[1]
PARTS = ("docs", "examples", "tools", "benchmarks", "skebm")

PAGE = """<!DOCTYPE html><html data-theme="light"><title>page</title><body>
<p>{text}</p></body><script>
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.dataset.theme = dark.matches ? 'dark' : 'light';
follow(); dark.addEventListener('change', follow);
</script></html>"""
SEARCH = """<div id="search-results">
<a href="generated/skebm.RBMEstimator.html">skebm.RBMEstimator</a></div>"""


@pytest.fixture
def chromium():
    """Path of the browser."""
    pytest.importorskip("playwright", reason="the extra `browser` is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium is found: install it, or name its path in CHROMIUM")
    return path


def test_of_the_api_some_pages_are_read(tmp_path):
    for name in ("index.html", "gallery/one.html", "_static/a.html", *"abcd"):
        path = tmp_path / (name if "." in name else f"generated/{name}.html")
        path.parent.mkdir(exist_ok=True)
        path.touch()
    api = [f"generated/{name}.html" for name in "abcd"]
    assert pages_of(tmp_path, 1) == ["gallery/one.html", "index.html", *api]
    assert pages_of(tmp_path, 3) == ["gallery/one.html", "index.html", api[0], api[3]]


@full
@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("Fine.", None),
        ("<code>\\(x\\)</code> and $5", None),
        (r"\(x + y\)", r"raw TeX '\\(x + y\\)'"),
        ('<span class="math">E(x)</span>', "raw TeX 'E(x)'"),
        ('<pre style="width: 800px">wide</pre>', "wider than 360 pixels: pre"),
        ('<div style="overflow-x: auto"><pre style="width: 800px">wide</pre></div>', None),
        ('<a href="nowhere.html">a link</a>', "a link to nowhere.html, which is not there"),
        ('<a href="index.html#part">a link</a>', None),
        ("<script>missing()</script>", "script: missing is not defined"),
        ("<script>console.error('no')</script>", "no"),
        ("<style>@import url(http://127.0.0.1:9/a.css)</style>", "asks the network for http"),
    ],
)
def test_faults_that_are_planted_are_found(text, failure, chromium, tmp_path):
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "skebm.RBMEstimator.html").write_text(PAGE.replace("{text}", ""))
    (tmp_path / "search.html").write_text(PAGE.replace("{text}", SEARCH))
    (tmp_path / "index.html").write_text(PAGE.replace("{text}", text))
    n_pages, failures = browse(tmp_path, chromium)
    assert n_pages == 3
    failures = [line for line in failures if "favicon" not in line]
    assert all(line.startswith("index.html: ") for line in failures)
    assert [failure in line for line in failures[:1]] == ([] if failure is None else [True])


@full
def test_a_browser_finds_nothing_wrong_with_the_site(chromium, tmp_path):
    pytest.importorskip("sphinx_gallery", reason="the extra `docs` is not installed")
    built = shutil.ignore_patterns("_build", "gallery", "generated", "__pycache__")
    for part in PARTS:
        ignore = built if part == "docs" else shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignore)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path)
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-D", "plot_gallery=0", "docs", "html"]
    subprocess.run(build, cwd=tmp_path, check=True)
    n_pages, failures = browse(tmp_path / "html", chromium, every=20)
    assert failures == []
    assert n_pages > 60
