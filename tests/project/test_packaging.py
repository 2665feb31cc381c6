"""What is prepared for a release agrees with pyproject.toml, the changelog and the benchmarks."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import skebm
from tests.project.test_registries import PACKAGES
from tools.standing import rows_of

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
NOTES = (ROOT / "packaging" / "release_notes.md").read_text()
PAPER = (ROOT / "paper" / "paper.md").read_text()
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
NEWEST = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
# Distributions of PyPI that conda-forge has under another name.
CONDA = {"torch": "pytorch"}


def as_conda(requirement):
    """A requirement of PyPI as conda-forge writes it."""
    name, bound = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return f"{CONDA.get(name, name)} {bound}"


# ------------------------------------------------------------------------------
# The recipe of conda-forge
# ------------------------------------------------------------------------------


def test_the_recipe_requires_what_the_project_requires():
    python_min = PROJECT["requires-python"].removeprefix(">=")
    assert RECIPE["context"]["python_min"] == python_min
    run = ["python >=${{ python_min }}", *map(as_conda, PROJECT["dependencies"])]
    assert RECIPE["requirements"]["run"] == run
    build = map(as_conda, PYPROJECT["build-system"]["requires"])
    assert RECIPE["requirements"]["host"] == ["python ${{ python_min }}.*", "pip", *build]


def test_the_recipe_is_of_the_newest_version_and_of_this_project():
    context, about = RECIPE["context"], RECIPE["about"]
    assert context["version"] == NEWEST
    assert context["name"] == PROJECT["name"] == RECIPE["source"]["url"].split("/")[-2]
    assert re.fullmatch(r"[0-9a-f]{64}", RECIPE["source"]["sha256"])
    assert about["summary"] == PROJECT["description"]
    assert about["license"] == PROJECT["license"]
    assert [about["license_file"]] == PROJECT["license-files"]
    urls = PROJECT["urls"]
    assert about["repository"] == urls["Source"]
    assert about["homepage"] == about["documentation"] == urls["Documentation"]


def test_the_recipe_tries_every_package_and_the_smoke_test():
    imports, smoke = RECIPE["tests"]
    assert imports["python"]["imports"] == [skebm.__name__, *PACKAGES]
    (script,) = smoke["script"]
    assert smoke["files"]["source"] == [script.split()[-1]]
    assert (ROOT / script.split()[-1]).is_file()
    makefile = (ROOT / "Makefile").read_text()
    assert script.removeprefix("python ") in makefile  # which runs it in an environment of its own


# ------------------------------------------------------------------------------
# Notes, citation, paper
# ------------------------------------------------------------------------------


def test_the_notes_are_of_the_newest_version_and_fit_on_a_screen():
    assert NOTES.startswith(f"# {PROJECT['name']} {NEWEST}\n")
    assert len(NOTES.splitlines()) <= 45
    assert all(name in NOTES for name in ("EnergyOutlierDetector", "TractableDensity"))


def test_the_citation_has_an_abstract_and_no_version_of_its_own():
    """The version is that of a tag, which no file could know."""
    assert CITATION["title"] == f"{PROJECT['name']}: {lower_first(PROJECT['description'])}"
    assert len(CITATION["abstract"].split()) >= 40
    assert "version" not in CITATION
    assert set(CITATION["keywords"]) >= {"energy-based models", "anomaly detection"}


def lower_first(text):
    return text[0].lower() + text[1:]


@pytest.fixture(scope="module")
def paper():
    front, _, body = PAPER.removeprefix("---\n").partition("\n---\n")
    return yaml.safe_load(front), body


def test_the_paper_has_what_the_journal_asks_for(paper):
    about, body = paper
    assert about["title"] == CITATION["title"]
    assert {"tags", "authors", "affiliations", "date", "bibliography"} <= set(about)
    assert (ROOT / "paper" / about["bibliography"]).is_file()
    for heading in ("Summary", "Statement of need", "State of the field", "References"):
        assert f"\n# {heading}\n" in body
    assert 600 <= len(body.split()) <= 1000  # two pages


def test_every_reference_of_the_paper_is_cited_and_listed_once(paper):
    about, body = paper
    bibliography = (ROOT / "paper" / about["bibliography"]).read_text()
    listed = re.findall(r"^@\w+\{(\w+),", bibliography, re.M)
    assert sorted(listed) == sorted(set(re.findall(r"@(\w+)", body)))
    for entry in bibliography.strip().split("\n\n"):
        assert {"author", "title", "year"} <= set(re.findall(r"^  (\w+) =", entry, re.M)), entry


def numbers_of(text):
    """Decimal numbers, those that are measured."""
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", text))


@pytest.mark.parametrize("text", [PAPER, NOTES], ids=["paper", "notes"])
def test_numbers_are_those_of_the_benchmarks(text):
    known = numbers_of(BENCHMARKS) | {NEWEST, "0.1", "1.0", "3.11", "3.13"}
    found = numbers_of(text.replace(NEWEST, ""))
    assert len(found) >= 3
    assert found <= known, found - known


def test_counts_of_tables_are_those_of_the_benchmarks():
    """Which the README, the notes and the paper state."""
    numbers = rows_of("Densities of numbers")
    bits = rows_of("Densities of bits")
    assert all(float(stack) > float(mixture) for _, mixture, _, stack, *_ in numbers)
    assert all(float(default) > float(circuit) for *_, default, _, _, circuit in bits)
    assert len(numbers) == len(bits) == 11
    for text in ((ROOT / "README.md").read_text(), NOTES, PAPER):
        said = " ".join(text.split())
        assert said.count("on eleven of eleven tables") == 2
