"""What a reader has to follow from one file to the next in a fit stays little."""

import functools
import os

import pytest

from skebm.estimators.base import BaseEBM
from tools.trace_fit import cases, trace, traced

# An RBM codes categories before they are validated.
HOOKS = BaseEBM.__abstractmethods__ | {"_validate", "_energies"}
MOST_HOOKS = 5
# Files of skebm that execute in `fit` and in `score_samples`; three of a neural density are the
# parts of its base (Gaussian mixtures, kernels and the stack), one is of all classifiers. The guard
# of training is a file beside the engine, so that what knows of it does not import skorch, one
# asks whether other processes take part, and two whether X is in a file or comes in blocks. Of an
# RBM one file has its hidden units. Of a neural density three are the body of all, what all
# objectives share, and its own objective. Of a table one is its kinds of columns, one their units.
# The record of what a fit determines is a file for all families, beside one of each.
# Warnings of a fit take two: one collects them, one asks whether a search is running. One tells
# callbacks of scikit-learn of a fit and its epochs. Scores take one: are entries missing?
MOST_FILES = {
    "RBMEstimator": (40, 24),
    "ContrastiveDivergenceDensity": (52, 33),
    "JEMClassifier": (54, 33),
}
each_estimator = pytest.mark.parametrize("name", MOST_FILES)


@functools.cache
def calls(name):
    trace(cases(n_iter=1)[name])  # what is computed once in a process is left out
    return trace(cases(n_iter=1)[name])


@each_estimator
def test_base_classes_call_few_hooks_of_their_subclasses(name):
    assert len(HOOKS) <= MOST_HOOKS
    for found in calls(name):
        assert {called for _, called in found.upward} <= HOOKS, found.upward


@each_estimator
def test_few_files_execute(name):
    for found, most in zip(calls(name), MOST_FILES[name], strict=True):
        assert len(found.files) <= most, sorted(found.files)


class Base:
    """A class whose method calls one of its subclass, once."""

    def run(self):
        return self.hook() + self.own()

    def own(self):
        return 1

    @property
    def number(self):
        return 2


class Derived(Base):
    def hook(self):
        return super().number

    @property
    def number(self):
        return 3

    def start(self):
        return self.run() + self.own()


def test_a_call_up_into_a_subclass_is_seen():
    found = traced(Derived().start, root=os.path.dirname(__file__), package=__name__)
    assert found.files == {os.sep + os.path.basename(__file__)}
    assert found.upward == {("Base.run", "hook")}
