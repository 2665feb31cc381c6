"""What is added to skebm is found: exported, documented, announced, under a name of the field.

Every rule is a function that returns what to do, a sentence for each omission. Each is tested
twice: skebm keeps it, and it says what to add where.
"""

import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import skebm
from skebm.base import Energy, Objective, PartitionEstimator, Sampler
from skebm.distributions import Distribution
from skebm.energies.deep import FirstLayerRows
from skebm.energies.path import Couplings, Geometric, TiltedPairwise
from skebm.energies.rbm.mixed import WiderColumns
from skebm.estimators.base import BaseEBM
from skebm.estimators.neural.sampling import FlippedPosterior
from skebm.estimators.tables.densities import EstimatorDensity
from skebm.samplers import Augmentation, ChainPolicy, Gibbs
from skebm.samplers._moves import TemperedMarginal
from skebm.samplers.blocks import Block
from tests.support.discovery import is_installed, names_in, public_names, walk, without_case

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.rst").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
GLOSSARY = (ROOT / "docs" / "dev" / "glossary.md").read_text()

PACKAGES = [
    f"skebm.{name}"
    for name in (
        "base",
        "diagnostics",
        "distributions",
        "energies",
        "estimators",
        "export",
        "inspection",
        "integrations",
        "metrics",
        "objectives",
        "partition",
        "samplers",
        "training",
    )
]

# What a user composes. Its concrete classes are public, but for those that skebm makes for itself.
KINDS = (
    Augmentation,
    BaseEBM,
    ChainPolicy,
    Distribution,
    Energy,
    Objective,
    PartitionEstimator,
    Sampler,
)
INTERNAL = {
    Block,
    Couplings,
    EstimatorDensity,
    FirstLayerRows,
    FlippedPosterior,
    Geometric,
    TemperedMarginal,
    TiltedPairwise,
    WiderColumns,
}

# Words that skebm has given up for those of the field.
RETIRED = {
    "bend": "second derivative",
    "blur": "convolve with noise, sigma",
    "condense": "deduplicate",
    "fill_in": "imputation",
    "jump": "independence proposal",
    "lesson": "adaptation step",
    "look": "monitor, evaluate",
    "odd": "anomalous",
    "probe": "monitoring batch",
    "roots": "scale_tril",
    "settle": "finalise",
    "shares": "mixing weights",
    "slope": "score, gradient",
    "take_over": "load state",
    "tell": "classify, discriminate",
    "told": "classify, discriminate",
    "wall": "bounds, boundary",
    "watch": "monitor",
    "way": "waymarks",
    "whitener": "precision",
    "withheld": "held-out",
}
ENDINGS = ("", "s", "d", "ed", "red", "ing", "ring", "er", "est", "ness")


# ------------------------------------------------------------------------------
# The rules
# ------------------------------------------------------------------------------


def package_of(cls):
    return ".".join(cls.__module__.split(".")[:2])


def not_exported(classes):
    found = []
    for cls in classes:
        package = package_of(cls)
        if cls not in INTERNAL and cls.__name__ not in importlib.import_module(package).__all__:
            path = package.replace(".", "/") + "/__init__.py"
            found.append(
                f"{cls.__name__} of {cls.__module__} is not public: import it in {path} and add it "
                "to __all__ there; or to INTERNAL, if skebm alone makes it, in "
                "tests/project/test_registries.py."
            )
    return found


def documented(page):
    """Names that the reference lists, by package."""
    found, package = {}, None
    for line in page.splitlines():
        if heading := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
            package = heading[1]
        elif entry := re.fullmatch(r"   (\w+)", line):
            found.setdefault(package, []).append(entry[1])
    return found


def not_documented(public, page):
    """`public` are names by package; one that two packages export is documented once."""
    known = {name for names in documented(page).values() for name in names}
    return [
        f"{name} of {package} is not in docs/api.rst: add it to a list below "
        f"`.. currentmodule:: {package}`."
        for package, names in public.items()
        for name in sorted(names)
        if name not in known
    ]


def documented_in_vain(page):
    return [
        f"docs/api.rst lists {name} below {package}, which has none: rename or remove the entry."
        for package, names in documented(page).items()
        for name in names
        if is_installed(package) and not hasattr(importlib.import_module(package), name)
    ]


def not_announced(classes, page):
    return [
        f"{cls.__name__} of {cls.__module__} is not in CHANGELOG.md: say in its newest section "
        "what it is for."
        for cls in classes
        if not re.search(rf"\b{cls.__name__}\b", page)
    ]


def words_of(name):
    """Words of a name in snake or camel case: AISBracket and ais_bracket have the same two."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


@functools.cache
def retired_in(name):
    words = f"_{'_'.join(words_of(name))}_"
    return [word for word in RETIRED if any(f"_{word}{ending}_" in words for ending in ENDINGS)]


def retired_names(names):
    """`names` with the places where they stand."""
    return [
        f"{name} ({where}) says `{word}`, which skebm calls {RETIRED[word]}."
        for name, where in names
        for word in retired_in(name)
    ]


def glossary(page):
    """Rows of the glossary: what skebm says, what the field says, the symbol."""
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def unknown_terms(page, names):
    known = {name for name, _ in names}
    return [
        f"docs/dev/glossary.md lists `{term}`, which no longer is a name in skebm: "
        "rename or remove it."
        for row in glossary(page)
        for term in re.findall(r"`(\w+)`", row[0])
        if term not in known
    ]


# ------------------------------------------------------------------------------
# skebm keeps them
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    return [cls for kind in KINDS for cls in walk(kind)]


@pytest.fixture(scope="module")
def names():
    return list(public_names())


def nothing_to_do(found):
    """Unlike ``== []``, a failure shows every sentence in full."""
    assert not found, "\n".join(found)


def test_every_part_is_exported(parts):
    nothing_to_do(not_exported(parts))
    assert set(parts) >= INTERNAL


def test_every_public_name_is_documented(parts):
    public = {package: set(importlib.import_module(package).__all__) for package in PACKAGES}
    for cls in set(parts) - INTERNAL:
        public[package_of(cls)].add(cls.__name__)
    nothing_to_do(not_documented(public, API))
    nothing_to_do(documented_in_vain(API))


def test_every_package_is_checked():
    folders = {path.parent.name for path in (ROOT / "skebm").glob("*/__init__.py")}
    assert {f"skebm.{name}" for name in folders} | {"skebm.diagnostics"} == set(PACKAGES)


def test_every_estimator_is_in_the_changelog():
    """Of what `import skebm` offers; the API lists the parts."""
    exported = [getattr(skebm, name) for name in skebm.__all__]
    nothing_to_do(not_announced([cls for cls in exported if inspect.isclass(cls)], CHANGELOG))


def test_no_name_has_a_retired_word(names):
    nothing_to_do(retired_names(names))


def test_the_glossary_has_names_of_skebm(names):
    nothing_to_do(unknown_terms(GLOSSARY, names))


def test_the_glossary_explains_each_term_once():
    rows = glossary(GLOSSARY)
    assert len(rows) >= 25
    assert all(len(row) == 3 and row[0] and row[1] for row in rows)
    first = [row[0] for row in rows]
    assert len(set(first)) == len(first)


# ------------------------------------------------------------------------------
# They say what to add where
# ------------------------------------------------------------------------------


class Kind:
    """A kind of part of its own, which no other test walks over."""


class Sleepwalk(Kind):
    """A part of skebm that is in no registry."""

    __module__ = "skebm.samplers.sleepwalk"


def test_a_part_without_a_case_is_reported():
    assert without_case(Kind, {Sleepwalk}, "CASES in tests/contracts/test_samplers.py") == []
    assert without_case(Kind, {}, "CASES in tests/contracts/test_samplers.py") == [
        "Sleepwalk of skebm.samplers.sleepwalk has no entry in "
        "CASES in tests/contracts/test_samplers.py: add one."
    ]


def test_a_part_that_is_not_exported_is_reported():
    (message,) = not_exported([Gibbs, Sleepwalk, TemperedMarginal])
    assert message.startswith(
        "Sleepwalk of skebm.samplers.sleepwalk is not public: import it in "
        "skebm/samplers/__init__.py and add it to __all__ there"
    )


def test_a_name_that_is_not_documented_is_reported():
    public = {"skebm.samplers": ["Gibbs", "Sleepwalk"], "skebm.objectives": ["Penalty"]}
    assert not_documented(public, API) == [
        "Sleepwalk of skebm.samplers is not in docs/api.rst: add it to a list below "
        "`.. currentmodule:: skebm.samplers`."
    ]


def test_an_entry_of_the_reference_without_a_name_is_reported():
    page = ".. currentmodule:: skebm.samplers\n\n.. autosummary::\n\n   Gibbs\n   Sleepwalk\n"
    (message,) = documented_in_vain(page)
    assert message.startswith("docs/api.rst lists Sleepwalk below skebm.samplers")


def test_an_estimator_that_is_not_announced_is_reported():
    (message,) = not_announced([skebm.RBMEstimator, Sleepwalk], CHANGELOG)
    assert message.startswith("Sleepwalk of skebm.samplers.sleepwalk is not in CHANGELOG.md: say")
    (message,) = not_announced([Gibbs], "- `GibbsWithGradients`")  # another sampler
    assert message.startswith("Gibbs of")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("wall_weight", "wall"),
        ("walled", "wall"),
        ("Way", "way"),
        ("find_way", "way"),
        ("BlurScale", "blur"),
        ("blurred", "blur"),
        ("take_over", "take_over"),
        ("fill_ins", "fill_in"),
        ("oddest", "odd"),
        ("n_jumps", "jump"),
    ],
)
def test_a_retired_word_is_reported(name, word):
    (message,) = retired_names([(name, "skebm/base/energy.py:7")])
    assert message.startswith(f"{name} (skebm/base/energy.py:7) says `{word}`, which skebm calls")


@pytest.mark.parametrize(
    "name", ["threshold", "Waymarks", "always", "modify", "outlook", "whitening", "logits", "share"]
)
def test_a_word_that_contains_a_retired_one_is_not(name):
    assert retired_names([(name, "")]) == []


def test_a_term_that_is_gone_is_reported():
    page = "| a | b | c |\n|---|---|---|\n| `beta`, `coldness` | inverse | β |\n"
    (message,) = unknown_terms(page, [("beta", "")])
    assert message.startswith("docs/dev/glossary.md lists `coldness`")


def test_names_are_all_that_a_module_gives_to_its_parts():
    source = inspect.cleandoc(
        """
        from elsewhere import thing

        class Part(Base):
            field: int

            def method(self, parameter, *, _hidden=1):
                local = parameter
                self.attribute, self._private = local, local

        def function(*args): ...
        """
    )
    found = {name for name, _ in names_in(source)} - {"self"}
    assert found == {"Part", "field", "method", "parameter", "attribute", "function", "args"}
