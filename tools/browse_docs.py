"""Read the built documentation in a browser: ``python -m tools.browse_docs docs/_build/html``.

Every page is loaded once by headless Chromium, from a server on this machine, and looked at as on a
desk (1280 pixels wide) and on a telephone (360), in the light and in the dark. A page fails if

- its console has an error, or a file that it asks for is missing or elsewhere on the network;
- it is wider than the window, or a title is cut off, at any of the widths;
- a formula is left as TeX, or MathJax could not read it;
- a picture is not shown, or a link within the site leads nowhere;
- it does not follow the colour scheme.

Besides, the search must find ``RBMEstimator``. The exit code is 1 if anything fails.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WIDTHS = (1280, 360)
SCHEMES = ("light", "dark")
HEIGHT = 900
TIMEOUT = 60_000  # milliseconds; a page takes a second, far more on a machine under load
PATIENCE = 10_000  # for what the scripts of a page do after it has been loaded
SOUGHT = "RBMEstimator"

# What follows runs in the page. Formulas are rendered after the page has been loaded.
RENDERED = "() => window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => 0) : 0"
LINKS = "() => [...document.querySelectorAll('a[href]')].map(a => a.href)"
SCHEME = "scheme => document.documentElement.dataset.theme === scheme"
FOUND = "link => document.querySelector(link)"

# Elements that are wider than the window, outside every box that scrolls or cuts.
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const boxed = e => {
    for (e = e.parentElement; e && e !== document.body; e = e.parentElement)
      if (getComputedStyle(e).overflowX !== 'visible') return true;
    return false;
  };
  const wide = [...document.body.querySelectorAll('*')].filter(
    e => e.getBoundingClientRect().right > width + 1 && !boxed(e));
  const name = e => e.tagName.toLowerCase() + (e.className ? '.' + e.className : '');
  return wide.length ? wide.slice(-3).map(name) : ['the page'];
}"""

# Text that ends in an ellipsis because its box is too narrow.
CUT = """() => [...document.body.querySelectorAll('*')].filter(
  e => e.clientWidth && e.scrollWidth > e.clientWidth
    && getComputedStyle(e).textOverflow === 'ellipsis'
).map(e => e.textContent.trim().slice(0, 60))"""

# Formulas that were not rendered, and text in which TeX is left.
RAW_TEX = r"""() => {
  const bad = [...document.querySelectorAll('.math')].filter(
    e => !e.querySelector('mjx-container') || e.querySelector('[data-mjx-error]'));
  const skipped = 'pre, code, script, style, .math, mjx-container';
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = bad.map(e => e.textContent.trim());
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (/\\[(\[]|\$\$|\\(frac|sum|log|exp|mid|sigma|mathrm|begin)\b/.test(node.data)
        && !node.parentElement.closest(skipped)) found.push(node.data.trim());
  }
  return found.map(text => text.slice(0, 60));
}"""

# Pictures are loaded when they come into view, so that each is asked for here.
PICTURES = """() => Promise.all([...document.images].map(async image => {
  image.loading = 'eager';
  try { await image.decode(); return null; } catch { return image.src; }
})).then(found => found.filter(src => src))"""


def find_chromium() -> str | None:
    """Path of a Chromium of this machine: the variable CHROMIUM, or a program of its names."""
    if named := os.environ.get("CHROMIUM"):
        return named
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each on the terminal."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has gone to another page
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine, and yield its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Reader:
    """Reads pages of a site and keeps what is wrong with them.

    Parameters
    ----------
    tab : playwright.sync_api.Page
    folder : Path
        The built site.
    address : str
        Where it is served.
    pictures : Path or None
        Folder for screenshots of the pages that are read with ``photograph=True``.

    Attributes
    ----------
    failures : list of str
        A line for each, with the page it is about.
    """

    def __init__(self, tab: Any, folder: Path, address: str, pictures: Path | None) -> None:
        self.tab, self.folder, self.address, self.pictures = tab, folder, address, pictures
        self.page = ""
        self.failures: list[str] = []
        tab.set_default_timeout(TIMEOUT)
        tab.on("console", lambda line: line.type == "error" and self.fails(line.text))
        tab.on("pageerror", lambda error: self.fails(f"script: {error}"))
        tab.on("response", lambda got: got.status >= 400 and self.fails(f"no file {got.url}"))
        tab.route(lambda url: not url.startswith(address), self._refuse)

    def fails(self, why: str) -> None:
        line = f"{self.page}: {why}"
        if line not in self.failures:
            self.failures.append(line)

    def read(self, page: str, photograph: bool = False) -> None:
        """Load a page, given by its path in the folder, and look at it in every way."""
        self.page = page
        self.tab.goto(self.address + page)
        self.tab.evaluate(RENDERED)
        for text in self.tab.evaluate(RAW_TEX):
            self.fails(f"raw TeX {text!r}")
        for picture in self.tab.evaluate(PICTURES):
            self.fails(f"no picture {picture}")
        self._follow(self.tab.evaluate(LINKS))
        for scheme in SCHEMES:
            self.tab.emulate_media(color_scheme=scheme)
            self._must(f"is not {scheme} where the reader wants that", SCHEME, scheme)
            for width in WIDTHS:
                self.tab.set_viewport_size({"width": width, "height": HEIGHT})
                if wide := self.tab.evaluate(OVERFLOW):
                    self.fails(f"wider than {width} pixels: {', '.join(wide)}")
                for text in self.tab.evaluate(CUT):
                    self.fails(f"cut off at {width} pixels: {text!r}")
                if photograph and self.pictures:
                    name = f"{page.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
                    self.tab.screenshot(path=self.pictures / name)

    def search(self, word: str) -> None:
        """Search the site for a word, which must lead to the page of the API of that name."""
        self.page = f"search.html?q={word}"
        self.tab.goto(self.address + self.page)
        link = f"#search-results a[href*='generated/skebm.{word}.html']"
        self._must(f"does not find {word}", FOUND, link)

    def _must(self, why: str, condition: str, argument: str) -> None:
        """Wait until a condition holds, which scripts of the page may take a while to reach."""
        from playwright.sync_api import TimeoutError as TooLate

        try:
            self.tab.wait_for_function(condition, arg=argument, timeout=PATIENCE)
        except TooLate:
            self.fails(why)

    def _refuse(self, route: Any) -> None:
        self.fails(f"asks the network for {route.request.url}")
        route.abort()

    def _follow(self, links: list[str]) -> None:
        """Check that the files exist to which links within the site lead."""
        for link in sorted({link.partition("#")[0] for link in links}):
            if link.startswith(self.address):
                target = self.folder / unquote(urlsplit(link).path).lstrip("/")
                if not (target / "index.html" if target.is_dir() else target).is_file():
                    self.fails(f"a link to {target.relative_to(self.folder)}, which is not there")


def pages_of(folder: Path, every: int) -> list[str]:
    """Pages of a site by their paths: all written ones, and each `every`-th page of the API."""
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    pages = [page for page in pages if not page.startswith("_")]
    api = [page for page in pages if page.startswith("generated/")]
    return [page for page in pages if page not in api] + api[::every]


def browse(
    folder: Path,
    chromium: str,
    every: int = 1,
    pictures: Path | None = None,
    photographed: str = "",
) -> tuple[int, list[str]]:
    """Read a site in headless Chromium.

    Parameters
    ----------
    folder : Path
        The built site.
    chromium : str
        Path of the browser.
    every : int, default=1
        Of the pages of the API, which are of one form, only each `every`-th is read.
    pictures : Path or None, default=None
        Folder for screenshots.
    photographed : str, default=""
        Pages of which they are taken, separated by commas.

    Returns
    -------
    n_pages : int
    failures : list of str
    """
    from playwright.sync_api import sync_playwright

    pages = pages_of(folder, every)
    with served(folder) as address, sync_playwright() as playwright:
        # Chromium as root, as in a container, needs --no-sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        reader = Reader(browser.new_page(), folder, address, pictures)
        for page in pages:
            reader.read(page, photograph=page in photographed.split(","))
        reader.search(SOUGHT)
        browser.close()
    return len(pages), reader.failures


def main(arguments: list[str] | None = None) -> int:
    """Read the site, print what fails, and return the exit code."""
    parser = argparse.ArgumentParser(description="Read the built documentation in a browser.")
    parser.add_argument("folder", type=Path, help="the built site, such as docs/_build/html")
    parser.add_argument("--every", type=int, default=1, help="read each n-th page of the API")
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    parser.add_argument("--of", default="index.html", help="pages to take them of, by commas")
    options = parser.parse_args(arguments)
    if not pages_of(options.folder, options.every):
        parser.error(f"{options.folder} has no pages: build them first, by `make docs`")
    chromium = find_chromium()
    if chromium is None:
        parser.error("no Chromium is found: install it, or name its path in CHROMIUM")
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    n_pages, failures = browse(
        options.folder, chromium, options.every, options.pictures, options.of
    )
    for failure in failures:
        print(failure)
    print(f"{n_pages} pages at {WIDTHS} pixels, {' and '.join(SCHEMES)}: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
