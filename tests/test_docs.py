"""Pages hold no placeholders, their pictures are there; docstrings state the true defaults."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from numpydoc.docscrape import NumpyDocString

import skebm

ROOT = Path(__file__).parents[1]
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Methods whose docstrings are inherited from skorch.
OTHERS = "skebm.training.engine.EnergyNet."
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_finished(page):
    text = page.read_text()
    assert not re.search(r"@@|TODO|FIXME", text)
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (page.parent / picture).is_file()


def documented_defaults():
    """Yield what a public class, function or method of skebm states as a default, and what is."""
    for module in pkgutil.walk_packages(skebm.__path__, "skebm."):
        for name, found in vars(importlib.import_module(module.name)).items():
            if getattr(found, "__module__", None) != module.name:
                continue
            parts = {name: found} if callable(found) else {}
            if inspect.isclass(found):
                own = {k: v for k, v in vars(found).items() if inspect.isfunction(v)}
                parts |= {f"{name}.{k}": v for k, v in own.items()}
            for label, part in parts.items():
                yield from defaults_of(f"{module.name}.{label}", part)


def defaults_of(label, part):
    """Yield (name, stated default, default) of the parameters of one docstring."""
    if inspect.isclass(part) and issubclass(part, BaseException):
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
