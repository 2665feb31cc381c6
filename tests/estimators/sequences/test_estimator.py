"""Temporal RBMs against sums over all frames and hidden states."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, TimeSeriesSplit, cross_val_score

from skebm import RBMEstimator, TemporalRBM
from skebm.base import Batch, Clamp
from skebm.distributions import ChowLiuTree, Columns, Gaussian, IndependentBernoulli
from skebm.energies import MixedRBM, RowwiseRBM, TemporalEnergy
from skebm.energies.rbm.temporal import exact_log_z
from skebm.estimators.sequences.family import autoregression
from skebm.estimators.sequences.table import first_frames
from skebm.objectives import TemporalDivergence
from skebm.partition.given import rowwise_log_z, rowwise_log_z_from
from skebm.samplers import FromData, Persistent
from skebm.training import EarlyStopping
from skebm.training.rows import Rows
from skebm.training.segments import Segments
from tests.support.callbacks import Interrupt
from tests.support.checks import parametrize_with_checks
from tests.support.oracle import bits, make_temporal, seeded
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full, leading, named

F64 = torch.float64
D, H = 3, 2


def bases():
    g = seeded(5)
    x = (torch.rand(50, D, generator=g, dtype=F64) < 0.4).to(F64)
    return {
        "bits": IndependentBernoulli(torch.randn(D, generator=g, dtype=F64)),
        "tree": ChowLiuTree.fit(x, torch.ones(50, dtype=F64)),
    }


MODES = {"conditional": (2, False), "recurrent": (0, True), "both": (1, True)}


def energy_of(mode="both", base="bits", scale=0.7):
    order, recurrent = MODES[mode]
    return make_temporal(bases()[base], H, 1, order=order, recurrent=recurrent, scale=scale)


def frames_of(n=2, length=4):
    return (torch.rand(n, length, D, generator=seeded(3), dtype=F64) < 0.5).to(F64)


def windows_of(energy, frames):
    """Windows of whole sequences, in front of which frames are missing."""
    n, length, _ = frames.shape
    found = torch.zeros(n, energy.order + length, D + 1, dtype=F64)
    found[:, : energy.order, -1] = 1
    found[:, energy.order :, :-1] = frames
    return found.flatten(1)


def past_of(energy, frames, t):
    """Biases of frame t of one sequence (T, d), by the formulas."""
    b, c, rbm = torch.zeros(D, dtype=F64), torch.zeros(H, dtype=F64), energy.rbm
    for k in range(1, energy.order + 1):
        place = slice((energy.order - k) * (D + 1), (energy.order - k + 1) * (D + 1))
        lag = torch.zeros(D + 1, dtype=F64)
        if t - k >= 0:
            lag[:-1] = frames[t - k]
        else:
            lag[-1] = 1
        b = b + energy.lag_visible[:, place] @ lag
        c = c + energy.lag_hidden[:, place] @ lag
    if energy.recurrent:
        r = energy.first_state.sigmoid()
        if t > 0:
            _, before = past_of(energy, frames, t - 1)
            r = (rbm.hidden_bias + before + rbm.weight @ frames[t - 1]).sigmoid()
        b, c = b + energy.state_visible @ r, c + energy.state_hidden @ r
    return b, c


def joint(energy, x, h, b, c):
    rbm = energy.rbm
    return (
        -rbm.base.log_prob(x)
        - x @ (rbm.visible_bias + b)
        - h @ (rbm.hidden_bias + c)
        - (h @ rbm.weight * x).sum(1)
    )


def log_prob(energy, frames, t):
    """log p(x_t given the past) by a sum over all frames and hidden states."""
    b, c = past_of(energy, frames, t)
    hidden, visible = bits(H), bits(D)

    def free(x):
        return torch.stack([-joint(energy, x, h.expand(len(x), -1), b, c) for h in hidden])

    here = free(frames[t : t + 1]).logsumexp(0)[0]
    return here - free(visible).flatten().logsumexp(0)


# ------------------------------------------------------------------------------
# The energy
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", bases())
@pytest.mark.parametrize("mode", MODES)
def test_log_prob_of_frames_is_a_sum_over_states(mode, base):
    energy, frames = energy_of(mode, base), frames_of()
    found = energy.of_windows(windows_of(energy, frames), frames.shape[1])
    assert found.there.all()
    given = RowwiseRBM(energy.rbm, found.biases)
    value = -given.free_energy(found.x) - exact_log_z(given)
    expected = [log_prob(energy, one, t) for one in frames for t in range(len(one))]
    torch.testing.assert_close(value, torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("base", bases())
def test_conditionals_of_a_frame(base):
    energy, frames = energy_of("both", base), frames_of(1)
    found = energy.of_windows(windows_of(energy, frames), frames.shape[1])
    visible, hidden = bits(D), bits(H)
    for t in range(frames.shape[1]):
        b, c = found.biases.take(torch.tensor([t]))
        one = RowwiseRBM(energy.rbm, type(found.biases)(b, c))
        h = hidden[-1:]
        p = (-joint(energy, visible, h.expand(len(visible), -1), b[0], c[0])).softmax(0)
        torch.testing.assert_close(one.visible(h).mean[0], p @ visible)
        clamp = Clamp(torch.tensor([[True, False, False]]), torch.ones(1, D, dtype=F64))
        kept = visible[:, 0] == 1
        log = -joint(energy, visible[kept], h.expand(int(kept.sum()), -1), b[0], c[0])
        torch.testing.assert_close(-one.hidden_energy(h, clamp=clamp)[0], log.logsumexp(0))
        x = frames[0, t : t + 1]
        log = -joint(energy, x.expand(len(hidden), -1), hidden, b[0], c[0])
        torch.testing.assert_close(one.hidden(x).mean[0], log.softmax(0) @ hidden)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_through_time(mode):
    energy, frames = energy_of(mode), frames_of()
    windows = windows_of(energy, frames)
    objective = TemporalDivergence(energy, "exact", 1, frames.shape[1], 2)
    objective.gradients(Batch(windows), objective.start(Batch(windows), None), seeded())
    found = {name: p.grad.clone() for name, p in energy.named_parameters()}
    energy.zero_grad()
    terms = [-log_prob(energy, one, t) for one in frames for t in range(len(one))]
    torch.stack(terms).mean().backward()
    for name, p in energy.named_parameters():
        if p.numel():  # there are no precisions of bits
            torch.testing.assert_close(found[name], p.grad, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("base", bases())
def test_gradient_by_hand_is_that_of_autograd(base):
    energy = energy_of("conditional", base)
    windows = windows_of(energy, frames_of(5, 3))
    objective, batch = TemporalDivergence(energy, "cd", 2, 3, 5), Batch(windows)
    objective.gradients(batch, objective.start(batch, None), seeded())
    found = {name: p.grad.clone() for name, p in energy.named_parameters()}
    energy.zero_grad()
    objective(batch, objective.start(batch, None), seeded()).value.backward()
    for name, p in energy.named_parameters():
        if p.numel():
            torch.testing.assert_close(found[name], p.grad, msg=name)


@full
def test_contrastive_divergence_is_the_gradient_on_average():
    energy, frames = energy_of("both", scale=0.3), frames_of(200, 3)
    windows = windows_of(energy, frames)
    exact = TemporalDivergence(energy, "exact", 1, 3, 200)
    exact.gradients(Batch(windows), exact.start(Batch(windows), None), seeded())
    expected = energy.weight.grad.clone()
    chains = TemporalDivergence(energy, "pcd", 30, 3, 200)
    batch = Batch(windows, row_index=torch.arange(200))
    state, total = chains.start(batch, seeded()), 0.0
    g = seeded(7)
    for _ in range(100):
        chains.gradients(batch, state, g)
        total = total + energy.weight.grad
    torch.testing.assert_close(total / 100, expected, rtol=0, atol=0.01)
    assert not state.pool.isnan().any()


@pytest.mark.parametrize("base", bases())
def test_annealing_brackets_log_z(base):
    energy, frames = energy_of("both", base, scale=1.5), frames_of(2, 3)
    found = energy.of_windows(windows_of(energy, frames), 3)
    given = RowwiseRBM(energy.rbm, found.biases)
    exact = exact_log_z(given).detach()
    g = seeded()
    low = rowwise_log_z(given, 500, 30, g)
    assert ((low.value - exact).abs() < 5 * low.std_error + 1e-9).all()
    index = torch.arange(len(exact)).repeat_interleave(500)
    many = RowwiseRBM(energy.rbm, found.biases.take(index))
    draws = low.draws[index]
    for _ in range(20):
        draws = many.visible(many.hidden(draws).sample(g)).sample(g)
    high = rowwise_log_z_from(many, draws, 30, g).view(-1, 500)
    error = high.std(1) / 500**0.5
    assert (high.mean(1) > exact - 3 * error).all()
    weighed = -((-high).logsumexp(1) - np.log(500))
    torch.testing.assert_close(weighed, exact, rtol=0, atol=0.15)


def test_real_columns_against_quadrature():
    base = Columns(
        [
            IndependentBernoulli(torch.zeros(1, dtype=F64)),
            Gaussian(torch.zeros(1, dtype=F64), torch.ones(1, dtype=F64)),
        ]
    )
    g = seeded()
    energy = TemporalEnergy(MixedRBM(base, H, generator=g, dtype=F64), 1)
    with torch.no_grad():
        for p in energy.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=F64))
    given = energy.given(torch.tensor([[1.0, -0.5, 0.0]], dtype=F64))
    nodes = torch.linspace(-12, 12, 4001, dtype=F64)
    rows = torch.cat([torch.stack([torch.full_like(nodes, b), nodes], 1) for b in (0.0, 1.0)])
    index = torch.zeros(len(rows), dtype=torch.long)
    value = -RowwiseRBM(energy.rbm, given.biases.take(index)).free_energy(rows)
    log_z = value.logsumexp(0) + np.log(24 / 4000)
    torch.testing.assert_close(exact_log_z(given)[0], log_z, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def pattern(n=120, period=3, seed=0, noise=0.02):
    """Frames of which each tells the next, with a few wrong bits."""
    rng = np.random.default_rng(seed)
    X = np.tile(np.eye(period), (n // period, 1))
    return np.where(rng.random(X.shape) < noise, 1 - X, X)


QUICK = {"n_components": 4, "order": 1, "n_iter": 20, "learning_rate": 0.03, "random_state": 0}
CASES = {
    "conditional": TemporalRBM(**QUICK),
    "pcd": TemporalRBM(**QUICK, chains=Persistent(n_steps=2)),
    "exact": TemporalRBM(**QUICK, learning="exact", dtype="float64"),
    "recurrent": TemporalRBM(**QUICK | {"order": 0, "recurrent": True}),
    "tree": TemporalRBM(**QUICK, base="chow-liu", early_stopping=True),
}
each = pytest.mark.parametrize("name", named(["conditional", "recurrent"], CASES))


@pytest.mark.parametrize("name", named(["conditional"], CASES))
def test_the_past_is_worth_its_nats(name):
    X = pattern(300)
    n_iter = 200 if name == "recurrent" else 50
    model = clone(CASES[name]).set_params(n_iter=n_iter).fit(X)
    alone = RBMEstimator(4, n_iter=50, random_state=0).fit(X)
    assert model.score(X) > alone.score(X) + 0.3
    late = model.predict_next(X[:5])
    assert late.shape == (1, 3)
    assert late[0].argmax() == 2


@pytest.mark.parametrize("name", named(["recurrent"], CASES))
def test_frames_are_scored_alike_in_any_company(name):
    one, other = pattern(30), pattern(60, seed=1)
    model = clone(CASES[name]).set_params(n_iter=2).fit([one, other])
    both = np.concatenate([one, other])
    found = model.score_samples(both, lengths=[30, 60])
    np.testing.assert_allclose(model.score_samples([one, other]), found, rtol=1e-5)
    np.testing.assert_allclose(model.score_samples(other), found[30:], rtol=1e-4, atol=1e-5)
    frame = pd.DataFrame(both, columns=["a", "b", "c"])
    frame["song"] = ["x"] * 30 + ["y"] * 60
    named_one = clone(model).set_params(sequence_column="song").fit(frame)
    np.testing.assert_array_equal(named_one.score_samples(frame), found)
    # Earlier frames do not depend on later ones.
    np.testing.assert_allclose(model.score_samples(other[:20]), found[30:50], rtol=1e-4, atol=1e-5)


def test_sequences_longer_than_a_block_are_carried_on():
    X = pattern(900)
    for case in (CASES["conditional"], CASES["recurrent"]):
        model = clone(case).set_params(n_iter=2).fit(X)
        energy, found = model.energy_, model.score_samples(X)
        windows = torch.zeros(1, energy.order + 900, 4)
        windows[0, : energy.order, -1] = 1
        windows[0, energy.order :, :-1] = torch.as_tensor(X)
        with torch.no_grad():
            whole = energy.of_windows(windows.flatten(1), 900)
            given = RowwiseRBM(energy.rbm, whole.biases)
            value = -given.free_energy(whole.x) - exact_log_z(given)
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-4, atol=1e-5)


@full
def test_estimated_likelihoods_are_near_the_exact_ones():
    X = pattern(60)
    model = TemporalRBM(20, order=1, n_iter=30, random_state=0, learning_rate=0.05).fit(X)
    found = model.log_conditional(X)
    assert not found.exact.any()
    model_energy = model.energy_
    rows = torch.zeros(60, 2, 4)
    rows[1:, 0, :-1] = torch.as_tensor(X[:-1])
    rows[0, 0, -1] = 1
    rows[:, 1, :-1] = torch.as_tensor(X)
    with torch.no_grad():
        targets = model_energy.of_windows(rows.flatten(1), 1)
        # Visible states are few.
        visible = bits(3).float()
        index = torch.arange(60).repeat_interleave(len(visible))
        many = RowwiseRBM(model_energy.rbm, targets.biases.take(index))
        log_z = -many.free_energy(visible.repeat(60, 1)).double()
        given = RowwiseRBM(model_energy.rbm, targets.biases)
        exact = -given.free_energy(targets.x).double() - log_z.view(60, -1).logsumexp(1)
    np.testing.assert_allclose(found.log_prob, exact, atol=0.1)
    assert model.score(X) <= exact.mean() + 1e-3
    assert abs(model.score(X) - exact.mean()) < 0.1


def segments(lengths, d=2, n_context=1, seed=0):
    """Windows of sequences of random numbers."""
    x = torch.randn(sum(lengths), d, generator=seeded(seed), dtype=F64)
    rows = Segments(Rows(x, dtype=F64, device=torch.device("cpu")))
    rows.cut(torch.as_tensor(first_frames(len(x), np.array(lengths))), n_context, 1)
    return rows


@pytest.mark.parametrize(("lengths", "whole"), [([5] * 20, True), ([30, 50], False), ([1], False)])
def test_whole_sequences_are_held_out_or_the_end_of_each(lengths, whole):
    rows = segments(lengths)
    train, out = rows.split(len(rows) // 5, seeded())
    assert sorted([*train.ends.tolist(), *out.ends.tolist()]) == list(range(sum(lengths)))
    if whole:
        assert not set(train.first[train.ends].tolist()) & set(out.first[out.ends].tolist())
        assert len(out) == 20
    elif len(lengths) > 1:
        assert out.ends.tolist() == [*range(24, 30), *range(70, 80)]
    else:
        assert len(out) == 1


def test_the_autoregression_is_the_ridge_regression_of_the_best_penalty():
    rows = segments([12] * 10, d=3, n_context=2)
    x = rows.x.numpy()
    x[1:] += 0.8 * x[:-1]
    x[:, 2] = 7.0  # constant
    columns = torch.tensor([0, 2])
    weight, bias, left = autoregression(rows, 2, columns)
    Z = rows.ending_at(torch.arange(120), 3).numpy()[:, :8]
    Y, fold = x[:, [0, 2]], np.repeat(np.arange(5), 24)
    errors, fits = [], []
    for penalty in np.logspace(-6, 2, 17):
        predicted = np.empty_like(Y)
        for i in range(5):
            n = (fold != i).sum()
            model = Ridge(penalty * n).fit(Z[fold != i], Y[fold != i])
            predicted[fold == i] = model.predict(Z[fold == i])
        errors.append(((predicted - Y) ** 2).mean(0)[0])
        fits.append(Ridge(penalty * 120).fit(Z, Y))
    best = int(np.argmin(errors))
    np.testing.assert_allclose(left[0], errors[best] / Y[:, 0].var(), rtol=1e-6)
    np.testing.assert_allclose(weight[0], fits[best].coef_[0], atol=1e-7)
    np.testing.assert_allclose(bias, fits[best].intercept_, atol=1e-6)
    np.testing.assert_allclose(weight[1], 0, atol=1e-9)


def test_frames_after_one_that_is_too_far_are_refused():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model, far = TemporalRBM(2, order=1, n_iter=1, random_state=0).fit(X), X[:5].copy()
    far[2, 0] = 1e300
    assert model.score_samples(far[:3])[2] == -np.inf
    for method in (model.score_samples, model.transform):
        with pytest.raises(ValueError, match="frame 3"):
            method(far)


def test_constant_columns_are_normal_columns_of_unit_variance():
    X = np.column_stack([np.full(60, 7.5), np.random.default_rng(0).normal(size=60)])
    model = TemporalRBM(4, order=1, n_iter=2, random_state=0).fit(X)
    alone = TemporalRBM(4, order=1, n_iter=2, random_state=0).fit(X[:, 1:])
    assert abs(model.score(X) - alone.score(X[:, 1:]) + np.log(2 * np.pi) / 2) < 0.1
    np.testing.assert_allclose(model.expected(X)[:, 0], 7.5, atol=1)


@pytest.mark.parametrize("lengths", [[1], [2], [1, 1, 1]])
def test_of_few_frames_the_autoregression_says_nothing_wrong(lengths):
    weight, bias, left = autoregression(segments(lengths), 1, torch.tensor([0]))
    assert torch.isfinite(weight).all()
    assert torch.isfinite(bias).all()
    assert 0 < float(left) <= 1


@full
def test_samples_repeat_the_pattern():
    X = pattern(300, noise=0.0)
    model = TemporalRBM(8, order=2, n_iter=200, random_state=0).fit(X)
    drawn = model.sample(30, start=X[:3], random_state=0)
    assert drawn.shape == (30, 3)
    assert (drawn == np.tile(np.eye(3), (10, 1))).all(1).mean() > 0.8
    np.testing.assert_array_equal(drawn, model.sample(30, start=X[:3], random_state=0))
    assert model.sample(5, random_state=1).shape == (5, 3)


@full
def test_foreign_frames_are_anomalies():
    X = pattern(600)
    model = TemporalRBM(8, order=2, n_iter=100, random_state=0).fit(X)
    new, rng = pattern(300, seed=3), np.random.default_rng(0)
    at = rng.choice(np.arange(10, 300, 7), 20, replace=False)
    new[at] = new[at][:, [1, 2, 0]]  # the right bits at the wrong time
    value = model.decision_function(new)
    assert np.median(value[at]) < np.quantile(np.delete(value, at), 0.2)
    assert set(model.predict(new)) == {-1, 1}


@full
def test_a_wave_is_continued():
    rng = np.random.default_rng(0)
    t = np.arange(400)
    wave = np.sin(t / 5)[:, None] + 0.05 * rng.normal(size=(400, 1))
    model = TemporalRBM(5, order=2, n_iter=60, random_state=0).fit(wave)
    assert abs(model.predict_next(wave[:300])[0, 0] - np.sin(300 / 5)) < 0.3
    alone = RBMEstimator(5, base="gaussian", n_iter=20, random_state=0).fit(wave)
    assert model.score(wave) > alone.score(wave)


@full
def test_mixed_columns():
    loud = np.random.default_rng(0).normal(size=200)
    frame = pd.DataFrame({"note": np.tile(["c", "e", "g", "a"], 50), "loud": loud})
    mixed = TemporalRBM(6, order=1, n_iter=60, random_state=0).fit(frame)
    after = mixed.predict_next(frame[:5])
    assert after["note"].tolist() == ["e"]
    assert mixed.sample(3, random_state=0).columns.tolist() == ["note", "loud"]


def test_cross_validation_that_respects_sequences():
    X = np.concatenate([pattern(30, seed=k) for k in range(6)])
    song = np.repeat(np.arange(6), 30)
    frame = pd.DataFrame(X, columns=list("abc")).assign(song=song)
    model = TemporalRBM(**QUICK | {"n_iter": 5}, sequence_column="song")
    found = cross_val_score(model, frame, groups=song, cv=GroupKFold(3))
    assert np.isfinite(found).all()
    plain = TemporalRBM(**QUICK | {"n_iter": 5})
    assert np.isfinite(cross_val_score(plain, X, cv=TimeSeriesSplit(3))).all()


def test_further_sequences():
    X, other = pattern(90), pattern(90, seed=1)
    model = TemporalRBM(**QUICK).fit(X)
    before = model.score(other)
    for _ in range(8):
        model.partial_fit(other)
    assert model.score(other) > before
    on = TemporalRBM(**QUICK, warm_start=True).fit(X)
    n = on.n_iter_
    assert on.fit(X).n_iter_ == 2 * n
    with pytest.raises(ValueError, match="must not change"):
        on.set_params(n_components=5).fit(X)


@full
def test_a_model_of_noise_is_not_below_its_base():
    rng = np.random.default_rng(0)
    X, new = (rng.random((300, 6)) < 0.3).astype(float), (rng.random((300, 6)) < 0.3).astype(float)
    model = TemporalRBM(30, order=3, n_iter=40, random_state=0).fit(X)
    base = model.base_.log_prob(torch.as_tensor(new, dtype=torch.float32)).mean()
    assert model.score(new) >= float(base) - 0.03


# ------------------------------------------------------------------------------
# The contract
# ------------------------------------------------------------------------------

# What is said of a frame depends on those before it.
OF_SEQUENCES = {
    "check_methods_sample_order_invariance": "frames are a sequence",
    "check_methods_subset_invariance": "frames are a sequence",
}
SMALLEST = TemporalRBM(3, order=1, n_iter=2, random_state=0)


@pytest.mark.filterwarnings("ignore:Bits take values in", "ignore:X. columns")
@pytest.mark.filterwarnings("ignore:Columns .* (are constant|have few distinct)")
@parametrize_with_checks(
    {
        "default": SMALLEST,
        "recurrent": clone(SMALLEST).set_params(order=0, recurrent=True),
        "pcd": clone(SMALLEST).set_params(chains=Persistent(), base="gaussian"),
    },
    lambda estimator: OF_SEQUENCES,
    alike=["default"],
    modes=["recurrent", "pcd"],
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("store", leading(1, [by_skops, by_pickle, by_joblib]))
@each
def test_stored_models_go_on(name, store):
    X = pattern(60)
    model = clone(CASES[name]).set_params(n_iter=3).fit(X)
    other = store(model)
    np.testing.assert_array_equal(other.score_samples(X), model.score_samples(X))
    for one in (model, other):
        one.partial_fit(X)
    np.testing.assert_array_equal(other.score_samples(X), model.score_samples(X))


def test_fits_with_a_seed_are_equal():
    X = pattern(60)
    one, other = (clone(CASES["conditional"]).set_params(n_iter=3).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.score_samples(X), other.score_samples(X))


def test_an_interrupted_fit_is_a_model():
    X = pattern(60)
    model = clone(CASES["conditional"]).set_params(net_params={"callbacks": [Interrupt(2)]})
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.n_iter_ < 60
    assert np.isfinite(model.score_samples(X)).all()


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "lengths", "match"),
    [
        (pattern(30), [10, 10], "add up to 20"),
        (pattern(30), [0, 30], "at least 1"),
        (pattern(30), [15.0, 15.0], "whole numbers"),
        (pattern(30), [], "whole numbers"),
        ([pattern(30), pattern(30)[:, :2]], None, "sequence 1 has 2"),
        ([pattern(30), np.zeros((0, 3))], None, "Sequence 1 has no frames"),
        ([pattern(30)], [30], "leave out lengths"),
        (np.where(pattern(30) > 2, 0, np.nan), None, "NaN"),
        (np.zeros((0, 3)), None, "0 sample"),
    ],
)
def test_bad_sequences(X, lengths, match):
    with pytest.raises(ValueError, match=match):
        TemporalRBM(**QUICK).fit(X, lengths=lengths)


def test_bad_settings():
    X = pattern(30)
    with pytest.raises(ValueError, match="leaves no past"):
        TemporalRBM(order=0).fit(X)
    with pytest.raises(ValueError, match="sums over"):
        TemporalRBM(40, learning="exact").fit(X)
    with pytest.raises(ValueError, match="does not go with"):
        TemporalRBM(4, learning="pcd", chains=FromData()).fit(X)
    with pytest.raises(ValueError, match="no column"):
        TemporalRBM(4, sequence_column="song").fit(pd.DataFrame(X))
    with pytest.warns(UserWarning, match="Without effect"):
        TemporalRBM(**QUICK, learning="exact", chains=FromData(n_steps=3)).fit(X)
    model = TemporalRBM(**QUICK).fit(X)
    assert not hasattr(model, "log_partition_")  # each frame has a log Z of its own
    with pytest.raises(ValueError, match="features"):
        model.score_samples(X[:, :2])
    with pytest.raises(ValueError, match="n_frames"):
        model.sample(0)


def test_short_sequences_and_a_single_frame():
    model = TemporalRBM(**QUICK | {"order": 5, "n_iter": 3}).fit([pattern(6)[:2], pattern(6)[:1]])
    assert np.isfinite(model.score_samples(pattern(6)[:1])).all()
    assert model.predict_next(pattern(6)[:1]).shape == (1, 3)


def test_early_stopping_keeps_the_best():
    X = pattern(300, noise=0.2)
    model = TemporalRBM(
        40, order=4, n_iter=50, random_state=0, early_stopping=EarlyStopping(n_iter_no_change=2)
    ).fit(X)
    assert model.n_iter_ < 50


@full
def test_many_frames_do_not_take_more_memory_than_a_batch():
    X = pattern(30_000)
    model = TemporalRBM(10, order=3, n_iter=1, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
