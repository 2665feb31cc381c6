"""The page: what it loads, how it escapes, its pictures."""

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from skebm import TractableDensity
from skebm.inspection import report
from skebm.inspection.reports.page import (
    Code,
    Picture,
    Section,
    Tabulated,
    document,
    in_frame,
    number,
    with_error,
)
from skebm.inspection.reports.pictures import picture

X = np.random.default_rng(0).normal(size=(300, 3))
VOID = {"meta", "link", "br", "path", "use", "rect", "circle"}


class Elements(HTMLParser):
    """Elements of a page, and those that were not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.wrong, self.attributes, self.names = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        self.names.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs
        self.names.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def page():
    model = TractableDensity("gaussian").fit(X[:200])
    return report(model, X[:200], X[200:]).html


def test_it_loads_nothing_and_runs_nothing(page):
    elements = Elements(page)
    assert not {"script", "img", "object", "embed", "iframe"} & set(elements.names)
    addresses = [
        value for name, value in elements.attributes if name in ("src", "href", "xlink:href")
    ]
    assert all(one.startswith(("#", "data:")) for one in addresses)
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert not [name for name, _ in elements.attributes if name.startswith("on")]


def test_elements_are_closed_and_names_are_unique(page):
    elements = Elements(page)
    assert elements.wrong == []
    assert elements.open == []
    names = [value for name, value in elements.attributes if name == "id"]
    assert len(names) == len(set(names)) > 0
    used = set(re.findall(r'(?:href="|url\()#([\w.-]+)', page))
    assert used <= set(names)


def test_pictures_have_the_colours_of_the_page(page):
    assert "currentColor" in page
    assert "var(--accent)" in page
    assert "#010203" not in page
    assert "#0b5394;" not in page.split("</style>")[1]


def test_columns_that_are_programs_are_text():
    name = "<script>alert(1)</script>"
    frame = pd.DataFrame(X[:, :2], columns=[name, 'a"b&c'])
    model = TractableDensity("gaussian").fit(frame)
    page = report(model, frame).html
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    elements = Elements(page)
    assert elements.wrong == []
    assert "script" not in elements.names


def test_a_frame_of_a_notebook_holds_the_page_as_text():
    inner = document("a title", ["a lead"], [Section("one", ['say "this"'])])
    found = in_frame(inner)
    assert found.count('"') == 6
    assert "&quot;" in found
    assert list(Elements(found).names) == ["iframe"]


def test_blocks():
    blocks = [
        "a < b",
        Tabulated(("name", "n"), [("x", 1.5)]),
        Code("a & b"),
        Picture("<svg/>", "c"),
    ]
    found = Section("title & more", blocks).to_html()
    assert "<p>a &lt; b</p>" in found
    assert "<code>a &amp; b</code>" in found
    assert '<td class="number">1.5</td>' in found
    assert "<h2>title &amp; more</h2>" in found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "3"),
        (1234567, "1,234,567"),
        (np.float64(0.00012), "0.00012"),
        (float("nan"), "not known"),
        (-np.inf, "minus infinite"),
        (True, "True"),
        ("a word", "a word"),
    ],
)
def test_numbers(value, expected):
    assert number(value) == expected


def test_errors_set_the_digits():
    assert with_error(12.3456, 0.2) == "12.35 (0.20)"
    assert with_error(12.3456, 30) == "12 (30)"
    assert with_error(-1e-12, 0.0) == "0"
    assert with_error(1.0, float("nan")) == "1"


def test_equal_figures_are_equal_text():
    def draw(figure):
        figure.subplots().plot([1, 2], [3, 4])

    one, other = (picture("a < b", (3, 2), draw, prefix="p") for _ in range(2))
    assert one == other
    assert 'id="p-0"' in one[0].svg


def test_without_matplotlib_there_are_no_pictures(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    model = TractableDensity("gaussian").fit(X[:200])
    found = report(model, X[:200], X[200:])
    assert "<svg" not in found.html
    assert "pip install skebm[plot]" in found.html
