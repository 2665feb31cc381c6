"""Searches of scikit-learn: one summary, or each kind of warning once."""

import warnings
from types import FunctionType

import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, _search, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity
from skebm.base import DataWarning, TrainingWarning
from skebm.base.processes.searches import first_of
from tests.support.tiers import full

X = np.random.default_rng(0).normal(size=(40, 2))
# An estimator whose calls are those of skebm, and take no time.
SOURCE = """
from sklearn.base import BaseEstimator
from skebm.base import DataWarning, TrainingWarning
from skebm.base.processes import inside, warn

class Diverging(BaseEstimator):
    def __init__(self, learning_rate=1.0):
        self.learning_rate = learning_rate

    @inside
    def fit(self, X, y=None):
        warn(f"{X.size} entries are wrong.", DataWarning)
        if self.learning_rate > 10:
            rate = self.learning_rate / 2
            message = f"Training diverged (first at epoch {rate})."
            remedy = f"Set learning_rate to {rate}.", "learning_rate"
            warn(message, TrainingWarning, remedy)
        return self
"""
SKEBM = {"__name__": "skebm.diverging"}
exec(SOURCE, SKEBM)
MODEL = SKEBM["Diverging"](30.0)
GRID = {"learning_rate": [30.0, 60.0, 90.0]}


def no_score(model, X, y=None):
    return 0.0


def grid_search(model=MODEL, grid=GRID, **kwargs):
    return GridSearchCV(model, grid, cv=2, scoring=no_score, **kwargs)


def warnings_of(function, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    assert {one.filename for one in caught} <= {__file__}
    return [one for one in caught if one.category is TrainingWarning]


def test_a_search_ends_with_one_summary_that_names_candidates():
    search = grid_search()
    for _ in range(2):  # again in the next search
        (summary,) = warnings_of(search.fit, X)
        assert str(summary.message) == (
            "Fits of 3 of 3 candidates warned (learning_rate=30.0; learning_rate=60.0; "
            "learning_rate=90.0), most of them:\n"
            "Training diverged (first at epoch 15.0). Set learning_rate to 15.0."
        )


def test_a_search_over_a_pipeline_does_so_too():
    pipeline = make_pipeline(StandardScaler(), MODEL)
    grid = {f"diverging__{name}": values for name, values in GRID.items()}
    (summary,) = warnings_of(grid_search(pipeline, grid).fit, X)
    assert "3 of 3 candidates" in str(summary.message)


def test_no_private_name_of_scikit_learn_matters(monkeypatch):
    """Nor whether a search calls others of its methods, as successive halving does."""
    fit = _search._fit_and_score
    renamed = fit.__code__.replace(co_name="_fit_a_candidate")
    other = FunctionType(renamed, fit.__globals__, "other", fit.__defaults__)
    other.__kwdefaults__ = fit.__kwdefaults__
    monkeypatch.setattr(_search, "_fit_and_score", other)
    (summary,) = warnings_of(grid_search().fit, X)
    assert "Fits of 3 of 3 candidates warned (learning_rate=30.0;" in str(summary.message)
    halving = HalvingGridSearchCV(MODEL, GRID, cv=2, scoring=no_score, random_state=0)
    (summary,) = warnings_of(halving.fit, X)
    assert "Fits of 3 of" in str(summary.message)


def test_candidates_that_do_not_warn_are_not_counted():
    (summary,) = warnings_of(grid_search(grid={"learning_rate": [1e-4, 60.0]}, refit=True).fit, X)
    assert "Fits of 1 of 2 candidates warned (learning_rate=60.0)" in str(summary.message)
    assert warnings_of(grid_search(grid={"learning_rate": [1e-4]}).fit, X) == []


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_without_a_refit_each_kind_is_shown_once(n_jobs):
    searches = grid_search(refit=False, n_jobs=n_jobs)
    for function, *args in ((searches.fit, X), (cross_val_score, MODEL, X)):
        kwargs = {} if function == searches.fit else {"scoring": no_score, "n_jobs": n_jobs}
        (warning,) = warnings_of(function, *args, **kwargs)
        assert "Training diverged" in str(warning.message)


def test_a_search_within_cross_validation_shows_one_summary():
    (summary,) = warnings_of(cross_val_score, grid_search(), X, cv=2, scoring=no_score)
    assert "3 of 3 candidates" in str(summary.message)


def test_fits_of_the_program_itself_warn_each():
    assert len(warnings_of(lambda: [MODEL.fit(X) for _ in range(2)])) == 2


def test_data_are_warned_of_once_a_search_and_not_counted():
    with pytest.warns(DataWarning, match="entries are wrong") as caught:
        grid_search(grid={"learning_rate": [1.0, 2.0]}).fit(X)
    assert len(caught) == 1


def test_threads_show_each_kind_once():
    def fit():
        with joblib.parallel_config("threading"):
            grid_search(n_jobs=2).fit(X)

    with pytest.warns(TrainingWarning) as caught:
        fit()
    assert len(caught) <= 4


@full
def test_processes_show_each_kind_once(capfd):
    """A worker knows of no search around it, and the refit of its own fit alone."""
    model = ContrastiveDivergenceDensity(n_iter=1, batch_size=10, base=None, random_state=0)
    get_reusable_executor().shutdown()  # workers of earlier tests print where these began
    assert len(warnings_of(grid_search(model, n_jobs=2).fit, X)) == 1
    printed = capfd.readouterr().err
    assert 1 <= printed.count("TrainingWarning: Training diverged") <= 2


def test_names_of_candidates_are_cut():
    assert first_of(["a=1", "b=2"]) == "a=1; b=2"
    assert first_of([f"a={k}" for k in range(100)]).endswith("and 87 more")
    assert first_of(["a" * 100, "b=1"]) == "a" * 70 + " and 1 more"
