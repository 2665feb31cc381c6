r"""Restricted Boltzmann machines whose hidden units come in subspaces, each behind a gate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import (
    Binary,
    BipartiteEnergy,
    Centering,
    Clamp,
    Conditional,
    ContrastGradient,
    Domain,
    Offsets,
    Penalty,
)
from skebm.base.contrast import means_of
from skebm.base.torchtools import GROUP, softplus_sum
from skebm.base.units import Bernoulli
from skebm.energies.rbm.gradient import Gradient, relative_variance
from skebm.energies.rbm.mixed import MixedRBM, WiderColumns


class GatedUnits(Conditional):
    """p(h, s given x): gates, then the units of their subspaces, independent given the gates.

    If a gate is on, its units are on with the given probabilities; otherwise they are fair coins.

    Parameters
    ----------
    gate : Tensor of shape (n, H)
        p(h_j = 1 given x).
    unit : Tensor of shape (n, H, K)
        p(s_jk = 1 given x and h_j = 1).
    """

    def __init__(self, gate: Tensor, unit: Tensor):
        self.gate, self.unit = gate, unit

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """p(h_j = 1 given x) and p(s_jk = 1 given x), (n, H + H K)."""
        return torch.cat([self.gate, self._units(self.gate).flatten(1)], 1)

    def sample(self, generator: torch.Generator) -> Tensor:
        gate = Bernoulli(self.gate).sample(generator)
        unit = Bernoulli(self._units(gate)).sample(generator)
        return torch.cat([gate, unit.flatten(1)], 1)

    def _units(self, gate: Tensor) -> Tensor:
        """Means of the units where gates are on with some probabilities, (n, H, K)."""
        return (self.unit - 0.5).mul_(gate.unsqueeze(-1)).add_(0.5)


class SubspaceEnergy(BipartiteEnergy):
    r"""Subspace restricted Boltzmann machine: gates h, each with K units s that it lets through.

    .. math::
        E(x, h, s) = -\log q(x) - b^\top x - c^\top h
        - \sum_j h_j \sum_k s_{jk} (D_{jk} + W_{jk}^\top x), \qquad
        F(x) = -\log q(x) - b^\top x - \sum_j
        \log\Bigl(2^K + e^{c_j} \prod_k \bigl(1 + e^{D_{jk} + W_{jk}^\top x}\bigr)\Bigr)

    A gate is on if the row lies in its subspace, whatever its position there, which the units
    represent. Only the products :math:`u_{jk} = h_j s_{jk}` interact with the row, so that
    p(x given h, s) is that of an RBM with the hidden units u, and

    .. math::
        p(h_j = 1 \mid x) = \sigma\Bigl(c_j - K \log 2
        + \sum_k \log\bigl(1 + e^{D_{jk} + W_{jk}^\top x}\bigr)\Bigr), \qquad
        p(s_{jk} = 1 \mid x, h_j = 1) = \sigma(D_{jk} + W_{jk}^\top x) ,

    while the units of a gate that is off are fair coins, hence the :math:`2^K` in the free energy.
    Without weights log Z is therefore that of the base plus :math:`H (1 + K) \log 2`.

    Parameters
    ----------
    rbm : MixedRBM
        The RBM of x and the products u, with H K hidden units; each K successive ones form a
        subspace. Its visible units may be of any kind; its hidden biases are D.
    n_subspace : int
        K, at least 1.

    Attributes
    ----------
    rbm : MixedRBM
    gate_bias : Parameter of shape (H,)
        c, 0 at first.
    hidden_domain : Binary
        The gates, then the units of their subspaces, gate by gate: H + H K bits.

    References
    ----------
    Tomczak and Gonczarek (2017), "Learning invariant features using subspace restricted Boltzmann
    machine", Neural Processing Letters 45, equations 5 to 11. Tomczak (2022), "Deep Generative
    Modeling", equations 6.44 to 6.47.

    Examples
    --------
    >>> import torch
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import MixedRBM, SubspaceEnergy
    >>> from skebm.partition import Exact
    >>> q = IndependentBernoulli(torch.zeros(4))
    >>> rbm = MixedRBM(q, 4, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> energy = SubspaceEnergy(rbm, n_subspace=2)  # two gates
    >>> round(Exact().estimate(energy).value, 4)  # 2 (1 + 2) log 2, as q is normalised
    4.1589
    """

    domain: Domain
    always_proper = True  # a finite mixture of what its base is
    hidden_domain: Binary

    def __init__(self, rbm: MixedRBM, n_subspace: int):
        super().__init__()
        n_units = len(rbm.weight)
        if n_subspace < 1 or n_units % n_subspace:
            raise ValueError(
                f"n_subspace={n_subspace} must be at least 1, and divide the {n_units} hidden "
                "units of the RBM."
            )
        bias = rbm.hidden_bias
        zeros = torch.zeros(n_units // n_subspace, dtype=bias.dtype, device=bias.device)
        self._set(rbm, nn.Parameter(zeros), n_subspace)

    def _set(self, rbm: MixedRBM, bias: nn.Parameter, n_subspace: int) -> None:
        self.rbm, self.gate_bias, self.n_subspace = rbm, bias, n_subspace
        self.domain = rbm.domain
        self.hidden_domain = Binary((len(bias) * (1 + n_subspace),))

    def _of(self, rbm: MixedRBM, bias: Tensor) -> SubspaceEnergy:
        """The same with another RBM and other biases, which are not trained."""
        copy = object.__new__(SubspaceEnergy)
        nn.Module.__init__(copy)
        copy._set(rbm, nn.Parameter(bias.detach(), requires_grad=False), self.n_subspace)
        return copy.train(self.training)

    def extra_repr(self) -> str:
        return f"n_gates={self.n_gates}, n_subspace={self.n_subspace}"

    @property
    def n_gates(self) -> int:
        """H."""
        return len(self.gate_bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Weights W, (H K, d), gate by gate."""
        return self.rbm.weight

    @property
    def visible_bias(self) -> Tensor:
        """b, (d,)."""
        return self.rbm.visible_bias

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, visible biases b and the biases D of the units."""
        return self.rbm.tensors

    @property
    def subspaces(self) -> Tensor:
        """Weights of each gate, a view of shape (H, K, d)."""
        return self.weight[: self.n_gates * self.n_subspace].unflatten(
            0, (self.n_gates, self.n_subspace)
        )

    @property
    def unit_bias(self) -> Tensor:
        """D, a view of shape (H, K)."""
        return self._by_gate(self.rbm.hidden_bias)

    @property
    def base(self) -> Any:
        """Base of the RBM."""
        return self.rbm.base

    @property
    def is_real(self) -> Tensor:
        """Which entries of a row are real, (d,)."""
        return self.rbm.is_real

    @property
    def log_precision(self) -> Tensor:
        """Log precisions of real columns relative to the base, (n_real,)."""
        return self.rbm.log_precision

    # ---------------------------------------------------------------- the hidden layer

    def hidden_field(self, x: Tensor) -> Tensor:
        """D + W t(x), log-odds of the units of gates that are on, (n, H, K)."""
        return self._by_gate(self.rbm.hidden_field(x))

    def _by_gate(self, field: Tensor) -> Tensor:
        """Fields (..., H K or more) of units as (..., H, K)."""
        n_gates, k = self.n_gates, self.n_subspace
        return field[..., : n_gates * k].unflatten(-1, (n_gates, k))

    def _gate_logits(self, field: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Log-odds of the gates, (..., H), from fields (..., H, K) that are at `beta` already."""
        return softplus_sum(field) + (beta * self.gate_bias - self.n_subspace * math.log(2))

    def log_sum(self, field: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """log of the sum over gates and units, (...), of fields (..., H K) at `beta` already."""
        n_free = self.n_gates * self.n_subspace
        return softplus_sum(self._gate_logits(self._by_gate(field), beta)) + n_free * math.log(2)

    def products(self, layer: Tensor) -> Tensor:
        """u of layers (n, H + H K), (n, H K), as wide as the weights of a padded copy."""
        gate, unit = layer[:, : self.n_gates], layer[:, self.n_gates :]
        u = (self._by_gate(unit) * gate.unsqueeze(-1)).flatten(1)
        return nn.functional.pad(u, (0, len(self.weight) - u.shape[1]))

    # ---------------------------------------------------------------- a bipartite energy

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_{h, s} exp(-beta E(x, h, s)), (n,); `beta` of shape (k, 1) gives (k, n)."""
        factor = beta.unsqueeze(-1) if isinstance(beta, Tensor) else beta
        field = factor * self.rbm.hidden_field(x)
        return beta * self.rbm.visible_energy(x) - self.log_sum(field, factor)

    def hidden(self, x: Tensor, beta: float = 1.0) -> GatedUnits:
        """p(h, s given x) at inverse temperature `beta`."""
        field = self.rbm.hidden_field(x)
        return self.units_given_field(field if beta == 1.0 else beta * field, beta)

    def units_given_field(self, field: Tensor, beta: float = 1.0) -> GatedUnits:
        """p(h, s given x) of fields (n, H K) of the units that are at `beta` already."""
        field = self._by_gate(field)
        return GatedUnits(self._gate_logits(field, beta).sigmoid_(), field.sigmoid())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h, s), proportional to q(x)^beta exp(beta (b + W'u)' t(x) + field' x)."""
        return self.rbm.visible(self.products(h), beta, field)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h, s) + field' x), x as clamped where it is, (n,)."""
        of_rows = self.rbm.hidden_energy(self.products(h), beta, field, clamp)
        return of_rows - beta * (h[:, : self.n_gates] @ self.gate_bias)

    def annealed(self, beta: float, start: Any = None) -> SubspaceEnergy:
        """The model whose parameters are on the line from those of a start, at 0, to these, at 1.

        By default all parameters are multiplied by `beta`: at 0 the model is the base with free
        gates and units.
        """
        return self._of(self.rbm.annealed(beta, start), beta * self.gate_bias)

    def wider_base(self) -> WiderColumns:
        """A start of annealing that covers modes far from the base, that of the RBM."""
        return self.rbm.wider_base()

    def with_padding(self) -> SubspaceEnergy:
        """A copy whose RBM is filled up with units that are never on, and belong to no gate."""
        return self._of(self.rbm.with_padding(), self.gate_bias)

    # ---------------------------------------------------------------- changes of one column

    def flip_difference(self, x: Tensor) -> Tensor:
        """F(x with entry i set to 1 - x_i) - F(x), (n, d), from one matrix product."""
        if not isinstance(self.domain, Binary):
            return super().flip_difference(x)  # which says why not
        return self.level_difference(x)

    def level_difference(self, x: Tensor) -> Tensor:
        """E(x after a change of one column) - E(x), (n, d), from one matrix product."""
        return self.rbm.level_difference(x, self.log_sum)

    def pseudo_log_likelihood(self, x: Tensor) -> Tensor:
        """Sum over columns of log p(x_i given the other columns), (n,), densities of real ones.

        As :meth:`MixedRBM.pseudo_log_likelihood`.
        """
        return self.rbm.pseudo_log_likelihood(x, self.log_sum)

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> SubspaceGradient:
        """The gradient by hand, from one matrix product over data and chains."""
        return SubspaceGradient(self, centering, penalty)


class SubspaceGradient(ContrastGradient):
    """Gradient of a contrast of free energies, from one matrix product over data and chains.

    It is that of an RBM whose hidden means are those of the products u; the gradient of the gates'
    biases comes from the means of the gates. Offsets of the hidden layer are those of the products,
    then those of the gates.

    Parameters
    ----------
    energy : SubspaceEnergy
    centering : Centering or None
        Of the visible units and the products.
    penalty : Penalty or None
        On the weights; without a target of sparsity.
    """

    def __init__(
        self, energy: SubspaceEnergy, centering: Centering | None, penalty: Penalty | None
    ):
        if penalty is not None and penalty.sparsity_target is not None:
            raise ValueError(
                "sparsity_target is for independent hidden units, and those of a subspace depend "
                "on their gate: use l1 and l2 of Penalty alone."
            )
        self.energy, self.centering = energy, centering
        self.of_rows = energy.rbm.contrast_gradient(centering, penalty)

    def start(self, x: Tensor, weight: Tensor | None) -> Offsets | None:
        """Means of the rows, the products and the gates."""
        if self.centering is None:
            return None
        gate, u, _ = self._means(x)
        offsets = self.of_rows.start_at(x, weight, u)
        return Offsets(offsets.visible, torch.cat([offsets.hidden, means_of(weight, gate)[0]]))

    def _means(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means of gates (n, H) and products (n, H K), and of the units of open gates (n, H, K)."""
        energy = self.energy
        field = energy.hidden_field(x)
        if energy.n_subspace <= GROUP:
            # softplus(z) = max(z, 0) - log max(p, 1 - p), from the sigmoids p that are needed too.
            unit = field.sigmoid()
            largest = torch.maximum(unit, 1 - unit).prod(-1)
            logits = field.clamp_(min=0).sum(-1).sub_(largest.log_())
            logits.add_(energy.gate_bias - energy.n_subspace * math.log(2))
        else:
            logits, unit = energy._gate_logits(field), field.sigmoid()
        gate = logits.sigmoid_()
        return gate, (unit * gate.unsqueeze(-1)).flatten(1), unit

    @torch.no_grad()
    def write(
        self,
        x: Tensor,
        chain: Tensor,
        sign: Tensor,
        share: Tensor,
        offsets: Offsets | None,
        generator: torch.Generator | None,
    ) -> tuple[Offsets | None, Tensor | None]:
        n, layer = len(x), None
        rows = self.of_rows.rows_and_chains(x, chain)
        gate, u, unit = self._means(rows)
        if generator is not None:
            layer = GatedUnits(gate[n:], unit[n:]).sample(generator)
        inner = self._of_products(offsets)
        inner = self.of_rows.write_means(rows, u, x, sign, share, inner)
        self.energy.gate_bias.grad = sign @ gate
        return self._finish_gates(inner, gate[:n], share, offsets), layer

    def write_plain(
        self, gradient: Gradient, x: Tensor, h: Tensor, share: Tensor, offsets: Offsets | None
    ) -> Offsets | None:
        """Centre and write a plain gradient; that of the gates' biases is already written.

        `h` are the means (n, H + H K) of the hidden layer of rows x.
        """
        n_gates = self.energy.n_gates
        gate, unit = h[:, :n_gates], self.energy._by_gate(h[:, n_gates:])
        u = (unit - (1 - gate).unsqueeze(-1) / 2).flatten(1)  # without the coins of closed gates
        inner = self.of_rows.write_plain(gradient, x, u, share, self._of_products(offsets))
        return self._finish_gates(inner, gate, share, offsets)

    def _of_products(self, offsets: Offsets | None) -> Offsets | None:
        """Offsets of the visible units and the products alone."""
        if offsets is None:
            return None
        return Offsets(offsets.visible, offsets.hidden[: -self.energy.n_gates])

    def _finish_gates(
        self, inner: Offsets | None, gate: Tensor, share: Tensor, before: Offsets | None
    ) -> Offsets | None:
        """Offsets with those of the gates, moved; their biases' gradient is preconditioned."""
        if inner is None or before is None:
            return None
        assert self.centering is not None
        mean = (share @ gate).lerp_(before.hidden[-self.energy.n_gates :], 1 - self.centering.rate)
        power, grad = self.centering.precondition, self.energy.gate_bias.grad
        if power and grad is not None:
            grad.mul_(relative_variance(mean).pow_(-power))
        return Offsets(inner.visible, torch.cat([inner.hidden, mean]))
