r"""Energy discrepancy: contrast each row with perturbations of a noisy copy of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skebm.base import Binary, Categorical, Domain, Energy, Real
from skebm.base.sampler import whole_number
from skebm.base.torchtools import check_memory
from skebm.objectives.score_matching import Rowwise, normal_noise

# Noise draws averaged in a held-out loss, so that its values can be compared.
HELD_OUT_DRAWS = 8


class EnergyDiscrepancy(Rowwise):
    r"""Energy discrepancy: contrast a row x with rows from which its noisy copy y could stem.

    .. math:: J(\theta) = \mathbb E_x \mathbb E_{y, x'} \log \Bigl( \frac wM
        + \frac1M \sum_{j=1}^{M} e^{E(x) - E(x'_j)} \Bigr) , \qquad
        y \sim k(\cdot \mid x), \quad x'_j \sim k(\cdot \mid y)

    with perturbation kernel k: Gaussian noise on real rows [1]_; with probability `scale`, a bit
    flip in each binary column and a change to a uniformly chosen other level in each categorical
    column [2]_. It needs no gradient of the energy with respect to x, no Markov chain and no log Z.

    With w = 0 and many :math:`x'`, J is, up to a constant, the expected
    :math:`-\log p(x \mid y)` [1]_. At any scale it is minimised by the data density itself, whereas
    denoising score matching is minimised by the data density convolved with the noise. On real
    rows J is :math:`s^2` times the objective of :class:`ExactScoreMatching` for small scales s, and
    maximum likelihood for s far above the spread of the data; in between, it is sensitive to the
    relative mass of modes that are up to a few s apart.

    With w = 1 the loss is the cross-entropy of selecting x among x and the :math:`x'_j`. As k is
    symmetric, its expected gradient vanishes at the data density for any M [3]_. For other w this
    holds only in the limit of large M, and with w = 0 and few :math:`x'` a minimum need not exist.

    Each real row gives an antithetic pair of copies, :math:`y = x \pm s \epsilon`, with mirrored
    negatives, so that the noise, which would dominate the gradient at small scales, cancels to
    first order.

    Parameters
    ----------
    energy : Energy
        Energy on unbounded real, binary or one-hot rows.
    scale : float or Tensor of shape (d,)
        Real rows: standard deviation of the noise in each column, positive, in units of x. Binary
        and one-hot rows: probability that a column changes, in (0, 1/2].
    n_negatives : int >= 1, default=16
        M, the number of :math:`x'` for each y. A step evaluates the energy at M + 1 points for
        each row of the batch, 2 M + 1 for real rows.
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
    >>> bool(loss.value < 0)  # it is about zero for a flat energy
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
        self.register_buffer("scale", _check_scale(scale, energy.domain), persistent=False)

    def rowwise(
        self, x: Tensor, generator: torch.Generator, without: Tensor | None = None
    ) -> Tensor:
        """Loss of each row, (n,)."""
        if without is not None:
            raise ValueError("Energy discrepancy does not support leaving out kernel centres.")
        n, m = len(x), self.n_negatives
        value = self.energy(torch.cat([x, *self._others(x, generator)]))
        gap = value[:n, None] - value[n:].view(-1, n, m)  # of each copy y
        if self.stabiliser > 0:
            stable = gap.new_full((*gap.shape[:2], 1), math.log(self.stabiliser))
            gap = torch.cat([gap, stable], 2)
        return (gap.logsumexp(2) - math.log(m)).mean(0)

    @property
    def n_copies(self) -> int:
        """Fewer than for score matching, as each evaluation already averages many copies."""
        return HELD_OUT_DRAWS

    def work(self, n_rows: int) -> float:
        copies = 2 if isinstance(self.energy.domain, Real) else 1
        return super().work(n_rows * (1 + copies * self.n_negatives))

    def _others(self, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Negatives drawn around the noisy copies of rows: an antithetic pair, or one copy."""
        m = self.n_negatives
        what = f"n_negatives={m} with {len(x)} rows in a batch"
        check_memory(what, m * x.numel(), x.dtype, x.device)
        if isinstance(self.energy.domain, Real):
            rows = x.repeat_interleave(m, 0)
            noise = normal_noise(x, generator).repeat_interleave(m, 0)
            shift = self.scale * (noise + normal_noise(rows, generator))
            return [rows + shift, rows - shift]
        return [self._noisy_rows(self._noisy_rows(x, generator).repeat_interleave(m, 0), generator)]

    def _noisy_rows(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A noisy copy of each discrete row."""
        domain = self.energy.domain
        if isinstance(domain, Binary):
            return torch.where(_uniform_numbers(x, x.shape, generator) < self.scale, 1 - x, x)
        assert isinstance(domain, Categorical)
        levels, k = domain.levels(x), torch.tensor(domain.groups, device=x.device)
        moves = _uniform_numbers(x, levels.shape, generator) < self.scale
        by = 1 + (_uniform_numbers(x, levels.shape, generator) * (k - 1)).long()  # of k - 1 others
        return domain.one_hot(torch.where(moves, (levels + by) % k, levels), x.dtype)


def _uniform_numbers(x: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=x.dtype, device=x.device)


def _check_domain(domain: Domain) -> None:
    if not isinstance(domain, Real | Binary | Categorical):
        raise TypeError(f"Energy discrepancy needs real, binary or one-hot rows, not {domain}.")
    if isinstance(domain, Real) and not (domain.lower is None and domain.upper is None):
        raise ValueError(
            f"Noise moves rows out of the bounds of {domain}: use exact or sliced score matching, "
            "whose weights vanish at the bounds."
        )


def _check_scale(scale: Tensor, domain: Domain) -> Tensor:
    """The scale, after a check that it is valid: one number, or one for each column."""
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
