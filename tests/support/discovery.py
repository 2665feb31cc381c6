"""Find every part of skebm, so that one without a contract cannot slip in."""

import ast
import functools
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import skebm
from tests.support.sources import modules, parsed

ROOT = Path(skebm.__file__).parents[1]


def module_names():
    """All modules of skebm, without those in the form of a package that is not installed."""
    for module in pkgutil.walk_packages(skebm.__path__, "skebm."):
        if is_installed(module.name):
            yield module.name


def is_installed(module):
    """Whether the package is installed that a module of skebm.integrations has the name of."""
    package, _, name = module.rpartition(".")
    return package != "skebm.integrations" or importlib.util.find_spec(name) is not None


@functools.cache
def import_all():
    for name in module_names():
        importlib.import_module(name)


def walk(base_class):
    """Yield every concrete subclass of `base_class` defined in skebm, by qualified name."""
    import_all()
    found = {c for c in _descendants(base_class) if c.__module__.split(".")[0] == "skebm"}
    # Sorted: pytest-xdist needs the same order in every worker.
    for cls in sorted(found, key=lambda c: (c.__module__, c.__qualname__)):
        if not inspect.isabstract(cls):
            yield cls


def _descendants(cls):
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


def without_case(base_class, cases, table):
    """What to add to `cases`, the table of that name, keyed by class: none is to be missing."""
    return [
        f"{cls.__qualname__} of {cls.__module__} has no entry in {table}: add one."
        for cls in walk(base_class)
        if cls not in cases
    ]


def names_in(source):
    """Names that a module gives to its parts, and their lines: none that begin with _.

    Classes, functions, parameters, fields and attributes; local variables are not among them.
    """
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if not name.startswith("_"):
            yield name, node.lineno


def setting_of_docs(name):
    """What the configuration of the documentation sets a name to."""
    for node in ast.walk(ast.parse((ROOT / "docs" / "conf.py").read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def public_names():
    """Yield every name in skebm, those of its files too, and where it stands."""
    for path, source in modules().items():
        where = f"skebm/{path}"
        yield Path(path).stem, where
        for name, line in names_in(source):
            yield name, f"{where}:{line}"
