"""The choice of ``partition="auto"``, the table of all methods, and its plot."""

import builtins
import math
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from skebm import RBMEstimator
from skebm._validation import warn
from skebm.base import Binary, Categorical, Energy, Mixed, PartitionEstimator, Real
from skebm.distributions import ChowLiuTree, Gaussian, IndependentBernoulli
from skebm.energies import BernoulliRBM, BoltzmannMachine, ising_grid
from skebm.inspection import PartitionDisplay
from skebm.inspection.partition import BEYOND, ESTIMATE, EXACT, MAX_REASON, PLAIN, WARNED
from skebm.partition import (
    AIS,
    AISBracket,
    Bethe,
    BridgeSampling,
    Exact,
    ImportanceSampling,
    PerturbAndMAP,
    ReverseAIS,
    TrajectoryAIS,
    TreeReweighted,
    choose,
    compare,
)
from skebm.partition.comparison import COLUMNS, METHODS, NOT_APPLICABLE
from skebm.samplers import Gibbs
from tests.support.discovery import without_case
from tests.support.oracle import DOUBLE, make_rbm, seeded
from tests.support.targets import Quadratic
from tests.support.tiers import full, leading, only_full

pandas = pytest.importorskip("pandas")

NUMBERS = ["value", "std_error", "lower", "upper", "ess"]
X = (np.random.default_rng(0).random((60, 6)) < 0.3).astype(float)
QUICK = {
    "bracket": AISBracket(20, 50, 10),
    "importance": ImportanceSampling(200),
    "perturb": PerturbAndMAP(10),
}


class Plain(Energy):
    """A quadratic energy on any domain."""

    def __init__(self, domain):
        super().__init__()
        self.domain = domain

    def forward(self, x, cond=None):
        return x.flatten(1).square().sum(1)


class Refusing(PartitionEstimator):
    """Raises the given error, from `check` or from `estimate`."""

    def __init__(self, error, early=False):
        self.error = error
        self.early = early

    def check(self, energy):
        if self.early:
            raise self.error

    def estimate(self, energy, *, base=None, sampler=None, x=None, generator=None):
        raise self.error


class Loud(Exact):
    def estimate(self, energy, **kwargs):
        for message in ("slow\nsecond line", "loose", "loose"):
            warn(message, ConvergenceWarning)
        warn("by the way", UserWarning)
        return super().estimate(energy, **kwargs)


@pytest.fixture(scope="module")
def model():
    return RBMEstimator(3, n_iter=5, random_state=0).fit(X)


@pytest.fixture(scope="module")
def grid():
    return ising_grid(3, 3, coupling=0.3)


def same(frame, other):
    pandas.testing.assert_frame_equal(
        frame.drop(columns="seconds"), other.drop(columns="seconds"), check_exact=True
    )


# ------------------------------------------------------------------------------
# choose
# ------------------------------------------------------------------------------


def test_few_states_are_enumerated():
    found = choose(BernoulliRBM(784, 16, generator=seeded()))
    assert found.method.get_params() == Exact().get_params()
    assert found.reason == "2^16 hidden states x 784 columns are 5.1e7 terms, at most 1e9"
    assert str(found) == f"Exact(): {found.reason}"
    wide = choose(BernoulliRBM(5, 700, generator=seeded()))
    assert wide.reason == "2^5 visible states x 700 hidden units are 2.2e4 terms, at most 1e9"
    assert choose(
        Plain(Categorical((3, 4)))
    ).reason == "12 states x 7 columns are 84 terms, at " + ("most 1e9")


def test_max_cost_limits_the_enumeration():
    energy = BernoulliRBM(8, 5, generator=seeded())  # 2^5 x 8 = 256
    assert type(choose(energy, max_cost=256).method) is Exact
    found = choose(energy, max_cost=255)
    assert type(found.method) is AIS
    assert "256 terms, above 255" in found.reason
    chosen = choose(ising_grid(6, 6), max_cost=1e13).method
    chosen.check(ising_grid(6, 6))  # accepts the energy it was chosen for
    with pytest.raises(ValueError, match="max_cost"):
        Exact().check(ising_grid(6, 6))


def test_models_without_loops_use_belief_propagation():
    line = ising_grid(1, 60, coupling=0.4, periodic=False)
    found = choose(line)
    assert type(found.method) is Bethe
    assert found.reason == "exact, as 59 coupled pairs of 60 units form no loop"
    estimate = found.method.estimate(line)
    assert estimate.lower == estimate.upper
    assert type(choose(ising_grid(1, 60, coupling=0.4, periodic=True)).method) is AIS  # a ring
    rbm = BernoulliRBM(60, 50, generator=seeded(), scale=0.0)
    assert choose(rbm).reason.startswith("exact, as 0 coupled pairs of 110 units")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("x", "method", "why"),
    [
        (None, AIS, "no rows for reverse annealing"),
        (torch.zeros(1, 36), AIS, "one row is too few"),
        (torch.zeros(7, 36), AISBracket, "; 7 rows for reverse annealing"),
        ({"a": torch.zeros(3, 36), "b": torch.zeros(4, 36)}, AISBracket, "; 7 rows"),
        ({"a": torch.zeros(3, 36), "b": torch.zeros(1, 36)}, AIS, "one row"),
    ],
)
def test_two_rows_make_the_difference_between_ais_and_a_bracket(x, method, why):
    found = choose(ising_grid(6, 6), x=x)
    assert type(found.method) is method
    assert why in found.reason
    assert found.reason.startswith("2^36 states x 36 columns are 2.5e12 terms, above 1e9")
    small = ising_grid(6, 6)
    if method is AISBracket:  # it accepts these rows
        AISBracket(4, 5, 1).estimate(small, x=x)


def test_the_noise_of_the_training_is_the_base():
    noise = IndependentBernoulli(torch.zeros(36))
    found = choose(ising_grid(6, 6), noise=noise, x=torch.zeros(7, 36))
    assert type(found.method) is ImportanceSampling
    assert "draws of the IndependentBernoulli that it was trained with" in found.reason
    assert (
        type(choose(ising_grid(3, 3), noise=IndependentBernoulli(torch.zeros(9))).method) is Exact
    )
    with pytest.raises(ValueError, match="The base draws rows of shape"):
        choose(ising_grid(6, 6), noise=IndependentBernoulli(torch.zeros(9)))
    with pytest.raises(TypeError, match="base must be a distribution"):
        choose(ising_grid(6, 6), base="gaussian")


def test_reasons_for_real_rows_and_for_many_states():
    few = choose(Quadratic(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)))
    assert str(few) == (
        "Quadrature(): real numbers cannot be enumerated; 2 columns, with an error of 4e-05"
    )
    real = choose(Quadratic(torch.zeros(4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE)))
    assert str(real) == "AIS(): real numbers cannot be enumerated; no rows for reverse annealing"
    mixed = choose(Plain(Mixed((Binary((2,)), Real((1,), 0.0, 1.0)))))
    assert mixed.reason.startswith("real numbers")
    huge = choose(ising_grid(40, 40, coupling=0.1)).reason
    assert huge.startswith("2^1600 states x 1600 columns are too many terms; ")
    wide = choose(Plain(Categorical((10,) * 400))).reason
    assert wide.startswith("10^400 states x 4000 columns are too many terms; ")


def test_the_work_on_real_rows_is_limited_by_the_size_of_the_energy():
    rows = torch.randn(50, 4, generator=seeded(), dtype=DOUBLE)
    energy = Quadratic(torch.zeros(4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE))
    few = choose(energy, x=rows).method
    assert repr(few) == "AISBracket(max_evaluations=5000000, n_betas=500, n_steps=250)"
    energy.weights = torch.nn.Parameter(torch.zeros(30_000, dtype=DOUBLE))
    assert choose(energy, x=rows).method.max_evaluations == 300_000


def test_the_work_on_bits_is_limited_by_the_size_of_the_energy():
    def chosen(energy):
        return choose(energy, x=torch.eye(energy.domain.n_columns)[:10]).method

    rbms = [BernoulliRBM(n, n, generator=seeded(), scale=0.1) for n in (600, 1500)]
    assert [chosen(rbm).max_evaluations for rbm in rbms] == [None, 400_000]
    tree = ChowLiuTree.fit(torch.eye(1000))
    on_tree = BernoulliRBM(1000, 1000, generator=seeded(), scale=0.1, base=tree)
    assert chosen(on_tree).max_evaluations == 600_000
    machines = [BoltzmannMachine(torch.ones(d, d) / d) for d in (100, 500)]
    assert [chosen(machine).max_evaluations for machine in machines] == [None, 600_000]


def test_rows_are_checked_where_they_are_given_and_asked_for_where_they_are_needed():
    rbm = make_rbm(6, 4)
    with pytest.raises(ValueError, match="shape"):
        choose(rbm, x=torch.zeros(3, 5))  # although enumeration needs none

    def rows():
        raise AssertionError("no rows are needed")

    assert type(choose(rbm, x=rows).method) is Exact
    assert type(choose(ising_grid(6, 6), x=lambda: torch.zeros(7, 36)).method) is AISBracket


def test_improper_energies_are_refused():
    class Flat(Plain):
        def forward(self, x, cond=None):
            return 0 * x.sum(1)

    for function in (choose, compare):
        with pytest.raises(ValueError, match="no finite integral"):
            function(Flat(Real((2,))))
    with pytest.raises(TypeError, match="is not an Energy"):
        choose("rbm")


# ------------------------------------------------------------------------------
# Methods reported by estimators
# ------------------------------------------------------------------------------


def test_estimators_report_their_method_for_log_z(model):
    reason = "2^3 hidden states x 6 columns are 48 terms, at most 1e9"
    assert model.log_partition_method_ == f"Exact(): {reason}"
    assert repr(model.partition_) == "Exact()"
    wide = RBMEstimator(60, n_iter=1, random_state=0).fit(np.tile(X, 7))
    assert repr(wide.partition_) == "AISBracket()"
    assert wide.log_partition_method_ == (
        "AISBracket(): 2^42 visible states x 60 hidden units are 2.6e14 terms, above 1e9; "
        f"{60 + wide.n_chains_} rows for reverse annealing"
    )
    wide.components_ = np.zeros((60, 42))
    assert wide.log_partition_method_.startswith("Bethe(): exact, as 0 coupled pairs of 102 units")
    b, c = wide.intercept_visible_, wide.intercept_hidden_
    truth = np.logaddexp(0, b.astype(float)).sum() + np.logaddexp(0, c.astype(float)).sum()
    assert wide.log_partition_ == pytest.approx(truth, abs=1e-5)


def test_estimators_report_the_method_that_was_passed(model):
    given = RBMEstimator(3, n_iter=1, partition=AIS(n_betas=50), random_state=0).fit(X)
    assert given.log_partition_method_ == "as given: AIS(n_betas=50)"
    none = RBMEstimator(3, n_iter=1, partition=None, random_state=0).fit(X)
    assert none.log_partition_method_ == "none"
    long = AISBracket(n_chains=11111, n_betas=22222, n_steps=33333, delta=0.012345678)
    assert "\n" not in given.set_params(partition=long).log_partition_method_
    with pytest.raises(NotFittedError):
        _ = RBMEstimator().log_partition_method_


# ------------------------------------------------------------------------------
# compare
# ------------------------------------------------------------------------------


def test_compare_knows_every_method():
    known = {*METHODS, TrajectoryAIS}  # which needs the models of a training
    table = "METHODS in tests/partition/test_comparison.py"
    assert without_case(PartitionEstimator, known, table) == []


EVERY = {cls.__name__: cls() for cls in METHODS}


@pytest.mark.parametrize(
    "methods",
    [QUICK | {name: EVERY[name] for name in ("Exact", "Bethe")}, only_full(EVERY)],
    ids=["quick", "all"],
)
def test_rows_are_what_the_methods_say(grid, methods):
    x = {"data": grid.domain.uniform(20, seeded(), dtype=torch.float32)}
    frame = compare(grid, None if methods is EVERY else methods, x=x)
    assert frame.index.name == "method"
    assert tuple(frame.columns) == COLUMNS
    assert list(frame.index) == list(methods)
    for name, method in methods.items():
        row = frame.loc[name]
        if name == "Quadrature":  # for real rows
            assert row["bound_kind"] == NOT_APPLICABLE
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = method.estimate(grid, x=x, generator=seeded(0))
        numbers = [getattr(found, name) for name in NUMBERS]
        assert list(row[NUMBERS]) == pytest.approx(numbers, abs=0, nan_ok=True)
        assert row["bound_kind"] == found.bound_kind
        assert row["reason"] == found.reason
        assert row["seconds"] > 0
    assert all(frame[name].dtype == float for name in (*NUMBERS, "seconds"))


def test_an_estimator_passes_the_inputs_of_its_own_estimate(monkeypatch):
    given = RBMEstimator(3, n_iter=3, learning="pcd", partition=QUICK["bracket"], random_state=0)
    given.fit(X)
    seen = {}

    class Spy(AISBracket):
        def estimate(self, energy, **kwargs):
            seen.update(kwargs, energy=energy)
            return super().estimate(energy, **kwargs)

    spy = Spy(**QUICK["bracket"].get_params())
    frame = compare(given, {"own": QUICK["bracket"], "spy": spy})
    assert frame["value"].tolist() == [given.log_partition_] * 2
    assert tuple(frame.loc["own", ["lower", "upper"]]) == given.log_partition_bounds_
    assert seen["energy"] is given.energy_
    assert set(seen["x"]) == {"data", "training chains"}
    assert repr(seen["sampler"]) == repr(given._recipe.family.chains.layer_sampler.kernel)
    assert seen["base"] is given.energy_.base


def test_arguments_replace_the_inputs_of_the_estimator(model):
    seen = {}

    class Spy(Exact):
        def estimate(self, energy, **kwargs):
            seen.update(kwargs)
            return super().estimate(energy)

    rows = torch.ones(4, 6, dtype=DOUBLE)
    base, sampler = IndependentBernoulli(torch.ones(6)), Gibbs()
    compare(model, [Spy()], base=base, sampler=sampler, x={"mine": rows}, random_state=5)
    assert seen["base"] is base
    assert seen["sampler"] is sampler
    assert list(seen["x"]) == ["mine"]
    assert seen["x"]["mine"].dtype == torch.float32  # that of the energy
    assert torch.equal(seen["x"]["mine"], rows.float())
    seed = np.random.RandomState(5).randint(np.iinfo(np.int32).max)
    assert seen["generator"].initial_seed() == seed


@pytest.mark.parametrize("own", leading(1, ["estimator", "energy"]))
def test_compare_is_reproducible_and_rows_are_independent(own, model, grid):
    one = grid if own == "energy" else model
    x = None if own == "estimator" else grid.domain.uniform(9, seeded(3), dtype=torch.float32)
    first = compare(one, QUICK, x=x)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    same(first, compare(one, QUICK, x=x))
    assert torch.equal(state, torch.get_rng_state())
    for name in QUICK:
        same(first.loc[[name]], compare(one, {name: QUICK[name]}, x=x))
    backwards = compare(one, dict(reversed(QUICK.items())), x=x)
    same(first, backwards.loc[list(QUICK)])
    other = compare(one, QUICK, x=x, random_state=1)
    same(other, compare(one, QUICK, x=x, random_state=np.random.RandomState(1)))
    assert (other["value"] != first["value"]).all()


def test_compare_does_not_modify_the_estimator(monkeypatch):
    model = RBMEstimator(3, n_iter=3, learning="pcd", random_state=0).fit(X)
    before, stored = dict(vars(model)), joblib.hash(model)
    compare(model, QUICK)
    assert vars(model) == before
    assert joblib.hash(model) == stored
    assert model._log_z.found is None
    value = model.log_partition_
    monkeypatch.setattr(Exact, "estimate", Refusing(RuntimeError("again")).estimate)
    compare(model, [Bethe()])
    assert model.log_partition_ == value


def test_methods_are_named_by_class_or_by_parameters(grid):
    frame = compare(grid, [Exact(), ImportanceSampling(50), ImportanceSampling(60)])
    names = ["Exact", "ImportanceSampling(n_samples=50)", "ImportanceSampling(n_samples=60)"]
    assert list(frame.index) == names
    with pytest.raises(ValueError, match=r"holds Exact\(\) twice: pass a dict"):
        compare(grid, [Exact(), Exact()])
    assert list(compare(grid, {"a": Exact(), "b": Exact()}).index) == ["a", "b"]
    assert list(compare(grid, (one for one in [Exact()])).index) == ["Exact"]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("kind", [TypeError, ValueError, FloatingPointError])
def test_a_refusal_is_a_row_of_nan(grid, kind, early):
    frame = compare(grid, {"no": Refusing(kind("not today"), early), "yes": Exact()})
    row = frame.loc["no"]
    assert row["reason"] == "not today"
    assert row["bound_kind"] == NOT_APPLICABLE
    assert row[[*NUMBERS, "seconds"]].isna().all()
    assert frame.loc["yes", "value"] == Exact().estimate(grid).value


def test_other_errors_are_raised(grid):
    with pytest.raises(RuntimeError, match="a bug"):
        compare(grid, [Refusing(RuntimeError("a bug"))])


def test_rows_of_methods_that_do_not_apply_give_the_reason():
    frame = compare(Quadratic(torch.zeros(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)), [
        Exact(), Bethe(), TreeReweighted(), PerturbAndMAP(), ReverseAIS(), AISBracket(),
        ImportanceSampling(), BridgeSampling(100, 5),
    ])  # fmt: skip
    assert (frame["bound_kind"] == NOT_APPLICABLE).tolist() == [True] * 6 + [False] * 2
    assert "too many states" in frame.loc["Exact", "reason"]
    assert "pass them as x" in frame.loc["AISBracket", "reason"]
    assert "takes pairwise energies" in frame.loc["Bethe", "reason"]
    large = compare(ising_grid(6, 6), [Exact()])
    assert "max_cost" in large.loc["Exact", "reason"]


def test_convergence_warnings_are_in_the_table(grid):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = compare(grid, [Loud(), Exact()])
    assert [str(one.message) for one in caught] == ["by the way"]
    assert frame["warning"].tolist() == ["slow loose", ""]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", ConvergenceWarning)
        assert compare(grid, [Loud()])["warning"].item() == "slow loose"


@full
def test_a_known_answer(grid):
    frame = compare(make_rbm(6, 4), x=torch.zeros(3, 6))
    assert list(frame.index) == list(EVERY)
    truth = frame.loc["Exact", "value"]
    certain = frame[frame["bound_kind"].isin(["exact", "certain"])]
    assert not (certain["lower"] > truth + 1e-9).any()
    assert not (certain["upper"] < truth - 1e-9).any()
    assert abs(frame.loc["AIS", "value"] - truth) < 5 * frame.loc["AIS", "std_error"] + 1e-6


# ------------------------------------------------------------------------------
# Invalid arguments
# ------------------------------------------------------------------------------


def test_other_objects_than_models_are_refused(model, grid):
    with pytest.raises(NotFittedError):
        compare(RBMEstimator())
    for wrong in (
        make_pipeline(model),
        LinearRegression().fit(X, X[:, 0]),
        "rbm",
        None,
        torch.nn.Linear(2, 1),
    ):
        with pytest.raises(TypeError, match="compare takes an Energy or a fitted"):
            compare(wrong)

    class Foreign:
        energy_ = grid

    same(compare(Foreign(), [Exact()]), compare(grid, [Exact()]))


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ([], ValueError, "methods is empty"),
        ({}, ValueError, "methods is empty"),
        ([Exact(), "ais"], TypeError, "'ais'"),
        ([Exact], TypeError, r"pass an instance, Exact\(\)"),
        ({"a": 3}, TypeError, "holds 3"),
        ("exact", TypeError, "must be a list or a dict"),
        (Exact(), TypeError, "must be a list or a dict"),
        (Exact, TypeError, "must be a list or a dict"),
        (7, TypeError, "must be a list or a dict"),
    ],
)
def test_other_objects_than_methods_are_refused(grid, methods, error, message):
    with pytest.raises(error, match=message):
        compare(grid, methods)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"x": torch.zeros(3, 8)}, ValueError, "must be of shape"),
        ({"x": np.zeros((3, 9))}, TypeError, "must be a tensor"),
        ({"x": torch.full((3, 9), 0.5)}, ValueError, "Row 0 of x"),
        ({"base": Gaussian(torch.zeros(9), 1.0)}, ValueError, "leaves out a part"),
        ({"base": "uniform"}, TypeError, "base must be a distribution"),
        ({"sampler": "gibbs"}, TypeError, "sampler must be a sampler"),
        ({"random_state": "seed"}, ValueError, "seed"),
    ],
)
def test_invalid_arguments_raise_instead_of_a_row_of_nan(grid, kwargs, error, message):
    with pytest.raises(error, match=message):
        compare(grid, [Exact()], **kwargs)


def test_a_missing_pandas_is_named(grid, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.split(".")[0] == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match="pip install pandas"):
        compare(grid, [Refusing(RuntimeError("pandas was not checked first"))])


# ------------------------------------------------------------------------------
# The display
# ------------------------------------------------------------------------------


def table(**rows):
    """A frame of rows (value, std_error, lower, upper, bound_kind)."""
    frame = pandas.DataFrame.from_dict(
        rows, orient="index", columns=["value", "std_error", "lower", "upper", "bound_kind"]
    )
    return frame.assign(ess=1.0, seconds=0.5, reason="", warning="")


NAN = math.nan
EXACT_ROW = (10.0, 0.0, 10.0, 10.0, "exact")
NEAR = (10.1, 0.1, 9.6, NAN, "probabilistic")
ABOVE = (10.3, NAN, NAN, 10.3, "exact")
FAR = (150.0, NAN, NAN, 151.0, "exact")
NONE = (NAN, NAN, NAN, NAN, NOT_APPLICABLE)


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def lines(display, label):
    handles, labels = display.ax_.get_legend_handles_labels()
    return [handle for handle, one in zip(handles, labels, strict=True) if one == label]


def texts(display):
    return [text.get_text() for text in display.ax_.texts]


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_the_display_of_an_estimator(plt, model):
    display = PartitionDisplay.from_estimator(model, QUICK, random_state=3)
    same(display.frame, compare(model, QUICK, random_state=3))
    assert display.plot() is display
    assert isinstance(display.figure_, plt.Figure)
    assert display.ax_ in display.figure_.axes
    assert [tick.get_text() for tick in display.ax_.get_yticklabels()] == list(QUICK)
    display.figure_.canvas.draw()


def test_values_error_bars_and_bounds_have_the_right_positions(plt):
    display = PartitionDisplay(table(Exact=EXACT_ROW, AIS=NEAR, TRW=ABOVE)).plot()
    (line,) = lines(display, EXACT)
    assert list(line.get_xdata()) == [10, 10]
    bars = lines(display, ESTIMATE)
    assert [float(bar.lines[0].get_xdata()[0]) for bar in bars] == [10.0, 10.1]
    ends = bars[1].lines[2][0].get_segments()[0]
    assert ends[:, 0] == pytest.approx([9.9, 10.3])
    (hollow,) = lines(display, PLAIN)
    assert hollow.lines[0].get_markerfacecolor() == "white"
    (certain,) = lines(display, "certain bound")
    assert certain.get_xdata()[0] == 10.3
    (probable,) = lines(display, "bound with high probability")
    assert probable.get_xdata()[0] == 9.6
    assert certain.get_markeredgewidth() > probable.get_markeredgewidth()
    top, bottom = display.ax_.get_ylim()[::-1]
    assert top < 0 < 2 < bottom  # the first method is at the top
    assert texts(display).count("0.50") == 3
    assert BEYOND not in legend(display)


@pytest.mark.parametrize("side", [1, -1])
def test_distant_values_do_not_stretch_the_axis(plt, side):
    far = (10 + side * 140, NAN, NAN if side > 0 else -131.0, 151.0 if side > 0 else NAN, "exact")
    display = PartitionDisplay(table(Exact=EXACT_ROW, AIS=NEAR, TRW=ABOVE, Far=far)).plot()
    low, high = display.ax_.get_xlim()
    assert 5 < low < 9.6
    assert 10.3 < high < 15
    (arrow,) = lines(display, BEYOND)
    assert arrow.get_xdata()[0] == (high if side > 0 else low)
    assert texts(display).count("151.0" if side > 0 else "-131.0") == 1
    assert ("150.0" in texts(display)) is False  # one arrow for a value and its bound


def test_a_distant_value_without_a_bound_has_an_arrow(plt):
    rows = {"Exact": EXACT_ROW, "AIS": NEAR, "B": (-90.0, NAN, NAN, NAN, "heuristic")}
    assert "-90.0" in texts(PartitionDisplay(table(**rows)).plot())


def test_methods_that_did_not_run_show_the_reason(plt):
    frame = table(Exact=EXACT_ROW, Gone=NONE, AIS=NEAR)
    frame.loc["Gone", ["reason", "seconds"]] = ["because " * 30, NAN]
    frame.loc["AIS", "warning"] = "few draws"
    display = PartitionDisplay(frame).plot()
    (shown,) = [text for text in display.ax_.texts if text.get_text().startswith("because")]
    assert len(shown.get_text()) <= MAX_REASON
    assert shown.get_position()[1] == 1
    assert texts(display).count("0.50") == 2
    (mark,) = lines(display, WARNED)
    assert mark.get_ydata()[0] == 2


@pytest.mark.parametrize(
    "rows",
    [
        {"only": EXACT_ROW},
        {"only": NEAR},
        {"only": NONE},
        {"only": FAR},
        {"only": (10.0, math.inf, 7.0, NAN, "probabilistic")},
        {"only": (math.inf, NAN, NAN, NAN, "heuristic")},
        {"a": NONE, "b": NONE},
        {f"m{i}": EXACT_ROW for i in range(9)},
    ],
)
def test_any_frame_can_be_drawn(plt, rows):
    display = PartitionDisplay(table(**rows)).plot()
    low, high = display.ax_.get_xlim()
    assert -math.inf < low < high < math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.figure_.canvas.draw()


def test_plot_uses_the_axes_and_the_exact_value_passed(plt):
    _, axes = plt.subplots(1, 2)
    display = PartitionDisplay(table(AIS=NEAR))
    assert display.plot(axes[1]).ax_ is axes[1]
    assert display.figure_ is axes[1].figure
    assert lines(display, EXACT) == []
    (line,) = lines(display.plot(exact=10.05), EXACT)
    assert line.get_xdata()[0] == 10.05


@full
def test_texts_do_not_overlap(plt):
    names = [cls.__name__ for cls in METHODS]
    rows = [EXACT_ROW, NEAR, ABOVE, FAR, FAR, NEAR, NONE, NEAR, NEAR, NONE]
    frame = table(**dict(zip(names, rows, strict=True)))
    frame["reason"] = "x" * 200
    frame["warning"] = "a warning"
    display = PartitionDisplay(frame).plot()
    figure = display.figure_
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    drawn = [*display.ax_.texts, *display.ax_.get_yticklabels(), display.ax_.xaxis.label]
    boxes = [text.get_window_extent(renderer) for text in drawn]
    boxes.append(display.ax_.get_legend().get_window_extent(renderer))
    for i, box in enumerate(boxes):
        assert figure.bbox.containsx(box.x0)
        assert figure.bbox.containsx(box.x1)
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_invalid_frames_are_refused():
    with pytest.raises(ValueError, match="lacks value, std_error"):
        PartitionDisplay([1, 2])
    with pytest.raises(ValueError, match="lacks warning"):
        PartitionDisplay(table(a=NEAR).drop(columns="warning"))
    with pytest.raises(ValueError, match="no rows"):
        PartitionDisplay(table(a=NEAR).iloc[:0])
