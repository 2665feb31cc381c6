"""Fits with missing entries in which a training that is compared, or an epoch, fails."""

import numpy as np
import pytest
import torch

from skebm import DeepBoltzmannMachine, RBMEstimator, SpikeSlabRBM
from skebm.estimators.rbm.choice import ValidationFits
from skebm.training.engine import EnergyNet
from skebm.training.guard import DivergenceError


def rows_with_holes(n=90, seed=0):
    """Numbers, a bit and a category, a fifth of which is missing."""
    random = np.random.default_rng(seed)
    level = random.integers(0, 3, n)
    numbers = np.array([[0.0, 3.0], [4.0, 1.0], [9.0, 2.0]])[level] + random.normal(size=(n, 2))
    X = np.column_stack([numbers, level, random.integers(0, 2, n)])
    X[random.random(X.shape) < 0.2] = np.nan
    return X


MODELS = {
    "mixed": lambda: RBMEstimator(
        3, base="auto", n_iter=12, categorical_features=[2], random_state=0
    ),
    "numbers": lambda: RBMEstimator(3, n_iter=12, random_state=0),
    "slabs": lambda: SpikeSlabRBM(3, n_iter=12, random_state=0),
    "deep": lambda: DeepBoltzmannMachine([3, 2], n_iter=12, random_state=0),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) for n in MODELS])
def test_an_epoch_that_fails_leaves_no_imputations_behind(name, monkeypatch):
    """The epoch is repeated from the completed rows before it, with the weights before it."""
    model, calls = MODELS[name](), []
    completed = EnergyNet._impute_batch

    def failing(self, batch, known, generator):
        found = completed(self, batch, known, generator)
        calls.append(1)
        if len(calls) % 7 == 3 and len(calls) < 40 and generator is self.generator:
            missing = ~known[batch.row_index]
            return found._replace(x=found.x.masked_fill(missing, torch.nan))
        return found

    monkeypatch.setattr(EnergyNet, "_impute_batch", failing)
    model.fit(rows_with_holes())
    assert model.n_restarts_ > 0
    assert np.isfinite(model.score_samples(rows_with_holes(seed=1))).all()
    for weight in model.energy_.parameters():
        assert torch.isfinite(weight).all()


@pytest.mark.parametrize(
    "n_failing",
    [
        pytest.param(1, marks=pytest.mark.full),
        pytest.param(99, marks=pytest.mark.full),
    ],
)
def test_a_trial_that_fails_loses(n_failing, monkeypatch):
    """It changes no rows that others start from, and where all fail the fit goes on without."""
    starts, train = [], EnergyNet.partial_fit
    begin = ValidationFits._initial_candidate

    def noting(self, *args):
        found = begin(self, *args)
        starts.append((id(found.recipe.base), found.rows.x.clone()))
        return found

    def failing(self, rows, *args, **kwargs):
        if len(starts) <= n_failing and self.n_assessments_ < 20:
            rows.x[~rows.known] = torch.nan
            raise DivergenceError("as if it had diverged")
        return train(self, rows, *args, **kwargs)

    monkeypatch.setattr(ValidationFits, "_initial_candidate", noting)
    monkeypatch.setattr(EnergyNet, "partial_fit", failing)
    monkeypatch.setattr("skebm.estimators.rbm.family.ENOUGH_STEPS", 20)
    model = RBMEstimator(categorical_features=[2], n_iter=20, random_state=0)
    model.fit(rows_with_holes(210))
    assert len(starts) > 2
    assert all(torch.isfinite(x).all() for _, x in starts)
    for base, x in starts:  # trials of one base start from the same completion
        assert all(torch.equal(x, other) for its, other in starts if its == base)
    assert np.isfinite(model.score_samples(rows_with_holes(seed=1))).all()
