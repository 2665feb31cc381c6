"""Every link inside the project leads somewhere, and its addresses are those of pyproject.toml.

No network is needed: an address of the repository, of its raw files or of its site is looked up in
the files that it will show. Links to other sites are not checked.
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
URLS = PROJECT["urls"]
OWNER_AND_NAME = URLS["Source"].removeprefix("https://github.com/")
RAW = f"https://raw.githubusercontent.com/{OWNER_AND_NAME}/main/"
SITE = f"{URLS['Documentation']}/en/latest/"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
    *sorted([*DOCS.glob("*.md"), *DOCS.glob("[!_]*/**/*.md")]),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *sorted((ROOT / "packaging").rglob("*.md")),
    *sorted((ROOT / "paper").glob("*.md")),
]
# Files that name the project by its address, whatever they are written in.
SUFFIXES = {".bib", ".cff", ".md", ".py", ".rst", ".toml", ".txt", ".yaml", ".yml"}
BUILT = {".git", ".venv", "_build", "__pycache__", "dist", "gallery", "generated"}
# What an address of this project may begin with, beside what pyproject.toml says.
OURS = [URLS["Source"], URLS["Documentation"], RAW.removesuffix("/main/")]
OURS += [f"https://pypi.org/project/{PROJECT['name']}"]
HOSTS = r"github\.com/[\w-]+/|raw\.githubusercontent\.com/[\w-]+/|pypi\.org/project/"
ADDRESS = re.compile(
    rf"https?://(?:(?:{HOSTS})NAME\b|NAME\.\w+\.\w+)[^\s)\"'>`]*".replace("NAME", PROJECT["name"])
)


# ------------------------------------------------------------------------------
# What a link may lead to
# ------------------------------------------------------------------------------


def prose(text):
    """A page without its programs and code."""
    return re.sub(r"^(```+|~~~+).*?^\1|`[^`\n]*`", "", text, flags=re.M | re.S)


def anchors(path):
    """Names of the parts of a page, as GitHub and the documentation make them of headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    found: list[str] = re.findall(r"^\(([\w-]+)\)=$|<a name=\"([\w-]+)\"", text, re.M)
    names = ["".join(pair) for pair in found]
    for heading in re.findall(r"^#{1,6} (.+?)#*$", text, re.M):
        said = re.sub(r"\]\([^)]*\)|[`*\[]", "", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", said).replace(" ", "-")
        same = re.compile(rf"{re.escape(name)}(-\d+)?")
        n = len([other for other in names if same.fullmatch(other)])
        names.append(f"{name}-{n}" if n else name)
    return set(names)


def file_of(address, page):
    """The file of the repository that a link of a page leads to; None if it leads elsewhere."""
    for start in (f"{URLS['Source']}/blob/main/", f"{URLS['Source']}/tree/main/", RAW):
        if address.startswith(start):
            return ROOT / address.removeprefix(start)
    if address.startswith(SITE):
        return file_of_site(address.removeprefix(SITE))
    if re.match(r"\w+:", address):
        return None
    return page.parent / address if address else page


def file_of_site(address):
    """The source of a page of the site."""
    name = address.removesuffix(".html") or "index"
    if name == "gallery/index":
        return EXAMPLES / "GALLERY_HEADER.rst"
    if name.startswith("gallery/"):
        found = EXAMPLES / f"{name.removeprefix('gallery/')}.py"
        return found if found.is_file() else found.parent / "GALLERY_HEADER.rst"
    if name.startswith("generated/"):
        return DOCS / "api.rst"  # tests of the registries say what is in it
    return next(iter(DOCS.glob(f"{name}.*")), DOCS / f"{name}.md")


def broken_links(page, text):
    """What a page links to that is not there, each with the reason."""
    found = []
    for whole in re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", prose(text)):
        address, _, anchor = whole.partition("#")
        path = file_of(address, page)
        if path is None:
            continue
        if "gallery" in path.parts and not path.exists():  # a page of the built site
            path = file_of_site(
                "gallery/" + "/".join(path.parts[path.parts.index("gallery") + 1 :])
            )
        if not path.exists():
            found.append(f"{whole}: no {path.name}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            found.append(f"{whole}: no heading of that name")
    return found


# ------------------------------------------------------------------------------
# The pages keep it
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    assert broken_links(page, page.read_text()) == []


def test_pages_are_all_that_there_are():
    kinds = {page.relative_to(ROOT).parts[0] for page in PAGES}
    assert kinds >= {"README.md", "CONTRIBUTING.md", "docs", "benchmarks", "packaging", "paper"}
    linked = re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", "".join(map(Path.read_text, PAGES)))
    assert len([address for address in linked if "#" in address]) > 30


def sources():
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        if path.suffix in SUFFIXES and path.is_file() and not BUILT & set(inside):
            yield path


def foreign_addresses(text):
    """Addresses of this project under another owner, host or scheme than pyproject.toml has."""
    return [
        address
        for address in ADDRESS.findall(text)
        if not any(re.match(rf"{re.escape(start)}(?![\w-])", address) for start in OURS)
    ]


def test_the_address_of_the_project_is_written_once():
    """Elsewhere it is repeated, as files cannot read pyproject.toml: each repetition agrees."""
    found = {str(path.relative_to(ROOT)): foreign_addresses(path.read_text()) for path in sources()}
    own = {"tests/project/test_links.py"}  # which has wrong ones, to find them
    assert {path: wrong for path, wrong in found.items() if wrong and path not in own} == {}
    n = sum(len(ADDRESS.findall(path.read_text())) for path in sources())
    assert n > 100
    assert all(url.startswith((URLS["Source"], URLS["Documentation"])) for url in URLS.values())


# ------------------------------------------------------------------------------
# What is broken is found
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("absent.md", "no absent.md"),
        ("#no-such-part", "no heading of that name"),
        ("saving.md#processs", "no heading of that name"),
        ("../../LICENCE", "no LICENCE"),
        (f"{SITE}guide/absent.html", "no absent.md"),
        (f"{SITE}guide/saving.html#nothing", "no heading of that name"),
        (f"{SITE}gallery/rbms/plot_absent.html#x", None),
        (f"{URLS['Source']}/blob/main/docs/absent.md", "no absent.md"),
        (f"{RAW}docs/images/absent.png", "no absent.png"),
        ("saving.md#processes", None),
        ("../models/rbm.md", None),
        (f"{SITE}guide/saving.html#joblib-and-pickle", None),
        (f"{URLS['Source']}/blob/main/CONTRIBUTING.md#add-a-sampler", None),
        (f"{URLS['Source']}/issues", None),
        ("https://example.org/absent.md#x", None),
    ],
)
def test_a_broken_link_is_found(link, reason):
    page = DOCS / "guide" / "training.md"
    found = broken_links(page, f"See [this page]({link}), and `[that]({link}x)`.")
    assert found == ([] if reason is None else [f"{link}: {reason}"])


def test_headings_are_named_as_sites_name_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `score`, and *more*\n\n```\n# a comment\n```\n\n## Twice\n\n## Twice\n\n(mine)=\n"
        "## [Linked](x.md): why?\n"
    )
    assert anchors(page) == {"a-score-and-more", "twice", "twice-1", "mine", "linked-why"}


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("https://github.com/someone/skebm/issues", False),
        ("http://skebm.readthedocs.io", False),
        ("https://skebm.github.io/skebm", False),
        ("https://pypi.org/project/skebm-evil", False),
        (f"{URLS['Source']}/issues", True),
        (f"{SITE}index.html", True),
        ("https://github.com/soran-ghaderi/torchebm", True),
    ],
)
def test_another_address_is_found(address, is_ours):
    assert (foreign_addresses(f"See [it]({address}).") == []) == is_ours
