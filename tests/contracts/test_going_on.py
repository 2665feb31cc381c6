"""A fit that goes on keeps what the first one settled, or is refused; callbacks change nothing."""

import numpy as np
import pytest
from sklearn.base import clone
from skorch.callbacks import Callback

from skebm import ConditionalDensity, TemporalRBM, TemporalRBMClassifier
from skebm.distributions import Gaussian
from skebm.estimators.base import BaseEBM
from skebm.estimators.tables.unchanged import KEPT
from tests.contracts.test_estimators import CASES, data
from tests.support.discovery import walk
from tests.support.tiers import full

# Other values of settled parameters; their kinds may be invalid, as the change comes first.
OTHERS = {"bounds": (-9.0, 9.0), "edges": np.zeros((6, 6)), "sigma": 0.123}
# Settled with the first fit, but checked by the shapes of weights or by the base's name.
ELSEWHERE = {"base"}

_random = np.random.default_rng(0)
ROWS = (_random.random((300, 6)) < 0.3 + 0.2 * _random.integers(0, 2, (300, 1))) * 1.0
LABELS = (_random.random(300) < 0.5) * 1


class Inert(Callback):
    pass


@full
@pytest.mark.parametrize("kind", [TemporalRBM, TemporalRBMClassifier])
@pytest.mark.parametrize(
    "given", [{"callbacks": [("inert", Inert())]}, {"verbose": 0}, {"optimizer__eps": 1e-8}]
)
def test_what_changes_nothing_removes_no_guard(kind, given):
    y = LABELS if kind is TemporalRBMClassifier else None
    model = kind(2, order=1, n_iter=6, random_state=0)
    plain = clone(model).fit(ROWS, y)
    other = clone(model).set_params(net_params=given).fit(ROWS, y)
    for one, two in zip(
        plain.net_.module_.state_dict().values(),
        other.net_.module_.state_dict().values(),
        strict=True,
    ):
        assert one.equal(two)
    named = clone(model).set_params(learning_rate=0.01, batch_size=50).fit(ROWS, y)
    assert "gain_over_base" in named.history_[-1]


GOING_ON = [kind for kind in walk(BaseEBM) if "warm_start" in kind._get_param_names()]


@full
@pytest.mark.parametrize("kind", [kind for kind in GOING_ON if kind in CASES])
def test_parameters_of_the_first_fit_do_not_change(kind):
    case = next(iter(CASES[kind].values()))
    X = data(case)
    model = clone(case).set_params(warm_start=True, n_iter=1).fit(X)
    before = model.energy(X)
    for name in KEPT:
        if name not in kind._get_param_names() or name in ELSEWHERE:
            continue
        old = getattr(model, name)
        other = OTHERS.get(name, not old if isinstance(old, bool) else Gaussian)
        setattr(model, name, other)
        with pytest.raises((ValueError, TypeError), match=name):
            model.fit(X)
        setattr(model, name, old)
    np.testing.assert_array_equal(model.energy(X), before)


@full
def test_the_mean_of_the_base_is_exact_where_the_network_is_off():
    c = _random.normal(size=(60, 1))
    x = c @ np.array([[1.0, -1.0, 2.0]]) + 0.1 * _random.normal(size=(60, 3))
    model = ConditionalDensity(given=0, base="linear", n_iter=0, random_state=0)
    mean, error = model.fit(np.c_[c, x]).expected(c, return_std_error=True)
    assert error.max() < 1e-12
    # A linear base is a ridge regression: on its own rows as good as the noise.
    assert np.abs(mean - x).mean() < 0.12
    np.testing.assert_array_equal(model.expected(c), mean)
