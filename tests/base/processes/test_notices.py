"""Where warnings point to."""

import contextlib
import linecache
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity, _validation
from skebm.base import DataWarning, LikelihoodWarning, SkebmWarning
from skebm.base.processes import Notice, inside, notices, threads
from tests.support.interrupts import interrupted_at


def test_warnings_point_to_the_line_of_the_program():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = ContrastiveDivergenceDensity(learning_rate=30.0, n_iter=1, base=None, random_state=0)
    for fitted in (model, make_pipeline(StandardScaler(), model)):
        with pytest.warns(ConvergenceWarning) as caught:
            fitted.fit(X)
        assert {Path(warning.filename) for warning in caught} == {Path(__file__)}
        assert "fitted.fit(X)" in linecache.getline(__file__, caught[0].lineno)


def test_processes_without_a_program_of_their_own_warn(monkeypatch):
    class Everything:
        def __contains__(self, name):
            return True

    monkeypatch.setattr(notices, "BETWEEN", Everything())
    with pytest.warns(UserWarning, match="a worker"):
        _validation.warn("a worker says so")


class Outer(BaseEstimator):
    """An estimator that holds another one."""

    def __init__(self, estimator=None, n_iter=3):
        self.estimator, self.n_iter = estimator, n_iter


class Inner(BaseEstimator):
    def __init__(self, n_draws=10, chains=None):
        self.n_draws, self.chains = n_draws, chains


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (None, "It is wrong. Raise n_draws."),  # a part that was called itself
        (Inner(), "It is wrong. Raise n_draws."),
        (Outer(Inner()), "It is wrong. Raise estimator__n_draws."),
        (Outer(), "It is wrong. Raise n_iter."),
        (BaseEstimator(), "It is wrong. Use more rows."),
    ],
)
def test_a_remedy_names_parameters_of_the_estimator_that_was_called(owner, text):
    remedies = (("Raise n_draws.", "n_draws"), ("Raise n_iter.", "n_iter"), ("Use more rows.",))
    assert Notice("It is wrong.", SkebmWarning, remedies).text(owner) == text


def test_a_remedy_that_nobody_can_follow_is_left_out():
    notice = Notice("It is wrong.", SkebmWarning, (("Raise n_draws.", "n_draws"),))
    assert notice.text(Outer()) == "It is wrong."
    nested = Notice("It is wrong.", SkebmWarning, (("Raise chains__n_steps.", "chains"),))
    assert nested.text(Outer(Inner())) == "It is wrong. Raise estimator__chains__n_steps."


def test_long_lists_are_cut():
    columns = list(range(300))
    assert Notice(f"Columns {columns} are constant.").text() == (
        "Columns [0, 1, 2, 3, 4 and 295 more] are constant."
    )
    assert Notice(f"Columns {columns[:10]}.").text() == f"Columns {columns[:10]}."


def test_a_public_call_warns_once_of_each_kind():
    @inside
    def fit(n):
        for k in range(n):
            _validation.warn(f"{k} rows are wrong.")
            fit(k)

    with pytest.warns(SkebmWarning) as caught:
        fit(3)
    assert [str(one.message) for one in caught] == ["0 rows are wrong."]


def test_warnings_that_a_result_does_not_depend_on_are_not_shown():
    def rank():
        with notices.without_warnings(LikelihoodWarning):
            _validation.warn("log Z is wrong.", LikelihoodWarning)
            _validation.warn("X is wrong.", DataWarning)

    with pytest.warns(SkebmWarning) as caught:
        rank()
    assert [str(one.message) for one in caught] == ["X is wrong."]


FOLDER = str(Path(notices.__file__).parent)


def manages(code):
    return code.co_filename.startswith((FOLDER, contextlib.__file__))


@inside
def warned():
    """What a call warns of, which collects warnings and has settings of its own."""
    with notices.without_warnings(LikelihoodWarning), threads(1):
        notices.warn("Unlikely.", LikelihoodWarning)
        notices.warn("Odd.", DataWarning)
    return torch.get_default_dtype() is torch.float32 or torch.zeros(1).dtype is torch.float32


def test_ctrl_c_at_any_instruction_of_a_context_manager_leaves_none_of_them_entered():
    """Collected for good, no warning of this thread would be seen again."""
    before = torch.get_num_threads()
    number, found = 0, True
    while found:
        number += 1
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                found = interrupted_at(number, warned, manages)
            except KeyboardInterrupt:
                found = True
            assert not torch.is_grad_enabled(), number
        assert not notices.is_in_public_call(), number
        assert torch.get_num_threads() == before, number
        with pytest.warns(SkebmWarning) as caught:
            assert warned()
        assert [str(one.message) for one in caught] == ["Odd."], number
    assert number > 100
