"""Log-likelihoods beside simple densities, against closed forms."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

from skebm import (
    BoltzmannMachineDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
)
from skebm.inspection import report
from skebm.inspection.reports.comparison import likelihoods
from skebm.inspection.reports.subject import Subject

rng = np.random.default_rng(0)
BITS = (rng.random((300, 4)) < [0.1, 0.5, 0.8, 0.3]).astype(float)
NUMBERS = rng.normal(size=(400, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 1]])


def compared(model, X, **more):
    found = likelihoods(Subject(model, X[:200], X[200:], None, 0))
    return found, {one.name: one for one in found.rivals}


def test_independent_bits_are_those_of_their_shares():
    model = RBMEstimator(2, n_iter=2, base="independent", random_state=0).fit(BITS[:200])
    found, rivals = compared(model, BITS)
    share = (BITS[:200].sum(0) + 0.5) / 201
    expected = np.where(BITS[200:] == 1, np.log(share), np.log1p(-share)).sum(1)
    own = model.score_samples(BITS[200:])
    one = rivals["independent columns"]
    assert one.mean == pytest.approx(expected.mean(), abs=1e-6)
    assert found.mean == pytest.approx(own.mean(), abs=1e-6)
    gain = own - expected
    assert one.gain == pytest.approx(gain.mean(), abs=1e-5)
    assert one.gain_error == pytest.approx(gain.std(ddof=1) / 10, abs=1e-5)


def test_a_model_that_is_its_base_gains_nothing():
    model = ScoreMatchingDensity(base="gaussian", n_iter=0, random_state=0).fit(NUMBERS[:200])
    _, rivals = compared(model, NUMBERS)
    assert rivals["its base"].gain == pytest.approx(0, abs=1e-5)


def test_a_mixture_of_normals_is_near_that_of_scikit_learn():
    model = TractableDensity("gaussian").fit(NUMBERS[:200])
    _, rivals = compared(model, NUMBERS)
    theirs = GaussianMixture(1).fit(NUMBERS[:200]).score(NUMBERS[200:])
    assert rivals["a mixture of normals"].mean == pytest.approx(theirs, abs=0.05)
    alone = sum(
        stats.norm(*stats.norm.fit(NUMBERS[:200, j])).logpdf(NUMBERS[200:, j]).mean()
        for j in range(3)
    )
    assert rivals["independent columns"].mean == pytest.approx(alone, abs=0.05)


@pytest.mark.parametrize(
    "make",
    [lambda: TractableDensity("gaussian"), lambda: GaussianMixture(2, random_state=0)],
    ids=["ours", "scikit-learn's"],
)
def test_units_change_all_by_the_same(make):
    factor = np.array([10.0, 0.1, 1000.0])
    shift = np.log(factor).sum()
    (one, first), (other, second) = (
        compared(make().fit(X[:200]), X) for X in (NUMBERS, NUMBERS * factor)
    )
    assert other.mean == pytest.approx(one.mean - shift, abs=0.02)
    for name, rival in first.items():
        assert second[name].mean == pytest.approx(rival.mean - shift, abs=0.02)
        assert second[name].gain == pytest.approx(rival.gain, abs=0.02)


def test_missing_entries_are_left_out_of_all():
    X = np.where(np.random.default_rng(1).random(NUMBERS.shape) < 0.2, np.nan, NUMBERS)
    model = TractableDensity("gaussian", random_state=0).fit(X[:200])
    found, rivals = compared(model, X)
    assert found.mean == pytest.approx(model.score_samples(X[200:]).mean(), abs=1e-6)
    moments = [stats.norm(np.nanmean(x), np.nanstd(x)) for x in X[:200].T]
    alone = np.nansum([m.logpdf(x) for m, x in zip(moments, X[200:].T, strict=True)], 0)
    assert rivals["independent columns"].mean == pytest.approx(alone.mean(), abs=0.05)
    assert rivals["a mixture of normals"].mean > rivals["independent columns"].mean


def test_a_frame_with_levels_is_compared_with_latent_classes():
    random = np.random.default_rng(2)
    side = random.random(400) < 0.5
    frame = pd.DataFrame(
        {"size": random.normal(size=400) + 6 * side, "kind": np.where(side, "a", "b")}
    )
    model = TractableDensity(random_state=0).fit(frame[:200])
    _, rivals = compared(model, frame)
    gap = rivals["latent classes"].mean - rivals["independent columns"].mean
    assert gap == pytest.approx(np.log(2), abs=0.1)  # what either column says of the other


def test_log_z_that_is_exact_costs_nothing():
    model = BoltzmannMachineDensity(l2=0.01).fit(BITS[:200])
    found, _ = compared(model, BITS)
    assert found.pessimistic == pytest.approx(found.mean, abs=1e-6)


def test_rows_of_probability_zero_are_counted_and_left_out():
    model = RBMEstimator(2, n_iter=1, base="independent", random_state=0).fit(BITS[:200])
    kernels = KernelDensity(kernel="tophat", bandwidth=2.0).fit(NUMBERS[:200])
    far = np.concatenate([NUMBERS[200:], [[50.0, 0, 0]]])
    found = likelihoods(Subject(kernels, NUMBERS[:200], far, None, 0))
    assert found.n_impossible == np.isinf(kernels.score_samples(far)).sum() > 0
    assert "probability zero" in report(kernels, NUMBERS[:200], far).html
    assert likelihoods(Subject(model, BITS, BITS, None, 0)).n_impossible == 0
