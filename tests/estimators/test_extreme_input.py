"""Every estimator: numbers of extreme size, and settings that cannot be or have no effect."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    ProductOfDensities,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
    TractableDensity,
)
from skebm.base import torchtools
from skebm.distributions import Gaussian, GaussianMixture
from skebm.energies import MLP
from skebm.estimators import Discrepancy, Likelihood, Sliced
from skebm.objectives import Centering
from skebm.partition import (
    AIS,
    AISBracket,
    BridgeSampling,
    ConditionalAIS,
    ImportanceSampling,
    PerturbAndMAP,
)
from skebm.samplers import MALA, Gibbs, ParallelTempering, Persistent, ReplayBuffer
from skebm.training import SGD
from tests.support.tiers import about, full, leading, only_full

_random = np.random.default_rng(0)
X = _random.standard_normal((120, 2)) * [1.0, 3.0] + [0.0, 5.0]
Y = (X[:, 0] > 0).astype(int)
# No log Z: score_samples is -E.
SMALL = {"n_iter": 2, "partition": None, "random_state": 0}
NEURAL = {
    "jem": JEMClassifier(base="gaussian", **SMALL),
    "jem without base": JEMClassifier(base=None, sigma=0.1, **SMALL),
    "score matching": ScoreMatchingDensity(base="gaussian", **SMALL),
    "cd": ContrastiveDivergenceDensity(**SMALL),
    "nce": NCEDensity(**SMALL),
    "fce": FlowContrastiveDensity(n_flow_steps=5, **SMALL),
}


@functools.cache
def fitted(name):
    return NEURAL[name].fit(X, Y)


# ------------------------------------------------------------------------------
# Values beyond the precision
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("jem", "score matching") else full) for n in NEURAL]
)
@pytest.mark.parametrize("huge", [1e20, 4e38, -1e300])
def test_huge_values_get_a_number_or_an_error_that_names_them(name, huge):
    model, rows = fitted(name), X[:4].copy()
    rows[2, 1] = huge
    ends = {"energy": model.energy(rows), "score_samples": model.score_samples(rows)}
    assert ends["energy"][2] > 1e15
    assert ends["score_samples"][2] < -1e15
    for method in ("logits", "predict_proba", "decision_function", "score_function", "denoise"):
        if not hasattr(model, method):
            continue
        with about(method):
            try:
                found = getattr(model, method)(rows)
            except ValueError as error:
                message = str(error)
                for part in ("Row 2 of X", "column 1", 'dtype="float64"'):
                    assert part in message
            else:
                assert not np.isnan(found).any()


def test_a_classifier_has_no_class_for_what_it_cannot_compute():
    model, rows = fitted("jem"), X[:4].copy()
    rows[3, 0] = 4e38
    for method in ("predict", "predict_proba", "logits", "decision_function", "score_function"):
        with about(method), pytest.raises(ValueError, match="Row 3 of X.*column 0.*float32"):
            getattr(model, method)(rows)
    with pytest.raises(ValueError, match="Row 3 of X.*column 0"):
        model.joint_energy(rows, 0)
    assert np.isfinite(model.predict_proba(X * 1e10)).all()


def test_imputation_names_the_row_that_is_too_far():
    model, rows = fitted("score matching"), X[:5].copy()
    rows[1, 0], rows[3] = np.nan, [4e38, np.nan]
    with pytest.raises(ValueError, match="Row 3.*column 0"):
        model.impute(rows, random_state=0, n_steps=2)
    with pytest.raises(ValueError, match="column 0 lies too far"):
        model.sample(2, given=rows[3], random_state=0, n_steps=2)


def test_float64_computes_with_what_float32_cannot():
    model = JEMClassifier(dtype="float64", base="gaussian", **SMALL | {"n_iter": 0}).fit(X, Y)
    assert np.isfinite(model.predict_proba(X * 1e40)).all()
    assert np.isfinite(model.score_function(X * 1e40)).all()


def test_detectors_name_the_row_that_is_too_far():
    rows = X[:4].copy()
    rows[2, 1] = 4e38
    detector = EnergyOutlierDetector(NEURAL["jem"], statistic="max_proba").fit(X, Y)
    for method in ("predict", "decision_function"):
        with pytest.raises(ValueError, match="Row 2 of X"):
            getattr(detector, method)(rows)
    by_density = EnergyOutlierDetector(NEURAL["score matching"]).fit(X)
    assert by_density.predict(rows)[2] == -1
    with np.errstate(all="ignore"):
        explained = by_density.explain(rows[2:3])
    assert not np.isnan(explained.contributions).any()


# ------------------------------------------------------------------------------
# Columns with large means
# ------------------------------------------------------------------------------


def timestamps(dtype, mean=1.7e9):
    """Two columns that depend on each other, the first far from zero."""
    found = np.random.default_rng(0).standard_normal((300, 2))
    found[:, 1] += found[:, 0]
    return (found * [1e4, 1.0] + [mean, 0.0]).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "mean"), [(np.float32, 1.7e9), (np.float64, 1.7e9), (np.float64, 1.7e18)]
)
def test_columns_with_large_means_are_standardised(dtype, mean):
    rows = timestamps(dtype, mean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ScoreMatchingDensity(base="gaussian", n_iter=4, random_state=0).fit(rows)
    assert model.n_restarts_ == 0
    centre, scale, _ = model.units_
    assert scale[0] == pytest.approx(rows[:, 0].astype(float).std(), rel=1e-6)
    assert abs(centre[0] - mean) < 2e3
    if mean == 1.7e9:
        expected = timestamps(np.float64, 0.0)
        base = ScoreMatchingDensity(base="gaussian", n_iter=0)
        near = base.fit(expected).energy(expected)
        assert np.abs(base.fit(rows).energy(rows) - near).max() < 0.2


@full
def test_a_jem_of_timestamps_learns():
    rows = timestamps(np.float32)
    y = (rows[:, 0] > 1.7e9).astype(int)
    model = JEMClassifier(n_iter=6, random_state=0).fit(rows, y)
    assert model.n_restarts_ == 0
    assert model.score(rows, y) > 0.8


SAID_OF_COLUMNS = {
    "constant": ({}, 3.0, "are constant"),
    "few values": ({"objective": "exact"}, np.arange(80.0) % 4, "have few distinct values"),
    "far from 0": (
        {"standardize": False},
        100 + 1e-4 * (np.arange(80.0) % 7),
        "have means of more",
    ),
    "bounds": ({"bounds": (None, 1.0)}, np.arange(80.0) + 5, "above the upper bound"),
}


@pytest.mark.parametrize("kind", SAID_OF_COLUMNS)
def test_columns_of_frames_are_named(kind):
    settings, values, what = SAID_OF_COLUMNS[kind]
    age = np.random.default_rng(0).random(80)
    model = ScoreMatchingDensity(base="gaussian", n_iter=0, random_state=0, **settings)
    for rows, shown in (
        (np.column_stack([age, np.broadcast_to(values, 80)]), "[1]"),
        (pd.DataFrame({"age": age, "size": values}), "['size']"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model.fit(rows)
                said = [str(one.message) for one in caught]
            except ValueError as error:
                said = [str(error)]
        assert any(shown in one and what in one for one in said)


@pytest.mark.parametrize("dtype", leading(1, [np.float32, np.float64]))
def test_repeated_values_are_constant(dtype):
    rows = timestamps(dtype)
    rows[:, 0] = 1.7e18
    model = ScoreMatchingDensity(base="gaussian", n_iter=0, random_state=0)
    with pytest.warns(UserWarning, match=r"Columns \[0\] are constant"):
        model.fit(rows)
    assert model.units_.scale[0] == 1
    # Rounding errors are no variation.
    noise = np.where(np.arange(300) % 2, np.finfo(dtype).eps, 0)
    rows[:, 0] = np.float64(1.0) + noise
    assert model.fit(rows).units_.scale[0] == 1


def test_large_means_that_stay_are_warned_of():
    model = ScoreMatchingDensity(base="gaussian", n_iter=0, standardize=False, random_state=0)
    with pytest.warns(UserWarning, match=r"Columns \[0\].*standardize=True"):
        model.fit(timestamps(np.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distributions_of_large_means(dtype):
    rows = torch.as_tensor(timestamps(np.float64)).to(dtype)
    for made in (Gaussian.fit(rows), GaussianMixture.fit(rows, n_components=1)):
        assert float(made.components()[2][0][0, 0]) == pytest.approx(1e8, rel=0.3)


# ------------------------------------------------------------------------------
# Sizes that no memory holds
# ------------------------------------------------------------------------------

BITS = (_random.random((60, 5)) < 0.4).astype(float)
MANY = 10**13
MANY_CHAINS = ConditionalAIS(MANY)


@pytest.fixture
def eight_gib(monkeypatch):
    monkeypatch.setattr(torchtools, "memory_of", lambda device: 2.0**33)


@pytest.mark.usefixtures("eight_gib")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: RBMEstimator(10**9, **SMALL).fit(BITS), "n_components=1000000000"),
        (lambda: RBMEstimator(learning="pcd", batch_size=MANY, **SMALL).fit(BITS), "n_chains"),
        (
            lambda: RBMEstimator(chains=Persistent(n_chains=MANY), **SMALL).fit(BITS),
            "n_chains",
        ),
        (
            lambda: RBMEstimator(sampler=ParallelTempering(10**10), learning="pcd").fit(BITS),
            "n_temperatures",
        ),
        (
            lambda: NCEDensity(noise_ratio=1e9, noise="gaussian", **SMALL).fit(X),
            r"noise_ratio=1e\+09",
        ),
        (
            lambda: on_normal(chains=ReplayBuffer(size=10**12)).fit(X),
            "size=1000000000000 of Replay",
        ),
        (lambda: on_normal(chains=Persistent(n_chains=MANY)).fit(X), "n_chains"),
        (lambda: on_normal(objective=Discrepancy(n_negatives=10**10)).fit(X), "n_negatives"),
        (lambda: on_normal(network=MLP(hidden_sizes=(10**6, 10**6))).fit(X), "hidden_sizes"),
        (
            lambda: ScoreMatchingDensity(
                objective=Sliced(n_projections=10**10), base="gaussian"
            ).fit(X),
            "n_projections",
        ),
        (lambda: log_z(AIS(n_chains=MANY)), "n_chains"),
        (lambda: log_z(AIS(n_betas=MANY)), "n_betas"),
        (lambda: log_z(AISBracket(n_chains=MANY)), "n_chains"),
        (lambda: log_z(ImportanceSampling(MANY)), "n_samples"),
        (lambda: log_z(BridgeSampling(MANY)), "n_samples"),
        (
            lambda: PerturbAndMAP(MANY).estimate(RBMEstimator(3, **SMALL).fit(BITS).energy_),
            "n_samples",
        ),
        (lambda: fitted("jem").sample(MANY), "n_samples"),
        (lambda: TractableDensity().fit(X).sample(MANY), "n_samples"),
        (lambda: ProductOfDensities().fit(X).sample(MANY), "n_samples"),
        (lambda: ConditionalDensity(base="linear", n_draws=MANY, n_iter=1).fit(X), "n_draws"),
        (
            lambda: (
                ConditionalDensity(base="linear", partition=ConditionalAIS(MANY), n_iter=1)
                .fit(X)
                .expected(X)
            ),
            "n_chains",
        ),
        (
            lambda: (
                TemporalRBM(20, partition=ConditionalAIS(MANY), n_iter=1)
                .fit(BITS)
                .score_samples(BITS)
            ),
            "n_chains",
        ),
        (lambda: fitted("jem").sample(MANY, y=0), "n_samples"),
        (lambda: fitted("score matching").sample(MANY), "n_samples"),
        (lambda: RBMEstimator(3, **SMALL).fit(BITS).sample(MANY), "n_samples"),
    ],
)
def test_sizes_beyond_the_memory_are_refused(make, name):
    with pytest.raises(ValueError, match=f"{name}.* GiB of memory, and there are 8 GiB: lower it"):
        make()


def neural(**params):
    return ContrastiveDivergenceDensity(**SMALL | params)


def on_normal(**params):
    return neural(base="gaussian", **params)


def log_z(method):
    model = fitted("score matching")
    return method.estimate(
        model.energy_, base=model.base_, sampler=MALA(0.1), x=torch.as_tensor(model._reference)
    )


def test_the_memory_is_that_of_the_machine():
    present = torchtools.memory_of(torch.device("cpu"))
    assert 2**28 < present < 2**50
    torchtools.check_memory("n_rows=1", present / 8 - 1, torch.float64)
    with pytest.raises(ValueError, match="n_rows=2 would take at least"):
        torchtools.check_memory("n_rows=2", present / 8 + 1, torch.float64)
    # A batch is never larger than the table, whatever its size was to be.
    neural(batch_size=10**15, n_iter=1).fit(X)


# ------------------------------------------------------------------------------
# Messages in the terms of the user
# ------------------------------------------------------------------------------


def test_detectors_say_in_their_own_terms_what_they_need():
    sparse = sp.csr_array(BITS)
    with pytest.raises(ValueError, match="takes no sparse X: pass X.toarray"):
        EnergyOutlierDetector().fit(sparse)
    detector = EnergyOutlierDetector().fit(BITS)
    with pytest.raises(ValueError, match="takes no sparse X: pass X.toarray"):
        detector.predict(sparse)
    by_rbm = EnergyOutlierDetector(RBMEstimator(3, **SMALL)).fit(sparse)
    assert by_rbm.predict(sparse).shape == (60,)
    conformal = EnergyOutlierDetector(method="conformal")
    with pytest.raises(ValueError, match="n_samples=2"):
        conformal.fit(X[:2])
    conformal.fit(X[:3])
    crossed = EnergyOutlierDetector(method="cross-conformal")
    with pytest.raises(ValueError, match="n_samples=4.*cv=5"):
        crossed.fit(X[:4])
    crossed.fit(X[:5])
    with pytest.raises(ValueError, match="n_samples=2.*cv=2"):
        EnergyOutlierDetector(method="cross-conformal", cv=2).fit(X[:2])


def bits_model(**params):
    return RBMEstimator(**{"n_components": 3, "n_iter": 1, "random_state": 0} | params)


@pytest.mark.parametrize(
    ("model", "rows", "name"),
    [
        (lambda: bits_model(sampler=Gibbs()), BITS, "sampler.*likelihood is exact"),
        (lambda: bits_model(learning="exact", sampler=Gibbs()), BITS, "sampler"),
        (lambda: bits_model(centering=Centering()), BITS, "centering.*L-BFGS"),
        (lambda: bits_model(optimizer=SGD(schedule="linear")), BITS, "schedule.*L-BFGS"),
        (
            lambda: bits_model(learning_rate=0.1, net_params={"lr": 0.2}),
            BITS,
            "learning_rate.*net_params",
        ),
        (lambda: neural(standardize=False, n_iter=0), BITS, "standardize"),
        (lambda: neural(base=None, deconvolve=False, n_iter=0), X, "deconvolve"),
        (
            lambda: neural(sigma=None, deconvolve=False, n_iter=0),
            X,
            "deconvolve.*no single level of noise",
        ),
        (
            lambda: neural(objective=Likelihood(sigma_anneal=2.0), sigma=None, n_iter=0),
            X,
            "sigma_anneal.*no noise",
        ),
        (lambda: ScoreMatchingDensity(objective="exact", sigma=0.3, **SMALL), X, "sigma.*no noise"),
        (
            lambda: JEMClassifier(generative_weight=0, base="gaussian", chains="data", **SMALL),
            X,
            "chains.*generative_weight=0",
        ),
        (lambda: EnergyOutlierDetector(cv=3), X, "cv.*cross-conformal"),
        (lambda: EnergyOutlierDetector(calibration_fraction=0.5), X, "calibration_fraction"),
    ],
)
def test_arguments_without_effect_are_named(model, rows, name):
    y = Y if rows is X else None
    with pytest.warns(UserWarning, match=f"Without effect on this fit: {name}"):
        model().fit(rows, y)


@pytest.mark.parametrize(
    "model",
    [
        lambda: RBMEstimator(n_iter=1),
        lambda: bits_model(learning="pcd", sampler=Gibbs(), centering=Centering()),
        lambda: bits_model(optimizer=SGD(momentum=0.5, schedule="linear")),
        lambda: neural(domain="binary"),
        lambda: NCEDensity(n_iter=1),
        lambda: JEMClassifier(n_iter=1),
        lambda: ScoreMatchingDensity(n_iter=1),
        only_full(lambda: FlowContrastiveDensity(n_iter=1, n_flow_steps=1)),
        lambda: EnergyOutlierDetector(),
        lambda: EnergyOutlierDetector(method="cross-conformal", cv=3),
    ],
)
def test_defaults_and_what_is_used_raise_no_warning(model):
    y = (np.arange(len(BITS)) % 2).astype(int)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Without effect")
        model().fit(BITS, y)
