r"""Energy discrepancy: tell a row from what a noisy copy of it might have been."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Domain, Energy, Real
from skebm.base.sampler import whole_number
from skebm.objectives.score_matching import Rowwise, normal_noise

# Draws of noise at which held-out rows are looked at: a look is then worth comparing.
HELD_OUT_DRAWS = 8


class EnergyDiscrepancy(Rowwise):
    r"""Contrast of a row x with rows that its noisy copy y might as well have come from.

    .. math:: J(\theta) = \mathbb E_x \mathbb E_{y, x'} \log \Bigl( \frac wM
        + \frac1M \sum_{j=1}^{M} e^{E(x) - E(x'_j)} \Bigr) , \qquad
        y \sim k(\cdot \mid x), \quad x'_j \sim k(\cdot \mid y)

    with k the noise: normal on real rows [1]_; on binary ones each bit flips, and on one-hot ones
    each column goes to another level, all others alike, with probability `scale` [2]_. No slope of
    the energy is taken, no chain is run and log Z is not needed.

    Without w and for many :math:`x'`, up to a constant, J is the expected
    :math:`-\log p(x \mid y)` [1]_: least at the data's density itself, whatever the scale, where
    denoising is least at a blurred one. On real rows it is :math:`s^2` times the objective of
    :class:`ExactScoreMatching` for small scales s, and maximum likelihood for s far above the
    spread of the data; in between, it sees the mass of modes that are no more than a few s apart.

    With w = 1 the loss is that of choosing x among x and the :math:`x'_j`. As k is symmetric, its
    expected gradient vanishes at the data's density for any M [3]_. With another w it does so in
    the limit of large M alone, and with w = 0 and few :math:`x'` a loss need not have a minimum.

    On real rows each row gives a pair of copies, :math:`y = x \pm s \epsilon`, whose negatives
    mirror each other, so that their noise cancels to first order: at small scales it would drown
    the gradient.

    Parameters
    ----------
    energy : Energy
        On unbounded real, on binary or on one-hot rows.
    scale : float or Tensor of shape (d,)
        Real rows: standard deviation of the noise of each column, positive, in units of x. Binary
        and one-hot rows: probability that a column changes, in (0, 1/2].
    n_negatives : int >= 1, default=16
        M, the :math:`x'` of each y: a step evaluates the energy at M + 1 times its rows, at
        2 M + 1 times real ones.
    stabiliser : float >= 0, default=1.0
        w.

    References
    ----------
    .. [1] Schröder, Ou, Lim, Li, Vollmer and Duncan (2023), "Energy discrepancies: a
       score-independent loss for energy-based models", NeurIPS (normal noise and its limits, w).
    .. [2] Schröder, Ou, Li and Duncan (2024), "Energy-based modelling for discrete and mixed data
       via heat equations on structured spaces", NeurIPS (discrete rows).
    .. [3] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP (ranking; here given y).

    Examples
    --------
    >>> import torch
    >>> from skebm.base import Batch, Real
    >>> from skebm.energies import MLP, NeuralEnergy, Spec
    >>> from skebm.distributions import Gaussian
    >>> from skebm.objectives import EnergyDiscrepancy
    >>> generator = torch.Generator().manual_seed(0)
    >>> network = MLP().build(Spec((3,), generator))
    >>> energy = NeuralEnergy(network, Real((3,)), Gaussian(torch.zeros(3), 1.0))
    >>> x = torch.randn(2000, 3, generator=generator)
    >>> loss = EnergyDiscrepancy(energy, 0.5)(Batch(x), None, generator)
    >>> bool(loss.value < 0)  # about zero is what a flat energy has
    True
    """

    passes = 3  # forward, and back for the rows of each layer and for its weights

    def __init__(
        self,
        energy: Energy,
        scale: Tensor | float,
        *,
        n_negatives: int = 16,
        stabiliser: float = 1.0,
    ):
        super().__init__()
        _check_domain(energy.domain)
        whole_number("n_negatives", n_negatives, 1)
        if not 0 <= stabiliser < math.inf:
            raise ValueError(f"stabiliser must be finite and not negative, got {stabiliser}.")
        self.energy, self.n_negatives, self.stabiliser = energy, n_negatives, stabiliser
        like = next(iter(energy.parameters()), torch.empty(0))
        self.scale: Tensor
        scale = torch.as_tensor(scale, dtype=like.dtype, device=like.device)
        self.register_buffer("scale", _checked(scale, energy.domain), persistent=False)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,)."""
        if without is not None:
            raise ValueError("Energy discrepancy leaves no centres of a base of kernels out.")
        n, m = len(x), self.n_negatives
        value = self.energy(torch.cat([x, *self._others(x, generator)]))
        gap = value[:n, None] - value[n:].view(-1, n, m)  # of each copy y
        if self.stabiliser > 0:
            stable = gap.new_full((*gap.shape[:2], 1), math.log(self.stabiliser))
            gap = torch.cat([gap, stable], 2)
        return (gap.logsumexp(2) - math.log(m)).mean(0)

    @property
    def n_copies(self) -> int:
        """Fewer than of score matching: a look has many copies."""
        return HELD_OUT_DRAWS

    def work(self, n_rows: int) -> float:
        copies = 2 if isinstance(self.energy.domain, Real) else 1
        return super().work(n_rows * (1 + copies * self.n_negatives))

    def _others(self, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Negatives of the noisy copies of rows: of a pair on either side, or of one copy."""
        m = self.n_negatives
        if isinstance(self.energy.domain, Real):
            rows = x.repeat_interleave(m, 0)
            noise = normal_noise(x, generator).repeat_interleave(m, 0)
            off = self.scale * (noise + normal_noise(rows, generator))
            return [rows + off, rows - off]
        return [self._changed(self._changed(x, generator).repeat_interleave(m, 0), generator)]

    def _changed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A noisy copy of each discrete row."""
        domain = self.energy.domain
        if isinstance(domain, Binary):
            return torch.where(_uniform(x, x.shape, generator) < self.scale, 1 - x, x)
        assert isinstance(domain, Categorical)
        levels, k = domain.levels(x), torch.tensor(domain.groups, device=x.device)
        moves = _uniform(x, levels.shape, generator) < self.scale
        by = 1 + (_uniform(x, levels.shape, generator) * (k - 1)).long()  # of k - 1 others
        return domain.one_hot(torch.where(moves, (levels + by) % k, levels), x.dtype)


def _uniform(x: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=x.dtype, device=x.device)


def _check_domain(domain: Domain) -> None:
    if not isinstance(domain, Real | Binary | Categorical):
        raise TypeError(f"Energy discrepancy needs real, binary or one-hot rows, not {domain}.")
    if isinstance(domain, Real) and not (domain.lower is None and domain.upper is None):
        raise ValueError(
            f"Noise leaves the walls of {domain}: use exact or sliced score matching, whose "
            "weights vanish there."
        )


def _checked(scale: Tensor, domain: Domain) -> Tensor:
    """The scale, or `ValueError` unless there is a usable one for all columns or for each."""
    columns = (len(domain.groups),) if isinstance(domain, Categorical) else domain.row_shape
    if scale.shape not in ((), columns):
        raise ValueError(
            f"scale must be a number or have one for each column, of shape {columns}, got shape "
            f"{tuple(scale.shape)}."
        )
    if isinstance(domain, Real):
        if not (scale.isfinite() & (scale > 0)).all():
            raise ValueError(f"scale must be positive and finite, got {scale.tolist()}.")
    elif not ((scale > 0) & (scale <= 0.5)).all():
        raise ValueError(
            f"scale is the probability that a column changes: it must be in (0, 1/2], got "
            f"{scale.tolist()}."
        )
    return scale
