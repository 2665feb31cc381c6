"""log Z of real rows of one to three columns by adaptive cubature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm._validation import warn
from skebm.base import Energy, LikelihoodWarning, LogPartition, Real, Sampler, sampling
from skebm.base.sampler import number_in, whole_number
from skebm.base.torchtools import check_memory
from skebm.distributions import Distribution
from skebm.partition.checks import (
    MonteCarloEstimator,
    check_base,
    default_base,
    generator_for,
    row_energies,
    rows_of,
    template_for,
)

MAX_COLUMNS = 3
# Cells along each column at the start, by the number of columns.
N_START = {1: 64, 2: 16, 3: 8}
# A cell whose largest node is less than a half of the density at such a point is not resolved.
RESOLVED = 2.0
# Log densities this far below the largest are of no account.
NEGLIGIBLE = 25.0
# Cells narrower than this are not halved: beyond, 1 - t is too inaccurate.
NARROWEST = 1e-12
# Rows of which energies are computed at a time.
CHUNK = 16_384
# Cells are halved until these hold no more than a tenth of the error.
MARKED = 0.9
# Relative error above which an estimate of the error is not believed, and bounds are nan.
MAX_ERROR = 0.1
# Distance, in scales, from which on an energy may be nan: there its powers overflow.
FAR = 1e2


# ------------------------------------------------------------------------------
# Coordinates
# ------------------------------------------------------------------------------


class Coordinates(NamedTuple):
    r"""Rows x of a real domain as points t of the cube :math:`[-1, 1]^d`.

    The map is :math:`x = m + L t / (1 - t^2)` on the whole line,
    :math:`x = a \pm L (1 + t) / (1 - t)` beyond a single bound a, and linear in a box. Powers of x
    remain powers at the faces of the cube, so that heavy tails are integrated like light ones.

    Attributes
    ----------
    domain : Real
    centre : Tensor of shape (d,)
        m, or the bound; float64.
    scale : Tensor of shape (d, d)
        L, lower triangular, in the units of x; float64.
    """

    domain: Real
    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, domain: Real, points: Tensor) -> Coordinates:
        """Coordinates with the location and scale of points (n, d) near the model, in float64."""
        d = domain.n_columns
        low, high = domain.lower, domain.upper
        if low is not None and high is not None:
            middle, half = (low + high) / 2, (high - low) / 2
            return cls(domain, points.new_full((d,), middle), half * torch.eye(d).to(points))
        if low is None and high is None:
            # Twice the standard deviations: most of a normal distribution is then in the middle.
            return cls(domain, points.mean(0), 2 * _factor(points))
        bound = float((low if low is not None else high) or 0)
        distance = (points - bound).abs().mean(0)
        distance = torch.where(distance > 0, distance, torch.ones_like(distance))
        sign = 1.0 if low is not None else -1.0
        return cls(domain, torch.full_like(distance, bound), sign * distance.diag())

    @property
    def is_unbounded(self) -> bool:
        return self.domain.lower is None and self.domain.upper is None

    @property
    def is_box(self) -> bool:
        return self.domain.lower is not None and self.domain.upper is not None

    def rows(self, t: Tensor) -> Tensor:
        """Rows (n, d) of points t (n, d), in float64."""
        if self.is_unbounded:
            return self.centre + (t / (1 - t**2)) @ self.scale.t()
        scaled = t if self.is_box else (1 + t) / (1 - t)
        x = self.centre + scaled @ self.scale.t()
        return x.clamp(self.domain.lower, self.domain.upper)  # against rounding

    def log_jacobian(self, t: Tensor) -> Tensor:
        """log |dx / dt| at points t (n, d), (n,)."""
        log_scale = self.scale.diag().abs().log().sum()
        if self.is_box:
            return log_scale.expand(len(t))
        if self.is_unbounded:
            return log_scale + ((1 + t**2).log() - 2 * (1 - t**2).log()).sum(1)
        return log_scale + (math.log(2) - 2 * (1 - t).log()).sum(1)

    def points(self, x: Tensor) -> Tensor:
        """Points t (n, d) of rows x (n, d) in float64."""
        y = torch.linalg.solve_triangular(self.scale, (x - self.centre).t(), upper=False).t()
        if self.is_box:
            return y.clamp(-1, 1)
        if self.is_unbounded:
            return 2 * y / (1 + (1 + 4 * y**2).sqrt())
        return (y - 1) / (y + 1)


def _factor(points: Tensor) -> Tensor:
    """Cholesky factor of the covariance of points (n, d), regularised where it is singular.

    Diagonal where correlations are weak: heavy tails along a column stay along an axis.
    """
    deviation = points - points.mean(0)
    covariance = deviation.t() @ deviation / len(points)
    variance = covariance.diag()
    # Constant columns have the scale of the others, or one.
    least = 1e-6 * variance.max() if variance.max() > 0 else torch.ones_like(variance)
    ridge = 1e-6 * variance + torch.where(variance > 0, torch.zeros_like(variance), least)
    scale = (variance + ridge).sqrt()
    correlation = covariance / (scale[:, None] * scale)
    # Correlation from which on the coordinates are rotated.
    correlated = 0.5
    if (correlation - correlation.diag().diag()).abs().max() < correlated:
        return scale.diag()
    factor: Tensor = torch.linalg.cholesky(covariance + ridge.diag())
    return factor


# ------------------------------------------------------------------------------
# Rules
# ------------------------------------------------------------------------------


class CubatureRule(NamedTuple):
    """Nodes (k, d) in the cube, weights (k,) that sum to one, and those of a lower degree.

    `faces` (2 d,) are the numbers of the nodes next to the centres of the faces.
    """

    nodes: Any
    weights: Any
    embedded: Any
    faces: Any


@cache
def cubature_rule(d: int) -> CubatureRule:
    """Gauss and Kronrod's rule for one column, Genz and Malik's of degree seven for several.

    References
    ----------
    Genz and Malik (1980), "An adaptive algorithm for numerical integration over an n-dimensional
    rectangular region", Journal of Computational and Applied Mathematics 6(4), table 1. Piessens,
    de Doncker-Kapenga, Ueberhuber and Kahaner (1983), "QUADPACK" (rule of 15 nodes).
    """
    if d == 1:
        return _gauss_kronrod()
    first, second, third = math.sqrt(9 / 70), math.sqrt(9 / 10), math.sqrt(9 / 19)
    axes = np.repeat(np.eye(d), 2, 0) * np.tile([1.0, -1.0], d)[:, None]
    cube = np.array(list(itertools.product([1.0, -1.0], repeat=d)))
    pairs = np.array([row for row in itertools.product([0.0, 1, -1], repeat=d) if _n_set(row) == 2])
    blocks = [np.zeros((1, d)), first * axes, second * axes, second * pairs, third * cube]
    seven = [12824 - 9120 * d + 400 * d**2, 2940, 1820 - 400 * d, 200, 6859 / 2**d]
    five = [729 - 950 * d + 50 * d**2, 367.5, 132.5 - 50 * d, 25, 0]
    sizes = [len(block) for block in blocks]
    weights = np.repeat(np.array(seven) / 19683, sizes)
    embedded = np.repeat(np.array(five) / 729, sizes)
    return CubatureRule(np.concatenate(blocks), weights, embedded, np.arange(2 * d) + 1 + 2 * d)


def _n_set(row: tuple[float, ...]) -> int:
    return sum(entry != 0 for entry in row)


def _gauss_kronrod() -> CubatureRule:
    """Nodes of Kronrod's rule of 15, of which every second one is a node of Gauss's rule of 7."""
    node = [0.9914553711208126, 0.9491079123427585, 0.8648644233597691, 0.7415311855993944]
    node += [0.5860872354676911, 0.4058451513773972, 0.2077849550078985, 0.0]
    kronrod = [0.0229353220105292, 0.0630920926299786, 0.1047900103222502, 0.1406532597155259]
    kronrod += [0.1690047266392679, 0.1903505780647854, 0.2044329400752989, 0.2094821410847278]
    gauss = [0, 0.1294849661688697, 0, 0.2797053914892767, 0, 0.3818300505051189]
    gauss += [0, 0.4179591836734694]
    nodes = np.array([*node, *(-x for x in node[-2::-1])])[:, None]
    weights, embedded = (np.array([*w, *w[-2::-1]]) / 2 for w in (kronrod, gauss))
    return CubatureRule(nodes, weights, embedded, np.array([0, 14]))


# ------------------------------------------------------------------------------
# Cells
# ------------------------------------------------------------------------------


# What Cells keep of each.
LEAF = ("centre", "half", "child", "axis", "value", "error", "peak")


class Density:
    """exp(-E) in the coordinates of the cube, and how often it was computed."""

    def __init__(self, energy: Energy, coordinates: Coordinates, template: Tensor):
        self.energy, self.coordinates, self.template = energy, coordinates, template
        self.n_evaluations = 0

    def log(self, t: Tensor) -> Tensor:
        """Log density (n,) at points t (n, d) of the cube, in float64.

        Raises `FloatingPointError` where an energy is minus infinity, or nan near the model.
        """
        self.n_evaluations += len(t)
        shape = self.energy.domain.row_shape
        parts = []
        for part in t.split(CHUNK):
            rows = self.coordinates.rows(part).to(self.template.dtype)
            parts.append(-row_energies(self.energy, rows.view(-1, *shape)))
        value = torch.cat(parts)
        unknown = value.isnan()
        if not self.coordinates.is_box:
            # y / (1 - y^2) = FAR
            unknown = unknown & (t.abs().amax(1) < 1 - 0.5 / FAR)
        if unknown.any() or (value == math.inf).any():
            raise FloatingPointError(
                f"The energy is not finite (nan, or minus infinity) at some of {len(t)} rows: "
                "check the model's parameters for infinities and nan, or compute in float64."
            )
        # Infinite distances are of no mass: the Jacobian would be infinite as well.
        value = value.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        log_density = value + self.coordinates.log_jacobian(t)
        return torch.where(value == -math.inf, value, log_density)


class Cells:
    """A binary tree of boxes, whose leaves fill the cube, with their integrals and errors.

    Integrals are relative to exp(`shift`), the largest density at a node so far.

    Attributes
    ----------
    centre, half : Tensor of shape (n, d)
    child : Tensor of shape (n,)
        Number of the lower half of a cell; the upper half has the next number. -1 for leaves.
    axis : Tensor of shape (n,)
        Column along which a cell is halved.
    value, error, peak : Tensor of shape (n,)
        Integral, its error, and the largest density at a node for leaves; 0 for other cells.
    points, heights, cell : Tensor of shape (m, d), (m,), (m,)
        Witnesses: points at which the log density is known, and the leaf that each is in.
    """

    def __init__(self, density: Density, witnesses: Tensor):
        d = witnesses.shape[1]
        self.density, like = density, witnesses
        rule = CubatureRule(
            *(torch.as_tensor(part, device=like.device) for part in cubature_rule(d))
        )
        self.rule = rule
        n = N_START[d]
        middle = (2 * torch.arange(n).to(like) + 1) / n - 1
        self.centre = self.half = like.new_empty(0, d)
        self.value = self.error = self.peak = like.new_empty(0)
        self.child = self.axis = torch.empty(0, dtype=torch.long, device=like.device)
        self.points, self.heights, self.cell = like.new_empty(0, d), like.new_empty(0), self.child
        self.shift, self.n_start = -math.inf, n
        centre = torch.cartesian_prod(*[middle] * d).view(-1, d)
        self._witness(witnesses, density.log(witnesses))
        self._append(centre, torch.full_like(centre, 1 / n))
        self._descend()

    def _witness(self, points: Tensor, heights: Tensor) -> None:
        """Remember log densities at points, to be compared with the nodes of their cells."""
        seen = (points.abs() < 1).all(1) & (heights > self.shift - NEGLIGIBLE)
        column = ((points[seen] + 1) / 2 * self.n_start).long().clamp(0, self.n_start - 1)
        power = self.n_start ** torch.arange(column.shape[1]).flip(0).to(column)
        self.points = torch.cat([self.points, points[seen]])
        self.heights = torch.cat([self.heights, heights[seen]])
        self.cell = torch.cat([self.cell, (column * power).sum(1)])

    def _descend(self) -> None:
        """Move the witnesses from cells that were halved to the leaves."""
        inside = torch.arange(len(self.cell), device=self.cell.device)
        while True:
            inside = inside[self.child[self.cell[inside]] >= 0]
            if not len(inside):
                return
            cell = self.cell[inside]
            axis = self.axis[cell, None]
            upper = self.points[inside].gather(1, axis) > self.centre[cell].gather(1, axis)
            self.cell[inside] = self.child[cell] + upper[:, 0]

    # ---------------------------------------------------------------- sums

    @property
    def total(self) -> float:
        return float(self.value.sum())

    @property
    def errors(self) -> Tensor:
        """Errors (n,) of the cells, increased for those that hide a mode between their nodes."""
        excess = (self.heights - self.shift).exp() - RESOLVED * self.peak[self.cell]
        hidden = (2 * self.half[self.cell]).prod(1) * excess.clamp_min(0)
        return self.error.scatter_reduce(0, self.cell, hidden, "amax")

    def final(self) -> Tensor:
        """Which cells (n,) are too narrow to be halved."""
        return self.half.gather(1, self.axis[:, None])[:, 0] < NARROWEST

    def outer(self) -> Tensor:
        """Which cells (n,) extend to infinity."""
        coordinates = self.density.coordinates
        high = (self.centre + self.half >= 1 - 1e-15).any(1)
        if coordinates.is_box:
            return torch.zeros_like(high)
        return high | (self.centre - self.half <= 1e-15 - 1).any(1) & coordinates.is_unbounded

    # ---------------------------------------------------------------- refinement

    def halve(self, marked: Tensor) -> None:
        """Halve the leaves with the indices `marked`, (m,)."""
        axis, centre, half = self.axis[marked, None], self.centre[marked], self.half[marked]
        step = torch.zeros_like(half).scatter_(1, axis, half.gather(1, axis) / 2)
        self.child[marked] = len(self.centre) + 2 * torch.arange(len(marked)).to(marked)
        for leaf in (self.value, self.error, self.peak):
            leaf[marked] = 0
        centres = torch.stack([centre - step, centre + step], 1).flatten(0, 1)
        self._append(centres, (half - step).repeat_interleave(2, 0))
        self._descend()

    def _append(self, centre: Tensor, half: Tensor) -> None:
        """Add leaves, and their integrals."""
        n, d = centre.shape
        t = centre[:, None] + half[:, None] * self.rule.nodes
        log_f = self.density.log(t.view(-1, d)).view(n, -1)
        self._rescale(float(log_f.max()))
        f = (log_f - self.shift).exp() if self.shift > -math.inf else torch.zeros_like(log_f)
        volume = (2 * half).prod(1)
        value = volume * (f @ self.rule.weights)
        # Factor of the difference between two rules, which at singular corners is about the error
        # itself.
        safety = 2.0
        error = safety * (value - volume * (f @ self.rule.embedded)).abs()
        axis = self._axis_to_halve(f, half)
        new = (centre, half, torch.full_like(axis, -1), axis, value, error, f.amax(1))
        for name, part in zip(LEAF, new, strict=True):
            setattr(self, name, torch.cat([getattr(self, name), part]))
        # The density at the nodes next to a face is also that of the cell across, which may be
        # much larger and have no node near it.
        faces = self.rule.faces
        across = self.rule.nodes[faces].sign() * (1 + 1e-6)
        points = centre[:, None] + half[:, None] * across
        self._witness(points.view(-1, d), log_f[:, faces].flatten())

    def _rescale(self, largest: float) -> None:
        if largest > self.shift:
            factor = math.exp(self.shift - largest)
            self.value, self.error = self.value * factor, self.error * factor
            self.peak, self.shift = self.peak * factor, largest

    @staticmethod
    def _axis_to_halve(f: Tensor, half: Tensor) -> Tensor:
        """The column of the largest fourth difference, (n,); among those that are close the widest.

        Genz and Malik (1980), section 3.
        """
        n, d = half.shape
        if d == 1:
            return torch.zeros(n, dtype=torch.long, device=half.device)
        near, far = (
            f[:, 1 + 2 * d * k : 1 + 2 * d * (k + 1)].view(n, d, 2).sum(2) - 2 * f[:, :1]
            for k in (0, 1)
        )
        difference = (near - far / 7).abs()
        close = difference >= 0.5 * difference.amax(1, keepdim=True)
        return (half * close).argmax(1)


class Integral(NamedTuple):
    """log Z, an estimate of its relative error, the number of energies that were computed.

    `converged` says whether the error without rounding is small enough, `reason` why there is no
    credible error.
    """

    log_z: float
    error: float
    n_evaluations: int
    converged: bool
    reason: str


def integrate(
    energy: Energy, base: Distribution | None, x: Tensor | None, tol: float, max_evaluations: float
) -> Integral:
    """Integrate exp(-E) to a relative error of `tol`, or up to a number of evaluations.

    `base` and rows `x` (n, ...), either of which may be None, say where the model is.
    """
    template = template_for(energy, x)
    with sampling(energy), torch.no_grad():
        witnesses, coordinates = _points_near_modes(energy, base, x, template)
        density = Density(energy, coordinates, template)
        cells = Cells(density, witnesses)
        while True:
            errors, total = cells.errors, cells.total
            error = float(errors.sum()) / total if total > 0 else math.inf
            final = cells.final()
            if total > 0 and float(cells.value[final].sum()) > tol * total:
                error = math.inf  # a density that increases too fast to be integrated
                break
            marked = _largest(errors.masked_fill(final, 0))
            cost = 2 * len(marked) * len(cells.rule.nodes)
            if error <= tol or not len(marked):
                break
            if density.n_evaluations + cost > max_evaluations:
                break
            cells.halve(marked)
    n = density.n_evaluations
    if total <= 0 or error > MAX_ERROR:
        log_z = cells.shift + math.log(total) if total > 0 else -math.inf
        return Integral(log_z, error, n, False, _why_failed(cells, errors, error))
    # Energies are rounded in their own precision.
    rounding = torch.finfo(template.dtype).eps * (1 + abs(cells.shift))
    return Integral(cells.shift + math.log(total), error + rounding, n, error <= tol, "")


def _why_failed(cells: Cells, errors: Tensor, error: float) -> str:
    n = f"{cells.density.n_evaluations:,} evaluations"
    if cells.total <= 0 and not errors.any():
        return f"no mass was found in {n}: pass rows of the model as x"
    if errors[cells.outer()].sum() > 0.5 * errors.sum():
        return (
            "the mass does not decay far out, so log Z may not exist: most of the error, relative "
            f"{error:.2g} after {n}, is in cells that extend to infinity"
        )
    return f"a relative error of {error:.2g} after {n}: raise max_evaluations, or use AISBracket"


def _largest(errors: Tensor) -> Tensor:
    """Indices of the cells that make up most of the error, (m,)."""
    value, order = errors.sort(descending=True)
    cumulative = value.cumsum(0)
    n = int((cumulative < MARKED * cumulative[-1]).sum()) + 1
    return order[:n][value[:n] > 0]


def _points_near_modes(
    energy: Energy, base: Distribution | None, x: Tensor | None, template: Tensor
) -> tuple[Tensor, Coordinates]:
    """Points of the cube (n, d) that are likely to be near modes, and its coordinates."""
    domain: Any = energy.domain
    generator = generator_for(None, template.device)  # the same draws for every seed
    # Points at which the density is computed besides the nodes, to find modes between them: rows,
    # as many draws of the base, and of points of the cube.
    n_witnesses = 1000
    near = [] if x is None else [x[torch.linspace(0, len(x) - 1, n_witnesses).long().unique()]]
    if base is None and x is None:
        base = default_base(energy)
    if base is not None:
        draws = base.to(template.device, template.dtype).sample(n_witnesses, generator)
        near.append(draws[domain.contains(draws)])
    points = [one.flatten(1).double() for one in near]
    if not any(map(len, points)):
        raise ValueError("No draw of the base is in the domain of the energy: pass rows x.")
    everything = torch.cat(points)
    spread = points[0] if len(points[0]) > domain.n_columns else everything
    coordinates = Coordinates.of(domain, spread)
    anywhere = torch.rand(
        (n_witnesses, domain.n_columns),
        generator=generator,
        dtype=torch.float64,
        device=template.device,
    )
    witnesses = coordinates.points(everything)
    # Rows on a bound of the cube may have infinite density.
    witnesses = witnesses[(witnesses.abs() < 1).all(1)]
    return torch.cat([witnesses, 2 * anywhere - 1]), coordinates


class Quadrature(MonteCarloEstimator):
    r"""Adaptive cubature: log Z of real rows of one to three columns, with its error.

    The columns are mapped to the cube :math:`[-1, 1]^d`: the whole line by
    :math:`x = m + L t / (1 - t^2)` with the mean and the covariance factor of the rows `x` (or of
    draws of the base), so that no tail is cut off. The cube is divided into cells. In each cell a
    rule of degree seven (for one column, Kronrod's rule with 15 nodes) gives the integral. Twice
    its difference from a rule of lower degree gives the error, which is far larger than the actual
    error if the density is smooth within the cell. The cells that make up 90 % of the error are
    halved, each along the column in which its density is least like a polynomial, until the sum of
    all errors is at most `tol` of the integral.

    Narrow modes are not missed if rows are in them. Densities are also computed at rows, draws of
    the base and a thousand random points of the cube, and a cell counts as erroneous if the density
    at such a point in it is more than twice the density at every node. The cell is then halved
    until its nodes resolve the mode. The same holds for a cell with less than half of the density
    that a neighbour has next to their common face.

    Direction: the value can lie on either side of log Z. ``lower`` and ``upper`` are the value with
    the estimated error subtracted and added, and ``std_error`` is this error (of log Z, in nats; it
    is not a sampling error). ``bound_kind`` is "heuristic", as a mode that is much narrower than a
    cell and far from rows and base is not seen. A warning is issued if the remaining relative error
    is above `tol`; if it is above 0.1, ``std_error`` and bounds are ``nan``, and ``reason`` says
    whether mass escapes to infinity. The result is deterministic. Energies are computed in their
    own precision, sums in float64.

    Parameters
    ----------
    tol : float, default=1e-4
        Largest relative error of Z, hence the largest error of log Z in nats, in (0, 0.1].
    max_evaluations : int, default=2000000
        Largest number of rows at which energies are computed. Those at the start count, and are
        computed in any case.

    References
    ----------
    Genz and Malik (1980), "An adaptive algorithm for numerical integration over an n-dimensional
    rectangular region", Journal of Computational and Applied Mathematics 6(4), sections 2 and 3.
    Berntsen, Espelid and Genz (1991), "An adaptive algorithm for the approximate calculation of
    multiple integrals", ACM TOMS 17(4) (halving many cells at a time).

    Examples
    --------
    Two columns of standard deviation 2: log Z = log(8 pi)

    >>> import math
    >>> import torch
    >>> from skebm.base import Energy, Real
    >>> from skebm.partition import Quadrature
    >>> class Wide(Energy):
    ...     domain = Real((2,))
    ...
    ...     def forward(self, x, cond=None):
    ...         return x.square().sum(1) / 8
    >>> estimate = Quadrature().estimate(Wide())
    >>> abs(estimate.value - math.log(8 * math.pi)) < estimate.std_error < 1e-4
    True
    """

    uses = ("base", "x")

    def __init__(self, tol: float = 1e-4, max_evaluations: int = 2_000_000):
        self.tol = tol
        self.max_evaluations = max_evaluations

    def check(self, energy: Energy, x: Tensor | Mapping[str, Tensor] | None = None) -> None:
        """Raise `TypeError` for rows that are not real, `ValueError` for more than 3 columns.

        `ValueError` is also raised for an energy that has no log Z.
        """
        domain = getattr(energy, "domain", None)
        if isinstance(energy, Energy) and not isinstance(domain, Real):
            raise TypeError(f"Quadrature integrates over real rows, not over {domain}.")
        if isinstance(domain, Real) and domain.n_columns > MAX_COLUMNS:
            raise ValueError(
                f"Quadrature takes rows of at most {MAX_COLUMNS} columns, not "
                f"{domain.n_columns}: use AISBracket, or AIS without rows."
            )
        super().check(energy, x)

    def estimate(
        self,
        energy: Energy,
        *,
        base: Any = None,
        sampler: Sampler | None = None,
        x: Tensor | Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> LogPartition:
        """Integrate exp(-E) over its domain; `x` and `base` say where the model is.

        Neither has to cover the model. If both are missing, the energy's base is used, or else a
        standard normal distribution.
        """
        whole_number("max_evaluations", self.max_evaluations, 1)
        number_in("tol", self.tol, f"(0, {MAX_ERROR}]")
        self.check(energy, x)
        rows = rows_of(energy, x)
        base = getattr(energy, "base", None) if base is None else base
        if base is not None:
            check_base(energy, base, rows)
        check_memory(f"max_evaluations={self.max_evaluations}", self.max_evaluations, torch.float64)
        integral = integrate(energy, base, rows, self.tol, self.max_evaluations)
        return self.summary(integral, stacklevel=3)

    def summary(self, integral: Integral, stacklevel: int = 2) -> LogPartition:
        """The estimate of log Z given an integral; warns if its error is larger than `tol`."""
        if not integral.converged:
            warn(
                f"The integral has a relative error of {integral.error:.2g} after "
                f"{integral.n_evaluations:,} evaluations, above tol={self.tol:.2g}.",
                LikelihoodWarning,
                ("Raise max_evaluations, or use AISBracket.", "max_evaluations"),
                ("Pass partition=AISBracket().", "partition"),
            )
        value, nan = integral.log_z, math.nan
        if integral.reason:
            return LogPartition(value, nan, nan, nan, "heuristic", nan, reason=integral.reason)
        lower, upper = value + math.log1p(-integral.error), value + math.log1p(integral.error)
        return LogPartition(value, value - lower, lower, upper, "heuristic", nan)
