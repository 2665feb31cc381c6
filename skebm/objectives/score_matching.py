r"""Score matching: fit the model's score to that of the data, without samples and without Z.

With p = exp(-E) / Z, the score of the model, grad log p, is minus the gradient of E.
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
from skebm.base.torchtools import check_memory
from skebm.objectives.log_partition import LogPartitionMonitor

# Noise draws averaged in a held-out loss, so that its values can be compared.
HELD_OUT_DRAWS = 16


class Rowwise(Objective, abc.ABC):
    """Base of objectives without chains: the mean of one loss per row.

    Attributes
    ----------
    passes : int
        Approximate number of passes through the network in a step. For score matching: forward and
        backward for the gradient in x, and a backward pass through both.
    leaves_out : bool
        Whether row i of the data is centre i of a kernel density base and is left out when the
        base is evaluated at or near that row, as its own kernel does not reflect new rows.
    log_partition_monitor : LogPartitionMonitor or None
        Measures the gain of monitored rows over the base; with None it is not measured.
    """

    passes: int = 6
    leaves_out: bool = False
    log_partition_monitor: LogPartitionMonitor | None = None

    @abc.abstractmethod
    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,); `without`, (n,), are indices of kernel centres to leave out."""

    def _weight_of_left_out(self, batch: Batch) -> Tensor | None:
        return batch.row_index if self.leaves_out else None

    def forward(self, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        value = self.rowwise(batch.x, generator, self._weight_of_left_out(batch))
        if batch.weight is not None:
            value = batch.weight * value  # not normalised: a batch counts by its total weight
        return Loss(value.mean(), state)

    @torch.no_grad()
    def monitor(self, batch: Batch, state: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Mean loss, and log-likelihood ratio to the base where that is measured.

        They are computed in eval mode, so that spectral norms are not updated.
        """
        with sampling(self):
            value = self.rowwise(batch.x, generator, self._weight_of_left_out(batch))
            logs = {"loss": weighted_mean(value, batch.weight).detach()}
            if self.clean_monitor is not None:
                logs |= self.clean_monitor.gains(self.energy, batch.x, batch.weight)
            elif self.log_partition_monitor is not None:
                x = self.noisy(batch.x, generator)
                logs |= self.log_partition_monitor.gains(self.energy, x, batch.weight)
        return logs

    def noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Rows with the noise of training, by default none."""
        return x

    def validation_loss(self, batch: Batch, state: Any, generator: torch.Generator) -> Tensor:
        losses = [self.rowwise(batch.x, generator).detach() for _ in range(self.n_copies)]
        return weighted_mean(torch.stack(losses).mean(0), batch.weight)

    def divergence_reason(
        self, logs: dict[str, float], before: dict[str, float] | None = None, n_rows: int = 100
    ) -> str | None:
        reason = super().divergence_reason(logs, before, n_rows)
        if reason or not before:
            return reason
        was, now = before["loss"], logs["loss"]
        if now > was + 10 * (1 + abs(was)):
            return f"the loss rose from {was:.3g} to {now:.3g}"
        return None

    @property
    def n_copies(self) -> int:
        """Number of noise draws over which a held-out loss is averaged."""
        return HELD_OUT_DRAWS

    def work(self, n_rows: int) -> float:
        return self.passes * super().work(n_rows)


class HyvarinenScore(Rowwise, abc.ABC):
    r"""Score matching by second derivatives, for bounded and unbounded columns.

    .. math:: J = \mathbb E \sum_i \tfrac12 h_i (\partial_i E)^2 - h_i \partial_{ii} E
        - h_i' \partial_i E ,

    which is, up to a constant, half the expected
    :math:`\sum_i h_i (\partial_i \log p - \partial_i \log p_{data})^2`, for weights h that vanish
    at the bounds: h = 1 in unbounded columns (Hyvärinen, 2005) and
    :math:`h_i(x) = \min(x_i - lower, upper - x_i, 1)` in bounded ones (Hyvärinen, 2007, uses
    :math:`h_i = x_i^2` on non-negative rows, and Yu, Drton and Shojaie, 2019, the truncated
    weight). :class:`ExactScoreMatching` has the references.
    """

    def __init__(self, energy: Energy, jitter: Tensor | None = None):
        super().__init__()
        if not isinstance(energy.domain, Real):
            raise TypeError(f"Score matching needs real rows, got {energy.domain}.")
        self.energy = energy
        self.jitter: Tensor | None
        self.register_buffer("jitter", jitter, persistent=False)

    @abc.abstractmethod
    def directions(self, h: Tensor, generator: torch.Generator) -> Tensor:
        """Directions along which second derivatives sum to the trace of diag(h) H."""

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        x = self.noisy(x, generator)
        h, h_grad = boundary_weight(x, self.energy.domain)
        derivatives = second_derivatives_of(
            self.energy, x, self.directions(h, generator), **leaving_out(without)
        )
        grad = derivatives.grad.flatten(1)
        if self._boundary:
            first = (h * grad / 2 - h_grad) * grad
            return first.sum(1) - derivatives.second_derivative
        return grad.square().sum(1) / 2 - derivatives.second_derivative

    def noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x if self.jitter is None else x + self.jitter * normal_noise(x, generator)

    @property
    def _boundary(self) -> bool:
        domain = self.energy.domain
        return isinstance(domain, Real) and not (domain.lower is None and domain.upper is None)


class ExactScoreMatching(HyvarinenScore):
    r"""Score matching with the exact trace of the Hessian; for up to about 64 columns.

    .. math:: J(\theta) = \mathbb E_{data} \bigl[\tfrac12 |\nabla E(x)|^2 - \Delta E(x)\bigr]

    Bounded columns have weights that vanish at their bounds (:class:`HyvarinenScore`). The mean
    over a batch is an unbiased estimate of J. On data with ties J is unbounded below: it falls
    without limit as the density concentrates on a repeated row. `jitter` adds noise to prevent
    this. The second derivatives cost about d / 3 times as much as the gradient.

    Parameters
    ----------
    energy : Energy
        Energy on real rows, twice differentiable.
    jitter : Tensor of shape (d,) or None, default=None
        Standard deviations of Gaussian noise added to the rows, drawn anew at every step; the
        model then learns the density of the noisy rows.

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
    >>> loss.value.backward()  # J = v precision^2 / 2 - precision
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
    r"""Score matching along random directions, by which the trace of the Hessian is estimated.

    .. math:: J(\theta) = \mathbb E_{data} \mathbb E_v
        \bigl[\tfrac12 |\nabla E(x)|^2 - v^\top \nabla^2 E(x) v\bigr], \qquad
        \mathbb E\, v v^\top = I ,

    the form with reduced variance, whose first term is exact. It is unbiased for the value and the
    gradient of :class:`ExactScoreMatching`, at a cost that does not grow with the number of
    columns. What is said there about ties and bounds holds here, too.

    Parameters
    ----------
    energy : Energy
        Energy on real rows, twice differentiable.
    n_projections : int, default=1
        Number of directions per row.
    projection : {"rademacher", "gaussian"}, default="rademacher"
        Distribution of the directions. Rademacher directions (random signs) have the smaller
        variance, and are exact if the Hessian is diagonal.
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
        what = f"n_projections={self.n_projections} with {n} rows in a batch"
        check_memory(what, n * self.n_projections * d, h.dtype, h.device)
        v = normal_noise(h, generator, (n, self.n_projections, d))
        if self.projection == "rademacher":
            v = torch.where(v < 0, -1.0, 1.0).to(v)
        v = v / math.sqrt(self.n_projections)
        return v * h.sqrt()[:, None] if self._boundary else v

    def work(self, n_rows: int) -> float:
        return (1 + self.n_projections / 3) * super().work(n_rows)


def leaving_out(without: Tensor | None) -> dict[str, Tensor]:
    """Keyword arguments for an energy whose base leaves out kernel centres, or none."""
    return {} if without is None else {"without": without}


def normal_noise(
    x: Tensor, generator: torch.Generator, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Standard normal draws with the dtype and device of x, and its shape unless one is given."""
    shape = tuple(x.shape) if shape is None else shape
    return torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)


def boundary_weight(x: Tensor, domain: Any) -> tuple[Tensor, Tensor]:
    """Weight h of each entry, (n, d), and its derivative."""
    x = x.flatten(1)
    # Distance from a bound, in units of x, beyond which the weight of a column is constant.
    max_weight = 1.0
    h, grad = torch.full_like(x, max_weight), torch.zeros_like(x)
    if domain.lower is not None:
        near = x - domain.lower < h
        h, grad = torch.where(near, x - domain.lower, h), torch.where(near, 1.0, grad)
    if domain.upper is not None:
        near = domain.upper - x < h
        h, grad = torch.where(near, domain.upper - x, h), torch.where(near, -1.0, grad)
    # Noise may move rows out of bounds, where both are zero.
    return h.clamp_min(0), grad.masked_fill(h < 0, 0.0)


class DenoisingScoreMatching(Rowwise):
    r"""Denoising score matching: fit the score of the data density convolved with noise.

    .. math:: J(\theta) = \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \odot \nabla E(x + \sigma \odot \epsilon) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2, \qquad \epsilon \sim N(0, I) ,

    which is, up to a constant, half the expected :math:`|\sigma \odot (\nabla \log p - \nabla \log
    p_\sigma)|^2` with :math:`p_\sigma = p_{data} * N(0, \sigma^2)`. Its minimiser is
    :math:`p_\sigma` and not the data density, but J is always bounded below. Each row gives an
    antithetic pair :math:`x \pm \sigma \epsilon`, whose noise cancels to first order, so that it
    does not dominate the gradient at small noise levels. The estimates of J and its gradient are
    unbiased.

    Parameters
    ----------
    energy : Energy
        Energy on unbounded real rows, differentiable.
    sigma : Tensor of shape (d,) or float
        Standard deviation of the noise in each column, positive, in units of x.

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
    >>> base = Gaussian(torch.zeros(3), 1.0).convolved(0.5)  # the density of the noisy rows
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
        shift = self.sigma * noise
        both = None if without is None else without.repeat(2)
        noisy = torch.cat([x + shift, x - shift])
        grad = self.sigma * input_grad_of(self.energy, noisy, **leaving_out(both))
        return _denoising_loss(grad, noise)

    def noisy(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x + self.sigma * normal_noise(x, generator)

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


class MultiscaleScoreMatching(Rowwise):
    r"""Denoising score matching at all noise levels of a range, for an energy given the level.

    .. math:: J(\theta) = \mathbb E_{\log \sigma \sim U} \mathbb E_{x, \epsilon}\, \tfrac12
        \bigl|\sigma \nabla E(x + \sigma \epsilon, \sigma) - \epsilon\bigr|^2
        - \tfrac12 |\epsilon|^2

    with log-uniform :math:`\sigma` (one stratified draw per row) and antithetic pairs of noise as
    in :class:`DenoisingScoreMatching`; all levels have the same weight [1]_. High noise levels
    connect modes that are separate at low ones, so that annealed samplers can reach all of them.

    Parameters
    ----------
    energy : Energy
        Energy called as ``energy(x, sigma)`` with a noise level for each row, (n,).
    sigma_min, sigma_max : float
        Smallest and largest noise level, 0 < sigma_min < sigma_max, in units of x.

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
    >>> bool(loss.value < 0)  # it is zero for a flat energy
    True
    """

    def __init__(self, energy: Energy, sigma_min: float, sigma_max: float):
        super().__init__()
        _check_unbounded(energy)
        if not 0 < sigma_min < sigma_max < math.inf:
            raise ValueError(
                f"Noise levels need 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}."
            )
        self.energy, self.sigma_min, self.sigma_max = energy, sigma_min, sigma_max

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        if without is not None:
            raise ValueError("Energies with several noise levels cannot leave out kernel centres.")
        n = len(x)
        u = torch.rand(n, generator=generator, dtype=x.dtype, device=x.device)
        u = (torch.randperm(n, generator=generator, device=x.device) + u) / n
        level = self.sigma_min * (u * math.log(self.sigma_max / self.sigma_min)).exp()
        noise = normal_noise(x, generator).flatten(1)
        shift = (level[:, None] * noise).reshape(x.shape)
        levels = level.repeat(2)
        grad = input_grad_of(self.energy, torch.cat([x + shift, x - shift]), levels)
        return _denoising_loss(levels[:, None] * grad.flatten(1), noise)

    def work(self, n_rows: int) -> float:
        return super().work(2 * n_rows)


def _denoising_loss(grad: Tensor, noise: Tensor) -> Tensor:
    """Loss of each row, (n,), from sigma times the gradients at both ends of antithetic pairs."""
    plus, minus = grad.flatten(1).chunk(2)
    squares = (plus.square() + minus.square()).sum(1) / 4
    return squares - ((plus - minus) * noise.flatten(1)).sum(1) / 2


def _kind(energy: Energy) -> dict[str, Any]:
    """Dtype and device of an energy."""
    like = next(iter(energy.parameters()), torch.empty(0))
    return {"dtype": like.dtype, "device": like.device}


def _check_unbounded(energy: Energy) -> None:
    domain = energy.domain
    if not isinstance(domain, Real):
        raise TypeError(f"Score matching needs real rows, got {domain}.")
    if domain.lower is not None or domain.upper is not None:
        raise ValueError(
            f"Noise moves rows out of the bounds of {domain}: use exact or sliced score matching, "
            "whose weights vanish at the bounds."
        )
