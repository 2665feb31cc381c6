"""Before the first fit: every method of every public estimator says that there was none."""

import inspect

import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from tests.support.estimators import FITS
from tests.support.tiers import about

MAKE_A_FIT = {"fit", "fit_transform", "fit_predict", "partial_fit"}


def methods_of(model):
    """Public methods that an unfitted estimator has, but for those that fit it or set it up."""
    for name in dir(type(model)):
        attribute = inspect.getattr_static(type(model), name)
        is_setting = name.startswith(("_", "set_", "get_params", "get_metadata"))
        if is_setting or name in MAKE_A_FIT or isinstance(attribute, property):
            continue
        if callable(getattr(model, name, None)):  # some are there for some parameters only
            yield name


def required(method):
    """Names of the arguments without a default."""
    parameters = inspect.signature(method).parameters.values()
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


@pytest.mark.parametrize("cls", FITS, ids=lambda cls: cls.__name__)
def test_methods_ask_for_a_fit(cls):
    model, X, *_ = FITS[cls]
    names = list(methods_of(clone(model)))
    assert names
    for name in names:
        method = getattr(clone(model), name)
        with about(name), pytest.raises(NotFittedError, match=cls.__name__):
            method(*[X] * len(required(method)))
