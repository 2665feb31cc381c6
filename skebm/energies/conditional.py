"""Energies of real rows given conditions: a network that corrects a conditional base."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Energy, Real
from skebm.base.energy import ValueAndInputGrad, value_and_input_grad_of
from skebm.distributions import GaussianMixture, RegressionMixture
from skebm.energies.whitening import Whitening, whitening_of


class ConditionalEnergy(Energy):
    r"""A network that corrects a conditional distribution of x given c.

    .. math:: E(x \mid c) = -\log q(x \mid c) + f(c, x), \qquad
        p(x \mid c) = \frac{q(x \mid c)\, e^{-f(c, x)}}{Z(c)}, \qquad
        Z(c) = \mathbb E_{q(x \mid c)}\, e^{-f(c, x)}

    Each condition has a Z of its own; c itself is not modelled. With f = 0 the model is the base
    and all Z are 1. A row of this energy is c and x side by side; conditions may be passed as
    `cond` as well.

    Parameters
    ----------
    network : nn.Module
        f, from rows (c, x) to one number a row, (n,).
    base : RegressionMixture
        q.
    n_conditions : int, at least 0
        Number of columns of c.

    Attributes
    ----------
    domain : Real
        Of rows (c, x).
    target_domain : Real
        Of x.
    network_share : Tensor, ()
        1, or 0 where the model is its base: any network, whatever its weights, then counts only in
        training, and from the first step on again.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> from skebm.energies import MLP, ConditionalEnergy, Spec
    >>> joint = GaussianMixture(torch.ones(1), torch.zeros(1, 3), torch.eye(3)[None])
    >>> network = MLP().build(Spec((3,), torch.Generator().manual_seed(0)))
    >>> energy = ConditionalEnergy(network, RegressionMixture(joint, 2), 1)
    >>> x, c = torch.zeros(4, 2), torch.ones(4, 1)
    >>> torch.equal(energy(x, c), energy(torch.cat([c, x], 1)))
    True
    """

    def __init__(self, network: nn.Module, base: RegressionMixture, n_conditions: int):
        super().__init__()
        if base.n_conditions not in (0, n_conditions):
            raise ValueError(
                f"The base is a distribution given {base.n_conditions} columns, and there are "
                f"n_conditions={n_conditions}."
            )
        self.network, self.base, self.n_conditions = network, base, n_conditions
        self.domain = Real((n_conditions + base.n_columns,))
        self.target_domain = Real((base.n_columns,))
        self.network_share: Tensor
        self.register_buffer("network_share", torch.ones(()))

    def hold_within_limits(self) -> None:
        """Let the network count from now on: a step has been taken from the base."""
        self.network_share.fill_(1)

    @property
    def is_base(self) -> bool:
        """Whether the trained model is its base, whatever the network is."""
        return not self.training and not bool(self.network_share)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Conditions c and rows x of rows (c, x)."""
        return rows[:, : self.n_conditions], rows[:, self.n_conditions :]

    def given(self, c: Tensor) -> RowwiseEnergy:
        """The energies of x given each of the conditions c (n, n_conditions)."""
        return RowwiseEnergy(self, c)

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """E(x given c) of rows x (n, dx) and conditions `cond` (n, dc), or of rows (c, x), (n,)."""
        c, x = self.split(x) if cond is None else (cond, x)
        return self.given(c)(x)

    def parametric_energy(self, x: Tensor) -> Tensor:
        """f of rows (c, x), (n,)."""
        value: Tensor = self.network(x)
        return value if self.training else value * self.network_share

    def correction(self, x: Tensor) -> Tensor:
        """E + log q of rows (c, x), (n,): f."""
        return self.parametric_energy(x)

    def with_base(self, base: RegressionMixture) -> ConditionalEnergy:
        """The same network with another base."""
        return self._like(self.network, base)

    def in_double(self) -> ConditionalEnergy:
        """A copy in double precision."""
        network = copy.deepcopy(self.network).double()
        device = next(iter(network.parameters()), torch.empty(0)).device
        double = self.base.to(device, torch.float64)
        return self._like(network, double)

    def _like(self, network: nn.Module, base: RegressionMixture) -> ConditionalEnergy:
        found = ConditionalEnergy(network, base, self.n_conditions)
        found.network_share = self.network_share
        return found.train(self.training)


class RowwiseEnergy:
    """Energies of rows x given conditions: p(x | c) of n conditions at once.

    Methods take m n rows, m for each condition: rows number i, n + i, 2 n + i, ... have condition
    i. Samplers, and objectives for rows without conditions, accept it in place of an energy. It is
    not an energy itself, because it does not accept an arbitrary number of rows.

    Parameters
    ----------
    energy : ConditionalEnergy
    c : Tensor of shape (n, n_conditions)

    Attributes
    ----------
    base : RowMixtures
        q(x | c).
    domain : Real
        Of x.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import GaussianMixture, RegressionMixture
    >>> from skebm.energies import MLP, ConditionalEnergy, RowwiseEnergy, Spec
    >>> joint = GaussianMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2)[None])
    >>> network = MLP().build(Spec((2,), torch.Generator().manual_seed(0)))
    >>> energy = ConditionalEnergy(network, RegressionMixture(joint, 1), 1)
    >>> two = RowwiseEnergy(energy, torch.tensor([[0.0], [1.0]]))
    >>> two(torch.zeros(4, 1)).shape
    torch.Size([4])
    """

    def __init__(self, energy: ConditionalEnergy, c: Tensor):
        self.energy, self.c = energy, c
        self.domain, self.base = energy.target_domain, energy.base.given(c)

    def parameters(self) -> Any:
        """Parameters of the network."""
        return self.energy.parameters()

    def rows(self, x: Tensor) -> Tensor:
        """Rows (c, x) of rows x, (m n, dc + dx)."""
        return torch.cat([self.c.repeat(len(x) // max(1, len(self.c)), 1), x], 1)

    def __call__(self, x: Tensor, cond: Any = None) -> Tensor:
        """E(x given c), (m n,)."""
        return self.parametric_energy(x) - self.base.log_prob(x)

    def parametric_energy(self, x: Tensor) -> Tensor:
        """f(c, x), (m n,)."""
        return self.energy.parametric_energy(self.rows(x))

    def parametric_energy_and_grad(self, x: Tensor) -> ValueAndInputGrad:
        """f(c, x), (m n,), and its gradient with respect to x, (m n, dx).

        Both are differentiable with respect to the weights.
        """
        value, grad = value_and_input_grad_of(self.energy.network, self.rows(x))
        return ValueAndInputGrad(value, grad[:, self.c.shape[1] :])

    def value_and_input_grad(self, x: Tensor) -> ValueAndInputGrad:
        """E(x given c) and its gradient with respect to x; differentiable in the weights."""
        value, grad = self.parametric_energy_and_grad(x)
        log_q, score = self.base.log_prob_and_score(x)
        return ValueAndInputGrad(value - log_q, grad - score)

    def value_and_grad(self, x: Tensor, cond: Any = None) -> tuple[Tensor, Tensor]:
        """As :meth:`value_and_input_grad`, detached; works under ``no_grad``."""
        with torch.no_grad():
            value, grad = self.value_and_input_grad(x)
        return value.detach(), grad.detach()


def target_whitening(base: RegressionMixture, n_conditions: int) -> Whitening | None:
    """A whitening of rows (c, x) that leaves c out, for networks that reconstruct x.

    It is computed from the errors of the regressions, and shrunk so that the model stays proper.
    """
    log_weight, _, _ = base.joint.components()
    covariances = base.covariances.double()
    centred = torch.zeros(covariances.shape[:2], dtype=covariances.dtype, device=log_weight.device)
    inner = whitening_of(GaussianMixture(log_weight.exp(), centred, covariances))
    if not isinstance(inner, Whitening):
        return None
    d, like = n_conditions + base.n_columns, base.joint.means
    matrix = torch.zeros(d, d, dtype=torch.float64, device=log_weight.device)
    matrix[n_conditions:, n_conditions:] = inner.matrix
    return Whitening(like.new_zeros(d), matrix.to(like))
