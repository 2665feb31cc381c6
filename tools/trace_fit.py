"""What runs in a fit: ``python -m tools.trace_fit`` prints it for three estimators.

For each of them the classes of skebm above it, the number of its parameters, the files of skebm
that execute in `fit` and in `score_samples`, and calls from a base class up into a subclass: what
a reader has to follow. ``tests/tools/test_trace_fit.py`` keeps the numbers small.
"""

import collections
import functools
import inspect
import os
import sys
import warnings
from typing import NamedTuple

import numpy as np

import skebm
from skebm import ContrastiveDivergenceDensity, JEMClassifier, RBMEstimator

ROOT = os.path.dirname(skebm.__file__) + os.sep


class Calls(NamedTuple):
    """Files that were executed, and calls from a method of a class to one of its subclass."""

    files: frozenset[str]
    upward: frozenset[tuple[str, str]]


def traced(function, root=ROOT, package="skebm.estimators"):
    """Run a function; the files below `root` that it ran, upward calls of classes of `package`."""
    files, upward = set(), set()

    def record(frame, event, arg):
        if event != "call" or not frame.f_code.co_filename.startswith(root):
            return
        files.add(frame.f_code.co_filename.removeprefix(root))
        own, caller = frame.f_locals.get("self"), frame.f_back
        if own is None or not type(own).__module__.startswith(package) or caller is None:
            return
        if not caller.f_code.co_filename.startswith(root) or caller.f_locals.get("self") is not own:
            return
        owners = owners_of(type(own))
        above, below = owners.get(caller.f_code), owners.get(frame.f_code)
        if above and below and below is not above and issubclass(below, above):
            upward.add((f"{above.__name__}.{caller.f_code.co_name}", frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(before)
    return Calls(frozenset(files), frozenset(upward))


@functools.cache
def owners_of(cls):
    """The class that each method of `cls` is written in, by code object."""
    found = {}
    for owner in reversed(cls.__mro__):
        for value in vars(owner).values():
            for part in (value, getattr(value, "fget", None), getattr(value, "fset", None)):
                method = inspect.unwrap(part) if callable(part) else part
                method = getattr(method, "__func__", method)
                if inspect.isfunction(method):
                    found[method.__code__] = owner
    return found


def own_classes(cls):
    """Classes of skebm among the bases of a class, itself included."""
    return [c for c in cls.__mro__ if c.__module__.split(".")[0] == "skebm"]


class Case(NamedTuple):
    """An estimator, and what it is fitted to."""

    estimator: object
    X: np.ndarray
    y: np.ndarray | None = None


def cases(n_iter=2):
    """A restricted Boltzmann machine, a neural density, a classifier: 220 rows of 4 columns."""
    X = np.random.default_rng(0).standard_normal((220, 4))
    kind = {"n_iter": n_iter, "random_state": 0}
    return {
        "RBMEstimator": Case(RBMEstimator(8, **kind), (X > 0).astype(float)),
        "ContrastiveDivergenceDensity": Case(ContrastiveDivergenceDensity(**kind), X),
        "JEMClassifier": Case(JEMClassifier(**kind), X, (X[:, 0] > 0).astype(int)),
    }


def trace(case):
    """What `fit` calls, and then `score_samples`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = traced(lambda: case.estimator.fit(case.X, case.y))
        score = traced(lambda: case.estimator.score_samples(case.X[:5]))
    return fit, score


def main():
    for name, case in cases().items():
        fit, score = trace(case)
        classes = [cls.__name__ for cls in own_classes(type(case.estimator))]
        n_parameters = len(case.estimator.get_params(deep=False))
        print(f"{name}: {n_parameters} parameters, classes {', '.join(classes)}")
        for what, calls in (("fit", fit), ("score_samples", score)):
            print(f"  {what}: {len(calls.files)} files")
            folders = collections.defaultdict(list)
            for file in sorted(calls.files):
                folder, _, module = file.rpartition(os.sep)
                folders[folder].append(module.removesuffix(".py"))
            for folder, modules in folders.items():
                print(f"    {folder or 'skebm'}: {', '.join(modules)}")
            for caller, called in sorted(calls.upward):
                print(f"    up: {caller} calls {called}")


if __name__ == "__main__":
    main()
