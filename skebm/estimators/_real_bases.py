"""Bases of real rows, and the noise that training adds to them."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base import Real
from skebm.distributions import (
    Affine,
    Distribution,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    NormalizingFlow,
    TruncatedGaussian,
)
from skebm.distributions.flow import FLOWS
from skebm.estimators._real_rows import Units
from skebm.objectives.joint import UNKNOWN
from skebm.training.rows import Rows

# Components of a mixture: one for so many rows, up to a limit that falls with the columns, as the
# price of a component grows with their square.
ROWS_PER_COMPONENT = 100
LEAST_ROWS = 2.5
# Multiplications of a round of EM: rows, times components, times squared columns.
MOST_WORK = 2.5e10
# Starts of EM, of which the best is kept, where there are not many rows.
N_STARTS, MANY_ROWS = 4, 5000
# Scales of a base of kernels.
N_SCALES = 4
# Beyond so many columns a normal base has independent ones.
MAX_DENSE = 1000
# Noise that is chosen lies between, in standard deviations.
LEVELS = (0.05, 1.0)
# A column with fewer distinct values than this share of the distinct rows is taken as discrete.
DISTINCT = 0.5


class Bases(NamedTuple):
    """What the network corrects in training, and what of it is left when that is over."""

    noisy: Distribution | None
    clean: Distribution | None


def fit_real_bases(
    estimator: Any,
    base: Any,
    rows: Rows,
    sigma: Tensor | None,
    seed: int,
    *,
    several: bool = False,
) -> Bases:
    """Fit the base that an estimator was given to rows, with and without the noise of training.

    `several` levels of noise need a normal base.
    """
    units, keeps_noise = estimator.units_, not estimator.deconvolve
    if base is None:
        return Bases(None, None)
    noisy: Distribution | None = None
    if isinstance(base, Distribution):
        clean = _given(base, rows, units)
    elif base == "auto" and several:
        clean = _fitted("gaussian", rows, units.domain)  # whose noisy rows are normal at all levels
    elif base in ("auto", "mixture") and units.domain == Real(units.domain.shape):
        # EM that knows of the noise places components at its scale.
        blur = sigma if keeps_noise else None
        clean = _mixture(rows, blur, seed, estimator.n_components)
        noisy = None if blur is None else clean
    elif base in FLOWS and units.domain == Real(units.domain.shape):
        # What the noise makes of a flow has no closed form: noisy rows are what it is fitted to.
        noisy = clean = fit_flow(base, rows, sigma, seed)
    else:
        clean = _fitted(base, rows, units.domain)
    clean = clean.to(rows.device, rows.dtype)
    if noisy is None and sigma is not None and clean.has_convolved:
        noisy = clean.convolved(sigma)
    noisy = clean if noisy is None else noisy.to(rows.device, rows.dtype)
    found = Bases(noisy, noisy if keeps_noise else clean)
    _check_density(found.clean, rows)
    return found


def _mixture(rows: Rows, sigma: Tensor | None, seed: int, n_components: Any) -> GaussianMixture:
    """A component for every hundred rows, where EM is not too long; noise regularises them."""
    x, counts, total = rows.block(0, len(rows)), rows.counts, rows.total_weight
    if n_components == "auto":
        most = min(128, max(40, 2000 // x.shape[1]), total // ROWS_PER_COMPONENT)
        n_components = int(max(1, min(most, MOST_WORK // (len(x) * x.shape[1] ** 2))))
    more: dict[str, Any] = {"generator": torch.Generator(x.device).manual_seed(seed)}
    if sigma is not None:
        more |= {"regularisation": 1e-5, "sigma": sigma, "prior_rows": 0.0}
    n_init = N_STARTS if total <= MANY_ROWS else 1
    found = GaussianMixture.fit(x, counts, n_components, n_init=n_init, **more)
    # A component of a row or two is where an outlier is, and would call it normal.
    keep = found.weights * total > LEAST_ROWS
    if keep.all() or not keep.any():
        return found
    weights = found.weights[keep] / found.weights[keep].sum()
    return GaussianMixture(weights, found.means[keep], found.covariances[keep])


def fit_flow(
    flow: Any, rows: Rows, sigma: Tensor | None, seed: int, **more: Any
) -> NormalizingFlow:
    """A flow of noisy rows, by maximum likelihood."""
    x, generator = rows.block(0, len(rows)), torch.Generator(rows.device).manual_seed(seed)
    blur = 0.0 if sigma is None else sigma
    return NormalizingFlow.fit(x, rows.counts, flow, sigma=blur, generator=generator, **more)


def _fitted(base: str, rows: Rows, domain: Real) -> Distribution:
    x, counts = rows.block(0, len(rows)), rows.counts
    if domain.lower is not None or domain.upper is not None:
        if base not in ("auto", "gaussian"):
            raise ValueError(
                f'{base!r} has mass beyond the walls of `bounds`. Use "gaussian", whose '
                "columns are truncated there, or a distribution on the same domain."
            )
        return TruncatedGaussian.fit(x, counts, domain.lower, domain.upper)
    if base == "gaussian":
        return Gaussian.fit(x, counts, diagonal=x.shape[1] > MAX_DENSE)
    if base == "classes":
        assert rows.y is not None
        known = rows.y != UNKNOWN
        return GaussianMixture.from_labels(x[known], rows.y[known], counts[known])
    return KernelDensity.fit(x, counts, n_scales=N_SCALES)


def _given(base: Distribution, rows: Rows, units: Units) -> Distribution:
    """A distribution of the columns as they are, in the units of the energy."""
    if base.domain.n_columns != rows.n_columns:
        raise ValueError(
            f"The base has {base.domain.n_columns} columns, but X has {rows.n_columns}."
        )
    kind: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device}
    base = base.to(rows.device, rows.dtype)
    if (units.scale == 1).all() and (units.centre == 0).all():
        return base
    if any(getattr(base.domain, wall, None) is not None for wall in ("lower", "upper")):
        raise ValueError(
            f"{base!r} lives inside walls, and cannot be standardised with the columns: use "
            "standardize=False, with its walls as bounds=."
        )
    return Affine(base, torch.as_tensor(units.centre, **kind), torch.as_tensor(units.scale, **kind))


def _check_density(base: Any, rows: Rows) -> None:
    lost = ~rows.map(base.log_prob).isfinite()
    if lost.any():
        row = int(lost.nonzero()[0, 0])
        raise ValueError(
            f"The base has no density at {int(lost.sum())} rows of X, first at row {row}: no "
            "energy on top of it can repair that. Pass one that covers the data, or widen it."
        )


def gap_noise(rows: Rows) -> Tensor | None:
    """Noise for columns of few distinct values only, (d,), in units of the energy, or None.

    A spike on a value that occurs again would have any slope.
    """
    discrete, gaps = _discrete(rows.block(0, len(rows)))
    if not discrete.any():
        return None
    columns = discrete.nonzero().flatten().tolist()
    warnings.warn(
        f"Columns {columns} hold few distinct values, on which score matching by second "
        "derivatives is unbounded: normal noise of half the gap between values is added to them in "
        'training. objective="denoising" needs none of this.',
        UserWarning,
        stacklevel=2,
    )
    return torch.where(discrete, gaps / 2, 0.0)


def _discrete(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which columns have few distinct values among the distinct rows, and their usual gaps.

    Rows that are repeated count once: they may stand for weights.
    """
    n_rows = len(torch.unique(x, dim=0))
    found, gaps = [], []
    for column in x.t():
        values = torch.unique(column)
        found.append(len(values) < DISTINCT * n_rows and n_rows > 2)
        gaps.append(values.diff().median() if len(values) > 1 else column.new_tensor(1.0))
    return torch.tensor(found, device=x.device), torch.stack(gaps)


def noise_level(sigma: Any, rows: Rows) -> Tensor:
    """Standard deviations of the noise that `sigma` asks for, (d,), in units of the energy."""
    x = rows.block(0, len(rows))
    if not isinstance(sigma, str):
        found = np.asarray(sigma, dtype=np.float64)
        if found.ndim > 1 or (found.ndim == 1 and len(found) != rows.n_columns):
            raise ValueError(
                f"sigma must be a positive number, or one for each of {rows.n_columns} columns, "
                f"got {sigma!r}."
            )
        if not (np.isfinite(found) & (found > 0)).all():
            raise ValueError(f"sigma must be positive and finite, got {sigma!r}.")
        return torch.as_tensor(found).to(x).expand(rows.n_columns).clone()
    if sigma == "kurtosis":
        return _by_kurtosis(x)
    if len(x) < 3:
        return torch.ones_like(x[0])
    # Of distinct rows: those that occur twice would draw the bandwidth to zero.
    width: Tensor = KernelDensity.fit(torch.unique(x, dim=0)).bandwidth
    if sigma == "auto":
        spread = x.std(0, correction=0).clamp_min(1e-6)
        factor = (0.75 * (width / spread).median()).clamp(*LEVELS)
        width = torch.where(spread > 1e-6, factor * spread, factor)
    return width


def _by_kurtosis(x: Tensor) -> Tensor:
    """Half a standard deviation, more in columns of heavy tails and less in those of light ones.

    Kurtosis is that of the rows without the two hundredths at either end (Livernoche et al., 2026).
    """
    low, high = torch.quantile(x.double(), torch.tensor([0.02, 0.98]).to(x).double(), dim=0)
    off = x.double().clamp(low, high)
    off = off - off.mean(0)
    variance = off.square().mean(0).clamp_min(1e-12)
    kurtosis = off.pow(4).mean(0) / variance.square()
    spread = x.std(0, correction=0).clamp_min(1e-6)
    return (0.5 * (1 + 0.33 * (kurtosis - 3))).clamp(0.1, 3.0).to(x) * spread
