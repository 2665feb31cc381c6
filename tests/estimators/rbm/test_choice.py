"""What the training rows of an RBM decide: its base, and the number of epochs of few rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm import RBMEstimator
from skebm.base import Binary, Categorical, Mixed, Real
from skebm.distributions import IndependentBernoulli
from skebm.estimators.rbm.choice import ValidationScore, candidates, choose_base
from skebm.training.rows import Rows
from skebm.training.selection import Gain, epochs_by_halves
from tests.support.tiers import full, only_full


def chain_of_bits(n=300, d=10, stay=0.97, seed=0):
    """Bits each of which is the one before with probability `stay`: a tree, hard for two units."""
    random = np.random.default_rng(seed)
    x = np.empty((n, d))
    x[:, 0] = random.random(n) < 0.5
    for i in range(1, d):
        x[:, i] = np.where(random.random(n) < stay, x[:, i - 1], 1 - x[:, i - 1])
    return x


def rbm(n_components=2, **params):
    return RBMEstimator(n_components, random_state=0, partition=None, learning="pcd", **params)


def bits(n):
    return Rows(torch.zeros(n, 3), dtype=torch.float32, device=torch.device("cpu"))


def tried(value, optimism=0.0):
    return ValidationScore(value + optimism, lambda: value)


@pytest.mark.parametrize(
    ("domain", "names"),
    [
        (Binary((5,)), ["independent", "block-tree"]),
        (Binary((501,)), ["independent", "chow-liu"]),
        (Binary((1,)), ["independent"]),
        (Categorical((3, 2)), ["independent", "chow-liu"]),
        (Categorical((3,)), ["independent"]),
        (Categorical((400, 3)), ["independent"]),  # tables of too many cells
        (Real((1,)), ["independent", "latent-classes"]),
        (Real((4,)), ["independent", "gaussian", "latent-classes"]),
        (
            Mixed((Binary((2,)), Real((2,)))),
            ["independent", "block-tree", "gaussian", "latent-classes"],
        ),
        (
            Mixed((Binary((1,)), Categorical((3,)), Real((1,)))),
            ["independent", "chow-liu", "latent-classes"],
        ),
    ],
)
def test_candidates_are_what_the_columns_allow(domain, names):
    assert candidates(domain, short=False) == names
    without_blocks = ["chow-liu" if name == "block-tree" else name for name in names]
    assert candidates(domain, short=True) == without_blocks
    tempered = candidates(domain, short=False, tempered=True)
    assert tempered == [name for name in names if name != "latent-classes"]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ({"a": -3.0, "b": -2.0}, "b"),
        ({"a": -2.0, "b": -1.95}, "a"),  # a lead of less than 0.1 nats is none
        ({"a": -2.0, "b": -1.5, "c": -1.2}, "c"),
        ({"a": -np.inf, "b": -4.0}, "b"),
        ({"a": -np.inf, "b": -np.inf}, "a"),
    ],
)
def test_the_plainest_is_kept_unless_another_is_better(values, best):
    seen = []

    def trial(name, n_hidden, train, held_out, share):
        seen.append((len(train), len(held_out), share))
        return tried(of_name[name])

    of_name = {"independent" if name == "a" else name: value for name, value in values.items()}
    names, generator = list(of_name), torch.Generator().manual_seed(0)
    choice = choose_base(names, (8,), trial, bits(300), generator)
    assert (choice.name, choice.n_hidden) == ("independent" if best == "a" else best, 8)
    assert seen == [(200, 100, 0.5), *[(200, 100, 0.1)] * (len(names) - 1)]
    assert "100 held-out rows" in choice.reason
    assert all(name in choice.reason for name in names)


@pytest.mark.parametrize(
    ("of_size", "best"),
    [({8: -2.0, 16: -1.5, 2: -1.55}, 16), ({8: -2.0, 16: -1.95, 2: -3.0}, 8), ({8: 0.0}, 8)],
)
@pytest.mark.parametrize("names", [[None], ["independent", "chow-liu"]])
def test_the_first_number_of_units_is_kept_unless_others_are_better(names, of_size, best):
    seen = []

    def trial(name, n_hidden, train, held_out, share):
        seen.append((name, n_hidden, share))
        return tried(of_size[n_hidden] + (name == "chow-liu"))

    sizes = tuple(of_size)
    choice = choose_base(names, sizes, trial, bits(300), torch.Generator().manual_seed(0))
    assert (choice.name, choice.n_hidden) == (names[-1], best)
    of_plain = [("independent", n) for n in sizes[:2]] * (len(names) > 1)
    assert [one[:2] for one in seen] == of_plain + [(names[-1], n) for n in sizes]
    assert all(share == (0.5 if name == "independent" else 0.1) for name, _, share in seen)


def test_independent_columns_that_lead_are_tried_with_few_units_too():
    values = {("independent", 16): -1.0, ("independent", 4): -0.8, ("chow-liu", 8): -2.0}
    seen = []

    def trial(name, n_hidden, *rest):
        seen.append((name, n_hidden))
        return tried(values.get((name, n_hidden), -1.5))

    names, generator = ["independent", "chow-liu"], torch.Generator().manual_seed(0)
    choice = choose_base(names, (8, 16, 4), trial, bits(300), generator)
    assert (choice.name, choice.n_hidden) == ("independent", 4)
    assert seen[:2] == [("independent", 8), ("independent", 16)]
    assert seen[2:] == [*[("chow-liu", n) for n in (8, 16, 4)], ("independent", 4)]
    assert "100 held-out rows by base and hidden units: independent 8: < -1.50" in choice.reason


def test_pessimistic_ends_decide_and_are_found_only_where_they_may():
    values = {"independent": (-3.0, 2.0), "chow-liu": (-2.0, 0.5), "gaussian": (-2.5, 0.3)}
    asked = []

    def trial(name, n_hidden, *rest):
        value, optimism = values[name]
        return ValidationScore(value + optimism, lambda: asked.append(name) or value)

    choice = choose_base(list(values), (8,), trial, bits(300), torch.Generator().manual_seed(0))
    assert choice.name == "chow-liu"  # and not the one that is the best by the short estimate
    assert asked == ["independent", "chow-liu"]
    assert "independent 8: -3.00, chow-liu 8: -2.00, gaussian 8: < -2.20" in choice.reason


@full
def test_hidden_units_are_as_few_as_the_rows_say(monkeypatch):
    """Noise of 30 bits: what 256 units learn of 400 rows is wrong."""
    monkeypatch.setattr("skebm.estimators.rbm.family.ENOUGH_STEPS", 1500)
    x = (np.random.default_rng(0).random((400, 30)) < 0.5).astype(float)
    plain = {"learning": "pcd", "partition": None, "random_state": 0}
    model = RBMEstimator(base="independent", **plain).fit(x)
    assert model.n_components_ == model.components_.shape[0] in (16, 64, 256)
    assert "independent 64:" in model.base_reason_
    assert model.transform(x).shape == (400, model.n_components_)
    model.set_params(warm_start=True, n_iter=1)
    units = model.n_components_
    assert model.fit(x).n_components_ == units


def test_hidden_units_of_short_programs_are_not_chosen():
    x = (np.random.default_rng(0).random((400, 30)) < 0.5).astype(float)
    plain = {"learning": "pcd", "partition": None, "random_state": 0, "n_iter": 3}
    assert RBMEstimator(base="independent", **plain).fit(x).n_components_ == 256
    assert RBMEstimator(5, **plain).fit(x).n_components_ == 5
    assert RBMEstimator(learning_rate=0.1, **plain).fit(x).n_components_ == 256
    assert RBMEstimator(**plain).partial_fit(x).n_components_ == 256


def test_a_tree_is_chosen_where_hidden_units_cannot_model_it():
    x = chain_of_bits()
    model = rbm(n_iter=10).fit(x)
    assert model.base_name_ == "chow-liu"
    assert "chow-liu 2: " in model.base_reason_
    test = chain_of_bits(seed=1)
    plain = rbm(n_iter=10, base="independent").fit(test)
    assert model.score(test) > plain.score(test)
    assert plain.base_reason_ == "as given"


def test_independent_columns_stay_independent():
    x = (np.random.default_rng(0).random((400, 6)) < 0.3).astype(float)
    model = rbm(n_iter=10).fit(x)
    assert isinstance(model.base_, IndependentBernoulli)
    assert model.base_name_ == "independent"
    assert "chow-liu 2: " in model.base_reason_


@pytest.mark.parametrize(
    ("params", "n"),
    [
        ({"learning_rate": 0.05}, 300),
        ({"batch_size": 10}, 300),
        ({}, 150),
    ],
)
def test_nothing_is_chosen_where_no_rows_guard_the_training(params, n):
    model = rbm(n_iter=3, **params).fit(chain_of_bits(n))
    assert (model.base_name_, model.base_reason_) == ("independent", "by default")


def test_partial_fit_takes_independent_columns_and_keeps_a_chosen_base():
    x = chain_of_bits()
    assert rbm().partial_fit(x).base_reason_ == "by default"
    model = rbm(n_iter=10).fit(x)
    name, base = model.base_name_, model.base_
    assert name != "independent"
    model.partial_fit(x[:100])
    model.set_params(warm_start=True).fit(x)
    assert model.base_name_ == name
    assert model.base_ is base
    model.set_params(base="independent")
    with pytest.raises(ValueError, match="must not change"):
        model.fit(x)


def test_numbers_may_have_their_full_covariance():
    random = np.random.default_rng(0)
    x = random.standard_normal((500, 8)) @ random.standard_normal((8, 8))
    model = rbm(1, n_iter=10).fit(x)
    assert model.base_name_ == "gaussian"
    frame = pd.DataFrame({"level": random.choice(list("abc"), 400)})
    assert rbm(n_iter=2).fit(frame).base_reason_ == "by default"  # nothing to choose from


@full
def test_rows_with_missing_entries_choose_by_what_is_known():
    x = chain_of_bits()
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    assert rbm(n_iter=10).fit(x).base_name_ == "chow-liu"


def test_an_interrupted_choice_leaves_no_model(monkeypatch):
    calls = []

    def interrupted(self, *args):
        calls.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr("skebm.estimators.rbm.choice.ValidationFits.value", interrupted)
    model = rbm(n_iter=5)
    with pytest.raises(KeyboardInterrupt):
        model.fit(chain_of_bits())
    assert len(calls) == 1
    assert not hasattr(model, "net_")


def test_the_choice_is_reproducible():
    x = chain_of_bits()
    first, second = (rbm(n_iter=5).fit(x) for _ in range(2))
    assert first.base_reason_ == second.base_reason_
    np.testing.assert_array_equal(first.components_, second.components_)


# ------------------------------------------------------------------------------
# Epochs by halves of few rows
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curves", "epochs"),
    [
        (([1.0, 3.0, 2.0], [1.0, 2.0, 2.5]), 20),
        (([1.0, 0.0, -9.0], [-0.2, 0.2, 0.3]), 10),
        (([0.1, 0.1, 0.1], [0.1, 0.15, 0.1]), 0),  # less than half of the standard error
        (([-1.0, -2.0, -3.0], [-1.0, 0.5, -3.0]), 0),
        (([1.0, 3.0, 2.0], []), 0),  # a half diverged
    ],
)
def test_epochs_are_those_at_which_both_halves_gain_most(curves, epochs):
    seen, left = [], list(curves)

    def gains(train, held_out):
        seen.append((len(train), len(held_out)))
        return {10 * i + 10: Gain(gain, 0.4) for i, gain in enumerate(left.pop(0))}

    assert epochs_by_halves(gains, bits(51), torch.Generator().manual_seed(0)) == epochs
    assert seen == [(26, 25), (25, 26)]


def few(n=24, d=12, **params):
    """Independent numbers, which eight hidden units overfit."""
    x = np.random.default_rng(0).standard_normal((n, d))
    return RBMEstimator(8, random_state=0, partition=None, **params), x


def test_few_rows_without_dependences_leave_the_base_as_it_is():
    model, x = few()
    with pytest.warns(ConvergenceWarning, match="never made the other half more likely"):
        model.fit(x)
    assert model.n_iter_ == 0
    model.set_params(warm_start=True).fit(x)
    assert model.n_iter_ == 0  # as chosen before


@full
def test_few_rows_with_dependences_are_trained_on():
    model = RBMEstimator(20, random_state=0, partition=None, learning="cd")
    model.fit(chain_of_bits(120))
    assert 0 < model.n_iter_ <= 500
    assert model.n_iter_ % 50 == 0
    assert all("gain_over_base" not in row for row in model.history_)


@pytest.mark.parametrize(
    ("params", "n", "epochs"),
    [
        ({"n_iter": 3}, 24, 3),
        ({"net_params": {"max_epochs": 4}}, 24, 4),
        only_full({"learning_rate": 1e-3}, 24, 500),
    ],
)
def test_a_program_that_says_how_to_train_is_followed(params, n, epochs):
    model, x = few(n, d=2, **params)
    assert model.fit(x).n_iter_ == epochs
