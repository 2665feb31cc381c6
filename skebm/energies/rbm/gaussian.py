r"""Restricted Boltzmann machines with Gaussian visible units."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from skebm.base import Binary, BipartiteEnergy, Clamp, Real
from skebm.base.torchtools import softplus
from skebm.base.units import Bernoulli, Normal
from skebm.distributions import Gaussian


class GaussianRBM(BipartiteEnergy):
    r"""Restricted Boltzmann machine with Gaussian visible and binary hidden units.

    .. math::
        E(x, h) = \sum_i \frac{(x_i - b_i)^2}{2 \sigma_i^2} - c^\top h
            - \sum_{ij} h_j W_{ji} \frac{x_i}{\sigma_i^2}, \qquad
        F(x) = \sum_i \frac{(x_i - b_i)^2}{2 \sigma_i^2}
            - \sum_j \log\Bigl(1 + e^{c_j + \sum_i W_{ji} x_i / \sigma_i^2}\Bigr).

    Given the hidden units the visible ones are normal, with means :math:`b + W^\top h` and
    variances :math:`\sigma^2`: the model is a mixture of :math:`2^H` normal distributions of the
    same covariance.

    Parameters
    ----------
    n_visible, n_hidden : int
        Number of visible and hidden units, d and H.
    generator : torch.Generator
        Source of the initial weights, N(0, `scale` squared).
    scale : float, default=0.01
        Standard deviation of the initial weights.
    sigma : float or Tensor of shape (d,), default=1.0
        Initial standard deviations :math:`\sigma`, positive.
    learn_sigma : bool, default=True
        Whether the standard deviations are trained.
    dtype : torch.dtype, default=torch.float32
        Precision of the parameters.
    base : Gaussian or None, default=None
        Where annealing, tempering and chains start, with independent entries; not trained. None is
        the standard normal distribution.

    Attributes
    ----------
    weight : Parameter of shape (n_hidden, n_visible)
    visible_bias : Parameter of shape (n_visible,)
    hidden_bias : Parameter of shape (n_hidden,)
    log_variance : Parameter, or a buffer if it is not trained, of shape (n_visible,)
        :math:`\log \sigma^2`.

    Raises
    ------
    ValueError
        If the base has other columns or a covariance, or if standard deviations are not positive.

    References
    ----------
    Cho, Ilin and Raiko (2011), "Improved learning of Gaussian-Bernoulli restricted Boltzmann
    machines", ICANN, equations 4 to 7. Welling, Rosen-Zvi and Hinton (2004), "Exponential family
    harmoniums with an application to information retrieval", NeurIPS.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import GaussianRBM
    >>> from skebm.partition import Exact
    >>> from skebm.samplers import Gibbs
    >>> generator = torch.Generator().manual_seed(0)
    >>> energy = GaussianRBM(4, 2, generator=generator)
    >>> state, _ = Gibbs().run(energy, torch.zeros(100, 4), 10, generator)
    >>> tuple(state.x.shape)
    (100, 4)
    >>> round(Exact().estimate(energy).value, 2)  # nearly 2 log 2 + 2 log(2 pi)
    5.06
    """

    domain: Real
    always_proper = True  # a finite mixture of normal distributions
    hidden_domain: Binary
    log_variance: Tensor

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        *,
        generator: torch.Generator,
        scale: float = 0.01,
        sigma: float | Tensor = 1.0,
        learn_sigma: bool = True,
        dtype: torch.dtype = torch.float32,
        base: Gaussian | None = None,
    ):
        super().__init__()
        new: dict[str, Any] = {"dtype": dtype, "device": generator.device}
        self.base = Gaussian(torch.zeros(n_visible, **new), 1.0) if base is None else base
        if not isinstance(self.base, Gaussian) or self.base.scale is None:
            raise ValueError(
                f"The base must be a Gaussian(mean, scale) with independent entries, not {base!r}."
            )
        self.domain, self.hidden_domain = Real((n_visible,)), Binary((n_hidden,))
        if self.base.domain != self.domain:
            raise ValueError(f"The base has rows of {self.base.domain}, the energy {self.domain}.")
        spread = torch.as_tensor(sigma, **new)
        if spread.shape not in ((), (n_visible,)) or not (spread > 0).all():
            raise ValueError(f"sigma must be a positive number, or one a column, got {sigma!r}.")
        log_variance = 2 * spread.log().expand(n_visible)
        weight = torch.randn(n_hidden, n_visible, generator=generator, **new)
        self.weight = nn.Parameter(scale * weight)
        self.visible_bias = nn.Parameter(torch.zeros(n_visible, **new))
        self.hidden_bias = nn.Parameter(torch.zeros(n_hidden, **new))
        if learn_sigma:
            self.log_variance = nn.Parameter(log_variance)
        else:
            self.register_buffer("log_variance", log_variance)

    def extra_repr(self) -> str:
        return "n_visible={1}, n_hidden={0}".format(*self.weight.shape)

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """-log sum_h exp(-beta E(x, h)), (n,); a `beta` of shape (k, 1) gives (k, n)."""
        squares = ((x - self.visible_bias).square() * (-self.log_variance).exp()).sum(-1) / 2
        field = self._hidden_field(x)
        scaled = beta.unsqueeze(-1) * field if isinstance(beta, Tensor) else beta * field
        return beta * squares - softplus(scaled).sum(-1)

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h_j = 1 given x) = sigmoid(beta (c_j + W_j (x / sigma^2))), mean of shape (n, H)."""
        return Bernoulli((beta * self._hidden_field(x)).sigmoid())

    def visible(
        self, h: Tensor, beta: float = 1.0, field: Tensor | None = None, power: float = 0.0
    ) -> Normal:
        """p(x given h), proportional to q(x)^power exp(-beta E(x, h) + field' x), (n, d).

        Without a field and a power of the base, it has the means b + W'h and the variances
        sigma^2 / beta. If `beta` and the power are 0 there is no distribution, which raises
        `ValueError`.
        """
        if beta == 0 and power == 0:
            raise ValueError("At beta=0 real rows have no distribution: anneal from the base.")
        precision, linear = self._natural(h, beta, field, power)
        return Normal(linear / precision, precision.rsqrt())

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
        power: float = 0.0,
    ) -> Tensor:
        """-log of the integral over x of q(x)^power exp(-beta E(x, h) + field' x), (n,).

        The integral is over the entries that are not clamped; the others have their clamped values.
        """
        precision, linear = self._natural(h, beta, field, power)
        log_integral = (linear.square() / precision + (2 * math.pi / precision).log()) / 2
        if clamp is not None:
            x = clamp.value
            log_integral = torch.where(
                clamp.mask, linear * x - precision * x.square() / 2, log_integral
            )
        value = beta * (self.visible_bias.square() * (-self.log_variance).exp()).sum() / 2
        if power:
            at_zero = torch.zeros_like(self.visible_bias)
            value = value - power * self.base.log_prob(at_zero[None])
        return value - beta * (h @ self.hidden_bias) - log_integral.sum(-1)

    def annealed(self, beta: float) -> AnnealedGaussianRBM:
        """beta E(x, h) - (1 - beta) log q(x): the base at 0, the model at 1."""
        return AnnealedGaussianRBM(self, beta)

    def _hidden_field(self, x: Tensor) -> Tensor:
        """Log-odds of the hidden units, (n, H)."""
        return torch.addmm(self.hidden_bias, x * (-self.log_variance).exp(), self.weight.t())

    def _natural(
        self, h: Tensor, beta: float, field: Tensor | None, power: float
    ) -> tuple[Tensor, Tensor]:
        """Precision (d,) and linear term (n, d) of the log-density of x given h."""
        precision = beta * (-self.log_variance).exp()
        linear = precision * torch.addmm(self.visible_bias, h, self.weight)
        if power:
            assert self.base.scale is not None
            of_base = power / self.base.scale.square()
            precision, linear = precision + of_base, linear + of_base * self.base.mean
        return precision, linear if field is None else linear + field


class AnnealedGaussianRBM(BipartiteEnergy):
    r"""A bridge from the base q of a Gaussian RBM to the RBM: beta E(x, h) - (1 - beta) log q(x).

    Parameters
    ----------
    energy : GaussianRBM
        Its parameters are shared, not copied.
    beta : float
        0 for the base with free hidden units, 1 for the energy.
    """

    def __init__(self, energy: GaussianRBM, beta: float):
        super().__init__()
        self.domain, self.hidden_domain = energy.domain, energy.hidden_domain
        self.energy, self.base, self.beta = energy, energy.base, beta

    def free_energy(self, x: Tensor, beta: float | Tensor = 1.0) -> Tensor:
        """Free energy, (n,)."""
        of_base = beta * (1 - self.beta) * self.base.log_prob(x)
        return self.energy.free_energy(x, beta * self.beta) - of_base

    def hidden(self, x: Tensor, beta: float = 1.0) -> Bernoulli:
        """p(h given x), which does not depend on the base."""
        return self.energy.hidden(x, beta * self.beta)

    def visible(self, h: Tensor, beta: float = 1.0, field: Tensor | None = None) -> Normal:
        """p(x given h): normal, as a product of normal densities."""
        return self.energy.visible(h, beta * self.beta, field, beta * (1 - self.beta))

    def hidden_energy(
        self,
        h: Tensor,
        beta: float = 1.0,
        field: Tensor | None = None,
        clamp: Clamp | None = None,
    ) -> Tensor:
        """Free energy of a hidden row, (n,)."""
        power = beta * (1 - self.beta)
        return self.energy.hidden_energy(h, beta * self.beta, field, clamp, power)

    def annealed(self, beta: float) -> AnnealedGaussianRBM:
        """A bridge distribution that is nearer to the base."""
        return AnnealedGaussianRBM(self.energy, beta * self.beta)
