"""Every estimator, at few epochs, on tables that break estimators; `make soak` has the settings."""

import warnings

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.base import BaseEstimator

from skebm import (
    BoltzmannMachineDensity,
    BoostedDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBeliefNetwork,
    DeepBoltzmannMachine,
    EnergyOutlierDetector,
    FlowContrastiveDensity,
    GatedRBM,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    OutlierEnsemble,
    RBMClassifier,
    RBMEstimator,
    RowSurprise,
    ScoreMatchingDensity,
    SequenceOutlierDetector,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
    TemporalRBMClassifier,
)
from skebm.estimators.base import BaseEBM
from tests.adversarial.hostile import TABLES, split
from tests.adversarial.invariants import check, log_integral
from tests.support.discovery import walk
from tests.support.tiers import full
from tools.soak import SETTINGS, all_cases, main

FEW = {"n_iter": 3, "random_state": 0}
CASES = {
    RBMEstimator: lambda: RBMEstimator(8, **FEW),
    SpikeSlabRBM: lambda: SpikeSlabRBM(8, **FEW),
    SubspaceRBM: lambda: SubspaceRBM(4, 2, **FEW),
    DeepBoltzmannMachine: lambda: DeepBoltzmannMachine((8, 4), **FEW),
    BoltzmannMachineDensity: lambda: BoltzmannMachineDensity(**FEW),
    ContrastiveDivergenceDensity: lambda: ContrastiveDivergenceDensity(**FEW),
    ScoreMatchingDensity: lambda: ScoreMatchingDensity(**FEW),
    BoostedDensity: lambda: BoostedDensity(n_iter=20, random_state=0),
    NCEDensity: lambda: NCEDensity(**FEW),
    NeuralDensity: lambda: NeuralDensity(objective="score_matching", base="gaussian", **FEW),
    FlowContrastiveDensity: lambda: FlowContrastiveDensity(n_flow_steps=10, **FEW),
    JEMClassifier: lambda: JEMClassifier(**FEW),
    RBMClassifier: lambda: RBMClassifier(8, **FEW),
    GatedRBM: lambda: GatedRBM(8, 12, **FEW),
    ConditionalDensity: lambda: ConditionalDensity(**FEW),
    TemporalRBM: lambda: TemporalRBM(8, **FEW),
    TemporalRBMClassifier: lambda: TemporalRBMClassifier(8, **FEW),
    SequenceOutlierDetector: lambda: SequenceOutlierDetector(TemporalRBM(8, **FEW), random_state=0),
    EnergyOutlierDetector: lambda: EnergyOutlierDetector(
        ScoreMatchingDensity(base="kernel", **FEW), random_state=0
    ),
    OutlierEnsemble: lambda: OutlierEnsemble(random_state=0),
    RowSurprise: lambda: RowSurprise(random_state=0),
    DeepBeliefNetwork: lambda: DeepBeliefNetwork(
        (8, 6), rbm=RBMEstimator(n_iter=3), random_state=0
    ),
}


# Each table with a third of the estimators, and the other way round: `make soak` has all.
THIRD = [
    pytest.param(cls, table, id=f"{cls.__name__}-{table}")
    for i, cls in enumerate(CASES)
    for j, table in enumerate(TABLES)
    if (i - j) % 6 in (2, 4)
]


@full
@pytest.mark.parametrize(("cls", "table"), THIRD)
def test_what_holds_of_any_fit(cls, table):
    assert check(CASES[cls](), split(table)).violations == {}


# ------------------------------------------------------------------------------
# The sweep and the soak find what they are for
# ------------------------------------------------------------------------------


def test_every_estimator_takes_part():
    assert len(TABLES) == 22
    for cls in (*walk(BaseEBM), EnergyOutlierDetector, DeepBeliefNetwork):
        assert cls in CASES
        assert "defaults" in SETTINGS[cls]


def test_tables_have_rows_of_their_own_and_two_classes():
    for name in TABLES:
        first, again, other = split(name, 0), split(name, 0), split(name, 1)
        rows = [part.X.toarray() if name == "sparse_bits" else part.X for part in (first, again)]
        assert np.array_equal(*rows)
        assert np.isfinite(rows[0]).all()
        assert set(first.y) == {0, 1}
        assert other.X.shape == first.X.shape


class Flawed(BaseEstimator):
    """A stand-in for an estimator with one fault."""

    def __init__(self, fault=lambda: None, value=0.0):
        self.fault, self.value = fault, value

    def fit(self, X, y=None):
        self.fault()

    def score_samples(self, X):
        return np.full(len(X), self.value)


def failing(error):
    def fault():
        raise error

    return fault


def warning_thrice():
    for k in range(3):
        warnings.warn(f"number {k}", UserWarning, stacklevel=2)


def never_ending():
    while True:
        pass


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Flawed(failing(IndexError("list index out of range"))), "exception"),
        (Flawed(failing(ValueError("math domain error"))), "exception"),
        (Flawed(value=np.nan), "nan"),
        (Flawed(value=-np.inf), "nan"),
        (Flawed(warning_thrice), "warnings"),
        (Flawed(never_ending), "slow"),
    ],
)
def test_each_kind_of_violation_is_noticed(model, kind):
    assert list(check(model, split("box"), max_seconds=0.2).violations) == [kind]


def test_errors_that_name_what_to_do_are_allowed():
    message = "Columns [0] are constant: drop them."
    found = check(Flawed(failing(ValueError(message))), split("box"))
    assert found.violations == {}
    assert found.refused == message
    assert check(Flawed(), split("box")).violations == {}


@full
def test_a_likelihood_that_is_not_normalised_is_noticed():
    model = ScoreMatchingDensity(**FEW)
    assert check(model, split("box")).violations == {}
    biased = ScoreMatchingDensity(**FEW)
    biased.score_samples = lambda X: ScoreMatchingDensity.score_samples(biased, X) + 0.3
    found = check(biased, split("box"))
    assert list(found.violations) == ["normalised"]
    worse = ScoreMatchingDensity(**FEW)
    worse.score_samples = lambda X: ScoreMatchingDensity.score_samples(worse, X) - 3.0
    assert "+-" in check(worse, split("box")).below_base


@full
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_integrals_are_within_their_error(scale):
    rows = scale * np.random.default_rng(0).standard_normal((200, 1))
    value, error = log_integral(lambda x: norm(0, scale).logpdf(x[:, 0]), rows)
    assert abs(value) < 4 * error
    assert error < 0.05
    for width in (0.05, 1.0):
        density = multivariate_normal([0, 0], width**2 * np.eye(2))
        value, error = log_integral(density.logpdf, width * np.hstack([rows, rows[::-1]]) / scale)
        assert abs(value) < 4 * error < 0.2


def test_the_soak_names_cases_and_counts_them(capsys):
    assert [case.name for case in all_cases("NCEDensity/ranking/box")] == ["NCEDensity/ranking/box"]
    assert len(all_cases("RBMEstimator/pcd")) == len(TABLES)
    assert main(["--n", "2", "--only", "RBMEstimator/pcd/constant_bits"]) == 0
    assert "2 fits, 0 violations" in capsys.readouterr().out
    assert main(["--n", "5", "--seconds", "0"]) == 0
    assert main(["--only", "no such case"]) == 2
