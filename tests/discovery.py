"""Find every part of skebm, so that one without a contract cannot slip in."""

import importlib
import inspect
import pkgutil

import skebm


def walk(base_class):
    """Yield every concrete subclass of `base_class` defined in skebm, by qualified name."""
    for module in pkgutil.walk_packages(skebm.__path__, "skebm."):
        importlib.import_module(module.name)
    found = {c for c in _descendants(base_class) if c.__module__.split(".")[0] == "skebm"}
    # Sorted: pytest-xdist needs the same order in every worker.
    for cls in sorted(found, key=lambda c: (c.__module__, c.__qualname__)):
        if not inspect.isabstract(cls):
            yield cls


def _descendants(cls):
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


def without_case(base_class, cases):
    """Names of the concrete subclasses of `base_class` that `cases`, keyed by class, lacks."""
    return [cls.__qualname__ for cls in walk(base_class) if cls not in cases]
