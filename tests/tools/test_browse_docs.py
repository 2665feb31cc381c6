"""A browser finds nothing wrong with the site, and finds what is planted in a page."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiers import full
from tools.browse_docs import browse, find_chromium, main, pages_of

ROOT = Path(__file__).parents[2]
PARTS = ("docs", "examples", "tools", "benchmarks", "skebm")

CUT = "width: 50px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis"
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


# A text in a page, and what fails.
PLANTED = [
    ("Fine.", None),
    ("<code>\\(x\\)</code> and $5", None),
    (r"\(x + y\)", r"raw TeX '\\(x + y\\)'"),
    ('<span class="math">E(x)</span>', "raw TeX 'E(x)'"),
    ('<pre style="width: 800px">wide</pre>', "wider than 360 pixels: pre"),
    ('<div style="overflow-x: auto"><pre style="width: 800px">wide</pre></div>', None),
    (f'<p style="{CUT}">A title that does not fit</p>', "cut off at 1280 pixels: 'A title"),
    ('<a href="nowhere.html">a link</a>', "a link to nowhere.html, which is not there"),
    ('<a href="10.html#part">a link</a>', None),
    ("<script>missing()</script>", "script: missing is not defined"),
    ("<script>console.error('no')</script>", "no"),
    ("<style>@import url(http://127.0.0.1:9/a.css)</style>", "asks the network for http"),
]


@full
def test_faults_that_are_planted_are_found(chromium, tmp_path, capsys):
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "skebm.RBMEstimator.html").write_text(PAGE.replace("{text}", ""))
    (tmp_path / "search.html").write_text(PAGE.replace("{text}", SEARCH))
    for number, (text, _) in enumerate(PLANTED, 10):
        (tmp_path / f"{number}.html").write_text(PAGE.replace("{text}", text))
    assert main([str(tmp_path)]) == 1
    *lines, summary = capsys.readouterr().out.strip().splitlines()
    first = {line.partition(": ")[0]: line for line in reversed(lines)}
    expected = {f"{n}.html": why for n, (_, why) in enumerate(PLANTED, 10) if why}
    assert sorted(first) == sorted(expected)
    assert [page for page, why in expected.items() if why not in first[page]] == []
    assert f"{len(PLANTED) + 2} pages at (1280, 360) pixels, light and dark" in summary


@full
def test_a_page_without_faults_passes(chromium, tmp_path, capsys):
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "skebm.RBMEstimator.html").write_text(PAGE.replace("{text}", ""))
    assert main([str(tmp_path)]) == 1
    (tmp_path / "search.html").write_text(PAGE.replace("{text}", SEARCH))
    assert main([str(tmp_path)]) == 0
    assert "does not find RBMEstimator" in capsys.readouterr().out


def test_a_folder_without_pages_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "has no pages: build them first, by `make docs`" in capsys.readouterr().err


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
