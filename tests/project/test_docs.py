"""Pages are finished, their programs run; docstrings state the true defaults."""

import ast
import importlib
import inspect
import re
import threading
import time
import warnings
from pathlib import Path

import pytest
import sklearn
from numpydoc.docscrape import NumpyDocString

from tests.support.discovery import module_names, setting_of_docs
from tests.support.tiers import full
from tools.page_outputs import WIDTH

ROOT = Path(__file__).parents[2]
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Methods whose docstrings are inherited from skorch.
OTHERS = "skebm.training.engine.EnergyNet."
README, DOCS = ROOT / "README.md", ROOT / "docs"
PINS = (ROOT / "constraints.txt").read_text()
PAGES = [
    *(ROOT / name for name in NAMES),
    *sorted([*DOCS.glob("*.md"), *DOCS.glob("[!_]*/**/*.md")]),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
]
GUIDE = (DOCS / "guide" / "index.md").read_text()
# The pages of the guide's first list.
LIST = GUIDE.partition(":caption: By question")[2].partition("```")[0]
QUESTIONS = re.findall(r"^(\w+)$", LIST, re.M)
# Of the processor; most of them take a tenth of this.
SECONDS_OF_A_BLOCK = 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_finished(page):
    assert not re.search(r"@@|TODO|FIXME", page.read_text())


def blocks(page):
    """The programs of a page, those between ```python and ```."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def run(page, programs):
    """Run programs one after the other, in one namespace; those that warn or take long fail."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    namespace = {"__name__": "__main__"}
    for i, program in enumerate(programs):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(program, f"{page.name}, block {i}", "exec"), namespace)
        assert time.process_time() - began < SECONDS_OF_A_BLOCK
    pyplot.close("all")
    return namespace


def test_the_first_program_of_the_readme_finds_the_wrong_decimal_point():
    found = run(README, blocks(README)[:1])
    reason = found["detector"].explain(found["most_anomalous"]).to_frame(1).round(2)
    assert reason[["row", "feature", "value"]].to_numpy().tolist() == [[0, "bmi", 3.24]]
    if f"scikit-learn=={sklearn.__version__}\n" in PINS:  # clusters of others start elsewhere
        assert repr(reason) in README.read_text()
    assert found["most_anomalous"].index == [7]
    assert blocks(DOCS / "index.md")[0] == blocks(README)[0]


@full
def test_the_programs_of_the_readme_run():
    assert len(blocks(README)) == 5
    run(README, blocks(README))


def test_the_programs_of_the_guide_run_when_it_is_built():
    pages = setting_of_docs("page_outputs")
    questions = [f"guide/{name}" for name in QUESTIONS]
    assert {page for page in questions if blocks(DOCS / f"{page}.md")} <= {*pages}
    assert all(blocks(DOCS / f"{page}.md") for page in pages)


def test_addresses_of_the_readme_are_absolute():
    """As PyPI shows it, too; tests/project/test_links.py looks them up."""
    for address in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert address.startswith("https://")


def documented_defaults():
    """Yield what a public class, function or method of skebm states as a default, and what is."""
    for module in module_names():
        for name, found in vars(importlib.import_module(module)).items():
            if getattr(found, "__module__", None) != module:
                continue
            parts = {name: found} if callable(found) else {}
            if inspect.isclass(found):
                own = {k: v for k, v in vars(found).items() if inspect.isfunction(v)}
                parts |= {f"{name}.{k}": v for k, v in own.items()}
            for label, part in parts.items():
                yield from defaults_of(f"{module}.{label}", part)


def defaults_of(label, part):
    """Yield (name, stated default, default) of the parameters of one docstring."""
    if inspect.isclass(part) and issubclass(part, BaseException | threading.local):
        return
    signature = inspect.signature(part).parameters
    docstring = inspect.cleandoc(part.__doc__ or "")
    for entry in NumpyDocString(docstring)["Parameters"]:
        names, (_, marked, stated) = entry.name.split(", "), entry.type.partition("default=")
        each = stated.replace(" and ", ", ").split(", ") if len(names) > 1 else [stated]
        each = each * len(names) if len(each) == 1 else each
        for name, value in zip(names, each, strict=True):
            if marked and name in signature:
                yield f"{label}({name})", value, signature[name].default


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_defaults_in_docstrings_are_those_of_signatures():
    found = [item for item in documented_defaults() if not item[0].startswith(OTHERS)]
    assert len(found) > 400
    wrong = [item for item in found if item[1] not in (str(item[2]), repr(item[2]), f'"{item[2]}"')]
    assert [item for item in wrong if ast.literal_eval(item[1]) != item[2]] == []


@pytest.mark.parametrize("page", [README, *PAGES[len(NAMES) :]], ids=lambda page: page.stem)
def test_programs_fit_beside_the_table_of_contents(page):
    """Wider lines are cut off on a desk's screen."""
    assert [line for b in blocks(page) for line in b.splitlines() if len(line) > WIDTH] == []
