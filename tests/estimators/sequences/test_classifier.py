"""Labels of frames against sums over all sequences of labels, frames and hidden states."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

from skebm import RBMClassifier, TemporalRBMClassifier
from skebm.base import Batch
from skebm.distributions import (
    ChowLiuTree,
    Columns,
    Gaussian,
    IndependentBernoulli,
    IndependentCategorical,
)
from skebm.energies import MixedRBM, RowwiseRBM, TemporalEnergy
from skebm.energies.rbm.labels import forget_labels, frame_terms, label_logits
from skebm.energies.rbm.temporal import exact_log_z
from skebm.estimators.sequences.label_chain import LabelChain
from skebm.estimators.sequences.table import new_frames
from skebm.objectives import LabelDivergence
from skebm.samplers import FromData, Persistent
from skebm.training import EarlyStopping
from skebm.training.rows import Rows
from skebm.training.segments import Segments
from tests.support.callbacks import Interrupt
from tests.support.checks import parametrize_with_checks
from tests.support.oracle import bits, seeded
from tests.support.storage import by_joblib, by_pickle, by_skops
from tests.support.tiers import full, leading, named, only_full

F64 = torch.float64
D, K, H, T = 3, 3, 2, 4


def energy_of(order, label_order, n_labels=K, base=None):
    g = seeded(1)
    base = IndependentBernoulli(torch.randn(D, generator=g, dtype=F64)) if base is None else base
    labels = IndependentCategorical(torch.randn(n_labels, generator=g, dtype=F64), (n_labels,))
    rbm = MixedRBM(Columns([base, labels]), H, generator=g, dtype=F64)
    energy = TemporalEnergy(rbm, order)
    with torch.no_grad():
        for p in energy.parameters():
            p.copy_(0.8 * torch.randn(p.shape, generator=g, dtype=F64))
    forget_labels(energy, n_labels, label_order)
    return energy


def rows_of(energy, sequences):
    """Segments of sequences of frames without labels."""
    x = torch.cat(sequences)
    k = energy.domain.n_columns - x.shape[1]
    x = torch.cat([x, x.new_zeros(len(x), k)], 1)
    rows = Segments(Rows(x, dtype=F64, device=x.device))
    lengths = torch.tensor([len(one) for one in sequences])
    rows.cut(torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths), energy.order, 1)
    return rows


def log_joint(energy, frames, labels):
    """log p(x_t, y_t given the past) of each frame, (T,)."""
    return torch.stack([log_joint_at(energy, frames, labels, t) for t in range(len(frames))])


def log_joint_at(energy, frames, labels, t):
    """log p(x_t, y_t given the past) of one frame, by the formulas; a sum over all states."""
    rbm, d, k = energy.rbm, frames.shape[1], energy.domain.n_columns - frames.shape[1]
    eye, hidden = torch.eye(k, dtype=F64), bits(len(rbm.weight))
    everything = torch.cat([bits(d).repeat_interleave(k, 0), eye.repeat(2**d, 1)], 1)
    both, lags = torch.cat([frames[: t + 1], eye[labels[: t + 1]]], 1), []
    for lag in range(energy.order, 0, -1):
        there = t - lag >= 0
        row = both[t - lag] if there else torch.zeros_like(both[0])
        lags.append(torch.cat([row, row.new_tensor([0.0 if there else 1.0])]))
    past = torch.cat(lags)
    b = rbm.visible_bias + energy.lag_visible @ past
    c = rbm.hidden_bias + energy.lag_hidden @ past

    def log_p(x):
        value = rbm.base.log_prob(x) + x @ b
        return (value + (hidden @ c)[:, None] + hidden @ rbm.weight @ x.t()).logsumexp(0)

    return log_p(both[t : t + 1])[0] - log_p(everything).logsumexp(0)


def by_enumeration(energy, frames):
    """log p(y_t given all frames), (T, K), and log p(x_1..T), summed over sequences of labels."""
    k = energy.domain.n_columns - frames.shape[1]
    every = torch.tensor(list(itertools.product(range(k), repeat=len(frames))))
    value = torch.stack([log_joint(energy, frames, labels).sum() for labels in every])
    return marginals(every, value).log_softmax(1), value.logsumexp(0)


def causal_by_enumeration(energy, frames):
    """The same of the product of log p(y_t given the frame and the past)."""
    k = energy.domain.n_columns - frames.shape[1]
    every, value = torch.tensor(list(itertools.product(range(k), repeat=len(frames)))), []
    for labels in every:
        total = 0.0
        for t in range(len(frames)):
            total = total + log_conditional(energy, frames, labels, t)[labels[t]]
        value.append(total)
    return marginals(every, torch.stack(value))


def log_conditional(energy, frames, labels, t):
    """log p(y_t given the frame and the past) of each label."""
    return log_joints_at(energy, frames, labels, t).log_softmax(0)


def log_joints_at(energy, frames, labels, t):
    """log p(x_t, y_t given the past) of each label y_t."""
    k = energy.domain.n_columns - frames.shape[1]
    ways = [torch.cat([labels[:t], torch.tensor([label])]) for label in range(k)]
    return torch.stack([log_joint_at(energy, frames, way, t) for way in ways])


def marginals(every, value):
    """Logarithms of sums over sequences of labels, for each label of each frame, (T, K)."""
    k = int(every.max()) + 1
    found = [
        torch.stack([value[every[:, t] == label].logsumexp(0) for label in range(k)])
        for t in range(every.shape[1])
    ]
    return torch.stack(found)


def frames_of(length, seed=3):
    return (torch.rand(length, D, generator=seeded(seed), dtype=F64) < 0.5).to(F64)


CHAINS = {"0 of 1": (1, 0), "1 of 1": (1, 1), "1 of 2": (2, 1), "2 of 2": (2, 2)}


def chains(names):
    """The orders of the cases, of which those in `names` are in the first tier."""
    return pytest.mark.parametrize("case", named(names, CHAINS))


# ------------------------------------------------------------------------------
# Labels given all frames
# ------------------------------------------------------------------------------


@torch.no_grad()
@chains(["1 of 1", "2 of 2"])
def test_labels_given_all_frames_are_sums_over_sequences_of_labels(case):
    order, label_order = CHAINS[case]
    energy = energy_of(order, label_order)
    sequences = [frames_of(T), frames_of(1, seed=4), frames_of(3, seed=5)]
    rows, chain = rows_of(energy, sequences), LabelChain(K, label_order)
    terms, alone = chain.terms(energy, rows, torch.arange(len(rows.x)), exact_log_z)
    found, evidence = chain.smoothing(terms, *rows.sequences())
    evidence = evidence + alone
    at = 0
    for frames in sequences:
        expected, log_p = by_enumeration(energy, frames)
        here = slice(at, at + len(frames))
        torch.testing.assert_close(found[here], expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(evidence[here].sum(), log_p, rtol=0, atol=1e-9)
        earlier = by_enumeration(energy, frames[:-1])[1] if len(frames) > 1 else 0.0
        torch.testing.assert_close(evidence[here][-1], log_p - earlier, rtol=0, atol=1e-9)
        at += len(frames)


@full
@torch.no_grad()
@chains(["1 of 2"])
def test_discriminative_labels_are_a_product_of_conditionals(case):
    order, label_order = CHAINS[case]
    energy, frames = energy_of(order, label_order), frames_of(T)
    rows, chain = rows_of(energy, [frames]), LabelChain(K, label_order)
    terms, _ = chain.terms(energy, rows, torch.arange(T), None)
    found, evidence = chain.smoothing(terms, *rows.sequences())
    expected = causal_by_enumeration(energy, frames)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(evidence, torch.zeros(T, dtype=F64), rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["tree", "real"])
def test_logits_and_terms_are_the_free_energy(kind):
    x = torch.randn(6, D, generator=seeded(2), dtype=F64)
    base = Gaussian(torch.zeros(D, dtype=F64), torch.ones(D, dtype=F64))
    if kind == "tree":
        x = (x > 0).to(F64)
        base = ChowLiuTree.fit(x, torch.ones(6, dtype=F64))
    energy = energy_of(2, 2, base=base)
    lags = torch.randn(6, 2 * energy.n_entries, generator=seeded(3), dtype=F64)
    given, eye = energy.given(lags), torch.eye(K, dtype=F64)
    frames = torch.cat([x, eye[torch.arange(6) % K]], 1)
    with_past, alone = frame_terms(given, frames, K)
    found = label_logits(given, frames, K) + (with_past + alone)[:, None]
    for y in range(K):
        labelled = torch.cat([x, eye[[y] * 6]], 1)
        expected = -RowwiseRBM(energy.rbm, given.biases).free_energy(labelled)
        torch.testing.assert_close(found[:, y], expected, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------
# Learning
# ------------------------------------------------------------------------------


def labelled_windows(energy, n=2):
    """Windows that end at each frame of n sequences; their frames and labels."""
    sequences = [frames_of(T, seed=10 + i) for i in range(n)]
    labels = [torch.randint(K, (T,), generator=seeded(20 + i)) for i in range(n)]
    rows = rows_of(energy, sequences)
    rows.x[:, -K:] = torch.eye(K, dtype=F64)[torch.cat(labels)]
    return rows.block(0, len(rows)), sequences, labels


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_gradients_against_sums_over_all_states(share):
    energy = energy_of(2, 1)
    windows, sequences, labels = labelled_windows(energy)
    objective = LabelDivergence(energy, K, 1, share, "exact", 1, 1, len(windows))
    batch = Batch(windows)
    objective.gradients(batch, objective.start(batch, seeded()), seeded())
    found = {name: p.grad for name, p in energy.named_parameters() if p.grad is not None}
    for p in energy.parameters():
        p.grad = None
    total = torch.zeros((), dtype=F64)
    for frames, y in zip(sequences, labels, strict=True):
        own = log_joint(energy, frames, y)
        for t in range(T):
            log_x = log_joints_at(energy, frames, y, t).logsumexp(0)  # log p(x_t given the past)
            total = total - (own[t] - log_x) - share * log_x
    (total / len(windows)).backward()
    for name, p in energy.named_parameters():
        if not p.numel():
            continue
        expected = p.grad.clone()
        if name.startswith("lag"):  # labels two frames before are left out
            width = energy.n_entries
            expected[:, width - 1 - K : width - 1] = 0
        value = found.get(name, torch.zeros_like(p))
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9, msg=name)


def test_contrastive_divergence_forgets_labels_that_are_far_back():
    energy = energy_of(2, 1)
    windows, *_ = labelled_windows(energy)
    objective = LabelDivergence(energy, K, 1, 1.0, "cd", 1, 1, len(windows))
    batch = Batch(windows)
    objective.gradients(batch, objective.start(batch, seeded()), seeded())
    width = energy.n_entries
    for weight in (energy.lag_visible, energy.lag_hidden):
        assert not weight.grad[:, width - 1 - K : width - 1].any()
        assert not weight[:, width - 1 - K : width - 1].any()
        assert weight.grad[:, -1 - K : -1].any()


# ------------------------------------------------------------------------------
# The estimator
# ------------------------------------------------------------------------------


def remembering(n=200, seed=0, n_sequences=4):
    """Frames of mostly zeros, and the bit that was on last, which a frame alone seldom shows."""
    rng = np.random.default_rng(seed)
    shown = rng.choice(3, n * n_sequences, p=[0.15, 0.15, 0.7]).reshape(n_sequences, n)
    shown[:, 0] = rng.integers(0, 2, n_sequences)
    last = np.maximum.accumulate(np.where(shown < 2, np.arange(n), -1), 1)
    labels = np.take_along_axis(shown, last, 1)
    return list(np.eye(3)[shown][:, :, :2]), list(np.array(["rise", "fall"])[labels])


QUICK = {"n_components": 4, "order": 1, "n_iter": 30, "learning_rate": 0.05, "random_state": 0}
CASES = {
    "discriminative": TemporalRBMClassifier(**QUICK),
    "hybrid": TemporalRBMClassifier(**QUICK, objective="hybrid", generative_weight=0.3),
    "generative": TemporalRBMClassifier(**QUICK, objective="generative"),
    "no labels before": TemporalRBMClassifier(**QUICK, label_order=0),
    "pcd": TemporalRBMClassifier(**QUICK, objective="generative", chains=Persistent(n_steps=2)),
    "exact": TemporalRBMClassifier(
        **QUICK, objective="generative", learning="exact", dtype="float64"
    ),
    "tree": TemporalRBMClassifier(**QUICK, base="chow-liu", early_stopping=True),
}
each = pytest.mark.parametrize("name", named(["discriminative", "generative"], CASES))


@pytest.mark.parametrize("name", named(["discriminative"], CASES))
def test_labels_that_a_frame_alone_does_not_show(name):
    (X, y), (new, labels) = remembering(), remembering(seed=1)
    model = clone(CASES[name]).fit(X, y)
    least = 0.9 if model.generative_weight_ == 1 else 0.6 if "no" in name else 0.95
    assert model.score(new, labels) > least
    alone = LogisticRegression().fit(np.concatenate(X), np.concatenate(y))
    assert alone.score(np.concatenate(new), np.concatenate(labels)) < 0.75


@full
def test_later_frames_tell_of_earlier_labels():
    """A symbol is shown a frame after its label has changed: only smoothing sees it in time."""

    def early(n, seed):
        X, y = remembering(n, seed)
        return X, [np.append(one[1:], one[-1]) for one in y]

    settings = {"order": 2, "label_order": 2, "n_iter": 30}
    causal = clone(CASES["discriminative"]).set_params(**settings).fit(*early(200, 0))
    model = clone(causal).set_params(objective="generative").fit(*early(200, 0))
    assert model.score(*early(100, 1)) > 0.95
    assert causal.score(*early(100, 1)) < 0.9


@each
def test_a_fitted_model_against_enumeration(name):
    X, y = remembering(30)
    model = clone(CASES[name]).set_params(dtype="float64", n_iter=10).fit(X, y)
    new = [X[0][:4], X[1][:1]]
    found = model.predict_log_proba(new)
    energy, at = model.energy_, 0
    for frames in new:
        frames = torch.as_tensor(frames, dtype=F64)
        here = slice(at, at + len(frames))
        with torch.no_grad():
            if model.generative_weight_ == 1:
                expected, log_p = by_enumeration(energy, frames)
                value = model.score_samples(frames.numpy())
                np.testing.assert_allclose(value.sum(), log_p, atol=1e-5)
            else:
                expected = causal_by_enumeration(energy, frames)
        np.testing.assert_allclose(found[here], expected, atol=1e-5)
        at += len(frames)
    labels = model.classes_[found.argmax(1)]
    np.testing.assert_array_equal(model.predict(new), labels)
    np.testing.assert_allclose(model.predict_proba(new).sum(1), 1, rtol=1e-12)


@full
def test_estimated_log_z_gives_nearly_the_exact_labels():
    """With more hidden units than are summed over, beside a sum over the frames."""
    X, y = remembering(60)
    settings = {"objective": "generative", "n_components": 20}
    model = clone(CASES["discriminative"]).set_params(**settings).fit(X, y)
    energy, (rows, _) = model.energy_, new_frames(model, X, None)

    def log_z(given):
        everything = torch.cat([bits(2).repeat_interleave(2, 0), torch.eye(2).repeat(4, 1)], 1)
        n = len(given.biases.visible)
        many = RowwiseRBM(given.rbm, given.biases.take(torch.arange(n).repeat_interleave(8)))
        value = -many.free_energy(everything.float().repeat(n, 1)).double()
        return value.view(n, 8).logsumexp(1).detach()

    chain = LabelChain(2, 1)
    terms, alone = chain.terms(energy, rows, torch.arange(len(rows.x)), log_z)
    expected, evidence = chain.smoothing(terms, *rows.sequences())
    np.testing.assert_allclose(model.predict_proba(X), expected.exp(), atol=0.05)
    np.testing.assert_allclose(model.score_samples(X), evidence + alone, atol=0.2)


@full
def test_real_and_categorical_columns():
    rng = np.random.default_rng(0)
    X, y = remembering(150)
    frames = [
        pd.DataFrame(
            {
                "level": 3 * one[:, 0] - 3 * one[:, 1] + 0.3 * rng.normal(size=len(one)),
                "day": rng.choice(["work", "free"], len(one)),
            }
        )
        for one in X
    ]
    model = clone(CASES["discriminative"]).fit(frames[:3], y[:3])
    assert model.score(frames[3:], y[3:]) > 0.9


@pytest.mark.parametrize("labels", leading(1, ["booleans", "text", "floats"]))
def test_labels_of_any_type(labels):
    X, y = remembering(60)
    made = {
        "text": y,
        "booleans": [one == "rise" for one in y],
        "floats": [np.where(one == "rise", 2.0, 5.0) for one in y],
    }[labels]
    model = clone(CASES["discriminative"]).fit(X, made)
    assert model.classes_.dtype == np.concatenate(made).dtype
    assert model.predict(X).dtype == model.classes_.dtype
    assert model.score(X, made) > 0.9


@full
def test_ways_to_pass_sequences_agree():
    X, y = remembering(40)
    both, labels, lengths = np.concatenate(X), np.concatenate(y), [40] * 4
    model = clone(CASES["discriminative"]).fit(X, y)
    other = clone(model).fit(both, labels, lengths=lengths)
    found = model.predict_log_proba(X)
    np.testing.assert_array_equal(other.predict_log_proba(both, lengths=lengths), found)
    frame = pd.DataFrame(both, columns=["a", "b"]).assign(song=np.repeat(list("wxyz"), 40))
    by_song = clone(model).set_params(sequence_column="song").fit(frame, labels)
    np.testing.assert_array_equal(by_song.predict_log_proba(frame), found)
    assert (
        by_song.score(frame, labels)
        == model.score(X, y)
        == model.score(both, labels, None, lengths)
    )
    # A sequence has the same labels in any company.
    np.testing.assert_allclose(model.predict_log_proba(X[1]), found[40:80], atol=1e-6)


@full
def test_searches_over_sequences():
    X, y = remembering(30, n_sequences=6)
    song = np.repeat(np.arange(6), 30)
    frame = pd.DataFrame(np.concatenate(X)).assign(song=song)
    labels = np.concatenate(y)
    frame.columns = frame.columns.astype(str)
    model = clone(CASES["discriminative"]).set_params(sequence_column="song", n_iter=20)
    found = cross_val_score(model, frame, labels, groups=song, cv=GroupKFold(3))
    assert found.mean() > 0.7
    grid = {"label_order": [0, 1], "optimizer__weight_decay": [0.0]}
    search = GridSearchCV(model, grid, cv=GroupKFold(2)).fit(frame, labels, groups=song)
    assert search.best_params_["label_order"] == 1


def test_further_sequences():
    (X, y), (new, labels) = remembering(60), remembering(60, seed=1)
    model = clone(CASES["discriminative"]).set_params(learning_rate=0.02)
    model.partial_fit(X, y, classes=["rise", "fall", "none"])
    before = model.score(new, labels)
    for _ in range(8):
        model.partial_fit(new, labels)
    assert model.score(new, labels) > before
    assert model.predict_proba(new).shape == (240, 3)
    with pytest.raises(ValueError, match="not among"):
        model.partial_fit(X, np.repeat("other", 240), lengths=None)
    on = clone(CASES["discriminative"]).set_params(warm_start=True, n_iter=3).fit(X, y)
    assert on.fit(X, y).n_iter_ == 6
    with pytest.raises(ValueError, match="must not change"):
        on.set_params(n_components=5).fit(X, y)


@pytest.mark.filterwarnings("ignore:The weights are those")
@pytest.mark.parametrize("objective", ["discriminative", only_full("generative")])
def test_a_model_of_noise_is_not_below_the_frequencies(objective):
    rng = np.random.default_rng(0)
    X, new = (rng.random((300, 6)) < 0.5 for _ in range(2))
    y, labels = (rng.choice(3, 300, p=[0.6, 0.3, 0.1]) for _ in range(2))
    model = TemporalRBMClassifier(20, n_iter=40, objective=objective, random_state=0)
    model.fit(X.astype(float), y)
    log_p = model.predict_log_proba(new.astype(float))[np.arange(300), labels].mean()
    share = np.bincount(y) / 300
    assert log_p >= np.log(share)[labels].mean() - 0.03


# ------------------------------------------------------------------------------
# The contract
# ------------------------------------------------------------------------------

# What is said of a frame depends on those around it.
OF_SEQUENCES = {
    "check_methods_sample_order_invariance": "frames are a sequence",
    "check_methods_subset_invariance": "frames are a sequence",
}
SMALLEST = TemporalRBMClassifier(4, order=1, n_iter=8, learning_rate=0.1, random_state=0)


@pytest.mark.filterwarnings("ignore:Bits take values in", "ignore:X. columns")
@pytest.mark.filterwarnings("ignore:Columns .* (are constant|have few distinct)")
@parametrize_with_checks(
    {
        "default": SMALLEST,
        "generative": clone(SMALLEST).set_params(objective="generative", n_iter=40),
        "hybrid": clone(SMALLEST).set_params(objective="hybrid", label_order=0, n_iter=40),
    },
    lambda estimator: OF_SEQUENCES,
    modes=["generative", "hybrid"],
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("store", leading(1, [by_skops, by_pickle, by_joblib]))
@pytest.mark.parametrize("name", named(["discriminative"], CASES))
def test_stored_models_go_on(name, store):
    X, y = remembering(30)
    model = clone(CASES[name]).set_params(n_iter=3).fit(X, y)
    other = store(model)
    np.testing.assert_array_equal(other.predict_log_proba(X), model.predict_log_proba(X))
    for one in (model, other):
        one.partial_fit(X, y)
    np.testing.assert_array_equal(other.predict_log_proba(X), model.predict_log_proba(X))


def test_an_interrupted_fit_is_a_model():
    X, y = remembering(30)
    model = clone(CASES["discriminative"]).set_params(net_params={"callbacks": [Interrupt(2)]})
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ < 30
    assert np.isfinite(model.predict_log_proba(X)).all()


# ------------------------------------------------------------------------------
# Bad input
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda X, y: (np.concatenate(X), np.concatenate(y), [10, 10]), "add up to 20"),
        (lambda X, y: (X, [*y[:3], y[3][:2]], None), "Sequence 3 has 30 frames and 2 labels"),
        (lambda X, y: (X, y[:3], None), "4 sequences, and y has labels of 3"),
        (lambda X, y: (X, np.concatenate(y)[:-1], None), "inconsistent numbers"),
        (lambda X, y: (X, y, [30] * 4), "leave out lengths"),
        (lambda X, y: (X, [np.repeat("a", 30)] * 4, None), "1 class"),
        (lambda X, y: (X, None, None), "requires y"),
        (lambda X, y: ([np.full((30, 2), np.nan)] * 4, y, None), "NaN"),
        (lambda X, y: ([np.full((30, 2), np.inf)] * 4, y, None), "infinity"),
        (lambda X, y: (X, [np.arange(30) / 7] * 4, None), "Unknown label type"),
    ],
)
def test_bad_sequences(change, match):
    X, y, lengths = change(*remembering(30))
    with pytest.raises(ValueError, match=match):
        TemporalRBMClassifier(**QUICK).fit(X, y, lengths=lengths)


def test_bad_settings():
    X, y = remembering(30)
    model = TemporalRBMClassifier(**QUICK | {"n_iter": 3})
    with pytest.raises(ValueError, match="is more than order"):
        clone(model).set_params(label_order=2).fit(X, y)
    many = [np.arange(30) + 30 * i for i in range(4)]
    with pytest.raises(ValueError, match="use a smaller one"):
        clone(model).set_params(order=2, label_order=2).fit(X * 2, many * 2)
    with pytest.warns(UserWarning, match="chains.*no chains move.*needs log Z"):
        clone(model).set_params(partition__n_chains=3, chains=FromData()).fit(X, y)
    with pytest.warns(UserWarning, match="generative_weight.*only"):
        clone(model).set_params(generative_weight=0.5).fit(X, y)
    fitted = clone(model).fit(X, y)
    with pytest.raises(AttributeError, match="score_samples"):
        fitted.score_samples(X)
    for name in ("energy", "log_partition_"):
        with pytest.raises(AttributeError):
            getattr(fitted, name)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(np.concatenate(X)[:, :1])


@pytest.mark.parametrize("objective", ["discriminative", "generative"])
def test_short_and_extreme_frames(objective):
    X, y = remembering(30)
    model = clone(CASES["discriminative"]).set_params(objective=objective, order=3, n_iter=3)
    model.fit(X, y)
    assert model.predict_proba(X[0][:1]).shape == (1, 2)
    numbers = [3.0 * one - 1 for one in X]
    model.fit(numbers, y)
    far = np.array([[0.0, 1.0], [1e30, 0.0], [0.0, -1e20]])
    if objective == "discriminative":
        assert np.isfinite(model.predict_proba(far)).all()
    else:
        with pytest.raises(ValueError, match="frame 2 .* too far"):
            model.predict_proba(far)


@full
def test_early_stopping_keeps_the_best():
    X, y = remembering(60)
    stopping = EarlyStopping(n_iter_no_change=2)
    model = clone(CASES["discriminative"]).set_params(early_stopping=stopping, n_iter=200)
    assert model.fit(X, y).n_iter_ < 200


@full
def test_beside_a_classifier_of_rows():
    (X, y), (new, labels) = remembering(400), remembering(400, seed=1)
    rows = RBMClassifier(4, n_iter=30, random_state=0).fit(np.concatenate(X), np.concatenate(y))
    model = TemporalRBMClassifier(random_state=0, n_iter=30).fit(X, y)
    accuracy = rows.score(np.concatenate(new), np.concatenate(labels))
    assert model.score(new, labels) > accuracy + 0.15
