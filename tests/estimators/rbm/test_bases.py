"""RBMs that correct a base: exact sums, clamps, and bases that do not fit."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from skebm import RBMEstimator
from skebm.base import Batch, Clamp
from skebm.distributions import BlockTree, ChowLiuTree, Distribution, IndependentBernoulli
from skebm.objectives import Centering, ExactLikelihood
from skebm.partition import AIS, Exact
from skebm.samplers import Gibbs, ParallelTempering, Persistent
from tests.support.oracle import (
    DOUBLE,
    P_FLOOR,
    Enumerated,
    bits,
    chi_square,
    count_states,
    finite_difference,
    make_tree_rbm,
    seeded,
)
from tests.support.rbm import fit_once
from tests.support.tiers import leading, named


def chain_rows(n=300, d=6, seed=0):
    """Each column copies the one before, with noise; the last two are never on together."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, d))
    x[:, 0] = rng.random(n) < 0.4
    for i in range(1, d):
        x[:, i] = np.where(rng.random(n) < 0.8, x[:, i - 1], rng.random(n) < 0.5)
    x[:, -1] *= 1 - x[:, -2]
    return x


X = chain_rows()
STATES = bits(6).numpy()


def rbm(**params):
    return RBMEstimator(3, random_state=0, **params)


def blocks():
    return BlockTree.fit(torch.as_tensor(X), block_size=2)


BASES = {
    "tree": lambda: "chow-liu",
    "block tree": lambda: "block-tree",
    "blocks": blocks,
    "given tree": lambda: ChowLiuTree.fit(torch.as_tensor(X), smoothing=0.1),
    "given columns": lambda: IndependentBernoulli.fit(torch.as_tensor(X)),
}
each_base = pytest.mark.parametrize("base", named(("tree", "blocks"), BASES))


# ------------------------------------------------------------------------------
# What it computes
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", leading(3, BASES))
@pytest.mark.parametrize("learning", leading(1, ["pcd", "exact"]))
def test_probabilities_sum_to_one(base, learning):
    model = rbm(base=BASES[base](), learning=learning, n_iter=25, batch_size=50).fit(X)
    assert np.exp(model.score_samples(STATES)).sum() == pytest.approx(1, abs=1e-4)
    assert model.score(X) > -3.6  # independent columns give -3.9


def test_an_untrained_model_is_its_base():
    """Up to initial weights that are small."""
    model = rbm(base="chow-liu", learning="pcd", n_iter=0, dtype="float64").fit(X)
    expected = model.base_.log_prob(torch.as_tensor(STATES)).numpy()
    np.testing.assert_allclose(model.score_samples(STATES), expected, atol=0.05)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_exact_gradients_on_a_tree_equal_finite_differences(shape):
    energy = make_tree_rbm(*shape)
    x = bits(shape[0])[::3]

    def value(_):
        return (energy(x) + Enumerated(energy).log_z).mean()

    objective = ExactLikelihood(energy)
    with torch.no_grad():
        objective.gradients(Batch(x), objective.start(Batch(x), seeded()), seeded())
        for p in energy.parameters():
            before = p.detach().clone()

            def moved(new, p=p):
                p.copy_(new)
                return value(new)

            expected = finite_difference(moved, before)
            p.copy_(before)
            torch.testing.assert_close(p.grad, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", leading(1, [(5, 3), (3, 5)]))
def test_log_z_on_a_tree(shape):
    energy = make_tree_rbm(*shape, scale=1.5)
    truth = float(Enumerated(energy).log_z.detach())
    assert Exact().estimate(energy).value == pytest.approx(truth, abs=1e-10)
    found = AIS(200, 100).estimate(energy, generator=seeded(1))
    assert abs(found.value - truth) < 4 * found.std_error + 0.01


def test_annealing_starts_from_the_energys_own_base():
    """Without a base that of the energy; any other one if it is passed."""
    energy = make_tree_rbm(5, 3)
    own, usual = (AIS(10, 30).estimate(energy, base=base) for base in (energy.base, None))
    other = AIS(10, 30).estimate(energy, base=IndependentBernoulli(torch.ones(5, dtype=DOUBLE)))
    assert own.value == usual.value != other.value
    truth = Enumerated(energy).log_z.item()
    assert abs(other.value - truth) < 4 * other.std_error


@pytest.mark.parametrize(
    "sampler", leading(1, [Gibbs(), ParallelTempering(3)]), ids=["gibbs", "tempering"]
)
def test_columns_beside_a_clamp_follow_their_conditional(sampler):
    """A tree makes a clamped column matter to its neighbours."""
    energy = make_tree_rbm(4, 2, scale=2.0)
    target = Enumerated(energy)
    mask = torch.tensor([False, True, False, True])
    value = torch.tensor([0.0, 1, 0, 0], dtype=DOUBLE)
    n = 5000
    clamp = Clamp(mask.expand(n, -1), value.expand(n, -1))
    state, _ = sampler.run(energy, torch.zeros(n, 4, dtype=DOUBLE), 50, seeded(3), clamp=clamp)
    assert target.given(mask, value).p_value(state.x) > P_FLOOR


def fitted(**params):
    return fit_once(rbm(base="chow-liu", n_iter=30, **params), X)


def test_imputed_entries_follow_the_model():
    model = fitted()
    row = np.array([1.0, np.nan, 1.0, 0.0, np.nan, np.nan])
    filled = model.impute(np.tile(row, (4000, 1)), random_state=0)
    p = np.exp(model.score_samples(STATES)) * (STATES[:, [0, 2, 3]] == row[[0, 2, 3]]).all(1)
    expected = (p / p.sum()) @ STATES
    assert np.abs(filled.mean(0) - expected).max() < 4.5 * 0.5 / 4000**0.5


def test_samples_follow_the_model():
    model = fitted(learning="pcd")
    samples = model.sample(5000, random_state=0)
    p = torch.as_tensor(np.exp(model.score_samples(STATES)))
    assert chi_square(count_states(torch.as_tensor(samples)), p / p.sum()) > P_FLOOR


def test_denoising_and_reconstruction_stay_inside_the_model():
    model = fitted()
    flipped = X[:20].copy()
    flipped[:, 2] = 1 - flipped[:, 2]
    prior, tilt = np.exp(model.score_samples(STATES)), np.log(0.9 / 0.1)
    weight = prior * np.exp(tilt * (flipped[:1] == STATES).sum(1))
    expected = weight @ STATES / weight.sum()
    clean = model.denoise(np.tile(flipped[0], (50, 1)), 0.1, random_state=0, n_steps=400)
    np.testing.assert_allclose(clean.mean(0), expected, atol=0.03)
    assert ((model.reconstruct(X) >= 0) & (model.reconstruct(X) <= 1)).all()


def test_pseudo_likelihood_counts_the_base():
    model = fitted(dtype="float64")
    p = np.exp(model.score_samples(STATES)).reshape([2] * 6)
    row = X[:1].astype(int)
    expected = 0.0
    for i in range(6):
        both = np.moveaxis(p, i, 0)[(slice(None), *np.delete(row[0], i))]
        expected += np.log(both[row[0, i]] / both.sum())
    assert model.pseudo_likelihood(X[:1])[0] == pytest.approx(expected, abs=1e-5)


# ------------------------------------------------------------------------------
# Tables of all kinds
# ------------------------------------------------------------------------------


def test_sparse_rows_and_weights_make_the_same_tree():
    dense, sparse = fitted(), rbm(base="chow-liu", n_iter=30)
    sparse.fit(sp.csr_array(X))
    assert torch.equal(dense.base_.parent, sparse.base_.parent)
    np.testing.assert_allclose(dense.score_samples(X), sparse.score_samples(X), atol=1e-4)
    weight = np.arange(len(X)) % 3
    weighted = rbm(base="chow-liu", n_iter=0, dtype="float64")
    weighted.fit(X, sample_weight=weight)
    repeated = rbm(base="chow-liu", n_iter=0, dtype="float64")
    repeated.fit(np.repeat(X, weight, axis=0))
    x = torch.as_tensor(STATES)
    torch.testing.assert_close(weighted.base_.log_prob(x), repeated.base_.log_prob(x))


@pytest.mark.parametrize("value", leading(1, [1.0, 0.0]))
def test_constant_columns(value):
    rows = X.copy()
    rows[:, [1, 4]] = value
    model = rbm(base="chow-liu", n_iter=20, learning="pcd").fit(rows)
    assert np.isfinite(model.score_samples(STATES)).all()
    assert (model.sample(50, random_state=0)[:, [1, 4]] == value).mean() > 0.95


def test_one_column_two_rows_and_probabilities():
    for base in ("chow-liu", "block-tree"):
        for rows in (X[:, :1], X[:2], np.full((5, 4), 0.3), X[:60] * 0.6 + 0.2):
            model = rbm(base=base, n_iter=3, learning="pcd").fit(rows)
            assert np.isfinite(model.energy(rows)).all()


def test_a_stream_keeps_the_tree_of_its_first_rows():
    model = rbm(base="chow-liu")
    model.partial_fit(X[:100])
    first = model.base_.parent.clone()
    model.partial_fit(X[100:])
    assert torch.equal(model.base_.parent, first)
    assert np.isfinite(model.score(X))


@each_base
def test_a_stored_model_keeps_its_base(base):
    model = rbm(base=BASES[base](), n_iter=5, learning="pcd").fit(X)
    stored = pickle.dumps(model)
    assert b"torch" not in stored
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    np.testing.assert_array_equal(again.sample(5, 0), model.sample(5, 0))


# ------------------------------------------------------------------------------
# Bases that do not fit
# ------------------------------------------------------------------------------


class Uniform(Distribution):
    """Has no conditionals."""

    def __init__(self, d):
        from skebm.base import Binary

        self.domain = Binary((d,))

    def sample(self, n, generator):
        return self.domain.uniform(n, generator)

    def log_prob(self, x):
        return torch.zeros(len(x))


def test_a_base_of_another_dimension_is_refused():
    narrow = ChowLiuTree.fit(torch.as_tensor(X[:, :4]))
    with pytest.raises(ValueError, match="The base has 4 columns, but X has 6"):
        rbm(base=narrow).fit(X)


def test_a_base_that_excludes_a_row_is_refused_with_the_row():
    logits = torch.zeros(6, dtype=DOUBLE)
    logits[2] = -torch.inf
    rows = X.copy()
    rows[:, 2] = 0
    rows[17, 2] = 1
    with pytest.raises(ValueError, match="row 17"):
        rbm(base=IndependentBernoulli(logits)).fit(rows)
    with pytest.raises(ValueError, match=r"infinite log-odds in columns \[2\]"):
        rbm(base=IndependentBernoulli(logits)).fit(np.delete(rows, 17, axis=0))


def test_a_base_without_conditionals_is_refused():
    with pytest.raises(ValueError, match="no exact conditionals"):
        rbm(base=Uniform(6)).fit(X)


@pytest.mark.parametrize("base", ["tree", None, 3])
def test_other_bases_are_refused_by_name(base):
    with pytest.raises(ValueError, match="'base' parameter"):
        rbm(base=base).fit(X)


def test_a_fit_goes_on_with_the_base_it_started_from():
    model = rbm(warm_start=True, n_iter=2).fit(X)
    with pytest.raises(ValueError, match="correct the base of the first fit, Independent"):
        model.set_params(base="chow-liu").fit(X)


@pytest.mark.parametrize(
    ("learning", "message"),
    [
        ("cd", 'learning="cd".*FromData.*learning="auto"'),
        ("exact", 'learning="exact".*learning="pcd"'),
    ],
)
def test_reweighting_needs_persistent_chains(learning, message):
    chains = Persistent(reweight=True)
    with pytest.raises(ValueError, match=message):
        rbm(chains=chains, learning=learning).fit(X)
    assert rbm(chains=chains, n_iter=1).fit(X).learning_ == "pcd"


def test_preconditioning_belongs_to_contrastive_rules():
    centering = Centering(precondition=0.5)
    assert rbm(centering=centering, learning="pcd", n_iter=1).fit(X).precondition_ == 0.5
    with pytest.raises(ValueError, match="precondition=0.5 scales the centred gradient"):
        rbm(centering=centering, learning="exact").fit(X)
