"""Every estimator with `partial_fit`: what a stream cannot have is said once."""

import warnings

import pytest
from sklearn.base import clone

from skebm.base import SettingWarning
from skebm.estimators.base import BaseEBM
from tests.adversarial.hostile import Split
from tests.adversarial.invariants import MAX_LINES, target_of
from tests.contracts.test_warnings import LEADING, NAMES, SHORT
from tests.support.tables import real_rows
from tests.support.tiers import named

OF_NETS = [n for n, cls in NAMES.items() if issubclass(cls, BaseEBM)]
STREAMS = [n for n in OF_NETS if hasattr(SHORT[NAMES[n]](), "partial_fit")]


def warnings_of_stream(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [one for one in caught if "partial_fit holds out no rows" in str(one.message)]


# Those whose fits hold no rows out either: chains tell how training goes.
WITHOUT_GUARD = {"JEMClassifier"}
SLOW = {"BoltzmannMachineDensity"}  # a penalty is chosen
FIRST = [name for name in LEADING if name in STREAMS and name not in SLOW]


@pytest.mark.parametrize("name", named(FIRST, STREAMS))
def test_a_stream_says_once_that_no_rows_guard_it(name):
    X = real_rows(60, 4)
    model = clone(SHORT[NAMES[name]]())
    table = Split(X, (X[:, 0] > 0).astype(int), X)
    target = target_of(model, table)
    given = (X,) if target is None else (X, target)
    found = warnings_of_stream(lambda: model.partial_fit(*given))
    if name in WITHOUT_GUARD:
        assert not found
        return
    (said,) = found
    assert said.category is SettingWarning
    assert len(str(said.message).splitlines()) <= MAX_LINES
    assert not warnings_of_stream(lambda: model.partial_fit(*given))
    assert not warnings_of_stream(lambda: clone(model).fit(*given))
