"""Missing entries of sequences against sums over all completions, quadrature and linear algebra."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skebm import TemporalRBM
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    LatentClasses,
)
from skebm.energies import RowwiseRBM
from skebm.energies.rbm.temporal import exact_log_z
from skebm.estimators.sequences.blocks import ColouredWindows
from skebm.estimators.sequences.clamped import ClampedChains
from skebm.estimators.sequences.imputation import stretches
from tests.support.oracle import make_temporal, seeded
from tests.support.tiers import full, named, only_full

F64 = torch.float64
D, T = 6, 4
MODES = {"conditional": (2, False), "recurrent": (0, True), "both": (1, True)}


def bits(d=D, kind="bits"):
    g = seeded(5)
    if kind == "tree":
        x = (torch.rand(80, d, generator=g, dtype=F64) < 0.4).to(F64)
        return ChowLiuTree.fit(x, torch.ones(80, dtype=F64))
    return IndependentBernoulli(torch.randn(d, generator=g, dtype=F64))


ONE = Gaussian(torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64))
TWO = Gaussian(
    torch.tensor([0.3, -0.2], dtype=F64),
    covariance=torch.tensor([[1.0, 0.5], [0.5, 1.2]], dtype=F64),
)


def energy_of(base, order=2, recurrent=False, scale=0.7, n_hidden=2):
    return make_temporal(base, n_hidden, 1, order=order, recurrent=recurrent, scale=scale)


def frames_of(energy, levels, length=T):
    """A sequence, (1, K + T, d + 1), of numbers and of bits in the columns `levels`."""
    found = torch.zeros(1, energy.order + length, energy.n_entries, dtype=F64)
    found[:, : energy.order, -1] = 1
    x = torch.randn(length, energy.domain.n_columns, generator=seeded(3), dtype=F64)
    x[:, levels] = (x[:, levels] > 0).to(F64)
    found[:, energy.order :, :-1] = x
    return found


def log_p(energy, frames):
    """log p of sequences (n, K + T, d + 1), (n,)."""
    length = frames.shape[1] - energy.order
    targets = energy.of_windows(frames.flatten(1), length)
    given = RowwiseRBM(energy.rbm, targets.biases)
    value = -given.free_energy(targets.x) - exact_log_z(given)
    return value.view(len(frames), length).sum(1)


def unknown_of(energy, missing, length=T):
    found = torch.zeros(1, length, energy.domain.n_columns, dtype=torch.bool)
    for entry in missing:
        found[0][entry] = True
    return found


@torch.no_grad()
def posterior(energy, frames, unknown, grids):
    """Mean and second moments of the missing entries, in order, by a sum over their values."""
    frame, column = unknown[0].nonzero().unbind(1)
    states = torch.cartesian_prod(*grids)
    many = frames.repeat(len(states), 1, 1)
    many[:, energy.order + frame, column] = states
    p = log_p(energy, many).softmax(0)
    return p @ states, (states.t() * p) @ states


def chains_of(energy, frames, unknown, n, exact=None, seed=2):
    reach = max(energy.order, 16) if energy.recurrent else energy.order
    many = frames.repeat(n, 1, 1)
    many[:, energy.order :, :-1][unknown.expand(n, -1, -1)] = 0
    return ClampedChains(energy, many, unknown.repeat(n, 1, 1), n, reach, seeded(seed), exact=exact)


def check_draws(energy, levels, missing, n=800, n_steps=16, exact=None):
    """Chains that have run against the posterior."""
    frames, unknown = frames_of(energy, levels), unknown_of(energy, missing)
    grids = [
        torch.tensor([0.0, 1.0], dtype=F64)
        if int(column) in levels
        else torch.linspace(-7, 7, 101, dtype=F64)
        for _, column in unknown[0].nonzero()
    ]
    mean, second = posterior(energy, frames, unknown, grids)
    chains = chains_of(energy, frames, unknown, n, exact)
    with torch.no_grad():
        chains.start()
        for step in range(n_steps):
            chains.step(adapting=step < n_steps // 2)
    drawn = chains.x[unknown.expand(n, -1, -1)].view(n, -1)
    scale = (second.diagonal() - mean.square()).sqrt()
    error = (drawn.mean(0) - mean) / scale * n**0.5
    assert error.abs().max() < 4.5, error
    moments = (drawn.t() @ drawn / n - second) / torch.outer(scale, scale)
    assert moments.abs().max() < 0.4, moments
    known = chains.x[~unknown.expand(n, -1, -1)].view(n, -1)
    assert torch.equal(known, frames[:, energy.order :, :-1][~unknown].expand(n, -1))


# ------------------------------------------------------------------------------
# Draws
# ------------------------------------------------------------------------------

SOME = [(0, 2), (1, 0), (1, 1), (1, 5), (2, 0), (3, 1)]


@pytest.mark.parametrize("exact", [pytest.param(True, marks=full), False])
@pytest.mark.parametrize("mode", named(["both"], MODES))
def test_draws_of_bits_are_those_of_all_completions(mode, exact):
    check_draws(energy_of(bits(), *MODES[mode]), range(D), SOME, exact=exact)


def test_draws_of_whole_frames_of_a_tree():
    missing = [(1, j) for j in range(D)] + [(3, 0), (3, 1)]
    check_draws(energy_of(bits(kind="tree"), 1), range(D), missing, exact=False)


@pytest.mark.parametrize("exact", [pytest.param(True, marks=full), False])
@pytest.mark.parametrize(
    ("base", "order", "recurrent"),
    [(TWO, 1, True), only_full(ONE, 2, False), only_full(ONE, 0, True)],
)
def test_draws_of_numbers_against_quadrature(base, order, recurrent, exact):
    check_draws(energy_of(base, order, recurrent, 0.6), (), [(1, 0), (2, 0)], exact=exact)


@full
def test_draws_of_bits_and_numbers():
    base = Columns([bits(1), ONE])
    missing = [(1, 0), (1, 1), (2, 0), (2, 1)]
    check_draws(energy_of(base, 2, scale=0.6), (0,), missing, n=500, n_steps=60)


@full
def test_draws_of_numbers_of_latent_classes():
    """Whose real columns are not normal: proposed frame by frame."""
    g = seeded(0)
    x = torch.randn(200, 2, generator=g, dtype=F64) + 2 * (torch.arange(200) % 2)[:, None]
    base = LatentClasses.fit(x, Gaussian.fit(x).domain, n_classes=2)
    check_draws(energy_of(base, 1, scale=0.4), (), [(1, 0), (2, 1)], n_steps=80)


# ------------------------------------------------------------------------------
# The parts of a step
# ------------------------------------------------------------------------------


def log_joint(energy, frames, h):
    """log p(x_t, h_t given the past) of a sequence, (T,)."""
    targets = energy.of_windows(frames.flatten(1), T)
    given = RowwiseRBM(energy.rbm, targets.biases)
    own = (h * given.hidden_field(targets.x)).sum(1) - given.visible_energy(targets.x)
    return own - exact_log_z(given)


@pytest.mark.parametrize("base", [bits(), TWO, Columns([bits(1), ONE])])
def test_ratios_of_densities(base):
    energy = energy_of(base, 1)
    levels = [] if base is TWO else [0] if isinstance(base, Columns) else range(D)
    frames, unknown = frames_of(energy, levels), unknown_of(energy, [(1, 0), (2, 0)])
    chains, other = chains_of(energy, frames, unknown, 1, True), frames.clone()
    other[0, energy.order + 1, 0] = 1 - frames[0, energy.order + 1, 0]
    chains.frames.copy_(frames)
    h = (torch.rand(T, 2, generator=seeded(), dtype=F64) < 0.5).to(F64)
    with torch.no_grad():
        chains.biases = chains._biases(frames)
        found = chains._log_ratio(h, other, chains._biases(other))[0]
        expected = log_joint(energy, other, h) - log_joint(energy, frames, h)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_ratios_of_log_z_by_one_draw_are_unbiased():
    energy = energy_of(Columns([bits(2), TWO]), 1, scale=0.5)
    frames, n = frames_of(energy, [0, 1]), 20_000
    chains = chains_of(energy, frames, unknown_of(energy, [(1, 0)]), 1, False)
    other = frames.clone()
    other[0, 2, :-1] += torch.tensor([1.0, 0.0, 0.5, -0.5], dtype=F64)
    with torch.no_grad():
        old, new = (energy.of_windows(one.flatten(1), T).biases for one in (frames, other))
        at = torch.full((n,), 2)
        before, after = (RowwiseRBM(energy.rbm, one.take(at)) for one in (old, new))
        x = other[0, 3, :-1].expand(n, -1)
        ratios = chains._log_z_ratio(before, after, x).exp()
        exact = exact_log_z(before)[0] - exact_log_z(after)[0]
    error = ratios.std() / n**0.5
    assert (ratios.mean() - exact.exp()).abs() < 5 * error
    assert error < 0.01 * exact.exp()


def autoregressive(order=2, base=TWO):
    """Without weights: the distribution of a sequence is normal."""
    energy = energy_of(base, order, scale=0.4)
    with torch.no_grad():
        energy.rbm.weight.zero_()
        energy.lag_hidden.zero_()
    return energy


@torch.no_grad()
def test_without_weights_draws_are_those_of_a_kalman_smoother():
    """Every proposal is accepted, and the mean of draws solves the normal equations."""
    energy, length = autoregressive(), 12
    frames = frames_of(energy, (), length)
    missing = [(t, j) for t in (0, 3, 4, 5, 11) for j in (0, 1)] + [(7, 0), (8, 1)]
    unknown = unknown_of(energy, missing, length)

    def value(flat):
        many = frames.repeat(len(flat), 1, 1)
        many[:, energy.order :, :-1][unknown.expand(len(flat), -1, -1)] = flat.flatten()
        return log_p(energy, many).sum()

    zero = torch.zeros(1, len(missing), dtype=F64)
    with torch.enable_grad():
        score = torch.autograd.functional.jacobian(value, zero)[0]
        precision = -torch.autograd.functional.hessian(value, zero)[0, :, 0]
    mean = torch.linalg.solve(precision, score)
    n = 1000
    chains = chains_of(energy, frames, unknown, n)
    chains.step(adapting=True)
    before = chains.x.clone()
    chains.step(adapting=False)
    assert ((chains.x != before) == unknown).all()
    for _ in range(10):  # of windows of ten frames
        chains.step(adapting=False)
    drawn = chains.x[unknown.expand(n, -1, -1)].view(n, -1)
    scale = torch.linalg.inv(precision).diagonal().sqrt()
    assert ((drawn.mean(0) - mean).abs() / scale).max() < 4.5 / n**0.5
    assert_allclose(drawn.std(0) / scale, 1.0, atol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("base", [ONE, TWO])
def test_log_z_of_numbers_does_not_depend_on_their_regression(base):
    """Hidden units see what it leaves, whatever the correlations of the base."""
    energy = energy_of(base, 1)
    energy.lag_hidden.zero_()
    lags = torch.randn(5, energy.n_entries, generator=seeded(), dtype=F64)
    lags[:, -1] = 0
    given = energy.given(lags)
    moved = energy.mean_shift(given.biases.visible)
    start = RowwiseRBM(energy.rbm, type(given.biases)(*(0 * part for part in given.biases)))
    x = torch.randn(5, base.domain.n_columns, generator=seeded(1), dtype=F64)
    found = -given.free_energy(x + moved) - exact_log_z(given)
    expected = -start.free_energy(x) - exact_log_z(start)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_windows_of_a_colour_do_not_interact():
    windows = ColouredWindows(3, 1, 4)
    assert windows.n_colours == 3
    cpu = torch.device("cpu")
    active = torch.stack([windows.active(k, 20, cpu) for k in range(3)])
    assert (active.sum(0) == 1).all()
    assert active[1].nonzero().ravel().tolist() == [2, 3, 4, 11, 12, 13]
    assert windows.owner(1, 20, cpu).tolist() == [0] * 2 + [1] * 9 + [2] * 9
    assert windows.n_active(1, 20) == 2
    assert [windows.begin(1, j) for j in range(2)] == [2, 11]


def test_stretches_that_known_frames_separate():
    incomplete = torch.zeros(30, dtype=torch.bool)
    incomplete[[0, 2, 6, 25]] = True
    starts, ends = torch.tensor([0, 10, 20]), torch.tensor([9, 19, 29])
    found = stretches(incomplete, starts, ends, 2, whole=False)
    assert found == [(0, 0, 4), (0, 6, 8), (20, 25, 27)]
    assert stretches(incomplete, starts, ends, 16, whole=True) == [(0, 0, 9), (20, 20, 29)]


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def pattern(n=120, seed=0, noise=0.0):
    X = np.tile(np.eye(3), (n // 3, 1))
    return np.where(np.random.default_rng(seed).random(X.shape) < noise, 1 - X, X)


def with_gaps(X, *gaps):
    found = np.array(X, dtype=float)
    for gap in gaps:
        found[gap] = np.nan
    return found


@pytest.fixture(scope="module")
def model():
    return TemporalRBM(12, order=2, n_iter=40, random_state=0).fit(pattern(240))


@full
def test_gaps_of_a_pattern(model):
    X = pattern(60)
    missing = with_gaps(X, slice(0, 2), slice(10, 13), (20, 1), (30, slice(0, 2)), slice(57, 60))
    drawn = model.impute(missing, random_state=0, n_steps=30)
    known = ~np.isnan(missing)
    assert_array_equal(drawn[known], X[known])
    assert np.isin(drawn, (0, 1)).all()
    mode = model.impute(missing, random_state=0, how="mode", n_steps=30)
    assert_array_equal(mode, X)
    several = model.impute(missing, random_state=0, n_draws=12, n_steps=2)
    again = model.impute(missing, random_state=0, n_draws=12, n_steps=2)
    assert_array_equal(several, again)
    assert len(several) == 12
    assert_array_equal(several[0][known], X[known])


def test_means_are_those_of_all_completions():
    """The phase of the start is only known from the frames after it."""
    songs = [pattern(33, k, 0.05)[k:] for k in range(3)]
    model = TemporalRBM(
        4, order=2, n_iter=20, learning_rate=0.05, random_state=0, dtype="float64"
    ).fit(songs)
    X = pattern(9)[1:]
    missing = with_gaps(X, slice(0, 2), (3, 0))
    states = np.array(np.meshgrid(*[[0.0, 1.0]] * 7)).reshape(7, -1).T
    completions = np.repeat(missing[None], len(states), 0)
    completions[:, np.isnan(missing)] = states
    log_p = model.score_samples(list(completions)).reshape(len(states), -1).sum(1)
    p = np.exp(log_p - log_p.max())
    expected = p @ states / p.sum()
    found = model.impute(missing, random_state=0, how="mean", n_steps=100)[np.isnan(missing)]
    assert_allclose(found, expected, atol=0.08)
    assert np.abs(expected - 0.5).max() > 0.2


def test_sequences_of_any_form():
    X = pattern(60)
    model = TemporalRBM(4, order=2, n_iter=2, random_state=0).fit(X)
    missing = with_gaps(X, (5, 1), slice(31, 33))
    short = {"random_state": 0, "n_steps": 3}
    expected = model.impute(missing, lengths=[30, 30], **short)
    parts = [missing[:30], missing[30:]]
    assert_array_equal(model.impute(parts, **short), expected)
    frame = pd.DataFrame(missing, columns=list("abc")).assign(song=[0] * 30 + [1] * 30)
    named = TemporalRBM(4, order=2, n_iter=2, random_state=0, sequence_column="song")
    filled = named.fit(frame.fillna(0)).impute(frame, **short)
    assert filled.shape == (60, 3)
    assert_array_equal(model.impute(X), X)
    for n in (1, 4):
        assert np.isfinite(model.impute(np.full((n, 3), np.nan), **short)).all()


def test_categories_come_back_as_categories():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "note": np.tile(["c", "e", "g", "a"], 20),
            "loud": rng.normal(size=80),
            "on": np.tile([True, False], 40),
        }
    )
    model = TemporalRBM(6, order=1, n_iter=30, learning_rate=0.1, random_state=0).fit(frame)
    missing = frame.astype({"on": object})
    missing.loc[[10, 50], "note"] = None
    missing.loc[[11, 50], "loud"] = np.nan
    missing.loc[30, "on"] = None
    for how in ("draw", "mean", "mode"):
        found = model.impute(missing, random_state=0, how=how, n_steps=2)
        assert list(found.columns) == list(frame.columns)
        assert set(found["note"]) == {"c", "e", "g", "a"}
        assert_array_equal(found.drop([10, 50])["note"], frame.drop([10, 50])["note"])
        known = frame["loud"].drop([11, 50])
        assert_allclose(found["loud"].drop([11, 50]), known)
        assert np.isfinite(found["loud"]).all()
        assert set(found["on"]) == {True, False}
    mean = model.impute(missing, random_state=0, how="mean", n_steps=20)
    assert mean.loc[[10, 50], "note"].tolist() == frame.loc[[10, 50], "note"].tolist()


def waves(n, seed):
    rng, t = np.random.default_rng(seed), np.arange(n) + 100 * seed
    X = np.column_stack([np.sin(t / 4), np.cos(t / 4), np.sin(t / 4 + 1)])
    return X + 0.03 * rng.normal(size=X.shape)


@full
def test_gaps_of_waves_are_filled_better_than_by_lines():
    model = TemporalRBM(5, order=2, n_iter=30, random_state=0, base="gaussian")
    model.fit([waves(100, seed) for seed in range(4)])
    X = waves(100, 9)
    missing = with_gaps(X, (slice(20, 32), 0), slice(50, 58))
    filled = model.impute(missing, random_state=0, how="mean", n_steps=40)
    lines = pd.DataFrame(missing).interpolate().to_numpy()
    out = np.isnan(missing)
    errors = [np.square(one - X)[out].mean() for one in (filled, lines)]
    assert errors[0] < 0.1 * errors[1]


def test_correlations_given_the_past():
    """A Gaussian base has those of what an autoregression leaves, which is where a fit starts."""
    rng = np.random.default_rng(0)
    noise = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 1000)
    X = np.zeros((1000, 2))
    for t in range(1, 1000):
        X[t] = 0.9 * X[t - 1, ::-1] * [1, -1] + noise[t]
    model = TemporalRBM(3, order=1, n_iter=0, random_state=0, base="gaussian").fit(X)
    covariance = model.base_.covariance
    assert abs(covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt() - 0.8) < 0.05
    X_now, X_next = X[:-1], X[1:]
    weight = np.linalg.lstsq(np.column_stack([X_now, np.ones(999)]), X_next, rcond=None)[0]
    rest = X_next - np.column_stack([X_now, np.ones(999)]) @ weight
    covariance = np.cov(rest.T)
    white = np.linalg.solve(np.linalg.cholesky(covariance), rest.T)
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    expected = -0.5 * np.square(white).sum(0) - 0.5 * log_det
    found = model.score_samples(X)[1:]  # of a start from nine tenths of the frames
    assert abs(found.mean() - expected.mean()) < 0.01
    assert np.abs(found - expected).mean() < 0.1
    plain = clone(model).set_params(base="independent").fit(X)
    assert model.score(X) > plain.score(X) + 0.3


def test_latent_classes_and_recurrent_units():
    X = waves(60, 0)
    missing = with_gaps(X, (slice(20, 24), 0), 40)
    for more in ({"base": "latent-classes"}, {"recurrent": True, "order": 0}):
        model = TemporalRBM(3, **{"order": 1} | more, n_iter=5, random_state=0).fit(X)
        found = model.impute(missing, random_state=0, n_steps=5)
        assert np.isfinite(found).all()
        assert_array_equal(found[~np.isnan(missing)], missing[~np.isnan(missing)])


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


def test_missing_entries_name_what_fills_them(model):
    X = with_gaps(pattern(30), (4, 2))
    for call in (model.score_samples, model.predict, model.transform, model.predict_next):
        with pytest.raises(ValueError, match="frame 4.*column 2"):
            call(X)
    frame = pd.DataFrame(X, columns=list("abc"))
    with pytest.raises(ValueError, match="frame 4.*column 'c'"):
        clone(model).fit(frame)
    song = pd.DataFrame({"note": list("cega") * 5})
    of_notes = TemporalRBM(2, order=1, n_iter=1, random_state=0).fit(song)
    with pytest.raises(ValueError, match="frame 2.*column 'note'"):
        of_notes.score_samples(song.replace("g", "h"))


@pytest.mark.parametrize(
    ("X", "kwargs", "match"),
    [
        (pattern(30), {"how": "median"}, "how must be"),
        (pattern(30), {"n_steps": 0}, "n_steps"),
        (pattern(30), {"n_draws": 0}, "n_draws"),
        (pattern(30), {"how": "mean", "n_draws": 2}, "there is one mean"),
        (pattern(30), {"lengths": [3]}, "add up to 3"),
        (pattern(30)[:, :2], {}, "features"),
        (np.where(pattern(30) > 0, np.inf, 0), {}, "infinity"),
        (np.zeros((0, 3)), {}, "0 sample"),
        ([["a", "b", "c"]], {}, "could not convert"),
    ],
)
def test_bad_arguments(model, X, kwargs, match):
    with pytest.raises(ValueError, match=match):
        model.impute(X, **kwargs)
