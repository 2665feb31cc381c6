"""Fits as tasks: what does not depend on a scikit-learn that has callbacks."""

import contextlib

import pytest

from skebm.base.processes import as_task, begin_task, fit_of, parts_of_fit


class Old:
    """An estimator of a scikit-learn without callbacks."""

    _has_tasks = True

    @as_task
    def fit(self, X, y=None, sample_weight=None):
        self.running, (self.part,) = begin_task(3), parts_of_fit(["part"])
        return self


def test_nobody_is_told_without_callbacks_in_scikit_learn():
    model = Old().fit([[1.0]], None, [2.0])
    assert model.part is None
    assert model.running.part("epoch") is None
    assert not model.running.has_callbacks
    assert isinstance(fit_of(model.part, model), contextlib.nullcontext)


def test_a_task_is_that_of_the_call_that_runs():
    model = Old().fit(X=[[1.0]], sample_weight=[2.0])
    assert model.running.data == {
        "X": [[1.0]],
        "y": None,
        "metadata": {"sample_weight": [2.0]},
    }
    assert begin_task(1) is None
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'X'"):
        Old().fit()
    assert begin_task(1) is None
