"""No argument removes what guards a fit: a model is never clearly below its base."""

import numpy as np
import pytest
from sklearn.base import clone

from skebm import (
    ConditionalDensity,
    DeepBoltzmannMachine,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
)
from skebm.base import TrainingWarning
from skebm.training.selection import WORTH_A_WARNING
from tests.support.tiers import full, only_full

_random = np.random.default_rng(0)
BITS = (_random.random((260, 6)) < 0.3 + 0.4 * _random.integers(0, 2, (260, 1))) * 1.0
NUMBERS = _random.normal(size=(260, 4))
ARGUMENTS = {
    "rate": {"learning_rate": 0.5},
    "batch": {"batch_size": 5},
    "epochs": {"n_iter": 3},
    "early_stopping": {"early_stopping": True},
    "together": {"learning_rate": 0.5, "batch_size": 5, "n_iter": 3},
}
MODELS = {
    RBMEstimator(3, base="independent", learning="pcd", n_iter=2): BITS,
    SubspaceRBM(2, 2, base="independent", learning="pcd", n_iter=2): BITS,
    SpikeSlabRBM(2, base="independent", n_iter=2): NUMBERS,
    DeepBoltzmannMachine((3, 2), n_iter=2): BITS,
    TemporalRBM(2, order=1, n_iter=2): BITS,
    ConditionalDensity(given=0, base="linear", n_iter=2): NUMBERS,
    ScoreMatchingDensity(base="gaussian", n_iter=2): NUMBERS,
    NCEDensity(noise="gaussian", n_iter=2): NUMBERS,
}


@pytest.mark.filterwarnings("ignore::skebm.base.TrainingWarning")
@pytest.mark.filterwarnings("ignore::skebm.base.SettingWarning")
@pytest.mark.parametrize(
    "name", [name if name == "together" else only_full(name) for name in ARGUMENTS]
)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_no_argument_removes_the_rows_that_guard(model, name):
    net = clone(model).set_params(random_state=0, **ARGUMENTS[name]).fit(MODELS[model]).net_
    rows = net.held_out_ if net.judges_ is None else net.judges_[0]
    assert rows is not None
    assert len(rows) >= 20


@pytest.mark.parametrize(
    "model",
    [*list(MODELS)[:1], *(only_full(model) for model in list(MODELS)[1:])],
    ids=lambda model: type(model).__name__,
)
def test_time_ends_every_fit(model):
    x = MODELS[model]
    model = clone(model).set_params(random_state=0, n_iter=10_000, optimizer__max_time=0.05)
    with pytest.warns(TrainingWarning, match="after max_time=0.05 seconds"):
        model.fit(x)
    assert 1 <= model.n_iter_ < 10_000
    assert np.isfinite(model.score_samples(x[:5])).all()


def independent_bits(n, d, seed):
    random = np.random.default_rng(seed)
    p = np.random.default_rng(d).uniform(0.05, 0.95, d)
    return (random.random((n, d)) < p) * 1.0


def loss_against_base(model, x):
    """Nats that rows lose against the base, and the standard error."""
    rows = model._rows(x)
    of_base = rows.map(lambda some: model.base_.log_prob(some).double(), x.shape[1]).numpy()
    lost = of_base - model.score_samples(x)
    return lost.mean(), lost.std() / np.sqrt(len(x))


@pytest.mark.filterwarnings("ignore::skebm.base.TrainingWarning")
@pytest.mark.parametrize(
    ("n", "given"),
    [
        (300, {"learning_rate": 1.0, "batch_size": 5, "n_iter": 3}),
        (100, {"learning_rate": 1.0, "learning": "pcd"}),
        (30, {"learning": "exact"}),
        only_full(300, {"learning": "exact"}),
        only_full(300, {"learning_rate": 1.0, "n_iter": 30}),
        only_full(100, {"learning_rate": 1.0, "learning": "cd"}),
        only_full(300, {"early_stopping": True, "learning_rate": 1.0, "n_iter": 30}),
        only_full(300, {"batch_size": 5, "n_iter": 30, "learning": "exact"}),
    ],
)
def test_no_argument_leaves_a_model_below_its_base(n, given):
    x, new = independent_bits(n, 9, 0), independent_bits(2000, 9, 1)
    model = RBMEstimator(64, base="independent", random_state=0, **given).fit(x)
    lost, error = loss_against_base(model, new)
    assert lost <= 2 * error + WORTH_A_WARNING  # less is as good a model of so few rows


@full
def test_the_base_that_a_model_is_equals_it():
    x = independent_bits(300, 20, 0)
    with pytest.warns(match="base|rolled back"):
        model = RBMEstimator(64, learning_rate=1.0, n_iter=1, random_state=0).fit(x)
    assert abs(loss_against_base(model, x)[0]) < 1e-3
