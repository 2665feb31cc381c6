"""Every public estimator is exported and compared, or refused with a reason."""

import pytest
from sklearn.base import BaseEstimator

import skebm
from skebm.export import ExportError, to_numpy, to_onnx
from skebm.export.rules import REFUSED, RULES
from tests.export.test_models import CASES


def public_estimators():
    found = (getattr(skebm, name) for name in skebm.__all__)
    return [one for one in found if isinstance(one, type) and issubclass(one, BaseEstimator)]


def test_every_estimator_has_a_case_or_a_reason():
    compared = {type(model) for model, _, _ in CASES.values()}
    assert compared | set(REFUSED) >= set(public_estimators())
    assert not compared & set(REFUSED)


@pytest.mark.parametrize("kind", list(REFUSED))
def test_a_refusal_says_why_and_what_else_to_do(kind):
    model = object.__new__(kind)
    for export in (to_numpy, to_onnx):
        with pytest.raises(ExportError, match=rf"{kind.__name__} cannot.*, as .*Score rows in"):
            export(model)


def test_an_estimator_without_a_rule_is_refused():
    class Novel(BaseEstimator):
        pass

    with pytest.raises(ExportError, match="Novel has no rule of export"):
        to_numpy(Novel())
    assert not any(issubclass(kind, tuple(RULES)) for kind in REFUSED)
