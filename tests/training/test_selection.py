"""What held-out rows decide: models that are kept, epochs, and how many rows judge."""

import math
import re
import warnings

import numpy as np
import pytest
import torch

from skebm import ConditionalDensity, GatedRBM, RBMEstimator, TemporalRBM
from skebm.base import TrainingWarning
from skebm.base.processes import collect_warnings
from skebm.training.selection import (
    LEAST_ERRORS,
    Gain,
    epochs_by_halves,
    is_kept,
    is_worth_a_warning,
    most_likely_epoch,
    n_held_out,
    paired_gain,
    warn_of_base,
)


@pytest.mark.parametrize(
    ("gain", "error", "of_all_rows", "kept"),
    [
        (1.0, 0.1, 0.0, True),
        (0.1, 1.0, 0.0, False),
        (0.1, 0.1, 0.09, False),
        (0.0, 0.0, 0.0, False),  # the model is the base
        (math.nan, 0.1, 0.0, False),
        (-math.inf, 0.0, 0.0, False),
        (math.inf, 0.0, 0.0, True),
    ],
)
def test_models_are_kept_for_what_they_gain(gain, error, of_all_rows, kept):
    assert is_kept(Gain(gain, error), of_all_rows) is kept


def test_the_criterion_moves_with_the_error():
    error = 0.2
    least = LEAST_ERRORS * error
    assert is_kept(Gain(least + 1e-9, error))
    assert not is_kept(Gain(least - 1e-9, error))


def test_gains_of_trials_that_diverged():
    one, lost = torch.zeros(4, dtype=torch.float64), torch.full((4,), -math.inf).double()
    weight = torch.ones(4, dtype=torch.float64)
    assert paired_gain(lost, one, weight).gain == -math.inf
    assert paired_gain(one, lost, weight).gain == math.inf
    assert paired_gain(one + 1, one, weight) == (1.0, 0.0)


def test_epochs_are_chosen_where_all_curves_extend():
    curves = [
        {1: Gain(0.1, 0.3), 2: Gain(0.5, 0.3), 3: Gain(9.0, 0.3)},
        {1: Gain(0.2, 0.4), 2: Gain(0.4, 0.4)},
    ]
    epoch, gain = most_likely_epoch(curves)
    assert epoch == 2
    assert gain == pytest.approx((0.45, 0.25))
    assert most_likely_epoch([]) is None
    assert most_likely_epoch([{}, {1: Gain(1.0, 0.1)}]) is None


def test_diverged_halves_choose_no_epochs():
    rows = RBMEstimator(2, n_iter=0, random_state=0).fit(np.eye(30))._rows(np.eye(30))
    assert epochs_by_halves(lambda train, held_out: {}, rows, torch.Generator(), 9) == 0


@pytest.mark.parametrize(
    ("gains", "epochs"),
    [
        ({1: 0.5, 5: 1.0, 9: 0.9}, 5),
        ({1: 0.5, 5: 1.0, 9: 1.1}, 9),
        ({1: -0.1, 5: -0.5, 9: -0.1}, 0),
        ({1: 0.5, 3: 0.6}, 9),  # both converged
    ],
)
def test_halves_choose_the_number_of_epochs(gains, epochs):
    rows = RBMEstimator(2, n_iter=0, random_state=0).fit(np.eye(30))._rows(np.eye(30))
    curve = {epoch: Gain(gain, 0.1) for epoch, gain in gains.items()}
    assert epochs_by_halves(lambda train, held_out: curve, rows, torch.Generator(), 9) == epochs


def test_a_tenth_is_held_out_and_more_of_few():
    found = [n_held_out(n, 200) for n in (19, 20, 50, 100, 200, 500, 5000)]
    assert found == [0, 4, 10, 20, 20, 50, 200]


def noise(n=240):
    """Columns that do not depend on each other, nor on the frames before."""
    return np.random.default_rng(0).normal(size=(n, 3))


MODELS = {
    "rbm": lambda: RBMEstimator(4, base="gaussian", n_iter=3, random_state=0),
    "conditional": lambda: ConditionalDensity([0], base="linear", n_iter=3, random_state=0),
    "gated": lambda: GatedRBM(4, 4, n_iter=3, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_gain_too_little_are_their_base(name, monkeypatch):
    """One criterion in all families, and a warning where as much as 0.1 nats may be missed."""
    asked = []

    def never(found, of_all_rows=0.0):
        asked.append((found, of_all_rows))
        return False

    monkeypatch.setattr("skebm.estimators.recipe.is_kept", never)
    X, model = noise(), MODELS[name]()
    pair = (X[:, :2], X[:, 2:]) if name == "gated" else (X,)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*pair)
    of_base = [one for one in caught if re.search("is its base|no more likely", str(one.message))]
    plain = MODELS[name]().set_params(n_iter=0).fit(*pair)
    assert len(asked) == 1
    assert np.isfinite(asked[0][0].gain)
    assert name == "rbm" or len(of_base) == is_worth_a_warning(asked[0][0])
    np.testing.assert_allclose(model.score_samples(*pair), plain.score_samples(*pair), atol=0.02)


@pytest.mark.parametrize(
    ("gain", "error", "warns"), [(0.0, 0.05, False), (0.0, 0.2, True), (-1.0, 0.01, True)]
)
def test_a_base_that_hardly_differs_is_not_warned_of(gain, error, warns):
    with collect_warnings() as caught:
        warn_of_base(Gain(gain, error))
    assert [one.category for one in caught] == [TrainingWarning] * warns


def test_frames_that_do_not_depend_on_the_past_leave_the_base():
    model = TemporalRBM(4, order=1, n_iter=3, random_state=0)
    model.fit(noise(600))
    assert not model.components_.any()
