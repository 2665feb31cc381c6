"""What a target of the Makefile runs is in the extra of its environment, which holds no other.

The imports are read from the sources, none is made: what one extra lacks, an environment that holds
more would hide.
"""

import ast
import doctest
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.project.test_contributing import blocks
from tests.support.discovery import setting_of_docs
from tests.support.sources import modules, parsed, without_expressions
from tests.support.tiers import leading
from tools.oldest import of_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()

# Packages of another name than the distribution that brings them.
BROUGHT = {
    "docutils": "sphinx",
    "arviz_stats": "arviz-stats",
    "check_manifest": "check-manifest",
    "myst_parser": "myst-parser",
    "pydata_sphinx_theme": "pydata-sphinx-theme",
    "sklearn": "scikit-learn",
    "sphinx_gallery": "sphinx-gallery",
    "yaml": "pyyaml",
    "joblib": "scikit-learn",
    "threadpoolctl": "scikit-learn",
}
OURS = {"skebm", "tests", "tools", "benchmarks"}
# Only some people have them: a test without them is skipped, a module says what to install.
OPTIONAL = {
    "test": {"combo", "numba", "playwright", "pyod", "ray", "sphinx_gallery"},
    "full": {"combo", "numba", "pyod", "ray"},
    "doctest": {"pyod"},
}


def imported(source):
    """Packages that a program imports, in functions too, and those that a test asks for by name."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            yield from (a.value.split(".")[0] for a in node.args if isinstance(a, ast.Constant))


def programs(folder, pattern="**/*.py"):
    """The sources below a folder of the repository."""
    return [path.read_text("utf-8") for path in sorted((ROOT / folder).glob(pattern))]


def examples_of_docstrings(source):
    """The examples of all docstrings of a module, as one program."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in without_expressions(parsed(source)) if isinstance(node, kinds)]
    parser = doctest.DocTestParser()
    found = [e.source for node in nodes for e in parser.get_examples(ast.get_docstring(node) or "")]
    return "".join(found)


def programs_of_pages():
    """The programs of the README and of the guide that tests run."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", *docs.glob("*.md"), *docs.glob("[!_]*/**/*.md")]
    return [b.code for page in pages for b in blocks(page.read_text()) if b.language == "python"]


def programs_of_built_pages():
    """The programs of the pages that run when the documentation is built, and what runs them."""
    pages = [ROOT / "docs" / f"{name}.md" for name in setting_of_docs("page_outputs")]
    of_pages = [
        b.code for page in pages for b in blocks(page.read_text()) if b.language == "python"
    ]
    return [*programs("tools", "page_outputs.py"), *of_pages]


def recipe_of(target):
    return re.search(rf"^{target}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)[1]


def modules_of(target):
    """Packages that the recipe of a target runs with ``-m``."""
    recipe = recipe_of(target).replace("$(call PYTEST", "$(call IN,x) -m pytest")
    return set(re.findall(r"\$\(call IN,\w+\) -m (\w+)", recipe)) - {"pip"}


def extensions():
    """Packages of the extensions and the theme of the documentation."""
    names = [*setting_of_docs("extensions"), setting_of_docs("html_theme")]
    return {name.split(".")[0] for name in names}


def programs_of_tests():
    return [*programs("tests"), *programs_of_pages()]


# Of each extra of a target: what the environment runs. Sphinx imports all modules of skebm, whose
# imports in functions are made where the extra of a user is asked for.
RUN = {
    "plot": lambda: programs("examples", "rbms/demo.py"),
    "docs": lambda: [
        *programs("examples"),
        *programs("docs", "conf.py"),
        *programs("tools", "g*.py"),
        *programs_of_built_pages(),
    ],
    "doctest": lambda: [examples_of_docstrings(source) for source in modules().values()],
    "browser": lambda: programs("tools", "browse_docs.py"),
    "mutation": lambda: programs("tools", "m*.py"),
    "lint": list,
    "types": list,
    "dist": list,
    "test": programs_of_tests,
    "full": lambda: [*programs_of_tests(), *programs("tools", "browse_docs.py")],
}
TARGETS = dict(re.findall(r"^([\w-]+):.*?\$\(VENV\)/(\w+)/installed.* ##", MAKEFILE, re.MULTILINE))


def installed(extra):
    """Names of the distributions that an environment of the extra is asked to hold."""
    listed = [*PROJECT["dependencies"], *of_extra(PROJECT, extra)]
    return {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in listed}


def lacking(extra, packages):
    """Packages whose distribution is not in the extra."""
    foreign = set(packages) - set(sys.stdlib_module_names) - OURS - OPTIONAL.get(extra, set())
    return {name for name in foreign if BROUGHT.get(name, name).lower() not in installed(extra)}


@pytest.mark.parametrize("extra", leading(8, RUN))
def test_an_extra_has_what_its_target_imports(extra):
    packages = {name for source in RUN[extra]() for name in imported(source)}
    if extra == "docs":
        packages |= extensions()
    targets = [target for target, own in TARGETS.items() if own == extra]
    assert lacking(extra, packages.union(*map(modules_of, targets))) == set()


def test_what_an_extra_lacks_is_found():
    assert lacking("plot", ["numpy", "sklearn", "pandas", "os", "skebm"]) == {"pandas"}
    assert lacking("docs", imported("def f():\n    import pytest\n    from yaml import dump")) == {
        "pytest",
        "yaml",
    }
    assert set(imported("a = pytest.importorskip('dask.array')")) == {"dask"}
    assert examples_of_docstrings('"""A.\n\n>>> import b\n>>> 1\n1\n"""') == "import b\n1\n"


def test_each_target_runs_in_the_environment_of_its_extra_alone():
    """And no recipe has another Python, but for what makes environments."""
    kinds = {"oldest", "newest", "wheel"}
    assert set(TARGETS.values()) - kinds == set(RUN)
    assert set(RUN) <= set(PROJECT["optional-dependencies"])
    for target, extra in TARGETS.items():
        own = set(re.findall(r"\$\(call (?:IN|PYTEST),(\w+)\)", recipe_of(target)))
        assert own - {"wheel"} == {extra}


def test_all_that_must_hold_is_run_by_targets_with_an_environment():
    steps = re.search(r"for step in ([\w -]+);", (ROOT / ".ci" / "run").read_text())[1].split()
    assert set(steps) <= set(TARGETS)
    assert len({TARGETS[step] for step in steps}) == len(steps)
