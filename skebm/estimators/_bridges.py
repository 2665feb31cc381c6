"""The way from noise that is far to the data, and what log Z is estimated from at its end."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from skebm.base import Real
from skebm.distributions import Distribution, Gaussian, GaussianMixture, TruncatedGaussian
from skebm.energies import Waymarks, fit_waymarks
from skebm.estimators._real_bases import MAX_DENSE
from skebm.objectives.noise_contrastive import NO_RANKS
from skebm.training.rows import Rows

# Draws by which the moments of noise are known, and how much correlations are shrunk at least:
# columns may be copies of each other.
N_DRAWS, LEAST_SHRINKAGE = 10_000, 1e-6
# Numbers of components of a mixture near the model, and rows by which the best is found.
COMPONENTS, N_ROWS = (1, 3, 10, 30), 5000


class Approach(NamedTuple):
    """How the noise is led to the data, where one step would be too far.

    Attributes
    ----------
    way : Waymarks
        Waymarks.
    nearby : Distribution
        A distribution of the rows, from which log Z is estimated: no draw of the noise is there.
    """

    way: Waymarks
    nearby: Distribution


def approach_of(estimator: Any, rows: Rows, seed: int) -> Approach | None:
    """Waymarks from the rows to the noise; None where a single classifier is asked for, or enough.

    As it is for noise that was fitted to the rows. Other noise is known by draws, unless normal.
    """
    n_bridges, domain = estimator.n_bridges, estimator.units_.domain
    possible = isinstance(domain, Real) and estimator.form == "logistic"
    given = isinstance(estimator.noise, Distribution)
    if n_bridges == 1 or (n_bridges == "auto" and not (possible and given)):
        return None
    if estimator.form != "logistic":
        raise ValueError(NO_RANKS)
    if not possible:
        raise ValueError(f"n_bridges={n_bridges}: there are no bridges of rows that are {domain}.")
    noise, sigma = estimator._noisy_base, estimator._trained_noise
    diagonal = estimator._image_shape is not None or rows.n_columns > MAX_DENSE
    # Less shrunk than a normal distribution that is to be a model: the way is along its narrow
    # axes, which the networks correct.
    shrinkage = min(max((rows.n_columns / rows.total_weight) ** 2, LEAST_SHRINKAGE), 1.0)
    kind: dict[str, Any] = {"shrinkage": shrinkage, "diagonal": diagonal}
    data = Gaussian.fit(rows.block(0, len(rows)), rows.counts, **kind)
    if sigma is not None:
        sigma = sigma.to(rows.device, rows.dtype)
        data = data.convolved(sigma)
    if not isinstance(noise, Gaussian):
        generator = torch.Generator(rows.device).manual_seed(seed)
        noise = Gaussian.fit(noise.sample(N_DRAWS, generator), **kind)
    unbounded = domain == Real(domain.shape)
    way = fit_waymarks(data, noise, n_bridges, convex=not unbounded)
    if way.n_bridges == 1:
        return None
    if not unbounded:
        x = rows.block(0, len(rows))
        return Approach(way, TruncatedGaussian.fit(x, rows.counts, domain.lower, domain.upper))
    nearby = data if diagonal else _mixture(rows, way, seed)
    return Approach(way, nearby if diagonal or sigma is None else nearby.convolved(sigma))


def _mixture(rows: Rows, way: Waymarks, seed: int) -> GaussianMixture:
    """A mixture of as many components as the rows bear, by the information criterion.

    Fitted to whitened rows, so that narrow axes are not lost in what regularises it.
    """
    generator = torch.Generator(rows.device).manual_seed(seed)
    x, counts = rows.block(0, len(rows)).double(), rows.counts.double()
    if len(x) > N_ROWS:
        some = torch.randperm(len(x), generator=generator, device=x.device)[:N_ROWS]
        x, counts = x[some], counts[some]
    centre, whitening = (
        torch.as_tensor(part[0]).to(x) for part in (way.centres, way.whitening_matrices)
    )
    y = (x - centre) @ whitening
    found = [GaussianMixture.fit(y, counts, k, generator=generator) for k in COMPONENTS]
    best = min(found, key=lambda mixture: mixture.bic(y, counts))
    back = torch.linalg.inv(whitening)
    means, covariances = centre + best.means @ back, back @ best.covariances @ back
    return GaussianMixture(best.weights, means, covariances).to(rows.device, rows.dtype)
