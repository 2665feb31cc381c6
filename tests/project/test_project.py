"""What a project has around its code agrees: package, versions, workflows and policies."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import skebm
import skebm.training
from skebm.estimators.storage import nets, package_version
from tests.project.test_contributing import blocks
from tests.support.tiers import full
from tools.oldest import oldest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
YAML = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".readthedocs.yaml",
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]
PAGES = [
    *sorted((ROOT / ".github").rglob("*.md")),
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / "dev" / name for name in ("conventions.md", "tests.md")),
]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


# ------------------------------------------------------------------------------
# The package
# ------------------------------------------------------------------------------


@full
def test_skorch_is_imported_by_the_first_fit():
    """And by the first model that is loaded, in a process that has imported no more than skebm."""
    printed = python(
        "import sys, pickle, skebm, skebm.training\n"
        "X = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]] * 5\n"
        "rbm = skebm.RBMEstimator(1, n_iter=1, random_state=0)\n"
        "print('skorch' in sys.modules, 'Resume' in dir(skebm.training))\n"
        "print('skorch' in sys.modules, len(pickle.dumps(rbm.fit(X))) > 0)\n"
        "print('skorch' in sys.modules)\n"
    )
    assert printed.split() == ["False", "True", "False", "True", "True"]


def test_a_name_that_training_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'Adagrad'"):
        _ = skebm.training.Adagrad
    assert skebm.training.Resume.__module__ == "skebm.training.resume"


def test_the_types_are_shipped():
    assert (ROOT / "skebm" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_there_is_one_version():
    assert skebm.__version__ == package_version()
    assert "version" in PROJECT["dynamic"]


def test_an_unknown_version_is_one(monkeypatch):
    """Tools that compare versions can parse it."""

    def missing(name):
        raise nets.PackageNotFoundError(name)

    monkeypatch.setattr(nets, "version", missing)
    assert package_version() == "0+unknown"


# ------------------------------------------------------------------------------
# Supported versions
# ------------------------------------------------------------------------------


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def test_the_oldest_versions_are_the_lower_bounds():
    pins = dict(pin.split("==") for pin in oldest(PROJECT))
    for requirement in PROJECT["dependencies"]:
        name, bound = requirement.split(">=")
        assert pins[name] == bound
        assert numbers(PINS[name]) >= numbers(bound)
    assert {"polars", "dask", "pyarrow"} <= pins.keys()
    assert "arviz-stats" not in pins


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==1.26"])
def test_a_requirement_without_a_lower_bound_is_refused(requirement):
    extras = {"frames": [requirement], "test": ["skebm[frames]"]}
    with pytest.raises(ValueError, match="no lower bound"):
        oldest({"name": "skebm", "dependencies": [], "optional-dependencies": extras})


def test_markers_and_extras_are_kept_apart_from_versions():
    extras = {"frames": ["a[b,c]>=1.2,<3; python_version < '3.12'"], "plot": ["unpinned"]}
    extras["test"] = ["skebm[frames]"]
    table = {"name": "skebm", "dependencies": ["d>=4"], "optional-dependencies": extras}
    assert oldest(table) == ["d==4", "a==1.2; python_version < '3.12'"]


def test_every_supported_python_is_tested():
    (matrix,) = (
        job["strategy"]["matrix"]["include"]
        for job in yaml.safe_load(WORKFLOWS[-1].read_text())["jobs"].values()
        if "include" in job["strategy"]["matrix"]
    )
    tested = {case["python"] for case in matrix if case["target"] == "test"}
    prefix = "Programming Language :: Python :: 3."
    stated = {c.split()[-1] for c in PROJECT["classifiers"] if c.startswith(prefix)}
    assert tested == stated
    assert {"test-oldest", "test-newest", "browse", "dist-check"} <= {c["target"] for c in matrix}


# ------------------------------------------------------------------------------
# Files that name others
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_valid(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def strings(tree):
    """All strings in a tree of lists and dicts."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from strings(part)


def commands(path):
    """Lines of the file that are run: all strings of YAML, code between backticks elsewhere."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.findall(r"`([^`\n]+)`", text)
    return [line for string in strings(yaml.safe_load(text)) for line in string.splitlines()]


def make_targets(line, cases):
    """Targets of a call of make, with those of a workflow's matrix."""
    line = re.sub(r'\w+="[^"]*"', "", line)
    found = re.fullmatch(r"(?:\w+=\S+ )?make (.+)", line)
    if not found:
        return
    for word in found[1].replace("${{ matrix.target }}", "MATRIX").split():
        if word == "MATRIX":
            yield from cases
        elif "=" not in word:
            yield word


def unknown_names(path):
    """What a file calls and the repository does not have: targets of make and scripts."""
    text = path.read_text()
    cases = re.findall(r"target: ([\w-]+)", text)
    targets = {t for line in commands(path) for t in make_targets(line, cases)}
    unknown = [t for t in sorted(targets) if make_fails(t)]
    scripts = {s for line in commands(path) for s in re.findall(r"\btools/\w+\.py", line)}
    return unknown + sorted(s for s in scripts if not (ROOT / s).is_file())


def make_fails(target):
    call = ["make", "--dry-run", "--always-make", target]
    return subprocess.run(call, cwd=ROOT, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("path", [*YAML, *PAGES], ids=lambda path: path.name)
def test_targets_and_scripts_exist(path):
    assert unknown_names(path) == []


def test_workflows_call_make():
    called = {t for path in WORKFLOWS for line in commands(path) for t in make_targets(line, ["x"])}
    assert {"x", "dist-check"} <= called


def test_names_that_do_not_exist_are_caught(tmp_path):
    path = tmp_path / "broken.yml"
    path.write_text(
        "jobs:\n  a:\n    matrix: {include: [{target: tets}, {target: lint}]}\n    steps:\n"
        "      - run: make ${{ matrix.target }} PYTHON=python\n"
        "      - run: |\n          A=1 make types publsh\n          python tools/smok.py\n"
    )
    assert unknown_names(path) == ["publsh", "tets", "tools/smok.py"]
    page = tmp_path / "broken.md"
    page.write_text("Run `make lint doctests` and\n`python -I tools/smoke.py`.\n")
    assert unknown_names(page) == ["doctests"]


def test_the_linter_is_of_one_version():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["rev"] for hook in hooks] == [f"v{PINS['ruff']}"]


def test_addresses_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    urls = PROJECT["urls"]
    assert (citation["repository-code"], citation["url"]) == (urls["Source"], urls["Documentation"])
    assert citation["license"] == PROJECT["license"]


# ------------------------------------------------------------------------------
# Security
# ------------------------------------------------------------------------------


def test_what_the_policy_says_loads_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks((ROOT / ".github" / "SECURITY.md").read_text()):
        exec(compile(block.code, "SECURITY.md", "exec"), names)
    assert (
        names["model"].score_samples(names["X"]) == names["rbm"].score_samples(names["X"])
    ).all()
