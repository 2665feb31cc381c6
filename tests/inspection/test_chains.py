"""ChainDisplay: what it stores, what it draws, and what it refuses."""

import numpy as np
import pytest
import torch

from skebm.diagnostics import autocorrelation, effective_sample_size, r_hat
from skebm.energies import ising_grid
from skebm.inspection import ChainDisplay
from skebm.samplers import MALA, Gibbs
from tests.support.oracle import DOUBLE, seeded
from tests.support.targets import Quadratic

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def trace():
    scales = torch.tensor([1.0, 30.0, 3.0], dtype=DOUBLE)
    energy = Quadratic(torch.zeros(3, dtype=DOUBLE), torch.diag(scales.square()))
    x = torch.randn(5, 3, generator=seeded(1), dtype=DOUBLE) * scales
    return MALA(0.5).trace(energy, x, 200, seeded(2), thin=2)


def test_the_slowest_columns_and_their_effective_sample_sizes(trace):
    display = ChainDisplay.from_trace(trace, n_columns=2, feature_names=["a", "wide", "middle"])
    assert display.column_names == ["wide", "middle"]
    x = trace.x.numpy()
    assert np.array_equal(display.columns, x[..., [1, 2]])
    assert np.array_equal(display.ess, effective_sample_size(x)[[1, 2]])
    assert np.array_equal(display.r_hat, r_hat(x)[[1, 2]])
    assert np.array_equal(display.energy, trace.energy.numpy())
    assert np.array_equal(display.steps, np.arange(2, 402, 2))


def test_it_draws_every_part(trace):
    display = ChainDisplay.from_trace(trace).plot()
    assert list(display.axes_) == ["energy", "columns", "acceptance", "autocorrelation"]
    lines = display.axes_["energy"].get_lines()
    assert len(lines) == 5
    assert np.array_equal(lines[0].get_ydata(), trace.energy[:, 0].numpy())
    assert lines[0].get_xdata()[-1] == trace.n_steps
    assert "ESS" in display.axes_["columns"].get_title()
    assert "R-hat" in display.axes_["columns"].get_title()
    curve = display.axes_["autocorrelation"].get_lines()[0].get_ydata()
    assert curve[0] == pytest.approx(1)
    display.figure_.canvas.draw()


@pytest.mark.parametrize("kind", ["energy", "columns", "acceptance", "autocorrelation"])
def test_it_draws_one_part(trace, kind):
    display = ChainDisplay.from_trace(trace, n_columns=3).plot(kind)
    assert len(display.axes_) == (3 if kind == "columns" else 1)
    assert len(display.figure_.axes) == len(display.axes_)


def test_it_draws_in_a_given_figure(trace):
    import matplotlib.pyplot as plt

    figure = plt.figure()
    assert ChainDisplay.from_trace(trace).plot("energy", figure=figure).figure_ is figure


def test_one_chain_and_bits():
    energy = ising_grid(3, 3)
    trace = Gibbs().trace(energy, torch.zeros(1, 9), 20, seeded())
    display = ChainDisplay.from_trace(trace).plot()
    assert np.isnan(display.r_hat).all()
    assert "R-hat" not in display.axes_["energy"].get_title()


def test_invalid_arguments(trace):
    with pytest.raises(ValueError, match="kind must be one of"):
        ChainDisplay.from_trace(trace).plot("energies")
    with pytest.raises(ValueError, match="The trace has 3 columns: n_columns=4"):
        ChainDisplay.from_trace(trace, n_columns=4)
    with pytest.raises(ValueError, match="2 feature_names do not fit"):
        ChainDisplay.from_trace(trace, feature_names=["a", "b"])


def test_autocorrelation_of_a_known_process():
    rho, n = 0.8, 100_000
    noise = np.random.default_rng(0).normal(size=(n, 2, 3))
    x = noise.copy()
    for t in range(1, n):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * noise[t]
    found = autocorrelation(torch.from_numpy(x), 5)
    assert found.shape == (5, 3)
    assert np.abs(found - rho ** np.arange(5)[:, None]).max() < 0.03


def test_autocorrelation_of_separated_and_of_constant_chains():
    x = np.random.default_rng(0).normal(size=(1000, 2))
    x[:, 1] += 10
    assert autocorrelation(x, 100)[-1] > 0.9
    assert np.isnan(autocorrelation(np.ones((10, 2)), 3)).all()
    with pytest.raises(ValueError, match="n_lags=11 and draws of shape"):
        autocorrelation(np.ones((10, 2)), 11)
