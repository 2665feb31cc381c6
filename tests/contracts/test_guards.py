"""No argument removes what guards a fit: a model is never clearly below its base."""

import numpy as np
import pytest
from sklearn.base import clone

from skebm import (
    BoltzmannMachineDensity,
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    FlowContrastiveDensity,
    GatedRBM,
    JEMClassifier,
    NCEDensity,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    SpikeSlabRBM,
    SubspaceRBM,
    TemporalRBM,
)
from skebm.base import TrainingWarning
from skebm.energies import MLP
from skebm.training.selection import WORTH_A_WARNING
from tests.support.tiers import full, named, only_full

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
    BoltzmannMachineDensity("pcd", l2=0.01, n_iter=2): BITS,
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


def coupled_bits(n, seed):
    random = np.random.default_rng(seed)
    return (random.random((n, 6)) < 0.25 + 0.5 * random.integers(0, 2, (n, 1))) * 1.0


def normal_rows(n, seed):
    return np.random.default_rng(seed).normal(size=(n, 3))


def two_clusters(n, seed):
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(5).normal(size=(3, 3))
    return random.normal(size=(n, 3)) @ mixing + 2 * random.integers(0, 2, (n, 1))


# Tables of which nothing, or something, is left to learn beyond independent columns.
OF_BITS = {"nothing": lambda n, seed: independent_bits(n, 6, seed), "something": coupled_bits}
OF_NUMBERS = {"nothing": normal_rows, "something": two_clusters}
EXTREME = {"learning_rate": 1.0, "batch_size": 5, "n_iter": 3}
# Every family with a base, and what is compared with it on how many new rows.
WITH_BASE = {
    "RBM": (RBMEstimator(8, base="independent"), OF_BITS),
    "RBM on a tree": (RBMEstimator(8, base="chow-liu", learning="pcd"), OF_BITS),
    "RBM of numbers": (RBMEstimator(8, base="gaussian"), OF_NUMBERS),
    "subspace RBM": (SubspaceRBM(3, 2, base="independent"), OF_BITS),
    "spike and slab RBM": (SpikeSlabRBM(3), OF_NUMBERS),
    "deep": (DeepBoltzmannMachine((4, 3)), OF_BITS),
    "Boltzmann machine": (BoltzmannMachineDensity("exact"), OF_BITS),
    "Boltzmann machine, pseudo": (BoltzmannMachineDensity("pseudo_likelihood"), OF_BITS),
    "Boltzmann machine, PCD": (BoltzmannMachineDensity("pcd"), OF_BITS),
    "temporal": (TemporalRBM(4, order=1), OF_BITS),
    "gated": (GatedRBM(4, 6), OF_BITS),
    "conditional": (ConditionalDensity(given=0, base="linear"), OF_NUMBERS),
    "conditional, matching": (
        ConditionalDensity(0, base="linear", objective="score_matching"),
        OF_NUMBERS,
    ),
    "score matching": (ScoreMatchingDensity(), OF_NUMBERS),
    "NCE": (NCEDensity(noise="gaussian"), OF_NUMBERS),
    "contrastive divergence": (ContrastiveDivergenceDensity(base="gaussian"), OF_NUMBERS),
    "contrastive divergence, bits": (ContrastiveDivergenceDensity(domain="binary"), OF_BITS),
    "flow": (FlowContrastiveDensity(MLP((16,)), flow="maf", n_flow_steps=20), OF_NUMBERS),
    "RBM classifier": (RBMClassifier(4), OF_NUMBERS),
    "JEM": (JEMClassifier(base="gaussian"), OF_NUMBERS),
}
FIRST = ("RBM", "Boltzmann machine, PCD", "temporal", "gated", "score matching", "NCE")
# log Z of each row, or a base that is slow to fit.
FEW_ARE_SCORED = ("temporal", "gated", "conditional", "conditional, matching")


def table_of(name, of, n, seed):
    """A table of a family: rows, pairs of rows, or rows and classes."""
    rows = WITH_BASE[name][1][of](n, seed)
    if name == "gated":
        return rows, independent_bits(n, 6, seed + 50) if of == "nothing" else rows
    return (rows, rows[:, 0] > 0) if name in ("RBM classifier", "JEM") else (rows,)


def base_of(model, table):
    """The base of a model, fitted to a table."""
    found = clone(model).set_params(n_iter=0)
    if isinstance(found, BoltzmannMachineDensity):
        found.set_params(learning="exact")  # others begin at the optimum of the pseudo-likelihood
    return found.fit(*table)


@pytest.mark.filterwarnings("ignore::skebm.base.SkebmWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("of", ["nothing", only_full("something")])
@pytest.mark.parametrize("name", named(FIRST, WITH_BASE))
def test_no_family_is_left_below_its_base(name, of):
    model = clone(WITH_BASE[name][0]).set_params(random_state=0)
    table = table_of(name, of, 600, 0)
    new = table_of(name, of, 200 if name in FEW_ARE_SCORED else 2000, 100)
    new = new[:1] if name in ("RBM classifier", "JEM") else new
    base = base_of(model, table)
    gain = model.set_params(**EXTREME).fit(*table).score_samples(*new) - base.score_samples(*new)
    assert gain.mean() >= -2 * gain.std() / np.sqrt(len(gain)) - WORTH_A_WARNING


@full
def test_the_base_that_a_model_is_equals_it():
    x = independent_bits(300, 20, 0)
    with pytest.warns(match="base|rolled back"):
        model = RBMEstimator(64, learning_rate=1.0, n_iter=1, random_state=0).fit(x)
    assert abs(loss_against_base(model, x)[0]) < 1e-3
