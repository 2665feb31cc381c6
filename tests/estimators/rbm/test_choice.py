"""What the training rows of an RBM decide: its base, and the number of epochs of few rows."""

import copy
import dataclasses
import pickle
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm import RBMEstimator
from skebm.base import Binary, Categorical, Mixed, Real
from skebm.distributions import IndependentBernoulli
from skebm.estimators.rbm import choice
from skebm.estimators.rbm.choice import Trial, candidates, choose_base, is_better, lost
from skebm.estimators.rbm.safety import pessimistic_log_z
from skebm.partition import Exact
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows
from skebm.training.selection import Gain, epochs_by_halves
from tests.support.tiers import full, only_full


def by_default(names):
    """Bases with the rule that is the default."""
    return [(name, "auto") for name in names]


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


def tried(value, held_out, optimism=0.0):
    """Rows differ far more than the models do of which they are asked."""
    if not np.isfinite(value):
        return lost(len(held_out))
    of_row = torch.linspace(-50, 50, len(held_out), dtype=torch.float64)
    return Trial(of_row + value + optimism, 0.0, lambda: optimism)


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
        ({"a": -2.0, "b": -1.95}, "b"),
        ({"a": -2.0, "b": -1.995}, "a"),  # a lead of less than 0.01 nats is none
        ({"a": -2.0, "b": -1.5, "c": -1.2}, "c"),
        ({"a": -np.inf, "b": -4.0}, "b"),
        ({"a": -np.inf, "b": -np.inf}, "a"),
    ],
)
def test_the_plainest_is_kept_unless_another_is_better(values, best):
    seen = []

    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        seen.append((name, len(train), len(held_out), part))
        return tried(of_name[name], held_out)

    of_name = {"independent" if name == "a" else name: value for name, value in values.items()}
    names, generator = list(of_name), torch.Generator().manual_seed(0)
    choice, its_trial = choose_base(by_default(names), (8,), trial, bits(300), generator)
    assert (choice.name, choice.n_hidden) == ("independent" if best == "a" else best, 8)
    assert its_trial.mean(None) == pytest.approx(values[best])
    # Rows are compared by pairs, which differ by the same amount here: those behind do not go on.
    most = max(values.values())
    left = [name for name, value in of_name.items() if value == most]
    assert seen == [
        *((name, 200, 100, 0.4) for name in names),
        *((name, 200, 100, 1.0) for name in left if len(left) > 1),
    ]
    assert "100 held-out rows" in choice.reason
    assert all(name in choice.reason for name in names)


@pytest.mark.parametrize(
    ("of_size", "best", "sizes"),
    [
        ({8: -2.0, 16: -1.5, 2: -1.4}, 16, (8, 16)),  # fewer units are not tried if more are better
        ({8: -2.0, 16: -1.995, 2: -3.0}, 8, (8, 16, 2)),
        ({8: -2.0, 16: -2.5, 2: -1.9}, 2, (8, 16, 2)),
        ({8: 0.0}, 8, (8,)),
    ],
)
@pytest.mark.parametrize("names", [[None], ["independent", "chow-liu"]])
def test_the_first_number_of_units_is_kept_unless_others_are_better(names, of_size, best, sizes):
    seen = []

    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        seen.append((name, n_hidden, part))
        return tried(of_size[n_hidden] + (name == "chow-liu"), held_out)

    generator = torch.Generator().manual_seed(0)
    choice, _ = choose_base(by_default(names), tuple(of_size), trial, bits(300), generator)
    assert (choice.name, choice.n_hidden) == (names[-1], best)
    first = [(name, 8) for name in names]  # other numbers with the base that leads
    assert (
        seen
        == [
            *((*one, 0.4) for one in first),
            (names[-1], 8, 1.0),
            *((names[-1], n, part) for n in sizes[1:] for part in (0.4, 1.0)),
        ][: len(seen)]
    )
    assert len(seen) == len(first) + (2 * len(sizes) - 1 if len(of_size) > 1 else 0)


def test_bases_that_are_not_clearly_behind_are_tried_with_other_units_too():
    """The error is that of the difference of the same rows, and not that of their mean."""
    seen, values = [], {"independent": -2.0, "chow-liu": -1.9, "gaussian": -2.5}

    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        seen.append((name, n_hidden))
        found = tried(values[name] + (n_hidden == 16) * (name == "independent"), held_out)
        noise = torch.linspace(-1, 1, len(held_out)) * (name == "chow-liu")
        return found._replace(log_prob=found.log_prob + noise)

    names, generator = ["independent", "chow-liu", "gaussian"], torch.Generator().manual_seed(0)
    choice, _ = choose_base(by_default(names), (8, 16, 4), trial, bits(300), generator)
    assert (choice.name, choice.n_hidden) == ("independent", 16)
    assert {name for name, n in seen if n == 16} == {"independent", "chow-liu"}


@pytest.mark.parametrize(("noise", "best"), [(0.0, 16), (1.0, 16), (5.0, 8)])
def test_the_first_that_is_as_good_as_the_best_is_chosen(noise, best):
    """To within the error of the difference, which is about a seventeenth of the noise here."""

    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        found = tried({8: -2.0, 16: -1.8}[n_hidden], held_out)
        of_rows = noise * torch.linspace(-1, 1, len(held_out)) * (n_hidden == 16)
        return found._replace(log_prob=found.log_prob + of_rows)

    generator = torch.Generator().manual_seed(0)
    choice, _ = choose_base(by_default([None]), (8, 16), trial, bits(300), generator)
    assert choice.n_hidden == best


def test_candidates_go_on_for_as_long_as_they_may_be_the_best():
    """Bases are compared after a part of trials, line searches by what is left to gain, too."""
    seen, random = [], np.random.default_rng(0)
    values = {"a": -2.0, "b": -2.01, "c": -2.02, "d": -9.0, "e": -9.0}

    def trial(chosen, train, held_out, part):
        seen.append((chosen.name, chosen.n_hidden, part))
        less = 4.0 if chosen.n_hidden == 4 else 0.0
        found = tried(values[chosen.name] - less, held_out)
        noise = torch.as_tensor(random.normal(size=len(held_out)))
        left = {"c": 1.0, "e": 8.0}.get(chosen.name, 0.0) if part < 1 else 0.0
        return found._replace(log_prob=found.log_prob + noise - noise.mean(), left=left)

    choice, _ = choose_base(
        by_default("abcde"), (8, 4), trial, bits(300), torch.Generator().manual_seed(0)
    )
    assert (choice.name, choice.n_hidden) == ("a", 8)
    assert seen[:5] == [(name, 8, 0.4) for name in "abcde"]
    assert seen[5:9] == [(name, 8, 1.0) for name in "abce"]
    # Four units of c, a line search, are too far behind to go on.
    assert seen[9:] == [("a", 4, 0.4), ("a", 4, 1.0), ("b", 4, 0.4), ("b", 4, 1.0), ("c", 4, 0.4)]


def test_trials_of_very_many_rows_train_on_a_sample_and_say_so(monkeypatch):
    monkeypatch.setattr("skebm.estimators.rbm.choice.MOST_ROWS", 150)
    seen = []

    def trial(chosen, train, held_out, part):
        seen.append(len(train))
        return tried(-1.0, held_out)

    generator = torch.Generator().manual_seed(0)
    choice, _ = choose_base(by_default("ab"), (8,), trial, bits(300), generator)
    assert set(seen) == {150}
    assert "trained on 150 of 200 rows" in choice.reason


def test_a_gain_is_better_beyond_its_error_and_a_hundredth_of_a_nat():
    assert not is_better(Gain(0.009, 0.0))
    assert not is_better(Gain(0.1, 0.2))
    assert is_better(Gain(0.011, 0.005))


def test_pessimistic_ends_decide_and_are_found_only_where_they_may():
    values = {"independent": (-3.0, 2.0), "chow-liu": (-2.0, 0.5), "gaussian": (-2.5, 0.3)}
    asked = []

    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        value, optimism = values[name]
        found = tried(value, held_out, optimism)
        return found._replace(excess=lambda: asked.append(name) or optimism)

    generator = torch.Generator().manual_seed(0)
    choice, best = choose_base(by_default(values), (8,), trial, bits(300), generator)
    assert choice.name == "chow-liu"  # and not the one that is the best by the short estimate
    assert set(asked) == {"independent", "chow-liu"}
    assert best.mean(None) == pytest.approx(-2.0)
    assert "independent 8: -3.00, chow-liu 8: -2.00, gaussian 8: < -2.20" in choice.reason


@pytest.mark.parametrize(("unknown", "best"), [(16, 8), (8, 16), (4, 16)])
def test_a_trial_whose_log_z_is_not_known_loses(unknown, best):
    def trial(chosen, train, held_out, part):
        name, n_hidden, *_ = chosen
        found = tried(-1.0 if n_hidden == 16 else -2.0, held_out)
        return found._replace(excess=lambda: np.inf if n_hidden == unknown else 0.0)

    generator = torch.Generator().manual_seed(0)
    choice, _ = choose_base(by_default([None]), (8, 16), trial, bits(300), generator)
    assert choice.n_hidden == best


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


def pairs_of_bits(n, seed=0):
    """Four pairs of columns, which are equal in nine rows of ten."""
    random = np.random.default_rng(seed)
    x = np.repeat(random.random((n, 4)) < 0.3, 2, axis=1)
    return (x ^ (random.random(x.shape) < 0.05)).astype(float)


@pytest.mark.parametrize("n", [only_full(6000), 300])
def test_what_is_costed_is_what_is_tried(n, monkeypatch):
    """The exact rule for those numbers of units for which it is cheap, for as long as it gains."""
    monkeypatch.setattr("skebm.estimators.rbm.family.CHEAP_COST", 3e4)
    monkeypatch.setattr("skebm.estimators.rbm.family.ENOUGH_STEPS", 200)
    x, test = pairs_of_bits(n), pairs_of_bits(2000, seed=1)
    model = RBMEstimator(random_state=0).fit(x)
    assert "independent 64: " in model.base_reason_
    assert "independent 64 by pcd: " in model.base_reason_
    assert model._recipe.family.learning == "exact"
    assert model.net_.held_out_ is None
    assert 0 < model.n_iter_ < 500
    assert model._recipe.trial is None
    exact = RBMEstimator(64, random_state=0).fit(x)
    assert exact._recipe.family.learning == "exact"
    assert model.score(test) > exact.score(test) - 0.05
    model.set_params(warm_start=True, n_iter=1).fit(x)
    assert model._recipe.family.learning == "exact"


def clusters_of_bits(n, seed=0):
    """All columns depend on one hidden variable, which a tree has not."""
    random = np.random.default_rng(seed)
    return (random.random((n, 10)) < 0.15 + 0.7 * random.integers(0, 2, (n, 1))).astype(float)


def exact_mean(energy, x):
    """Mean log-likelihood of rows."""
    with torch.no_grad():
        return (
            float(-energy(torch.as_tensor(x, dtype=torch.float32)).mean())
            - Exact().estimate(energy).value
        )


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (3.0, "held-out rows are .* nats less likely"),
        pytest.param(0.0, "", marks=pytest.mark.full),
        pytest.param(np.inf, "log Z after .* is not known", marks=pytest.mark.full),
    ],
)
def test_a_model_is_not_below_the_trial_that_chose_it(harm, said, monkeypatch):
    """What training after the trial makes of it is judged by rows that neither has seen."""
    monkeypatch.setattr("skebm.estimators.rbm.family.ENOUGH_STEPS", 1000)
    x, ends, train = clusters_of_bits(300), [], EnergyNet.partial_fit

    def harmed(self, rows, *args, **kwargs):
        found = train(self, rows, *args, **kwargs)
        if len(rows) > 200:  # trials have fewer
            self.module_.energy.weight.detach().add_(harm if np.isfinite(harm) else 0.0)
            ends.append(copy.deepcopy(self.module_.energy))
        return found

    def crossed(*args):
        return np.inf if ends and harm == np.inf else pessimistic_log_z(*args)

    monkeypatch.setattr("skebm.estimators.rbm.choice.pessimistic_log_z", crossed)
    monkeypatch.setattr(EnergyNet, "partial_fit", harmed)
    model = RBMEstimator(4, learning="pcd", partition=None, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x)
    texts = [str(one.message) for one in caught if "The model is that of the trial" in str(one)]
    assert len(texts) == bool(said)
    assert all(re.search(said, text) for text in texts)
    (end,), test = ends, clusters_of_bits(1000, seed=1)
    if harm != np.inf:
        assert (exact_mean(model.energy_, test) > exact_mean(end, test) + 0.1) is bool(said)
    assert model._recipe.trial is None
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.energy(x[:5]), model.energy(x[:5]))
    assert np.isfinite(model.set_params(warm_start=True).partial_fit(x).energy(x)).all()


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
    x = random.standard_normal((300, 6)) @ random.standard_normal((6, 6))
    model = rbm(1, n_iter=5).fit(x)
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

    monkeypatch.setattr("skebm.estimators.rbm.choice.ValidationFits.trial", interrupted)
    model = rbm(n_iter=5)
    with pytest.raises(KeyboardInterrupt):
        model.fit(chain_of_bits())
    assert len(calls) == 1
    assert not hasattr(model, "net_")


@full
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

    assert epochs_by_halves(gains, bits(51), torch.Generator().manual_seed(0), 30) == epochs
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


@pytest.mark.parametrize(
    ("searches", "part", "epochs", "times"),
    [(False, 0.4, 40, 4), (False, 1, 100, 10), (False, 0.01, 1, 1), (True, 1, 100, 10)],
)
def test_a_trial_is_assessed_as_often_as_its_fit(searches, part, epochs, times, monkeypatch):
    """Twenty times in 200 epochs; of a line search after each tenth iteration."""
    monkeypatch.setattr(choice, "train_on", lambda net, rows: None)
    plan = SimpleNamespace(n_iter=200, searches=searches)
    recipe = SimpleNamespace(plan=plan, n_assessments=20)
    net = SimpleNamespace(history=[], kept_epoch_=0)
    choice.RunningTrial(recipe, net, None, 100).go_on(part)
    assert (net.max_epochs, net.n_assessments_) == (epochs, times)


@pytest.mark.parametrize(("gain", "is_base"), [(-0.5, True), (0.5, False)])
def test_a_trial_below_its_base_is_worth_the_base(gain, is_base, monkeypatch):
    """As a fit that ends below it is its base, and its start is better than those weights."""
    base = IndependentBernoulli(torch.zeros(4, dtype=torch.float64))
    x = torch.zeros(30, 4, dtype=torch.float64)
    rows = Rows(x, dtype=torch.float64, device=x.device)
    of_base, net = base.log_prob(rows.x), object()
    below = Trial(of_base + gain, 0.1, lambda: 0.0, net, base)
    monkeypatch.setattr(choice, "trial_of", lambda *args: below)
    running = choice.RunningTrial(SimpleNamespace(base=base), net, rows, 1, ended=True)
    running.go_on = lambda part: None
    fits = choice.ValidationFits(None, None, None, None, begun={"any": running})
    found = fits.trial("any", rows, rows, 1.0)
    torch.testing.assert_close(found.log_prob, of_base if is_base else of_base + gain)
    assert (found.net is None) == is_base
    assert found.base is base


@pytest.mark.parametrize(
    ("searches", "n_iter", "most_epochs", "more"),
    [(False, 1000, 8000, True), (False, 1000, 1000, False), (False, 2500, 8000, False)]
    + [(True, 1, 0, True)],
)
def test_trials_of_few_steps_may_gain_more(searches, n_iter, most_epochs, more):
    """Of fits that begin with few steps because rows are few, not because steps are slow."""
    rows = Rows(torch.zeros(360, 4), dtype=torch.float32, device="cpu")
    model = RBMEstimator(2, base="independent", n_iter=1, random_state=0).fit(bits(200))
    kind = {"optimizer": "lbfgs" if searches else "sgd"}
    more_steps = {"n_iter": n_iter, "most_epochs": most_epochs, "batch_size": 100}
    plan = dataclasses.replace(model._recipe.plan, **more_steps, **kind)
    running = choice.RunningTrial(SimpleNamespace(plan=plan), None, rows, 1)
    assert running.may_gain_more == more


def test_few_units_under_many_columns_are_compared_with_a_tree():
    """Pairs of equal columns, more than units on independent columns can learn."""
    random = np.random.default_rng(0)
    x = np.repeat((random.random((300, 6)) < 0.5).astype(float), 2, axis=1)
    model = RBMEstimator(2, random_state=0).fit(x[:200])
    assert model.base_name_ == "block-tree"
    assert model.score(x[200:]) > -6 * np.log(2) - 0.5
    # With enough units for the columns nothing is compared.
    assert RBMEstimator(5, n_iter=2, random_state=0).fit(x[:300, :6]).base_reason_ == "by default"
