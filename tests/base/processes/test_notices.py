"""Where warnings point to."""

import linecache
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity, _validation
from skebm.base.processes import notices


def test_warnings_point_to_the_line_of_the_program():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = ContrastiveDivergenceDensity(learning_rate=30.0, n_iter=1, base=None, random_state=0)
    for fitted in (model, make_pipeline(StandardScaler(), model)):
        with pytest.warns(ConvergenceWarning) as caught:
            fitted.fit(X)
        assert {Path(warning.filename) for warning in caught} == {Path(__file__)}
        assert "fitted.fit(X)" in linecache.getline(__file__, caught[0].lineno)


def test_processes_without_a_program_of_their_own_warn(monkeypatch):
    class Everything:
        def __contains__(self, name):
            return True

    monkeypatch.setattr(notices, "BETWEEN", Everything())
    with pytest.warns(UserWarning, match="a worker"):
        _validation.warn("a worker says so")
