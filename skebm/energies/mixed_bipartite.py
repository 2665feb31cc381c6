r"""Restricted Boltzmann machines with visible units of any kind, given by a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Binary, BipartiteEnergy, Centering, Clamp, Domain, Penalty
from skebm.base.torchtools import softplus
from skebm.base.units import Bernoulli
from skebm.distributions import Columns, Distribution, Gaussian, Tilt
from skebm.energies.rbm_gradient import RBMGradient


class MixedRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine whose visible units are what its base makes them.

    .. math::
        E(x, h) = -\log q_s(x) - b^\top t(x) - c^\top h - h^\top W t(x), \qquad
        F(x) = -\log q_s(x) - b^\top t(x) - \sum_j \log\bigl(1 + e^{c_j + W_j t(x)}\bigr).

    Given the hidden units, rows have the base q with unary fields: bits stay bits, one-hot columns
    are softmax units, and real columns are normal with a covariance that does not depend on h. With
    any distribution that has exact conditionals under unary fields, p(x given h) is exact, and log
    Z is a sum over the hidden states.

    The covariance of real columns is trained: in :math:`q_s` each real column is that of q divided
    by :math:`e^{s_i / 2}`, so that its precision is that of q times :math:`e^{s_i}` and
    correlations stay; the hidden units explain the rest of the variance. The statistics t(x) are
    :math:`e^{s_i} x_i` of real entries and x_i of all others: where q has independent columns of
    unit variance and mean 0, the mean of a real column given h is then :math:`b_i + W_i^\top h`,
    whatever its variance.

    Parameters
    ----------
    base : Distribution
        q, on flat rows, with exact tilts: :class:`~skebm.distributions.IndependentBernoulli`, a
        tree, :class:`~skebm.distributions.IndependentCategorical`,
        :class:`~skebm.distributions.Gaussian`, or several of them side by side
        (:class:`~skebm.distributions.Columns`). Not trained. Annealing, tempering and chains start
        from it.
    n_hidden : int
        Number of hidden units, H.
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
        Fields beside those of the base: 0 at first.
    hidden_bias : Parameter of shape (n_hidden,)
    log_precision : Parameter of shape (n_real,)
        s, of the real columns in order; 0 at first.
    is_real : Tensor of shape (n_visible,)
        Which entries of a row are real.

    References
    ----------
    Welling, Rosen-Zvi and Hinton (2004), "Exponential family harmoniums with an application to
    information retrieval", NeurIPS, section 2. Cho, Ilin and Raiko (2011), "Improved learning of
    Gaussian-Bernoulli restricted Boltzmann machines", ICANN (learned variances).

    Examples
    --------
    Two colours, three sizes and a weight:

    >>> import torch
    >>> from skebm.distributions import Columns, Gaussian, IndependentCategorical
    >>> from skebm.energies import MixedRBM
    >>> from skebm.partition import Exact
    >>> q = Columns([IndependentCategorical(torch.zeros(5), (2, 3)), Gaussian(torch.zeros(1), 1.0)])
    >>> energy = MixedRBM(q, 4, generator=torch.Generator().manual_seed(0), scale=0.0)
    >>> round(Exact().estimate(energy).value, 4)  # 4 log 2, as q is normalised
    2.7726
    """

    domain: Domain
    hidden_domain: Binary
    is_real: Tensor

    def __init__(
        self,
        base: Distribution,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.parts = base.parts if isinstance(base, Columns) else [base]
        check_parts(self.parts)
        self.base, self.domain = base, base.domain
        self.hidden_domain = Binary((n_hidden,))
        n_visible = base.domain.n_columns
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        weight = torch.randn(n_hidden, n_visible, generator=generator, **new)
        self.weight = nn.Parameter(scale * weight)
        self.visible_bias = nn.Parameter(torch.zeros(n_visible, **new))
        self.hidden_bias = nn.Parameter(torch.zeros(n_hidden, **new))
        kinds = [torch.full((p.domain.n_columns,), isinstance(p, Gaussian)) for p in self.parts]
        self.register_buffer("is_real", torch.cat(kinds).to(generator.device), persistent=False)
        self.log_precision = nn.Parameter(torch.zeros(int(self.is_real.sum()), **new))

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    def structure(self) -> Distribution:
        """q with the trained precisions of its real columns."""
        if not len(self.log_precision):
            return self.base
        factors, parts = (self.log_precision / 2).exp(), []
        for part in self.parts:
            if isinstance(part, Gaussian):
                own, factors = factors.tensor_split([part.domain.n_columns])
                part = part.rescaled(own)
            parts.append(part)
        return Columns(parts) if isinstance(self.base, Columns) else parts[0]

    # ---------------------------------------------------------------- energies

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""
        t = self.statistics(x)
        linear = t @ self.visible_bias + self.structure().log_prob(x)
        field = torch.addmm(self.hidden_bias, t, self.weight.t())
        scaled = beta.unsqueeze(-1) * field if isinstance(beta, Tensor) else beta * field
        return -(beta * linear) - softplus(scaled).sum(-1)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weight, visible and hidden bias."""
        return self.weight, self.visible_bias, self.hidden_bias

    def factor(self) -> Tensor | None:
        """t(x) over x, (d,); None where no column is real."""
        if not len(self.log_precision):
            return None
        return torch.ones_like(self.visible_bias).masked_scatter(
            self.is_real, self.log_precision.exp()
        )

    def statistics(self, x: Tensor) -> Tensor:
        """t(x), (n, d)."""
        factor = self.factor()
        return x if factor is None else x * factor

    def hidden_field(self, x: Tensor) -> Tensor:
        """c + W t(x), log-odds of the hidden units, (n, H)."""
        return torch.addmm(self.hidden_bias, self.statistics(x), self.weight.t())

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_j = 1 given x) = sigmoid(beta (c_j + W_j t(x))), mean of shape (n, H)."""
        return Bernoulli((beta * self.hidden_field(x)).sigmoid())

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Tilt:
        """p(x given h), proportional to q_s(x)^beta exp(beta (b + W'h)' t(x) + field' x)."""
        own, factor = torch.addmm(self.visible_bias, h, self.weight), self.factor()
        own = own if factor is None else own * factor
        own = own if beta == 1.0 else beta * own
        return self.structure().tilted(own if field is None else own + field, beta)

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """-log sum_x exp(-beta E(x, h) + field' x), x as clamped where it is, (n,)."""
        tilt = self.visible(h, beta, field)
        if clamp is not None:
            tilt = tilt.given(clamp)
        return -beta * (h @ self.hidden_bias) - tilt.log_normaliser

    def contrast_gradient(
        self, centering: Centering | None, penalty: Penalty | None
    ) -> MixedGradient:
        """The gradient by hand, from one matrix product over data and chains."""
        return MixedGradient(self, centering, penalty)

    def annealed(self, beta: float) -> MixedRBM:
        """All parameters times `beta`: the base with free hidden units at 0, the model at 1."""
        copy = object.__new__(MixedRBM)
        nn.Module.__init__(copy)
        copy.parts, copy.base = self.parts, self.base
        copy.domain, copy.hidden_domain = self.domain, self.hidden_domain
        copy.register_buffer("is_real", self.is_real, persistent=False)
        for name, value in self.named_parameters():
            setattr(copy, name, nn.Parameter(beta * value.detach(), requires_grad=False))
        return copy


class MixedGradient(RBMGradient):
    """Gradient of a contrast of free energies, that of the precisions included.

    Preconditioned, that of the weights of a real column is divided by its statistic's own factor,
    the Fisher information of its mean: where precisions are large, steps stay those of the means.
    """

    energy: MixedRBM

    def statistics(self, x: Tensor) -> Tensor:
        return self.energy.statistics(x)

    def relative_variance(self, mean: Tensor) -> Tensor:
        found, factor = super().relative_variance(mean), self.energy.factor()
        if factor is None:
            return found
        assert self.centering is not None
        own = 4 * factor.pow(1 / self.centering.precondition)
        return torch.where(self.energy.is_real, own, found)

    def write_rest(self, sign: Tensor, x: Tensor, h: Tensor) -> None:
        """That of s: contrasts of (x'r) d log q / dx (rx) / 2 + t(x)'(b + W'h), r = exp(s / 2)."""
        energy, real = self.energy, self.energy.is_real
        if not len(energy.log_precision):
            energy.log_precision.grad = torch.zeros_like(energy.log_precision)
            return
        x, of_mean = x[:, real], torch.addmm(energy.visible_bias, h, energy.weight)[:, real]
        root, blocks, first = (energy.log_precision / 2).exp(), [], 0
        for part in energy.parts:
            if isinstance(part, Gaussian):
                own = slice(first, first + part.domain.n_columns)
                blocks.append(part.score(x[:, own] * root[own]))
                first = own.stop
        score = torch.cat(blocks, 1)
        energy.log_precision.grad = sign @ (x * (root * score / 2 + root.square() * of_mean))


def check_parts(parts: list[Any]) -> None:
    """Raise `ValueError` for distributions without exact tilts."""
    for part in parts:
        if not part.has_tilted or len(part.domain.row_shape) != 1:
            raise ValueError(
                f"{part!r} has no exact conditionals under unary fields: use independent bits or "
                "categories, trees, or a Gaussian of flat rows."
            )
