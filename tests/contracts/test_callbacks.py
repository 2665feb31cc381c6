"""Callbacks of scikit-learn follow the fits of every estimator, and change nothing of them."""

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from skebm import (
    BoostedDensity,
    DeepBeliefNetwork,
    EnergyOutlierDetector,
    JEMClassifier,
    NCEDensity,
    RBMEstimator,
)
from skebm.base.processes import TasksMixin, collect_warnings
from skebm.energies import MLP
from skebm.estimators.storage.nets import arrays_of
from tests.support.discovery import without_case
from tests.support.estimators import BITS, FITS, LABELS, REAL, few, small
from tests.support.tiers import full

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")


class Follower:
    """Records what it is told, and the estimators that tasks end with."""

    def __init__(self):
        self.told, self.ended = [], []

    def setup(self, estimator, context):
        self.told.append(("setup", context.estimator_name))

    def on_fit_task_begin(self, estimator, context):
        self.told.append(("begin", context.task_name))
        self.n_tasks = context.max_subtasks

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.told.append(("end", context.task_name))
        self.ended.append((context.task_name, fitted_estimator))
        return False

    def teardown(self, estimator, context):
        self.told.append(("teardown", context.estimator_name))


class Everywhere(Follower):
    max_propagation_depth = None


class Failing(Follower):
    def on_fit_task_end(self, estimator, context):
        raise OSError("disk full")


class Interrupting(Follower):
    """Ctrl-C in the second epoch, at a line that raises nothing."""

    def on_fit_task_begin(self, estimator, context):
        super().on_fit_task_begin(estimator, context)
        if len(self.told) == 5:
            interrupt()


def interrupt():
    raise KeyboardInterrupt


def followed(model, follower, *args):
    """An unfitted copy of a model, fitted with a callback."""
    with collect_warnings():
        return clone(model).set_callbacks(follower).fit(*args)


def learned(model):
    """A hash of the weights of a net, or of what a model without one says of rows."""
    if hasattr(model, "net_"):
        state = model.net_.training_state()
        del state["history"]  # which has seconds
        return joblib.hash(arrays_of(state))
    says = next(n for n in ("score_samples", "transform", "predict") if hasattr(model, n))
    return joblib.hash(getattr(model, says)(FITS[type(model)][1]))


def test_every_estimator_has_a_case():
    assert without_case(TasksMixin, FITS, "FITS in tests/support/estimators.py") == []


@pytest.mark.parametrize("cls", FITS, ids=lambda cls: cls.__name__)
def test_fit_tells_its_tasks_and_is_the_same(cls):
    (case, *args), name = FITS[cls], cls.__name__
    follower = Follower()
    model = followed(case, follower, *args)
    (first, *tasks, last) = follower.told
    assert (first, last) == (("setup", name), ("teardown", name))
    assert (tasks[0], tasks[-1]) == (("begin", "fit"), ("end", "fit"))
    parts = [name for what, name in tasks[1:-1] if what == "end"]
    fitted = [one for name, one in follower.ended if name == "epoch"]
    check_is_fitted(follower.ended[-1][1])
    if hasattr(model, "n_iter_") and not isinstance(model, BoostedDensity):  # trees at once
        assert parts == ["epoch"] * model.n_iter_
        assert [one.n_iter_ for one in fitted] == list(range(1, model.n_iter_ + 1))
        assert all(one.net_ is not model.net_ for one in fitted)
    assert not [key for key in vars(model) if "callback" in key and key != "_skl_callbacks"]
    with collect_warnings():
        plain = clone(case).fit(*args)
    assert learned(model) == learned(plain)


@pytest.mark.parametrize("cls", FITS, ids=lambda cls: cls.__name__)
def test_failed_fit_ends_its_callbacks_and_changes_nothing(cls):
    case, *args = FITS[cls]
    follower, model = Failing(), clone(case)
    model.set_callbacks(follower)
    before = dict(vars(model))
    with pytest.raises(OSError, match="disk full"), collect_warnings():
        model.fit(*args)
    assert vars(model) == before
    assert follower.told[-1] == ("teardown", cls.__name__)


def test_epochs_end_with_the_model_of_an_interruption():
    class Kept(Follower):
        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            self.ended.append(fitted_estimator)
            return len(self.ended) == 2

    follower, case = Kept(), NCEDensity(n_iter=6, random_state=0, network=MLP((8,)))
    model = followed(case, follower, REAL)
    assert model.n_iter_ == 2  # as the callback asked for
    stopped = follower.ended[1]
    assert stopped.threshold_ == pytest.approx(model.threshold_)
    np.testing.assert_allclose(stopped.energy(REAL), model.energy(REAL))
    assert not np.allclose(follower.ended[0].energy(REAL), model.energy(REAL))


def test_interrupted_fit_ends_with_a_usable_model():
    follower = Interrupting()
    model = RBMEstimator(3, **few).set_callbacks(follower)
    with pytest.raises(KeyboardInterrupt), collect_warnings():
        model.fit(BITS)
    assert model.n_iter_ == 2
    assert follower.told[-2:] == [("end", "fit"), ("teardown", "RBMEstimator")]
    follower = Follower()
    followed(model, follower, BITS)
    assert follower.told.count(("end", "epoch")) == 2


def test_partial_fit_is_a_task_of_one_epoch():
    follower = Follower()
    model = RBMEstimator(3, random_state=0).set_callbacks(follower)
    for _ in range(2):
        model.partial_fit(BITS)
        assert follower.n_tasks == 0
    assert follower.told.count(("end", "epoch")) == 2
    assert follower.told.count(("teardown", "RBMEstimator")) == 2


def test_pipeline_and_search_reach_the_epochs():
    follower = Everywhere()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), NCEDensity(noise="gaussian", **small)),
        {"ncedensity__n_iter": [1, 3]},
        cv=2,
    )
    search.set_callbacks(follower).fit(REAL)
    best = search.best_params_["ncedensity__n_iter"]
    assert follower.told.count(("end", "epoch")) == 2 * (1 + 3) + best
    assert follower.told.count(("setup", "GridSearchCV")) == 1
    assert "_skl_callbacks" not in vars(search.best_estimator_[-1])


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=full)])
def test_scores_are_monitored_in_workers_too(n_jobs):
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = JEMClassifier(**small).set_callbacks(monitor)
    search = GridSearchCV(model, {"n_iter": [2]}, cv=2, n_jobs=n_jobs).fit(REAL, LABELS)
    rows = monitor.get_logs().data
    refit = min(rows, key=lambda row: len(row["task_id_path"]))
    assert len([row for row in rows if row["task_name"] == "epoch"]) == 2 * 2 + 2
    assert refit["accuracy"] == search.best_estimator_.score(REAL, LABELS)


def test_detector_and_network_tell_of_the_fits_within():
    follower = Everywhere()
    detector = EnergyOutlierDetector(NCEDensity(**small), random_state=0)
    followed(detector, follower, REAL)
    assert follower.told.count(("end", "epoch")) == 2
    follower = Everywhere()
    network = DeepBeliefNetwork((3, 2), rbm=RBMEstimator(n_iter=2), random_state=0)
    followed(network, follower, BITS)
    assert follower.told.count(("end", "epoch")) == 2 * 2
    assert len([one for one in follower.told if one[0] == "setup"]) == 1
