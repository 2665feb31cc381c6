r"""Bipartite energies: restricted Boltzmann machines, by the type of their visible units."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from skebm.base import Binary, BipartiteEnergy, Conditional
from skebm.domains import enumeration_cost


class Bernoulli(Conditional):
    """Independent units that are 1 with probability `mean`."""

    def __init__(self, mean: Tensor):
        self.mean = mean

    def sample(self, generator: torch.Generator) -> Tensor:
        p = self.mean
        # In place: three times as fast as torch.bernoulli on a CPU.
        return torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device).lt_(p)


class Moments(NamedTuple):
    """Exact log Z and expectations under the model: E[x] (d,), E[h] (H,), E[h x'] (H, d)."""

    log_z: Tensor
    x: Tensor
    h: Tensor
    hx: Tensor


class BernoulliRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine with binary visible and binary hidden units.

    .. math::
        E(x, h) = -b^\top x - c^\top h - h^\top W x, \qquad
        F(x) = -b^\top x - \sum_j \log\bigl(1 + e^{c_j + W_j x}\bigr).

    Parameters
    ----------
    n_visible, n_hidden : int
        Number of visible and hidden units, d and H.
    generator : torch.Generator
        Source of the initial weights, N(0, `scale` squared).
    scale : float, default=0.01
        Standard deviation of the initial weights.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.

    Attributes
    ----------
    weight : Parameter of shape (n_hidden, n_visible)
    visible_bias : Parameter of shape (n_visible,)
    hidden_bias : Parameter of shape (n_hidden,)

    References
    ----------
    Smolensky (1986), "Information processing in dynamical systems: foundations of harmony theory".
    Tomczak (2022), "Deep Generative Modeling", eq. 6.37 (the free energy).
    """

    domain: Binary
    hidden_domain: Binary

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.domain = Binary((n_visible,))
        self.hidden_domain = Binary((n_hidden,))
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        weight = torch.randn(n_hidden, n_visible, generator=generator, **new)
        self.weight = nn.Parameter(scale * weight)
        self.visible_bias = nn.Parameter(torch.zeros(n_visible, **new))
        self.hidden_bias = nn.Parameter(torch.zeros(n_hidden, **new))

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""
        field = torch.addmm(self.hidden_bias, x, self.weight.t())  # (n, H)
        scaled = beta.unsqueeze(-1) * field if isinstance(beta, Tensor) else beta * field
        return -(beta * (x @ self.visible_bias)) - softplus(scaled).sum(-1)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_j = 1 given x) = sigmoid(beta (c_j + W_j x)), mean of shape (n, H)."""
        field = torch.addmm(self.hidden_bias, x, self.weight.t(), beta=beta, alpha=beta)
        return Bernoulli(field.sigmoid_())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Bernoulli:
        """p(x_i = 1 given h) = sigmoid(beta (b_i + h W_i) + field_i), mean of shape (n, d)."""
        logits = torch.addmm(self.visible_bias, h, self.weight, beta=beta, alpha=beta)
        if field is not None:
            logits = logits + field
        return Bernoulli(logits.sigmoid_())

    def hidden_energy(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x), (n,)."""
        logits = torch.addmm(self.visible_bias, h, self.weight, beta=beta, alpha=beta)
        if field is not None:
            logits = logits + field
        return -beta * (h @ self.hidden_bias) - softplus(logits).sum(1)

    def flip_difference(self, x: Tensor) -> Tensor:
        """F(x with entry i set to 1 - x_i) - F(x), (n, d), for all i from one matrix product."""
        field = torch.addmm(self.hidden_bias, x, self.weight.t())  # (n, H)
        step = 1 - 2 * x  # (n, d)
        here = softplus(field).sum(1, keepdim=True)
        there = [
            softplus(torch.addcmul(field, step[:, i, None], self.weight[:, i])).sum(1)
            for i in range(x.shape[1])
        ]
        return here - torch.stack(there, 1) - step * self.visible_bias

    def padded(self, multiple: int = 16) -> BernoulliRBM:
        """Copy with both layers filled up to a multiple by units that are never on.

        At such shapes BLAS rounds every row of a product alike, wherever it stands.
        """
        n_hidden, n_visible = self.weight.shape
        right, down = -n_visible % multiple, -n_hidden % multiple
        if not right and not down:
            return self
        copy = object.__new__(BernoulliRBM)
        nn.Module.__init__(copy)
        copy.domain, copy.hidden_domain = (
            Binary((n_visible + right,)),
            Binary((n_hidden + down,)),
        )
        copy.weight = nn.Parameter(nn.functional.pad(self.weight, (0, right, 0, down)))
        off = -1e4  # sigmoid and softplus are 0 there in every precision
        copy.visible_bias = nn.Parameter(
            nn.functional.pad(self.visible_bias, (0, right), value=off)
        )
        copy.hidden_bias = nn.Parameter(nn.functional.pad(self.hidden_bias, (0, down), value=off))
        return copy.requires_grad_(False)

    def enumeration_cost(self) -> float:
        """States of the cheaper layer times units of the other: what :meth:`moments` visits."""
        return enumeration_cost(self.domain, self.hidden_domain)

    def moments(self) -> Moments:
        """Log Z and the model's expectations by enumeration of the cheaper layer (Tomczak 6.41)."""
        if self.domain.n_states * self.hidden_domain.n_columns == self.enumeration_cost():
            return Moments(*_moments(self.domain, self.weight, self.visible_bias, self.hidden_bias))
        log_z, h, x, xh = _moments(
            self.hidden_domain, self.weight.t(), self.hidden_bias, self.visible_bias
        )
        return Moments(log_z, x, h, xh.t())


def _moments(
    domain: Binary, weight: Tensor, bias: Tensor, other_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum over all states s of one layer, the other layer o summed out in closed form.

    Returns log Z, E[s], E[o] and E[o s'].
    """
    count = round(domain.n_states)
    states = domain.states(0, count, dtype=weight.dtype, device=weight.device)  # (S, d)
    field = torch.addmm(other_bias, states, weight.t())  # (S, H)
    log_p = torch.addmv(softplus(field).sum(1), states, bias)
    # The normaliser is a sum of up to a million terms: float64.
    log_z = torch.logsumexp(log_p.double(), 0)
    p = (log_p.double() - log_z).exp().to(weight.dtype)
    # p(s) (s, 1): the products with E[o given s] and its mean from one multiplication.
    weighted = p[:, None] * nn.functional.pad(states, (0, 1), value=1.0)
    products = field.sigmoid().t() @ weighted
    return log_z, p @ states, products[:, -1], products[:, :-1]


class Tilted(BipartiteEnergy):
    """Another bipartite energy at inverse temperature `beta`, plus a unary term: beta E - field' x.

    The path of annealed importance sampling and the posterior of a noisy row are both of this form.

    Parameters
    ----------
    energy : BipartiteEnergy
        The energy that is tilted; its parameters are shared, not copied.
    field : Tensor of shape (d,) or (n, d)
        Unary term, shared by all rows or one for each.
    beta : float, default=1.0
        Inverse temperature of `energy`; the field is not scaled by it.
    """

    def __init__(self, energy: BipartiteEnergy, field: Tensor, beta: float = 1.0):
        super().__init__()
        self.domain, self.hidden_domain = energy.domain, energy.hidden_domain
        self.energy, self.field, self.beta = energy, field, beta

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Tilted free energy, (n,)."""
        return self.energy.free_energy(x, beta * self.beta) - beta * (x * self.field).sum(1)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Conditional:
        """p(h given x): the field does not touch it."""
        return self.energy.hidden(x, beta * self.beta)

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Conditional:
        """p(x given h) with the field added."""
        own = beta * self.field
        return self.energy.visible(h, beta * self.beta, own if field is None else own + field)

    def hidden_energy(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Tensor:
        """Free energy of a hidden row with the field added, (n,)."""
        own = beta * self.field
        return self.energy.hidden_energy(h, beta * self.beta, own if field is None else own + field)
