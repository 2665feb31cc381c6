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


def test_parts_say_what_they_show(trace):
    display = ChainDisplay.from_trace(trace, feature_names=["a", "wide", "middle"]).plot()
    axes = display.axes_
    assert [axes[name].get_xlabel() for name in axes] == [*["step"] * 3, "lag, steps"]
    assert [axes[name].get_ylabel() for name in axes] == ["nats", "", "", ""]
    of = f" of {5 * 200}"
    assert [axes[name].get_title() for name in axes] == [
        f"Energy: ESS {display.energy_ess:.0f}{of}, R-hat {display.energy_r_hat:.3f}",
        f"wide: ESS {display.ess[0]:.0f}{of}, R-hat {display.r_hat[0]:.3f}",
        f"Acceptance: {trace.acceptance.mean():.2f}",
        "Autocorrelation",
    ]
    assert axes["acceptance"].get_ylim() == (-0.02, 1.02)


def test_curves_of_the_autocorrelation_are_above_a_line_at_zero(trace):
    ax = ChainDisplay.from_trace(trace).plot("autocorrelation").axes_["autocorrelation"]
    *curves, zero = ax.get_lines()
    of_energy, of_column = curves
    assert np.array_equal(of_energy.get_xdata(), 2 * np.arange(50))  # a quarter of 200, thin=2
    assert np.array_equal(of_energy.get_ydata(), autocorrelation(trace.energy, 50))
    assert np.array_equal(of_column.get_ydata(), autocorrelation(trace.x[..., 1], 50))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["energy", "column 1"]
    assert list(zero.get_ydata()) == [0, 0]


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
