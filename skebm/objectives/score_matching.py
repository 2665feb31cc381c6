r"""Score matching: fit the gradient of log p to that of the data, without samples and without Z.

Signs are those of this library, p = exp(-E) / Z: the score of the model is minus the gradient of E.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Batch, Energy, Loss, Objective, Real, sampling
from skebm.base.energy import input_grad_of, second_derivatives_of
from skebm.base.objective import weighted_mean

# Noisy copies at which held-out rows are looked at: a look is then worth comparing.
HELD_OUT_DRAWS = 16


class Rowwise(Objective, abc.ABC):
    """What objectives without chains share: one value for each row, and the mean of them.

    Attributes
    ----------
    passes : int
        How often a step goes over the network, roughly. Score matching: forward and back for the
        slope, and both of these back again.
    leaves_out : bool
        Whether row i of the data is centre i of a base of kernels, to be left out where the base
        is evaluated at that row or near it: the kernel on the row itself says nothing of new rows.
    """

    passes: int = 6
    leaves_out: bool = False

    @abc.abstractmethod
    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,); `without` are the centres of the base to be left out, (n,)."""

    def _left_out(self, batch: Batch) -> Tensor | None:
        return batch.row_index if self.leaves_out else None

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        value = self.rowwise(batch.x, generator, self._left_out(batch))
        if batch.weight is not None:
            value = batch.weight * value  # a heavy batch of a fit pulls harder
        return Loss(value.mean(), state)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Mean loss of the batch; without a step of spectral norms."""
        with sampling(self):
            value = self.rowwise(batch.x, generator, self._left_out(batch))
        return {"loss": weighted_mean(value, batch.weight).detach()}

    def held_out(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        looks = [self.rowwise(batch.x, generator).detach() for _ in range(self.n_copies)]
        return weighted_mean(torch.stack(looks).mean(0), batch.weight)

    def diverged(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        reason = super().diverged(logs, before, n_rows)
        if reason or not before:
            return reason
        was, now = before["loss"], logs["loss"]
        if now > was + 10 * (1 + abs(was)):
            return f"the loss rose from {was:.3g} to {now:.3g}"
        return None

    @property
    def n_copies(self) -> int:
        """How often held-out rows are looked at, each time with other noise."""
        return HELD_OUT_DRAWS

    def work(self, n_rows: int) -> float:
        return self.passes * super().work(n_rows)


# Distance from a wall, in units of x, from where on the weight of a column is constant.
WALL = 1.0


class HyvarinenScore(Rowwise, abc.ABC):
    r"""Score matching by second derivatives, on any mix of bounded and unbounded columns.

    .. math:: J = \mathbb E \sum_i \tfrac12 h_i (\partial_i E)^2 - h_i \partial_{ii} E
        - h_i' \partial_i E ,

    which is half the expected :math:`\sum_i h_i (\partial_i \log p - \partial_i \log p_{data})^2`
    up to a constant, for weights h that vanish at the walls: h = 1 where there are none [1]_, and
    :math:`h_i(x) = \min(x_i - lower, upper - x_i, 1)` with them ([2]_ has :math:`h_i = x_i^2` on
    non-negative rows, [3]_ the truncated weight).
    """

    def __init__(self, energy: Energy, jitter: Tensor | None = None):
        super().__init__()
        if not isinstance(energy.domain, Real):
            raise TypeError(f"Score matching needs real rows, not those of {energy.domain}.")
        self.energy = energy
        self.jitter: Tensor | None
        self.register_buffer("jitter", jitter, persistent=False)

    @abc.abstractmethod
    def directions(self, h: Tensor, generator: torch.Generator) -> Tensor:
        """Directions along which second derivatives sum up to the trace of diag(h) H."""

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        if self.jitter is not None:
            x = x + self.jitter * normal_noise(x, generator)
        h, slope_of_h = boundary_weight(x, self.energy.domain)
        found = second_derivatives_of(
            self.energy, x, self.directions(h, generator), **leaving_out(without)
        )
        slope = found.grad.flatten(1)
        if self._boundary:
            half = (h * slope / 2 - slope_of_h) * slope
            return half.sum(1) - found.second_derivative
        return slope.square().sum(1) / 2 - found.second_derivative

    @property
    def _boundary(self) -> bool:
        domain = self.energy.domain
        return isinstance(domain, Real) and not (domain.lower is None and domain.upper is None)


class ExactScoreMatching(HyvarinenScore):
    r"""Score matching with the exact trace of the Hessian; for up to about 64 columns.

    .. math:: J(\theta) = \mathbb E_{data} \bigl[\tfrac12 |\nabla E(x)|^2 - \Delta E(x)\bigr]

    and with weights inside walls (:class:`HyvarinenScore`). A batch's value is an unbiased
    estimate of J. J is unbounded below on data with ties: a narrow enough spike on a row that
    occurs again has any slope; `jitter` is noise that prevents it. Second derivatives cost about
    d / 3 times what the gradient does.

    Parameters
    ----------
    energy : Energy
        On real rows, twice differentiable.
    jitter : Tensor of shape (d,) or None, default=None
        Standard deviations of normal noise added to rows, new at every step; then the density of
        noisy rows is learned.

    References
    ----------
    .. [1] Hyvärinen (2005), "Estimation of non-normalized statistical models by score matching",
       JMLR 6, equation 4.
    .. [2] Hyvärinen (2007), "Some extensions of score matching", Computational Statistics & Data
       Analysis 51(5), section 3 (non-negative data).
    .. [3] Yu, Drton and Shojaie (2019), "Generalized score matching for non-negative data",
       JMLR 20(76), section 2.2.

    Examples
    --------
    Fit the variance of a normal distribution, starting from 1

    >>> import torch
    >>> from skebm.base import Batch, Energy, Real
    >>> from skebm.objectives import ExactScoreMatching
    >>> class Normal(Energy):
    ...     domain = Real((1,))
    ...
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.precision = torch.nn.Parameter(torch.ones(1))
    ...
    ...     def forward(self, x, cond=None):
    ...         return (x.square() @ self.precision[:, None]).ravel() / 2
    >>> x = 2 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    >>> objective = ExactScoreMatching(Normal())
    >>> loss = objective(Batch(x), None, torch.Generator())
    >>> loss.value.backward()  # J = v precision^2 / 2 - precision, of slope v precision - 1
    >>> objective.energy.precision.grad.round()
    tensor([3.])
    """

    def directions(self, h: Tensor, generator: torch.Generator) -> Tensor:
        if self._boundary:
            return h.sqrt().diag_embed()
        return torch.eye(h.shape[1], dtype=h.dtype, device=h.device)

    @property
    def n_copies(self) -> int:
        return 1 if self.jitter is None else super().n_copies

    def work(self, n_rows: int) -> float:
        return (1 + self.energy.domain.n_columns / 3) * super().work(n_rows)


class SlicedScoreMatching(HyvarinenScore):
    r"""Score matching along random directions: the trace of the Hessian is estimated.

    .. math:: J(\theta) = \mathbb E_{data} \mathbb E_v
        \bigl[\tfrac12 |\nabla E(x)|^2 - v^\top \nabla^2 E(x) v\bigr], \qquad
        \mathbb E\, v v^\top = I ,

    the form with reduced variance, whose first term is exact. Unbiased for the value and the
    gradient of :class:`ExactScoreMatching`, at a price that does not grow with the columns. What is
    said there of ties and walls holds here.

    Parameters
    ----------
    energy : Energy
        On real rows, twice differentiable.
    n_projections : int, default=1
        Directions for each row.
    projection : {"rademacher", "gaussian"}, default="rademacher"
        Signs have the smaller variance; they are exact where the Hessian is diagonal.
    jitter : Tensor of shape (d,) or None, default=None
        As for :class:`ExactScoreMatching`.

    References
    ----------
    .. [1] Song, Garg, Shi and Ermon (2019), "Sliced score matching: a scalable approach to density
       and score estimation", UAI, equation 8 (reduced variance).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import SlicedScoreMatching
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP().build(Spec((3,), generator))
    >>> energy = NeuralEnergy(network, Real((3,)), Gaussian(torch.zeros(3), 1.0))
    >>> x = torch.randn(1000, 3, generator=generator)
    >>> loss = SlicedScoreMatching(energy)(Batch(x), None, generator)
    >>> round(loss.value.item(), 1)  # -d / 2 at the truth
    -1.5
    """

    def __init__(
        self,
        energy: Energy,
        n_projections: int = 1,
        projection: str = "rademacher",
        jitter: Tensor | None = None,
    ):
        super().__init__(energy, jitter)
        if projection not in ("rademacher", "gaussian"):
            raise ValueError(f'projection must be "rademacher" or "gaussian", got {projection!r}.')
        self.n_projections, self.projection = n_projections, projection

    def directions(self, h: Tensor, generator: torch.Generator) -> Tensor:
        n, d = h.shape
        v = normal_noise(h, generator, (n, self.n_projections, d))
        if self.projection == "rademacher":
            v = torch.where(v < 0, -1.0, 1.0).to(v)
        v = v / math.sqrt(self.n_projections)
        return v * h.sqrt()[:, None] if self._boundary else v

    def work(self, n_rows: int) -> float:
        return (1 + self.n_projections / 3) * super().work(n_rows)


def leaving_out(without: Tensor | None) -> dict[str, Tensor]:
    """Arguments of energies that leave centres of their base out; none for all others."""
    return {} if without is None else {"without": without}


def normal_noise(
    x: Tensor, generator: torch.Generator, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Standard normal numbers of the shape (or another one) and the kind of x."""
    shape = tuple(x.shape) if shape is None else shape
    return torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)


def boundary_weight(x: Tensor, domain: Any) -> tuple[Tensor, Tensor]:
    """The weight h of each entry, (n, d), and its slope."""
    x = x.flatten(1)
    h, slope = torch.full_like(x, WALL), torch.zeros_like(x)
    if domain.lower is not None:
        near = x - domain.lower < h
        h, slope = torch.where(near, x - domain.lower, h), torch.where(near, 1.0, slope)
    if domain.upper is not None:
        near = domain.upper - x < h
        h, slope = torch.where(near, domain.upper - x, h), torch.where(near, -1.0, slope)
    # Noise may carry rows beyond the walls, where all is zero.
    return h.clamp_min(0), slope.masked_fill(h < 0, 0.0)


class DenoisingScoreMatching(Rowwise):
    r"""Score matching to noisy copies of rows: the density of data blurred by noise.

    .. math:: J(\theta) = \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \odot \nabla E(x + \sigma \odot \epsilon) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2, \qquad \epsilon \sim N(0, I) ,

    up to a constant half the expected :math:`|\sigma \odot (\nabla \log p - \nabla \log
    p_\sigma)|^2` with :math:`p_\sigma = p_{data} * N(0, \sigma^2)`, which it is least at: not the
    data's density, but never unbounded. Each row gives a pair :math:`x \pm \sigma \epsilon`, whose
    noise cancels to first order, so that small levels do not drown the gradient. Unbiased for J
    and its gradient.

    Parameters
    ----------
    energy : Energy
        On unbounded real rows, differentiable.
    sigma : Tensor of shape (d,) or float
        Standard deviation of the noise of each column, positive, in units of x.

    References
    ----------
    .. [1] Vincent (2011), "A connection between score matching and denoising autoencoders", Neural
       Computation 23(7), equation 11.
    .. [2] Pang, Xu, Li, Song, Ermon and Zhu (2020), "Efficient learning of generative models via
       finite-difference score matching", NeurIPS (pairs: differences along a direction).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import DenoisingScoreMatching
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP().build(Spec((3,), generator))
    >>> base = Gaussian(torch.zeros(3), 1.0).convolved(0.5)  # what the noisy rows are
    >>> objective = DenoisingScoreMatching(NeuralEnergy(network, Real((3,)), base), 0.5)
    >>> x = torch.randn(2000, 3, generator=generator)
    >>> loss = objective(Batch(x), None, generator)
    >>> round(loss.value.item(), 1)  # -d / 2 times sigma^2 / (1 + sigma^2)
    -0.3
    """

    def __init__(self, energy: Energy, sigma: Tensor | float):
        super().__init__()
        _check_unbounded(energy)
        self.energy = energy
        sigma = torch.as_tensor(sigma, **_kind(energy))
        if not (sigma.isfinite() & (sigma > 0)).all():
            raise ValueError(f"sigma must be positive and finite, got {sigma.tolist()}.")
        self.sigma: Tensor
        self.register_buffer("sigma", sigma, persistent=False)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        noise = normal_noise(x, generator)
        off = self.sigma * noise
        both = None if without is None else without.repeat(2)
        noisy = torch.cat([x + off, x - off])
        pull = self.sigma * input_grad_of(self.energy, noisy, **leaving_out(both))
        there, back = pull.flatten(1).chunk(2)
        noise = noise.flatten(1)
        half = (there.square() + back.square()).sum(1) / 4
        return half - ((there - back) * noise).sum(1) / 2

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


class MultiscaleScoreMatching(Rowwise):
    r"""Denoising at all levels between two: an energy of rows and of how noisy they are.

    .. math:: J(\theta) = \mathbb E_{\log \sigma \sim U} \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \nabla E(x + \sigma \epsilon, \sigma) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2

    with the logarithm of :math:`\sigma` uniform (one stratified draw for each row) and pairs of
    noise as in :class:`DenoisingScoreMatching`; every level counts the same [1]_. Large levels join
    modes that small ones keep apart, so that chains that go down the levels find them all.

    Parameters
    ----------
    energy : Energy
        Called as ``energy(x, sigma)`` with a level for each row, (n,).
    sigma_min, sigma_max : float
        Smallest and largest level, 0 < sigma_min < sigma_max, in units of x.

    References
    ----------
    .. [1] Song and Ermon (2019), "Generative modeling by estimating gradients of the data
       distribution", NeurIPS, section 4.2.

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import MultiscaleScoreMatching
    >>> generator, base = torch.Generator().manual_seed(0), Gaussian(torch.zeros(3), 1.0)
    >>> network = MLP().build(Spec((3,), generator, noise_levels=True))
    >>> energy = NeuralEnergy(network, Real((3,)), base, noise_levels=(0.1, 2.0))
    >>> x = torch.randn(500, 3, generator=generator)
    >>> loss = MultiscaleScoreMatching(energy, 0.1, 2.0)(Batch(x), None, generator)
    >>> bool(loss.value < 0)  # zero is what a flat energy has
    True
    """

    def __init__(self, energy: Energy, sigma_min: float, sigma_max: float):
        super().__init__()
        _check_unbounded(energy)
        if not 0 < sigma_min < sigma_max < math.inf:
            raise ValueError(
                f"Levels need 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}."
            )
        self.energy, self.sigma_min, self.sigma_max = energy, sigma_min, sigma_max

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        if without is not None:
            raise ValueError("Energies of several noise levels have no base of kernels.")
        n = len(x)
        u = torch.rand(n, generator=generator, dtype=x.dtype, device=x.device)
        u = (torch.randperm(n, generator=generator, device=x.device) + u) / n
        level = self.sigma_min * (u * math.log(self.sigma_max / self.sigma_min)).exp()
        noise = normal_noise(x, generator).flatten(1)
        off = (level[:, None] * noise).reshape(x.shape)
        slope = input_grad_of(self.energy, torch.cat([x + off, x - off]), level.repeat(2))
        there, back = (level.repeat(2)[:, None] * slope.flatten(1)).chunk(2)
        half = (there.square() + back.square()).sum(1) / 4
        return half - ((there - back) * noise).sum(1) / 2

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


def _kind(energy: Energy) -> dict[str, Any]:
    """Precision and device of an energy."""
    like = next(iter(energy.parameters()), torch.empty(0))
    return {"dtype": like.dtype, "device": like.device}


def _check_unbounded(energy: Energy) -> None:
    domain = energy.domain
    if not isinstance(domain, Real):
        raise TypeError(f"Score matching needs real rows, not those of {domain}.")
    if domain.lower is not None or domain.upper is not None:
        raise ValueError(
            f"Noise leaves the walls of {domain}: use exact or sliced score matching, whose "
            "weights vanish there."
        )
