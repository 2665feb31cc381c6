"""ContrastiveDivergenceDensity on bits and one-hot columns: what rows are, against enumeration."""

import copy
import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from torch import nn

from skebm import ContrastiveDivergenceDensity
from skebm.base import Binary, Categorical, Mixed, Real
from skebm.distributions import (
    ChowLiuTree,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
)
from skebm.energies import MLP
from skebm.estimators import Likelihood, MixtureBase
from skebm.partition import ImportanceSampling
from skebm.samplers import (
    HMC,
    MALA,
    DiscreteLangevin,
    FromData,
    FromNoise,
    Gibbs,
    GibbsWithGradients,
    ParallelTempering,
    Persistent,
    ReplayBuffer,
)
from tests.support.oracle import Discrete
from tests.support.storage import by_pickle
from tests.support.tables import binary_rows, one_hot_rows, real_rows
from tests.support.tiers import about, full, leading, only_full

BITS, LEVELS = Binary((5,)), Categorical((3, 2, 4))
KINDS = {"bits": ("binary", BITS), "levels": (LEVELS, LEVELS)}
TABLES = {"bits": ("binary", binary_rows()), "levels": (Categorical((3, 3)), one_hot_rows())}
each_kind = pytest.mark.parametrize("kind", KINDS)
quick = {"n_iter": 3, "random_state": 0}
few_draws = ImportanceSampling(500)
N = 2000  # draws that are compared with enumeration


def density(**params):
    params = {"network": MLP((16,)), "chains": Persistent(n_steps=3), **quick, **params}
    return ContrastiveDivergenceDensity(**params)


@functools.cache
def _trained(kind):
    domain, rows = TABLES[kind]
    return density(domain=domain).fit(rows)


def trained(kind):
    """A copy of a model of a table; each is fitted once."""
    return copy.deepcopy(_trained(kind))


class Pairs(nn.Module):
    """Couplings of all pairs of columns."""

    def __init__(self, d, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        coupling = torch.randn(d, d, generator=generator, dtype=torch.float64)
        self.coupling = nn.Parameter(coupling + coupling.t())

    def forward(self, x):
        return -((x @ self.coupling) * x).sum(1) / 2


def all_states(domain):
    return torch.cat(list(domain.enumerate()))


def known(kind, **params):
    """A model that is what its network says, and its states with their probabilities."""
    given, domain = KINDS[kind]
    network, states = Pairs(domain.n_columns), all_states(domain)
    params = {"base": None, "dtype": "float64", "n_iter": 0} | params
    rows = domain.uniform(60, torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    model = density(network=network, domain=given, **params).fit(rows)
    base = 0.0 if model.base_ is None else model.base_.log_prob(states)
    return model, Discrete(states, (base - network(states)).detach())


# ------------------------------------------------------------------------------
# What rows are
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "params", "domain"),
    [
        (binary_rows(), {}, Binary((6,))),
        (real_rows(), {}, Real((6,))),
        (one_hot_rows(), {}, Binary((6,))),
        (binary_rows(), {"domain": "real"}, Real((6,))),
        (binary_rows(), {"domain": Real((6,))}, Real((6,))),
        (binary_rows(), {"domain": "binary"}, Binary((6,))),
        (one_hot_rows(), {"domain": Categorical((3, 3))}, Categorical((3, 3))),
        (binary_rows(), {"sampler": MALA(0.1)}, Real((6,))),
        (binary_rows(), {"sampler": HMC()}, Real((6,))),
        (binary_rows(), {"sampler": GibbsWithGradients()}, Binary((6,))),
        (binary_rows(), {"sampler": DiscreteLangevin()}, Binary((6,))),
        (binary_rows(), {"bounds": (0, 1)}, Real((6,), 0.0, 1.0)),
        (real_rows(), {"sampler": ParallelTempering(3, MALA(0.1))}, Real((6,))),
        (binary_rows(), {"sampler": ParallelTempering(3, GibbsWithGradients())}, Binary((6,))),
    ],
)
def test_the_domain_is_that_of_the_rows_or_of_the_sampler(rows, params, domain):
    base = "gaussian" if isinstance(domain, Real) else "independent"
    model = density(**params, base=base, n_iter=1, partition=few_draws).fit(rows)
    assert model.units_.domain == domain
    assert model.energy_.domain == domain
    assert np.isfinite(model.score_samples(rows)).all()


@pytest.mark.parametrize(
    ("domain", "match"),
    [
        (Binary((5,)), "5 columns, X has 6"),
        (Categorical((3, 2)), "5 columns, X has 6"),
        (Categorical((2, 2, 2)), "Row 0.*columns 0"),
        (Real((5,)), "5 columns, X has 6"),
        (Real((6,), 0.0, 1.0), "bounds="),
        (Mixed((Real((3,)), Binary((3,)))), "is not supported"),
        ("categorical", "domain"),
        (Binary, "domain"),
    ],
)
def test_domains_that_do_not_fit(domain, match):
    with pytest.raises(ValueError, match=match):
        density(domain=domain).fit(one_hot_rows())


def test_the_domain_of_a_fit_stays():
    """Whatever is set afterwards, and whatever new rows look like."""
    model = density(base="gaussian", partition=few_draws).fit(real_rows())
    same, expected = by_pickle(model), model.score_samples(real_rows())
    model.set_params(domain="binary", sampler=GibbsWithGradients())
    assert_array_equal(model.score_samples(real_rows()), expected)
    assert_array_equal(by_pickle(model).score_samples(real_rows()), expected)
    zeros = np.zeros((3, 6))
    assert np.isfinite(same.partial_fit(zeros).score_samples(zeros)).all()


@functools.cache
def _dense(domain):
    return density(domain=domain).fit(binary_rows())


@pytest.mark.parametrize(
    ("domain", "as_rows"),
    [
        ("auto", sp.csr_array),
        ("binary", sp.coo_array),
        *(only_full("auto", kind) for kind in (sp.csr_matrix, sp.csc_array, sp.coo_array)),
        *(only_full("binary", kind) for kind in (sp.csr_array, sp.csr_matrix, sp.csc_array)),
    ],
)
def test_sparse_rows_are_bits(domain, as_rows):
    rows, new = binary_rows(), binary_rows(40, seed=1)
    dense, model = copy.deepcopy(_dense(domain)), density(domain=domain).fit(as_rows(rows))
    assert model.units_.domain == Binary((6,))
    for name in ("score_samples", "energy", "decision_function", "predict"):
        assert_array_equal(getattr(model, name)(as_rows(new)), getattr(dense, name)(new))
    assert model.score(as_rows(new)) == dense.score(new)
    found = model.denoise(as_rows(new), random_state=0, n_steps=5)
    assert_array_equal(found, dense.denoise(new, random_state=0, n_steps=5))
    model.partial_fit(as_rows(new))
    assert_array_equal(model.energy(rows), dense.partial_fit(new).energy(rows))


def test_sparse_rows_of_other_numbers():
    with pytest.raises(ValueError, match="other than 0 and 1"):
        density().fit(sp.csr_array(3 * binary_rows()))
    model = density().fit(sp.csr_array(binary_rows()))
    with pytest.raises(ValueError, match="other than 0 and 1"):
        model.score(sp.csr_array(3 * binary_rows()))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_truth_values(library):
    frames = pytest.importorskip(library)
    rows = binary_rows()
    frame = frames.DataFrame({f"c{i}": column.astype(bool) for i, column in enumerate(rows.T)})
    model = density().fit(frame)
    assert model.units_.domain == Binary((6,))
    assert_array_equal(model.score_samples(frame), density().fit(rows).score_samples(rows))


# ------------------------------------------------------------------------------
# What is learned
# ------------------------------------------------------------------------------


def parity(n, seed):
    """Four fair coins of which the last is the parity of the others: all pairs independent."""
    rows = np.random.default_rng(seed).integers(0, 2, (n, 3))
    return np.hstack([rows, rows.sum(1, keepdims=True) % 2]).astype(float)


def log_likelihood(model, rows):
    """Of all states, which the energies are summed over."""
    states = all_states(model.units_.domain).numpy()
    return -model.energy(rows).mean() - logsumexp(-model.energy(states))


CHAINS = [
    Persistent(n_steps=5),
    ReplayBuffer(n_steps=5, size=1000),
    FromData(n_steps=5),
    FromNoise(n_steps=5),
]


@full
@pytest.mark.parametrize("chains", leading(1, CHAINS), ids=repr)
def test_what_no_pair_of_bits_shows_is_learned(chains):
    """The truth has three bits of entropy; the tree of pairs and the columns have four."""
    rows, new = parity(600, 0), parity(200, 1)
    params = {"chains": chains, "n_iter": 20, "learning_rate": 0.02}
    model = density(**params, network=MLP((32, 32))).fit(rows)
    exact = log_likelihood(model, new)
    assert model.score(new) == pytest.approx(exact, abs=1e-5)
    assert model.log_partition_kind_ == "exact"
    base = density(n_iter=0).fit(rows).score(new)
    columns = density(n_iter=0, base="independent").fit(rows).score(new)
    assert base == pytest.approx(-4 * np.log(2), abs=0.05)
    assert columns == pytest.approx(-4 * np.log(2), abs=0.05)
    assert -3 * np.log(2) - 0.2 < exact < -3 * np.log(2) + 1e-6


@full
def test_levels_that_go_together_are_learned():
    rows, new = one_hot_rows(600), one_hot_rows(300, seed=1)
    params = {"chains": Persistent(n_steps=5), "n_iter": 20, "learning_rate": 0.02}
    model = density(domain=Categorical((3, 3)), **params).fit(rows)
    assert model.score(new) == pytest.approx(log_likelihood(model, new), abs=1e-5)
    table = Discrete(all_states(Categorical((3, 3))), torch.zeros(9))
    seen, asked = (table.counts(torch.tensor(x)).numpy() for x in (rows, new))
    saturated = asked @ np.log((seen + 1) / (600 + 9)) / 300
    columns = density(domain=Categorical((3, 3)), n_iter=0).fit(rows).score(new)
    assert saturated > columns + 0.1
    assert model.score(new) > saturated - 0.03


def test_a_model_without_log_z_is_scored_by_its_conditionals():
    model, target = known("bits", partition=None)
    row = target.x[3]
    total = 0.0
    for i in range(5):
        flipped = row.clone()
        flipped[i] = 1 - flipped[i]
        p, q = (float(target.p[(target.x == r).all(1)]) for r in (row, flipped))
        total += np.log(p / (p + q))
    assert model.score(row[None].numpy()) == pytest.approx(total, rel=1e-9)


# ------------------------------------------------------------------------------
# Bases
# ------------------------------------------------------------------------------


GIVEN = ChowLiuTree.from_moments(torch.full((6, 6), 0.25) + 0.25 * torch.eye(6))


@pytest.mark.parametrize("base", ["auto", "independent", "chow-liu", "block-tree", GIVEN, None])
def test_before_training_bits_are_those_of_the_base(base):
    rows = binary_rows()
    model = density(n_iter=0, base=base, dtype="float64").fit(rows)
    if base is None:
        assert model.base_ is None
        expected = np.full(60, -6 * np.log(2))
    else:
        expected = model.base_.log_prob(torch.tensor(rows))
    assert_allclose(model.score_samples(rows), expected, rtol=1e-9)
    assert model.log_partition_ == pytest.approx(0 if base is not None else 6 * np.log(2))
    if base in ("auto", "chow-liu"):
        assert isinstance(model.base_, ChowLiuTree)


@pytest.mark.parametrize("base", ["auto", "independent", None])
def test_before_training_levels_are_those_of_the_base(base):
    rows = one_hot_rows()
    model = density(n_iter=0, base=base, dtype="float64", domain=Categorical((3, 3))).fit(rows)
    expected = np.full(60, -2 * np.log(3))
    if base is not None:
        assert isinstance(model.base_, IndependentCategorical)
        expected = model.base_.log_prob(torch.tensor(rows))
    assert_allclose(model.score_samples(rows), expected, rtol=1e-9)


ON_BITS, ON_LEVELS = {}, {"domain": Categorical((3, 3))}
ON_REALS = {"domain": "real"}
IMPOSSIBLE = IndependentBernoulli(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -torch.inf]))


@pytest.mark.parametrize(
    ("params", "base", "match"),
    [
        (ON_BITS, "gaussian", "'independent'.*'chow-liu'.*'block-tree'"),
        (ON_BITS, "mixture", "real columns"),
        (ON_BITS, "kernel", "real columns"),
        (ON_BITS, MixtureBase(2), "'independent'.*'chow-liu'.*'block-tree'"),
        (ON_LEVELS, MixtureBase(2), "real columns.*use 'independent'"),
        (ON_BITS, Gaussian(torch.zeros(6), 1.0), "Real.*rows are Binary"),
        (ON_BITS, IndependentCategorical(torch.zeros(6), (3, 3)), "Categorical.*Binary"),
        (ON_BITS, IndependentBernoulli(torch.zeros(5)), "Binary.*5.*Binary.*6"),
        (ON_BITS, IMPOSSIBLE, "probability zero to .* first to row"),
        (ON_LEVELS, "gaussian", "real columns.*use 'independent'"),
        (ON_LEVELS, "chow-liu", "bits.*'independent'"),
        (ON_LEVELS, "block-tree", "bits.*'independent'"),
        (ON_LEVELS, IndependentBernoulli(torch.zeros(6)), "Binary.*Categorical"),
        (ON_LEVELS, IndependentCategorical(torch.zeros(6), (2, 4)), "2, 4.*3, 3"),
        (ON_REALS, "chow-liu", "bits.*'gaussian', 'mixture', 'kernel'"),
        (ON_REALS, "independent", "bits"),
        (ON_REALS, IndependentBernoulli(torch.zeros(6)), "Binary"),
        (ON_REALS, Gaussian(torch.zeros(5), 1.0), "5 columns, but X has 6"),
        (ON_REALS, "forest", "base"),
    ],
)
def test_bases_of_another_kind(params, base, match):
    with pytest.raises(ValueError, match=match):
        density(**params, base=base).fit(one_hot_rows())


# ------------------------------------------------------------------------------
# Samples, imputations, noise
# ------------------------------------------------------------------------------


TEMPERED = ParallelTempering(3, GibbsWithGradients())


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("bits", None),
        ("levels", DiscreteLangevin(1.0)),
        ("bits", TEMPERED),
        only_full("levels", None),
        only_full("bits", GibbsWithGradients()),
        only_full("levels", GibbsWithGradients()),
        only_full("bits", DiscreteLangevin(1.0)),
        only_full("levels", TEMPERED),
    ],
    ids=str,
)
def test_samples_are_those_of_the_model(kind, sampler):
    model, target = known(kind, sampler=sampler)
    drawn = torch.tensor(model.sample(N, random_state=0, n_steps=50))
    assert target.p_value(drawn) > 1e-3


def test_samples_on_top_of_a_base_are_those_of_the_model():
    rows = np.random.default_rng(0).integers(0, 2, (60, 5)).astype(float)
    base = IndependentBernoulli(torch.linspace(-1, 1, 5, dtype=torch.float64))
    model = density(network=Pairs(5), base=base, dtype="float64", n_iter=0).fit(rows)
    states = all_states(BITS)
    target = Discrete(states, (base.log_prob(states) - Pairs(5)(states)).detach())
    assert target.p_value(torch.tensor(model.sample(N, random_state=0, n_steps=50))) > 1e-3


def partly(kind):
    """A row whose first column or group, and the last one, are unknown."""
    if kind == "bits":
        return np.array([np.nan, 1.0, np.nan, 0.0, np.nan])
    return np.array([np.nan] * 3 + [0.0, 1.0] + [np.nan] * 4)


@pytest.mark.parametrize(
    ("kind", "base"),
    [("bits", "auto"), ("levels", None), only_full("bits", None), only_full("levels", "auto")],
)
def test_imputations_are_those_of_the_model(kind, base):
    model, target = known(kind, base=base)
    row = partly(kind)
    mask = torch.tensor(~np.isnan(row))
    target = target.given(mask, torch.tensor(np.nan_to_num(row)))
    imputed = model.impute(np.repeat(row[None], N, 0), random_state=0, n_steps=50)
    drawn = model.sample(N, random_state=0, given=row, n_steps=50)
    for found in (imputed, drawn):
        assert_array_equal(found[:, mask], np.repeat(row[None, mask], N, 0))
        assert target.p_value(torch.tensor(found)) > 1e-3


@pytest.mark.parametrize("kind", leading(1, KINDS))
def test_an_unknown_row_is_a_sample(kind):
    model, target = known(kind)
    rows = np.full((N, target.x.shape[1]), np.nan)
    filled = model.impute(rows, random_state=0, n_steps=50)
    assert target.p_value(torch.tensor(filled)) > 1e-3


def test_half_known_groups():
    model = trained("levels")
    rows = one_hot_rows(5)
    rows[2, 4] = np.nan
    for ask in (lambda: model.impute(rows), lambda: model.sample(given=rows[2])):
        with pytest.raises(ValueError, match="columns 3"):
            ask()


@pytest.mark.parametrize(
    ("kind", "level"),
    [("bits", 0.3), ("levels", 0.1), only_full("bits", 0.1), only_full("levels", 0.3)],
)
def test_denoised_rows_are_posterior_means(kind, level):
    """Each column was changed with this probability, to any of the other levels."""
    model, target = known(kind)
    noisy = target.x[[1, 7]]
    groups = (1,) * 5 if kind == "bits" else LEVELS.groups
    log_seen = []
    for row in noisy:
        parts = zip(groups, (target.x != row).split(groups, 1), strict=True)
        log_p = 0.0
        for k, differs in parts:
            others = max(k - 1, 1)
            log_p = log_p + torch.where(differs.any(1), np.log(level / others), np.log(1 - level))
        log_seen.append(log_p)
    n = 300
    found = model.denoise(np.repeat(noisy.numpy(), n, 0), level, random_state=0, n_steps=50)
    found = torch.tensor(found).view(2, n, -1)
    for log_p, chains in zip(log_seen, found, strict=True):
        expected = Discrete(target.x, target.p.log() + log_p).mean(target.x)
        error = chains.std(0) / n**0.5
        assert ((chains.mean(0) - expected).abs() < 4.5 * error + 0.01).all()
    assert (found >= 0).all()
    assert (found <= 1).all()


@each_kind
def test_a_tenth_of_noise_is_the_default(kind):
    model, target = known(kind)
    rows = target.x[:7].numpy()
    one, other = (model.denoise(rows, *level, random_state=0, n_steps=20) for level in ((), (0.1,)))
    assert_array_equal(one, other)
    with pytest.raises(ValueError, match="Binary|Categorical"):
        model.score_function(rows)


@pytest.mark.parametrize("level", [0, 0.5, 1, -0.1, np.nan, "much"])
def test_noise_levels_that_are_refused(level):
    model = trained("bits")
    with pytest.raises(ValueError, match="noise_level"):
        model.denoise(binary_rows(), level)


# ------------------------------------------------------------------------------
# Unusable tables
# ------------------------------------------------------------------------------


METHODS = ("energy", "score", "score_samples", "predict", "decision_function", "denoise")


@pytest.mark.parametrize("value", [2.0, 0.5, -1.0, 1e-8, 1e30, 1e300])
@each_kind
def test_values_that_are_no_states(kind, value):
    domain, rows = TABLES[kind]
    model, bad = trained(kind), rows.copy()
    bad[3, 1] = value
    match = "1 values other than 0 and 1, first in column 1.*binarise"
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=match):
            getattr(density(domain=domain), method)(bad)
    with pytest.raises(ValueError, match=match):
        model.partial_fit(bad)
    for method in METHODS:
        with pytest.raises(ValueError, match=match):
            getattr(model, method)(bad)
    for hole in (3, 4):  # in the row with a hole, and in one that is known
        holes = bad.copy()
        holes[hole, 3:] = np.nan
        with pytest.raises(ValueError, match=match):
            model.impute(holes)
    with pytest.raises(ValueError, match=match):
        model.sample(given=bad[3])


@pytest.mark.parametrize("row", [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
def test_rows_that_are_not_one_hot(row):
    domain, rows = TABLES["levels"]
    model, bad = trained("levels"), rows.copy()
    bad[2, 3:] = row
    match = "Row 2 of X is not one-hot in group 1, columns 3 to 5"
    with pytest.raises(ValueError, match=match):
        density(domain=domain).fit(bad)
    for method in (*METHODS, "partial_fit", "impute"):
        with pytest.raises(ValueError, match=match):
            getattr(model, method)(bad)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value):
    model, bad = trained("bits"), binary_rows()
    bad[3, 1] = value
    asks = density(domain="binary").fit, density().fit, model.partial_fit, model.predict
    for ask in asks:
        with pytest.raises(ValueError, match="NaN|infinity"):
            ask(bad)
    if np.isinf(value):
        with pytest.raises(ValueError, match="infinity"):
            model.impute(bad)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"bounds": (0, 1), "domain": "binary"}, "bounds=.*real columns"),
        ({"sigma": 0.3}, "sigma=.*real columns"),
        ({"sigma": "bandwidth"}, "sigma=.*real columns"),
        ({"sigma": [0.1] * 6}, "sigma=.*real columns"),
        ({"objective": Likelihood(kl_weight=1.0)}, "Langevin"),
        ({"objective": Likelihood(entropy_weight=1.0)}, "Langevin"),
    ],
)
def test_what_is_for_real_columns(params, match):
    with pytest.raises(ValueError, match=match):
        density(**params).fit(binary_rows())
    with pytest.raises(ValueError, match=match):
        density(**params | {"domain": Categorical((3, 3))}).fit(one_hot_rows())


@pytest.mark.parametrize(
    "sampler", [MALA(), HMC(), Gibbs(), ParallelTempering(3), ParallelTempering(3, MALA())]
)
@each_kind
def test_samplers_of_another_domain(kind, sampler):
    domain, rows = TABLES[kind]
    with pytest.raises((TypeError, ValueError), match=r"Real rows.*Use a sampler|conditionals"):
        density(domain=domain, sampler=sampler).fit(rows)


@pytest.mark.parametrize("domain", ["auto", "real"])
@pytest.mark.parametrize("sampler", [GibbsWithGradients(), DiscreteLangevin()])
def test_samplers_of_bits_on_real_rows(sampler, domain):
    with pytest.raises((TypeError, ValueError), match="Binary|other than 0 and 1"):
        density(sampler=sampler, domain=domain, base="gaussian").fit(real_rows())


# What a sampler accepts little of need not have diverged: single flips leave such rows rarely.
STIFF = {
    "copies": np.repeat(binary_rows(300)[:, :1], 4, axis=1),
    "two rows": binary_rows(2),
    "constant": np.hstack([binary_rows(), np.zeros((60, 2)), np.ones((60, 2))]),
    "rare": (np.random.default_rng(0).random((300, 12)) < 0.002).astype(float),
    "one-hot": np.eye(10)[np.random.default_rng(0).integers(0, 10, 300)],
    "one row over and over": np.repeat(binary_rows(1), 50, axis=0),
}


@pytest.mark.parametrize("base", leading(1, ["auto", "independent", None]))
def test_bits_that_hardly_move(base):
    chains = Persistent(n_steps=2)
    for name, rows in STIFF.items():
        with about(name, base), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Training diverged")
            model = density(base=base, chains=chains, domain="binary").fit(rows)
            assert model.n_restarts_ == 0
            assert np.isfinite(model.score_samples(rows)).all()
            drawn = model.sample(50, random_state=0, n_steps=2)
            assert Binary((rows.shape[1],)).contains(torch.tensor(drawn)).all()


@pytest.mark.filterwarnings("error")
def test_a_stream_of_single_rows():
    for rows, domain in ((binary_rows(), "binary"), (one_hot_rows(), Categorical((3, 3)))):
        model = density(domain=domain, base=None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "partial_fit holds out no rows")
            for row in rows[:5]:
                model.partial_fit(row[None])
        assert np.isfinite(model.score_samples(rows)).all()


def test_unusable_frames():
    with pytest.raises(ValueError, match="could not convert"):
        density(categorical_features=None).fit(pd.DataFrame({"a": [0, 1], "b": ["x", "y"]}))
    frame = pd.DataFrame(binary_rows(), columns=list("abcdef"))
    model = density().fit(frame)
    for method in ("predict", "partial_fit"):
        with pytest.raises(ValueError, match="feature names"):
            getattr(model, method)(frame[list("fedcba")])
        with pytest.raises(ValueError, match="feature names|features"):
            getattr(model, method)(frame[list("abc")])
    mixed = frame.astype({"a": bool, "b": "int8", "c": object})
    assert_array_equal(density().fit(mixed).score_samples(mixed), model.score_samples(frame))
