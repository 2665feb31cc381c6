"""How long a training is: passes by gain, and seconds."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn

from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    DeepBoltzmannMachine,
    GatedRBM,
    NCEDensity,
    RBMEstimator,
    ScoreMatchingDensity,
    TemporalRBM,
)
from skebm.estimators.recipe import Family
from skebm.training import SGD
from skebm.training.engine import Clock, EnergyNet
from skebm.training.guard import MOST_WORK, Best, gain_of_a_pass

_random = np.random.default_rng(0)
BITS = (_random.random((260, 6)) < 0.3 + 0.4 * _random.integers(0, 2, (260, 1))) * 1.0


GAINED = Best(1.0, 0.1, 1, [])


def net_after(gains, max_epochs=20, most_epochs=80, best=GAINED, seldom=True):
    """What a net knows of its passes, with a gain after each."""
    return SimpleNamespace(
        history=[{"gain_over_base": gain} for gain in gains],
        n_before_=0,
        max_epochs=max_epochs,
        most_epochs=most_epochs,
        n_assessments_=20,
        n_due_=len(gains),
        held_out_=object(),
        guard_=SimpleNamespace(best=best, seldom=seldom),
    )


def test_passes_are_doubled_while_held_out_rows_gain():
    rising = [0.1 * k for k in range(40)]
    net = net_after([])
    assert EnergyNet._next_stop(net, None) == 5
    net.history = net_after(rising[:5]).history
    assert EnergyNet._next_stop(net, None) == 10
    net.history = net_after(rising[:10]).history
    assert EnergyNet._next_stop(net, None) == 20
    assert (net.max_epochs, net.n_assessments_, net.n_due_) == (40, 40, 10)
    net.history = net_after(rising[:20]).history
    assert EnergyNet._next_stop(net, None) == 80  # as many as there may be
    assert net.max_epochs == 80


@pytest.mark.parametrize(
    "gains", [[1.0] * 10, [0.5, -0.5] * 5, [1.0 + 0.005 * k for k in range(10)]]
)
def test_passes_are_as_planned_where_held_out_rows_do_not_gain(gains):
    net = net_after(gains)
    assert EnergyNet._next_stop(net, None) == 20
    assert net.max_epochs == net.most_epochs == 20


@pytest.mark.parametrize(("gain", "error", "last"), [(0.1, 0.1, 5), (0.0, 0.0, 5), (0.3, 0.1, 10)])
def test_passes_end_after_a_fourth_where_nothing_was_gained_over_the_base(gain, error, last):
    net = net_after([gain] * 5, best=Best(gain, error, 3, []))
    assert EnergyNet._next_stop(net, None) == last
    assert (net.max_epochs == net.most_epochs == last) == (last == 5)


def test_nothing_ends_early_where_each_pass_says_whether_training_ends():
    net = net_after([0.0] * 10, best=Best(0.0, 0.1, 5, []), seldom=False)
    assert EnergyNet._next_stop(net, None) == 20


def test_without_held_out_rows_passes_are_as_planned():
    net = net_after([])
    net.held_out_ = None
    assert EnergyNet._next_stop(net, None) == 20


@pytest.mark.parametrize(
    ("work", "layer", "affordable"),
    [(MOST_WORK / 400, nn.Linear(1, 1), 200), (1.0, nn.Conv2d(1, 1, 1), 20)],
)
def test_work_limits_passes(work, layer, affordable):
    """Of 20 rows in batches of 10; that of convolutions is not counted."""
    net = net_after([])
    net.batch_size, net.module_ = 10, layer
    net.module_.work = lambda n_rows: work
    assert EnergyNet._affordable(net, 20) == affordable


_numbers = _random.normal(size=(260, 3))
DEFAULTS = {
    "score matching": (ScoreMatchingDensity(base="gaussian"), (_numbers,)),
    "NCE": (NCEDensity(noise="gaussian"), (_numbers,)),
    "contrastive divergence": (ContrastiveDivergenceDensity(base="gaussian"), (_numbers,)),
    "conditional": (ConditionalDensity(given=0, base="linear"), (_numbers,)),
    "gated": (GatedRBM(), (BITS, BITS)),
    "temporal": (TemporalRBM(), (BITS,)),
    "RBM": (RBMEstimator(3, base="independent", learning="pcd"), (BITS,)),
    "deep": (DeepBoltzmannMachine((3, 2), pretraining=None), (BITS,)),
}


@pytest.mark.filterwarnings("ignore::skebm.base.SkebmWarning")
@pytest.mark.parametrize("name", DEFAULTS)
def test_every_guarded_fit_may_have_more_passes_than_by_default(name, monkeypatch):
    model, x = DEFAULTS[name]
    monkeypatch.setattr(EnergyNet, "partial_fit", ends_at_once)
    with pytest.raises(AtOnceError) as ended:
        clone(model).set_params(random_state=0).fit(*x)
    net = ended.value.args[0]
    assert net.held_out_ is not None
    assert net.most_epochs >= 2 * net.max_epochs
    with pytest.raises(AtOnceError) as ended:
        clone(model).set_params(random_state=0, n_iter=7).fit(*x)
    assert ended.value.args[0].most_epochs == 0


class AtOnceError(Exception):
    """What ends a fit before its first pass, with the net."""


def ends_at_once(net, *args, **kwargs):
    raise AtOnceError(net)


@pytest.mark.parametrize(
    ("planned", "rise", "is_said"), [(10, 0.1, True), (40, 0.1, False), (10, 0.0, False)]
)
def test_it_is_said_what_doubled_passes_still_gained(planned, rise, is_said):
    net = net_after([rise * k for k in range(40)], max_epochs=40, most_epochs=40)
    net.note_ = None
    recipe = SimpleNamespace(plan=SimpleNamespace(n_iter=planned))
    found = Family.why_not_converged(None, recipe, net, None)
    assert (found is not None) == is_said
    if found is not None:
        assert "last quarter of 40 epochs held-out rows still became 1 nats" in found.message


def test_a_number_of_passes_that_is_given_is_not_doubled():
    net = (
        RBMEstimator(3, base="independent", learning="pcd", n_iter=20, random_state=0)
        .fit(BITS)
        .net_
    )
    assert (net.max_epochs, net.most_epochs) == (20, 0)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "fast", None, True])
def test_seconds_are_a_positive_number(seconds):
    with pytest.raises(ValueError, match="max_time"):
        RBMEstimator(3, optimizer=SGD(max_time=seconds)).fit(BITS)


def test_without_a_limit_no_time_is_spent():
    clock = Clock(float("inf"))
    assert clock.share_spent() == 0
    assert not clock.is_over()


def test_a_clock_is_over_after_its_seconds():
    clock = Clock(10.0)
    assert 0 <= clock.share_spent() < 1
    clock.began -= 10
    assert clock.share_spent() == 1
    assert clock.is_over()


def test_the_gain_of_a_pass_is_that_of_the_last_ones():
    history = [{"gain_over_base": 1.0}, {}, {"gain_over_base": 2.0}, {"gain_over_base": 2.5}, {}]
    assert gain_of_a_pass(history) == pytest.approx(0.5)
    assert gain_of_a_pass(history[:2]) is None


@pytest.mark.filterwarnings("ignore::skebm.base.TrainingWarning")
def test_in_a_second_nothing_is_compared():
    model = RBMEstimator(optimizer=SGD(max_time=0.2), learning="pcd", random_state=0).fit(BITS)
    assert (model.base_name_, model.n_components_) == ("independent", 256)
    assert np.isfinite(model.score(BITS))
