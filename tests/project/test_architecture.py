"""The shape of the house: who may import whom, and how much a reader has to hold at once.

Every rule is a function from sources ``{path in the package: source}`` to a list of violations. It
parses, it imports nothing. Each is tested twice: skebm keeps it, and it catches who breaks it.
"""

import ast
import functools
import graphlib
from pathlib import PurePosixPath
from typing import NamedTuple

import pytest

from tests.support.sources import modules, parsed, without_expressions

PACKAGE = "skebm"

# A module imports from rows above its own, and a folder within itself. The package's own
# __init__.py stands below all rows: it may import everything, and nothing imports it.
ROWS = (
    ("diagnostics",),  # L0, in the order in which its files build on each other
    ("base",),
    ("_validation",),
    ("distributions",),  # L1
    ("energies", "samplers"),  # L2
    ("objectives", "partition"),  # L3
    ("training",),  # L4
    ("estimators",),  # L5
    ("metrics",),  # L6
    ("inspection",),
    ("export",),
    ("integrations",),
)
ROW = {name: number for number, names in enumerate(ROWS) for name in names}
ROW[""] = len(ROWS)

MAX_BODY_LINES = 45
MAX_NAMES = 14  # of files and folders in one folder

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


# ------------------------------------------------------------------------------
# Reading the sources
# ------------------------------------------------------------------------------


class Import(NamedTuple):
    path: str  # file that imports
    line: int
    target: str  # absolute, with the imported name: "sklearn.base.clone"
    module: str | None  # module of skebm that this is or comes from, if any
    lazy: bool  # inside a function

    def __str__(self):
        return f"{self.path}:{self.line} imports {self.target}"


def module_name(path):
    """samplers/gibbs.py -> skebm.samplers.gibbs, samplers/__init__.py -> skebm.samplers."""
    parts = (PACKAGE, *PurePosixPath(path).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def top_name(module):
    """skebm.samplers.gibbs -> samplers, skebm -> ''."""
    return module.partition(".")[2].partition(".")[0]


def targets(node, path):
    """Absolute dotted names that an import statement asks for; none for another node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    source = [node.module] if node.module else []
    if node.level:
        package = (PACKAGE, *PurePosixPath(path).parent.parts)
        source = [*package[: len(package) - node.level + 1], *source]
    return [".".join([*source, alias.name]) for alias in node.names]


def imports(sources):
    """Every name imported anywhere, under ``TYPE_CHECKING`` and inside functions too."""
    modules = {module_name(path) for path in sources}

    def module_of(target):  # "skebm.base.Energy" -> "skebm.base"
        while target and target not in modules:
            target = target.rpartition(".")[0]
        return target or None

    for path, source in sources.items():
        for node, lazy in import_statements(source):
            for target in targets(node, path):
                yield Import(path, node.lineno, target, module_of(target), lazy)


@functools.cache
def import_statements(source):
    """Statements that import, and whether they are inside a function."""
    found, left = [], [(parsed(source), False)]
    while left:
        node, lazy = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, lazy))
        lazy = lazy or isinstance(node, FUNCTIONS)
        inner = (n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr))
        left += [(child, lazy) for child in inner]
    return sorted(found, key=lambda item: item[0].lineno)


# ------------------------------------------------------------------------------
# The rules
# ------------------------------------------------------------------------------


def layer_violations(sources):
    unknown = [p for p in sources if top_name(module_name(p)) not in ROW]
    found = [f"{path} belongs to no layer: give it a row in ROWS" for path in unknown]
    for item in imports(sources):
        if item.path in unknown or item.module is None:
            continue
        own, other = top_name(module_name(item.path)), top_name(item.module)
        if other != own and ROW.get(other, -1) >= ROW[own]:
            found.append(f"{item}, which is not in a layer above its own")
    return found


def import_cycles(sources):
    graph = {module_name(path): set() for path in sources}
    for item in imports(sources):
        if item.module:
            graph[module_name(item.path)].add(item.module)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def skorch_violations(sources):
    found = [item for item in imports(sources) if item.target.split(".")[0] == "skorch"]
    return [
        f"{item}, which only training/ may"
        for item in found
        if not item.path.startswith("training/")
    ]


def private_sklearn_violations(sources):
    def private(target):
        library, *names = target.split(".")
        return library == "sklearn" and any(
            name.startswith("_") and not name.endswith("__") for name in names
        )

    found = [item for item in imports(sources) if private(item.target)]
    return [
        f"{item}, which only _validation.py may" for item in found if item.path != "_validation.py"
    ]


def matplotlib_violations(sources):
    found = [item for item in imports(sources) if item.target.split(".")[0] == "matplotlib"]
    return [f"{item}: move it into the function that plots" for item in found if not item.lazy]


def body_lines(function):
    """Lines from the first statement after the docstring to the last."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def length_violations(sources):
    found = []
    for path, source in sources.items():
        for node in without_expressions(parsed(source)):
            if isinstance(node, FUNCTIONS) and (n := body_lines(node)) > MAX_BODY_LINES:
                found.append(
                    f"{path}:{node.lineno} {node.name} has {n} lines, above {MAX_BODY_LINES}"
                )
    return found


def crowded_folders(sources):
    """Folders with more names than a reader takes in at a glance.

    The package's own __init__.py, which stands below all rows, is not among them.
    """
    names = {}
    for path in map(PurePosixPath, sources.keys() - {"__init__.py"}):
        for child in (path, *path.parents[:-1]):
            names.setdefault(child.parent.as_posix(), set()).add(child.name)
    return [
        f"{folder} holds {len(found)} names, above {MAX_NAMES}"
        for folder, found in sorted(names.items())
        if len(found) > MAX_NAMES
    ]


def repeated_class_names(sources):
    """Names of classes that two places define: a traceback or a search should find one."""
    places = {}
    for path, source in sources.items():
        for node in without_expressions(parsed(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [
        f"{name} is defined at {' and '.join(found)}"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]


def methods_outside_of_classes(sources):
    """Functions of a module that take `self`, of which help() does not say whose they are."""
    return [
        f"{path}:{node.lineno} {node.name} takes self: write it in a class, or in a mixin"
        for path, source in sources.items()
        for node in parsed(source).body
        if isinstance(node, FUNCTIONS) and [arg.arg for arg in node.args.args[:1]] == ["self"]
    ]


def repeated_function_names(sources):
    """Public names of functions that two modules define, of which a reader has to ask which."""
    places = {}
    for path, source in sources.items():
        for node in parsed(source).body:
            if isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
                places.setdefault(node.name, {}).setdefault(path, node.lineno)
    return [
        f"{name} is defined at {' and '.join(f'{path}:{line}' for path, line in found.items())}: "
        "say in the name what it returns, or keep one"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]


# ------------------------------------------------------------------------------
# skebm keeps them
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package():
    assert modules()
    return modules()


def test_imports_come_from_layers_above(package):
    assert layer_violations(package) == []


def test_imports_have_no_cycle(package):
    assert import_cycles(package) == []


def test_skorch_stays_in_training(package):
    assert skorch_violations(package) == []


def test_private_sklearn_stays_in_validation(package):
    assert private_sklearn_violations(package) == []


def test_matplotlib_is_imported_when_plotting(package):
    assert matplotlib_violations(package) == []


def test_functions_are_short(package):
    assert length_violations(package) == []


def test_folders_are_not_crowded(package):
    assert crowded_folders(package) == []


def test_class_names_are_unique(package):
    assert repeated_class_names(package) == []


def test_function_names_are_unique(package):
    assert repeated_function_names(package) == []


def test_methods_stand_in_classes(package):
    assert methods_outside_of_classes(package) == []


# ------------------------------------------------------------------------------
# They catch who breaks them, and nobody else
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("base.py", "from skebm._validation import check"),
        ("distributions.py", "from . import energies"),
        ("distributions.py", "def f():\n    import skebm.energies.rbm"),
        ("samplers/gibbs.py", "from ..energies.rbm import BernoulliRBM"),
        ("partition/exact.py", "from skebm import objectives"),
        ("estimators/rbm.py", "from skebm import __version__"),
        ("novel.py", ""),
    ],
)
def test_a_wrong_layer_is_caught(path, source):
    house = {
        "__init__.py": "from skebm.energies import BernoulliRBM",
        "_validation.py": "from skebm.base import Energy",
        "base.py": "import torch",
        "energies/__init__.py": "from .rbm import BernoulliRBM",
        "energies/rbm.py": "from ..base import Energy\nfrom skebm import base, distributions",
        "distributions.py": "",
        "objectives/__init__.py": "",
    }
    assert layer_violations(house) == []
    (violation,) = layer_violations(house | {path: source})
    assert violation.startswith(path)


def test_a_cycle_is_caught():
    house = {
        "samplers/__init__.py": "from skebm.samplers.gibbs import Gibbs",
        "samplers/gibbs.py": "from .blocks import sweep",
        "samplers/blocks.py": "import torch",
    }
    assert import_cycles(house) == []
    (cycle,) = import_cycles(house | {"samplers/blocks.py": "def f():\n    from . import Gibbs"})
    for name in ("skebm.samplers", "skebm.samplers.gibbs", "skebm.samplers.blocks"):
        assert name in cycle.split(" imports ")


def test_skorch_elsewhere_is_caught():
    house = {
        "training/engine.py": "from skorch import NeuralNet",
        "estimators/rbm.py": "import torch\ndef f():\n    import skorch.callbacks",
    }
    (violation,) = skorch_violations(house)
    assert violation.startswith("estimators/rbm.py:3 imports skorch.callbacks")


def test_a_private_sklearn_name_is_caught():
    house = {
        "_validation.py": "from sklearn.base import _fit_context",
        "base.py": "from sklearn.base import BaseEstimator, _fit_context",
        "distributions.py": "import sklearn.utils._param_validation as p\n"
        "from sklearn import __version__",
    }
    assert [violation.split(", ")[0] for violation in private_sklearn_violations(house)] == [
        "base.py:1 imports sklearn.base._fit_context",
        "distributions.py:1 imports sklearn.utils._param_validation",
    ]


def test_an_eager_matplotlib_is_caught():
    house = {
        "inspection.py": "class D:\n    def plot(self):\n        import matplotlib.pyplot as plt",
        "metrics.py": "try:\n    from matplotlib import pyplot\nexcept ImportError:\n    pass",
    }
    (violation,) = matplotlib_violations(house)
    assert violation.startswith("metrics.py:2 imports matplotlib.pyplot")


def test_a_long_function_is_caught():
    def function(n_lines):
        return 'def f(x):\n    """One.\n\n    Two.\n    """\n' + "    x += 1\n" * n_lines

    assert length_violations({"base.py": function(MAX_BODY_LINES)}) == []
    assert length_violations({"base.py": function(MAX_BODY_LINES + 1)}) == [
        f"base.py:1 f has {MAX_BODY_LINES + 1} lines, above {MAX_BODY_LINES}",
    ]


def test_a_crowded_folder_is_caught():
    house = {f"samplers/s{k}.py": "" for k in range(MAX_NAMES)}
    assert crowded_folders(house) == []
    (violation,) = crowded_folders(house | {"samplers/more/__init__.py": ""})
    assert violation.startswith("samplers holds")


def test_a_repeated_class_name_is_caught():
    house = {
        "samplers/gibbs.py": "class Gibbs:\n    pass",
        "estimators/rbm.py": "def f():\n    class Settings:\n        pass",
    }
    assert repeated_class_names(house) == []
    (violation,) = repeated_class_names(house | {"partition/exact.py": "class Settings: ..."})
    assert violation == "Settings is defined at estimators/rbm.py:2 and partition/exact.py:1"


def test_a_repeated_function_name_is_caught():
    house = {
        "samplers/gibbs.py": "def sweep(x): ...\nclass Gibbs:\n    def draw(self): ...",
        "estimators/rbm/drawing.py": "def sample(energy): ...\ndef _draw(x): ...",
        "estimators/neural/model.py": "class Mixin:\n    def sample(self): ...\ndef _draw(x): ...",
        "partition/exact.py": "def draw(x):\n    def sweep(): ...",
    }
    assert repeated_function_names(house) == []
    (violation,) = repeated_function_names(house | {"base/domains.py": "async def sweep(): ..."})
    assert violation.startswith("sweep is defined at samplers/gibbs.py:1 and base/domains.py:1")


def test_a_method_outside_of_a_class_is_caught():
    house = {
        "estimators/model.py": "class Mixin:\n    def sample(self): ...\ndef draw(energy): ..."
    }
    assert methods_outside_of_classes(house) == []
    (violation,) = methods_outside_of_classes(house | {"methods.py": "def sample(self): ..."})
    assert violation.startswith("methods.py:1 sample takes self")
