"""Gated restricted Boltzmann machines: energies of y given x, with factored three-way weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Binary, BipartiteEnergy, Clamp, Conditional, Domain, Energy, Mixed, Real
from skebm.base.torchtools import softplus, softplus_sum
from skebm.base.units import Bernoulli, Normal
from skebm.distributions import Distribution, Gaussian, IndependentBernoulli

LOG_2PI = math.log(2 * math.pi)
# Largest log precision of a real column given the hidden units; its columns are standardised.
MAX_LOG_PRECISION = math.log(1e4)


class GatedEnergy(Energy):
    r"""Factored gated restricted Boltzmann machine of pairs: rows y given rows x.

    .. math::
        E(y, h \mid x) = -\sum_f U_f (x - m)\; V_f (y - n)\; W_f h - b^\top y - c^\top h
        \;\Bigl( + \tfrac12 \textstyle\sum_i e^{s_i} y_i^2 \text{ of real columns} \Bigr)

    Given x it is a restricted Boltzmann machine of y and h whose weights
    :math:`\sum_f U_f(x - m)\, V_f^\top W_f` are chosen by the row x: the mapping units h represent
    how y is made from x [1]_. The hidden units are summed out,

    .. math:: F(y \mid x) = -b^\top y
        - \sum_j \log\bigl(1 + e^{c_j + \sum_f W_{fj}\, U_f (x - m)\, V_f (y - n)}\bigr) ,

    exactly, and :math:`p(y \mid x) = e^{-F(y \mid x)} / Z(x)`. A row of this energy is x and y side
    by side, but the distribution of x is not modelled. The offsets m and n are constants near the
    means of the columns, so that filters respond to differences from these means.

    Parameters
    ----------
    base : IndependentBernoulli or Gaussian
        Distribution q of y, with independent columns; with weights of 0 the model is q.
    given_domain : Domain
        Domain of x: flat rows of dx columns, bits or numbers.
    n_factors : int
        F.
    n_hidden : int
        Number of mapping units, H.
    generator : torch.Generator
        Source of the initial weights.
    scale : float, default=0.1
        Standard deviation of the initial products :math:`U_f x` and :math:`V_f y` of rows of unit
        variance.
    dtype : torch.dtype, default=torch.float32

    Attributes
    ----------
    given_filters, filters : Parameter of shape (F, dx) and (F, dy)
        U and V.
    mapping : Parameter of shape (F, H)
        W.
    visible_bias, hidden_bias : Parameter of shape (dy,) and (H,)
        b and c.
    log_precision : Parameter of shape (dy,), or (0,) of bits
        s.
    given_offset, offset : Tensor of shape (dx,) and (dy,)
        m and n.

    References
    ----------
    .. [1] Memisevic and Hinton (2010), "Learning to represent spatial transformations with factored
       higher-order Boltzmann machines", Neural Computation 22(6), equations 8 to 13.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Binary
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import GatedEnergy
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = IndependentBernoulli(torch.zeros(3))
    >>> energy = GatedEnergy(base, Binary((4,)), 5, 2, generator=generator)
    >>> x, y = torch.ones(1, 4), torch.ones(1, 3)
    >>> rbm = energy.given(x)  # an RBM of y
    >>> bool((rbm(y) - energy(torch.cat([x, y], 1))).abs() < 1e-6)
    True
    """

    def __init__(
        self,
        base: Distribution,
        given_domain: Domain,
        n_factors: int,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.1,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.base = base
        self.given_domain, self.target_domain = given_domain, base.domain
        self.domain = Mixed((given_domain, base.domain))
        dx, dy = given_domain.n_columns, base.domain.n_columns
        kind: dict[str, Any] = {"generator": generator, "dtype": dtype, "device": generator.device}
        zeros = torch.zeros(max(dx, dy, n_hidden), dtype=dtype, device=generator.device)

        def weights(n: int, width: float) -> nn.Parameter:
            return nn.Parameter(width * torch.randn(n_factors, n, **kind))

        self.given_filters = weights(dx, scale / math.sqrt(dx))
        self.filters = weights(dy, scale / math.sqrt(dy))
        self.mapping = weights(n_hidden, 1.0)
        self.hidden_bias = nn.Parameter(zeros[:n_hidden].clone())
        field, precision = fields_of(base)
        self.visible_bias = nn.Parameter(field.to(zeros).clone())
        self.log_precision = nn.Parameter(precision.to(zeros).log())
        self.given_offset: Tensor
        self.offset: Tensor
        self.register_buffer("given_offset", zeros[:dx].clone())
        self.register_buffer("offset", zeros[:dy].clone())

    def extra_repr(self) -> str:
        return f"n_factors={len(self.mapping)}, n_hidden={len(self.hidden_bias)}"

    @property
    def n_given(self) -> int:
        """dx."""
        return self.given_domain.n_columns

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x (n, dx) and y (n, dy) of rows (n, dx + dy)."""
        return rows[:, : self.n_given], rows[:, self.n_given :]

    def forward(self, x: Tensor, cond: Any = None) -> Tensor:
        """F(y given x) of rows x and y side by side, (n,)."""
        given, y = self.split(x)
        value: Tensor = self.given(given)(y)
        return value

    def given(self, x: Tensor) -> GivenEnergy:
        """The RBM of rows y, each given its own row of x (n, dx), or all given a single row x."""
        return GivenEnergy(self, x)

    @torch.no_grad()
    def hold_within_limits(self) -> None:
        """Hold the precisions of real columns: those of constant ones would grow for ever."""
        self.log_precision.clamp_(max=MAX_LOG_PRECISION)

    def without_filters(self) -> GatedEnergy:
        """A copy that is the base alone, for any x: it has no filters, and free mapping units."""
        copy = self._in_dtype(self.mapping.dtype)
        field, precision = fields_of(self.base)
        with torch.no_grad():
            for own in copy.parameters():
                own.zero_()
            copy.visible_bias.copy_(field)
            copy.log_precision.copy_(precision.log())
        return copy

    def in_double(self) -> GatedEnergy:
        """A copy in double precision."""
        return self._in_dtype(torch.float64)

    def _in_dtype(self, dtype: torch.dtype) -> GatedEnergy:
        copy = object.__new__(GatedEnergy)
        nn.Module.__init__(copy)
        copy.base = self.base.to(self.mapping.device, dtype)
        copy.given_domain, copy.target_domain = self.given_domain, self.target_domain
        copy.domain = self.domain
        for name, own in self.named_parameters():
            value = own.detach().to(dtype, copy=True)
            setattr(copy, name, nn.Parameter(value, requires_grad=False))
        for name, value in self.named_buffers():
            copy.register_buffer(name, value.to(dtype))
        return copy.train(self.training)


def fields_of(base: Distribution) -> tuple[Tensor, Tensor]:
    """b and the precisions of a distribution of independent columns, as log q = b'y - ... ."""
    if isinstance(base, IndependentBernoulli):
        return base.logits, base.logits[:0]
    if isinstance(base, Gaussian) and base.scale is not None:
        precision = base.scale.expand_as(base.mean).square().reciprocal()
        return precision * base.mean, precision
    raise ValueError(
        f"{base!r} is no distribution of independent bits or numbers: pass IndependentBernoulli, "
        "or a Gaussian with a scale for each column."
    )


class GivenEnergy(BipartiteEnergy):
    r"""A gated RBM given x: a restricted Boltzmann machine of y for each row x.

    Row i of y belongs to row i of x. Every method takes as many rows y as there are rows x, so that
    the chains of all x move together. Given a single row x, it takes any number of rows y.

    .. math:: E(y, h) = -\beta \sum_f g_f\, V_f (y - n)\, W_f h - b^\top y - \beta\, c^\top h
        \;\Bigl( + \tfrac12 \textstyle\sum_i \lambda_i y_i^2 \Bigr) , \qquad g = U (x - m) ,

    where :math:`\beta` is 1, or, in an annealed copy, that of the bridge distribution.

    Parameters
    ----------
    energy : GatedEnergy
        Gated RBM, whose parameters are shared.
    x : Tensor of shape (n, dx), (1, dx) or (dx,)

    Attributes
    ----------
    gate : Tensor of shape (n, F)
        g.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Binary
    >>> from skebm.distributions import IndependentBernoulli
    >>> from skebm.energies import GatedEnergy
    >>> from skebm.samplers import Gibbs
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = IndependentBernoulli(torch.zeros(3))
    >>> energy = GatedEnergy(base, Binary((4,)), 5, 2, generator=generator)
    >>> state, _ = Gibbs().run(energy.given(torch.eye(4)), torch.zeros(4, 3), 10, generator)
    >>> tuple(state.x.shape)
    (4, 3)
    """

    energy: GatedEnergy
    always_proper = True  # quadratic in real columns, and of finitely many states in h

    def __init__(self, energy: GatedEnergy, x: Tensor):
        super().__init__()
        gate = (x.reshape(-1, x.shape[-1]) - energy.given_offset) @ energy.given_filters.t()
        self._set(energy, gate, 1.0)

    def _set(self, energy: GatedEnergy, gate: Tensor, beta: float) -> None:
        self.energy, self.gate, self.beta = energy, gate, beta
        self.base, self.domain = energy.base, energy.target_domain
        self.hidden_domain = Binary((len(energy.hidden_bias),))

    def _with(self, gate: Tensor, beta: float) -> GivenEnergy:
        copy = object.__new__(GivenEnergy)
        nn.Module.__init__(copy)
        copy._set(self.energy, gate, beta)
        copy.training = self.training
        return copy

    def of_chains(self, n_chains: int) -> GivenEnergy:
        """The same given `n_chains` copies of the rows x, one whole copy after the other."""
        return self._with(self.gate.repeat(n_chains, 1), self.beta)

    def of_states(self, n_states: int) -> GivenEnergy:
        """The same given each row x `n_states` times in succession."""
        return self._with(self.gate.repeat_interleave(n_states, 0), self.beta)

    def annealed(self, beta: float) -> GivenEnergy:
        """The bridge distribution between the base (0), mapping units free, and this energy (1)."""
        return self._with(self.gate, beta * self.beta)

    @property
    def is_real(self) -> bool:
        """Whether y holds numbers."""
        return isinstance(self.domain, Real)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """V, (F, dy): the filters of y."""
        return self.energy.filters

    @property
    def bias(self) -> Tensor:
        """b, or that of the bridge distribution, (dy,)."""
        own = self.energy.visible_bias
        if self.beta == 1.0:
            return own
        return self.beta * own + (1 - self.beta) * fields_of(self.base)[0]

    @property
    def precision(self) -> Tensor:
        """Precisions of real columns given h, (dy,)."""
        own = self.energy.log_precision.exp()
        if self.beta == 1.0:
            return own
        return self.beta * own + (1 - self.beta) * fields_of(self.base)[1]

    @property
    def hidden_bias(self) -> Tensor:
        """c, (H,)."""
        return self.energy.hidden_bias

    @property
    def offset(self) -> Tensor:
        """n, (dy,)."""
        return self.energy.offset

    def visible_energy(self, y: Tensor) -> Tensor:
        """The part of E(y, h) without h, (n,)."""
        value = -(y @ self.bias)
        if self.is_real:
            value = value + y.square() @ self.precision / 2
        return value

    def responses(self, y: Tensor) -> Tensor:
        """Responses of the filters of y, V (y - n), (n, F)."""
        return (y - self.offset) @ self.weight.t()

    def hidden_of(self, response: Tensor) -> Bernoulli:
        """p(h given y) of rows whose filter responses (n, F) are known."""
        return Bernoulli(self._field(response).sigmoid_())

    def _field(self, response: Tensor) -> Tensor:
        field = torch.addmm(self.hidden_bias, self.gate * response, self.energy.mapping)
        return field if self.beta == 1.0 else self.beta * field

    def hidden_field(self, y: Tensor) -> Tensor:
        """Log-odds of the mapping units given y, (n, H)."""
        return self._field(self.responses(y))

    def pull(self, h: Tensor) -> Tensor:
        """What h adds to the fields of y, (n, dy)."""
        pull = (self.gate * (h @ self.energy.mapping.t())) @ self.weight
        return pull if self.beta == 1.0 else self.beta * pull

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(y, h)) of rows y (n, dy), (n,); many `beta` (k, 1) give (k, n)."""
        field, visible = self.hidden_field(x), self.visible_energy(x)
        if isinstance(beta, Tensor):
            return beta * visible - softplus(beta.unsqueeze(-1) * field).sum(-1)
        return beta * visible - softplus_sum(field if beta == 1.0 else beta * field)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h given y) at inverse temperature `beta`, of rows y (n, dy)."""
        return Bernoulli((beta * self.hidden_field(x)).sigmoid())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(y given h), proportional to exp(-beta E(y, h) + field' y)."""
        total = beta * (self.bias + self.pull(h))
        total = total if field is None else total + field
        if not self.is_real:
            return Bernoulli(total.sigmoid())
        variance = (beta * self.precision).reciprocal()
        return Normal(variance * total, variance.sqrt())

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_y exp(-beta E(y, h) + field' y) over y that agree with `clamp`, (n,)."""
        pull = self.pull(h)
        total = beta * (self.bias + pull)
        total = total if field is None else total + field
        summed = self._log_sums(total, beta)
        if clamp is not None:
            held = total * clamp.value
            if self.is_real:
                held = held - beta * self.precision * clamp.value.square() / 2
            summed = torch.where(clamp.mask, held, summed)
        return -summed.sum(1) - beta * self._of_hidden(h, pull)

    def _log_sums(self, total: Tensor, beta: float) -> Tensor:
        """log of the sum, or integral, over each entry of y under the fields `total`."""
        if not self.is_real:
            return softplus(total)
        precision = beta * self.precision
        return total.square() / (2 * precision) + (LOG_2PI - precision.log()) / 2

    def _of_hidden(self, h: Tensor, pull: Tensor) -> Tensor:
        return self.beta * (h @ self.hidden_bias) - pull @ self.offset

    # ---------------------------------------------------------------- every h, or every y, at once

    @property
    def weights(self) -> Tensor:
        """Weights of the RBM that each x chooses, (n, H, dy)."""
        return torch.einsum("fh,nf,fd->nhd", self.energy.mapping, self.gate, self.weight)

    def hidden_energies(self, h: Tensor, beta: float = 1.0) -> Tensor:
        """-log sum_y exp(-beta E(y, h)) of all rows h (S, H) given each x, (n, S)."""
        pull = self.beta * (h @ self.weights)
        total = beta * (self.bias + pull)
        return -self._log_sums(total, beta).sum(-1) - beta * self._of_hidden(h, pull)

    def free_energies(self, y: Tensor, beta: float = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(y, h)) of all rows y (S, dy) given each x, (n, S)."""
        field = self.hidden_bias + (y - self.offset) @ self.weights.transpose(1, 2)
        return beta * self.visible_energy(y) - softplus_sum(beta * self.beta * field)
