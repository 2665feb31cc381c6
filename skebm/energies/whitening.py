"""Rows whose entries are comparable, as a base says."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skebm.noise import Gaussian, GaussianMixture, KernelDensity, Noise

# What is left of the precision of a base, so that a network cannot take all of it away.
MARGIN = 0.95


class Whitening(NamedTuple):
    """Rows whose entries are comparable: y = A (x - centre), A symmetric.

    Attributes
    ----------
    centre : Tensor of shape (d,)
    matrix : Tensor of shape (d, d)
        A. Far out half the squared norm of y must stay below -log q of the base: an f that takes no
        more than that away leaves every model proper.
    """

    centre: Tensor
    matrix: Tensor


def whitening_of(base: Noise | None) -> Whitening | None:
    """How a normal distribution, a mixture or kernels whiten rows; None for any other base.

    By the covariance of the base as a whole, and so much less that no component is narrower.
    """
    if isinstance(base, KernelDensity):
        like = base.centres
        share, means = base.weights.double(), base.centres.double()
        covariances = base.kernel_covariances
        portions = share.new_ones(1) if base.shares is None else base.shares.double()
    elif isinstance(base, GaussianMixture) or (
        isinstance(base, Gaussian) and base.root is not None
    ):
        like = base.mean if isinstance(base, Gaussian) else base.means
        log_share, means, covariances = base.components()
        share = portions = log_share.exp()
    else:
        return None
    centre = share @ means
    between = ((means - centre) * share[:, None]).t() @ (means - centre)
    within = (portions @ covariances.flatten(1)).view_as(covariances[0])
    variances, axes = torch.linalg.eigh(within + between)
    root = (axes * variances.rsqrt()) @ axes.t()
    widest = torch.linalg.eigvalsh(root @ covariances @ root).max()
    shrunk = root * (MARGIN / widest.clamp_min(1.0)).sqrt()
    return Whitening(centre.to(like), shrunk.to(like))
