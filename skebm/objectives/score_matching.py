r"""Score matching: fit the gradient of log p to that of the data, without samples and without Z.

Signs are those of this library, p = exp(-E) / Z: the score of the model is minus the gradient of E.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import torch
from torch import Tensor

from skebm.base import Energy, Real
from skebm.energies.derivatives import bends_of
from skebm.objectives.rowwise import Rowwise

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
        h, slope_of_h = wall_weight(x, self.energy.domain)
        found = bends_of(self.energy, x, self.directions(h, generator), **leaving_out(without))
        slope = found.slope.flatten(1)
        if self._walls:
            half = (h * slope / 2 - slope_of_h) * slope
            return half.sum(1) - found.bend
        return slope.square().sum(1) / 2 - found.bend

    @property
    def _walls(self) -> bool:
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
        if self._walls:
            return h.sqrt().diag_embed()
        return torch.eye(h.shape[1], dtype=h.dtype, device=h.device)

    @property
    def n_looks(self) -> int:
        return 1 if self.jitter is None else super().n_looks

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
    >>> from skebm.noise import Gaussian
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
        return v * h.sqrt()[:, None] if self._walls else v

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


def wall_weight(x: Tensor, domain: Any) -> tuple[Tensor, Tensor]:
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
