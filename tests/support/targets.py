"""Targets of samplers: distributions that can be drawn from and tested exactly.

A target knows how to draw from itself, and how surprising a sample is: ``p_value`` is uniform for
independent exact draws, so that a bound on it is the rate of false alarms.
"""

import math

import numpy as np
import scipy.stats
import torch

from skebm.base import Binary, Categorical, Energy, Mixed, Real
from tests.support.oracle import DOUBLE, Discrete


class FunctionEnergy(Energy):
    """An energy given by a function of the rows."""

    def __init__(self, function, domain, dtype=DOUBLE):
        super().__init__()
        self.function, self.domain = function, domain
        self.zero = torch.nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x, cond=None):
        return self.function(x) + self.zero


class Normal:
    """N(mean, cov) at beta 1; narrower at a larger beta."""

    def __init__(self, mean, cov, beta=1.0):
        self.mean, self.cov = mean, cov / beta
        self.scale_tril = torch.linalg.cholesky(self.cov)

    def draw(self, n, generator):
        z = torch.randn(n, len(self.mean), generator=generator, dtype=DOUBLE)
        return self.mean + z @ self.scale_tril.T

    def p_value(self, x):
        """Whitened columns and their squared length, the least of the p-values corrected."""
        z = torch.linalg.solve_triangular(self.scale_tril, (x - self.mean).T, upper=False)
        tests = [scipy.stats.kstest(column.numpy(), "norm").pvalue for column in z]
        length = z.square().sum(0).numpy()
        tests.append(scipy.stats.kstest(length, scipy.stats.chi2(len(z)).cdf).pvalue)
        return min(1.0, len(tests) * min(tests))

    def given(self, mask, value):
        """The free columns given the others; a target over rows whose masked columns are known."""
        return GivenNormal(self, mask, value)


class GivenNormal:
    def __init__(self, joint, mask, value):
        self.mask, self.value = mask, value
        free, C = ~mask, joint.cov
        gain = C[free][:, mask] @ torch.linalg.inv(C[mask][:, mask])
        mean = joint.mean[free] + gain @ (value - joint.mean)[mask]
        self.part = Normal(mean, C[free][:, free] - gain @ C[mask][:, free])

    def draw(self, n, generator):
        x = self.value.expand(n, -1).clone()
        x[:, ~self.mask] = self.part.draw(n, generator)
        return x

    def p_value(self, x):
        return self.part.p_value(x[:, ~self.mask])


class Line:
    """A density on an interval of the line, by quadrature of its energy."""

    def __init__(self, energy, low, high, beta=1.0, n=20_001):
        grid = torch.linspace(low, high, n, dtype=DOUBLE)
        with torch.no_grad():
            weight = (-beta * energy(grid[:, None])).exp().numpy()
        self.grid = grid.numpy()
        cdf = np.concatenate([[0], np.cumsum((weight[1:] + weight[:-1]) / 2)])
        self.cdf = cdf / cdf[-1]

    def draw(self, n, generator):
        u = torch.rand(n, generator=generator, dtype=DOUBLE).numpy()
        return torch.from_numpy(np.interp(u, self.cdf, self.grid))[:, None]

    def p_value(self, x):
        return scipy.stats.kstest(
            x.squeeze(1).numpy(), lambda value: np.interp(value, self.grid, self.cdf)
        ).pvalue


# ------------------------------------------------------------------------------
# Energies with an exact answer
# ------------------------------------------------------------------------------


class Quadratic(Energy):
    """(x - mean)' precision (x - mean) / 2, with one trainable number that does nothing."""

    def __init__(self, mean, cov):
        super().__init__()
        self.domain = Real((len(mean),))
        self.mean = torch.nn.Parameter(mean)
        self.register_buffer("precision", torch.linalg.inv(cov))

    def forward(self, x, cond=None):
        off = x - self.mean
        return (off @ self.precision * off).sum(1) / 2


class Valley(Energy):
    """Two wells of unequal depth on the line, at -2 and 2; or any other function of one column."""

    def __init__(self, function, lower=None, upper=None):
        super().__init__()
        self.domain = Real((1,), lower, upper)
        self.function = function
        self.shift = torch.nn.Parameter(torch.zeros(1, dtype=DOUBLE))

    def forward(self, x, cond=None):
        return self.function(x + self.shift).squeeze(1)


def two_modes(x):
    """-log(0.3 N(x; -2, 0.6) + 0.7 N(x; 2, 1)), up to a constant."""
    left = math.log(0.3 / 0.6) - ((x + 2) / 0.6).square() / 2
    right = math.log(0.7) - (x - 2).square() / 2
    return -torch.logaddexp(left, right)


class OneHot(Energy):
    """A quadratic energy of one-hot columns: tables of fields and of couplings."""

    def __init__(self, groups=(3, 2, 4), seed=3):
        super().__init__()
        self.domain = Categorical(groups)
        d = sum(groups)
        generator = torch.Generator().manual_seed(seed)
        self.field = torch.nn.Parameter(torch.randn(d, generator=generator, dtype=DOUBLE))
        coupling = torch.randn(d, d, generator=generator, dtype=DOUBLE)
        self.register_buffer("coupling", coupling)

    def forward(self, x, cond=None):
        return x @ self.field + (x @ self.coupling * x).sum(1) / 2


class Polynomial(Energy):
    """A cubic energy of binary rows: one that no pair of conditionals describes."""

    def __init__(self, domain, seed=4):
        super().__init__()
        self.domain = domain
        d = domain.n_columns
        generator = torch.Generator().manual_seed(seed)
        self.field = torch.nn.Parameter(torch.randn(d, generator=generator, dtype=DOUBLE))
        self.coupling = torch.nn.Parameter(torch.randn(d, d, generator=generator, dtype=DOUBLE))

    def forward(self, x, cond=None):
        x = x.flatten(1)
        cubic = x[:, 0] * x[:, 1] * x[:, -1]
        return x @ self.field + (x @ self.coupling * x).sum(1) + 1.5 * cubic


def spelled_out(energy, beta=1.0):
    """The states of a small discrete energy and their probabilities, by the energy itself."""
    x = torch.cat(list(energy.domain.enumerate(dtype=DOUBLE)))
    with torch.no_grad():
        return Discrete(x, -beta * energy(x))


class MixedRows(Energy):
    """A bit, a category and a number that is normal given them, about a mean of each state."""

    def __init__(self):
        super().__init__()
        self.domain = Mixed((Binary((1,)), Categorical((3,)), Real((1,))))
        generator = torch.Generator().manual_seed(5)
        self.field = torch.nn.Parameter(torch.randn(4, generator=generator, dtype=DOUBLE))
        self.means = torch.nn.Parameter(torch.tensor([0.7, -1.0, 0.2, 1.1], dtype=DOUBLE))

    def forward(self, x, cond=None):
        discrete, number = x[:, :4], x[:, 4]
        product = discrete[:, 0] * discrete[:, 3]
        return discrete @ self.field + product + 2 * (number - discrete @ self.means).square()


class MixedTarget:
    """The exact answer for :class:`MixedRows`, where entries are known too."""

    def __init__(self, energy, beta=1.0, mask=None, value=None):
        self.energy, self.beta, self.mask, self.value = energy, beta, mask, value
        x = torch.cat(list(Mixed(energy.domain.parts[:2]).enumerate(dtype=DOUBLE)))
        self.number_known = mask is not None and bool(mask[4])
        number = value[4].expand(len(x)) if self.number_known else x @ energy.means
        with torch.no_grad():
            log_p = -beta * energy(torch.cat([x, number[:, None]], 1))
        self.states = Discrete(x, log_p)
        self.log_z = log_p.logsumexp(0) + 0.5 * math.log(2 * math.pi / (4 * beta))
        if mask is not None:
            self.states = self.states.given(mask[:4], value[:4])

    def draw(self, n, generator):
        states = self.states.draw(n, generator)
        noise = torch.randn(n, generator=generator, dtype=DOUBLE) / (4 * self.beta) ** 0.5
        number = states @ self.energy.means.detach() + noise
        if self.number_known:
            number = self.value[4].expand(n)
        return torch.cat([states, number[:, None]], 1)

    def p_value(self, x):
        tests = [self.states.p_value(x[:, :4])]
        if not self.number_known:
            z = (x[:, 4] - x[:, :4] @ self.energy.means.detach()) * (4 * self.beta) ** 0.5
            tests.append(scipy.stats.kstest(z.numpy(), "norm").pvalue)
        return min(1.0, len(tests) * min(tests))

    def given(self, mask, value):
        return MixedTarget(self.energy, self.beta, mask, value)


class LinearInABox(Energy):
    """Two independent columns in [-1, 2] of linear energy, one with its mode at the upper bound."""

    def __init__(self):
        super().__init__()
        self.domain = Real((2,), -1.0, 2.0)
        self.slope = torch.nn.Parameter(torch.tensor([-1.5, 0.3], dtype=DOUBLE))

    def forward(self, x, cond=None):
        return x @ self.slope + x[:, 1].square()


class Box:
    """The exact answer for :class:`LinearInABox`."""

    def __init__(self, energy, beta=1.0):
        slope = energy.slope.detach()
        self.columns = [
            Line(lambda x: (x * slope[0]).squeeze(1), -1, 2, beta),
            Line(lambda x: (x * slope[1] + x.square()).squeeze(1), -1, 2, beta),
        ]

    def draw(self, n, generator):
        return torch.cat([column.draw(n, generator) for column in self.columns], 1)

    def p_value(self, x):
        tests = [one.p_value(x[:, [i]]) for i, one in enumerate(self.columns)]
        return min(1.0, len(tests) * min(tests))

    def given(self, mask, value):
        return GivenBox(self, mask, value)


class GivenBox:
    def __init__(self, joint, mask, value):
        self.joint, self.mask, self.value = joint, mask, value

    def draw(self, n, generator):
        return torch.where(self.mask, self.value, self.joint.draw(n, generator))

    def p_value(self, x):
        free = (~self.mask).nonzero().flatten().tolist()
        tests = [self.joint.columns[i].p_value(x[:, [i]]) for i in free]
        return min(1.0, len(tests) * min(tests)) if tests else 1.0


class NoisyPointCloud(Energy):
    """N(1, 1 + level squared) on the line: a point cloud at every noise level."""

    def __init__(self):
        super().__init__()
        self.domain = Real((1,))
        self.mean = torch.nn.Parameter(torch.ones(1, dtype=DOUBLE))

    def forward(self, x, cond=None):
        blur = 0.0 if cond is None else cond.square()
        return (x - self.mean).square().squeeze(1) / (2 * (1 + blur))
