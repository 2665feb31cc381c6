"""Tables of real numbers: standardised columns, walls, images."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skebm._validation import validate_data
from skebm.base import Domain, Real
from skebm.energies import MLP
from skebm.training.rows import Rows


class Units(NamedTuple):
    """How columns become those that the energy sees, (x - centre) / scale; what rows then are."""

    centre: np.ndarray
    scale: np.ndarray
    domain: Domain

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Units of the data to those of the energy; float64 in between."""
        return (x.astype(np.float64) - self.centre) / self.scale

    def invert(self, z: np.ndarray) -> np.ndarray:
        """Back to the units of the data."""
        return z * self.scale + self.centre

    @property
    def log_volume(self) -> float:
        """log of the volume, in the units of the data, of a unit cube of the energy's."""
        return float(np.log(self.scale).sum())


class RealRows(BaseEstimator):
    """Standardises the columns of tables, and flattens images."""

    network: Any
    bounds: Any
    standardize: bool
    _map: Any

    def _validate(self, X: Any, *, reset: bool = False, min_samples: int = 1, **kwargs: Any) -> Any:
        X = validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            # Whatever is no MLP may take images.
            allow_nd=not isinstance(self.network, MLP | None),
            ensure_min_samples=min_samples,
            **kwargs,
        )
        if reset:
            self.row_shape_ = X.shape[1:]
        elif X.shape[1:] != self.row_shape_:
            raise ValueError(
                f"X has rows of shape {X.shape[1:]}, but {type(self).__name__} was fitted on rows "
                f"of shape {self.row_shape_}."
            )
        return X

    def _rows(
        self,
        X: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight: np.ndarray | None = None,
        reset: bool = False,
    ) -> Rows:
        X = np.ascontiguousarray(X.reshape(len(X), -1))  # its layout would change the rounding
        if reset:
            self.units_ = self._learn_units(X, weight)
        return Rows.of(X, self.units_.apply, dtype=dtype, device=device, weight=weight)

    def _learn_units(self, X: np.ndarray, weight: np.ndarray | None) -> Units:
        """Scales, walls and kind of the columns."""
        found = learn_units(X, weight, self.standardize, self.bounds)
        _warn_of_constants(X)
        return found

    def _energies(self, rows: Rows) -> np.ndarray:
        """Energies in the units of the data, infinite beyond walls."""
        domain = self.units_.domain

        def energies(energy: Any, x: torch.Tensor) -> torch.Tensor:
            value = energy(x).masked_fill(~domain.contains(x), torch.inf)
            # Where powers of x overflow, inf - inf is no fault of the energy.
            far = x.abs().amax(1) > torch.finfo(x.dtype).max ** 0.25
            return value.masked_fill(value.isnan() & far, torch.inf)

        return self._map(rows, energies).double().numpy() + self.units_.log_volume

    def _check_inside(self, rows: Rows) -> None:
        """Raise `ValueError` for rows to train on that lie beyond the walls."""
        outside = ~rows.map(self.units_.domain.contains)
        if outside.any():
            where = f"{int(outside.sum())} rows of X, first row {int(outside.nonzero()[0, 0])}, "
            if self.bounds is None:
                raise ValueError(f"{where}hold numbers too large to be computed with.")
            raise ValueError(
                f"{where}lie outside `bounds`: drop them, or fit anew with wider ones."
            )

    @property
    def _image_shape(self) -> tuple[int, ...] | None:
        """Shape of an image, or None for flat rows."""
        return self.row_shape_ if len(self.row_shape_) > 1 else None

    def _to_units(self, z: torch.Tensor) -> np.ndarray:
        """Rows of the energy in the units and the shape of the data, (n, ...)."""
        domain = self.units_.domain
        low, high = (domain.lower, domain.upper) if isinstance(domain, Real) else (None, None)
        inside = z.detach() if low is high is None else z.detach().clamp(low, high)
        x = self.units_.invert(inside.cpu().double().numpy())
        return x.reshape(len(x), *self.row_shape_)


def learn_units(X: np.ndarray, weight: np.ndarray | None, standardize: bool, bounds: Any) -> Units:
    """Centres and scales of columns, weighted; walls become 0, or 0 and 1.

    A column that does not vary keeps its scale.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = X.astype(np.float64)
        mean = np.average(x, axis=0, weights=weight)
        scale = np.sqrt(np.average(np.square(x - mean), axis=0, weights=weight))
    if not np.isfinite(scale).all():
        columns = np.flatnonzero(~np.isfinite(scale)).tolist()
        raise ValueError(
            f"Columns {columns} span more than a float holds: divide them by their largest "
            "absolute value first."
        )
    flat = scale <= 100 * np.finfo(X.dtype).eps * np.abs(mean)
    scale = np.where(flat | (scale == 0), 1.0, scale)
    lower, upper = check_bounds(X, bounds)
    shape = mean.shape
    if not standardize:
        walls = map(_one_wall, (lower, upper))
        return Units(np.zeros_like(mean), np.ones_like(mean), Real(shape, *walls))
    if lower is not None and upper is not None:
        return Units(lower, upper - lower, Real(shape, 0.0, 1.0))
    if lower is not None:
        return Units(lower, scale, Real(shape, lower=0.0))
    if upper is not None:
        return Units(upper, scale, Real(shape, upper=0.0))
    return Units(mean, scale, Real(shape))


def check_bounds(X: np.ndarray, bounds: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Walls of each column; `ValueError` for what are none, and where rows lie outside."""
    if bounds is None:
        return None, None
    if len(bounds) != 2:
        raise ValueError(f"bounds must be a pair (lower, upper), got {bounds!r}.")
    lower, upper = (_boundary(wall, X.shape[1]) for wall in bounds)
    if lower is not None and upper is not None and not (lower < upper).all():
        raise ValueError("The lower bounds must be below the upper ones.")
    for wall, sign, side in ((lower, 1, "below the lower"), (upper, -1, "above the upper")):
        if wall is None:
            continue
        out = (sign * X < sign * wall.astype(X.dtype)).any(0)
        if out.any():
            raise ValueError(
                f"Columns {np.flatnonzero(out).tolist()} hold values {side} bound: widen `bounds`, "
                "or drop those rows."
            )
    return lower, upper


def _boundary(wall: Any, d: int) -> np.ndarray | None:
    if wall is None:
        return None
    try:
        found = np.asarray(wall, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.full(d, np.nan)
    if found.ndim > 1 or (found.ndim == 1 and len(found) != d) or not np.isfinite(found).all():
        raise ValueError(
            f"A bound must be a finite number, or one for each of {d} columns, got {wall!r}. All "
            "columns have walls on the same sides: use None for a side without."
        )
    return np.broadcast_to(found, (d,)).copy()


def _one_wall(wall: np.ndarray | None) -> float | None:
    if wall is None:
        return None
    if not (wall == wall[0]).all():
        raise ValueError("With standardize=False all columns have the same bounds.")
    return float(wall[0])


def _warn_of_constants(X: np.ndarray) -> None:
    columns = np.flatnonzero((X[0] == X).all(0)).tolist() if len(X) > 1 else []
    if columns:
        warnings.warn(
            f"Columns {columns} are constant. They are modelled as if they varied by the "
            "noise of training around their value: leave them out if new rows cannot differ there.",
            UserWarning,
            stacklevel=2,
        )
