"""Noise contrastive estimation, of neural densities whose base is the noise."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skebm._validation import HasMethods, Interval, StrOptions, draw_seed, warn
from skebm.base import Real as RealDomain
from skebm.base import Sampler, TrainingWarning
from skebm.distributions import Distribution, Gaussian, GaussianMixture, TruncatedGaussian
from skebm.distributions.transformed.flow import FLOWS
from skebm.energies import (
    NeuralEnergy,
    Spec,
    Telescope,
    Waymarks,
    build_network,
    fit_waymarks,
)
from skebm.estimators.neural.family import (
    DOMAIN,
    SIGMA,
    ChainRule,
    confine,
    fit_any_bases,
    reach_of,
    sampler_of,
    weight_decay_of,
)
from skebm.estimators.neural.objectives.base import (
    NO_CATEGORIES,
    NeuralObjective,
    TrainingStart,
)
from skebm.estimators.tables.bases import (
    DISCRETE_BASES,
    MAX_DENSE,
    REAL_BASES,
    Bases,
    MixtureBase,
)
from skebm.estimators.tables.densities import METHODS
from skebm.estimators.tables.table import Table
from skebm.objectives import NoiseContrastive
from skebm.objectives.noise_contrastive.classifier import NO_RANKING
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Accuracy above which a classifier has little left to learn; with fewer rows it may be reached by
# chance.
SATURATED, FEWEST_ROWS = 0.97, 20
# Draws from which the moments of the noise are estimated, and the least shrinkage of correlations,
# as columns may be duplicates.
N_DRAWS, LEAST_SHRINKAGE = 10_000, 1e-6
# Candidate numbers of components of a mixture near the model, and rows to choose among them.
COMPONENTS, N_ROWS = (1, 3, 10, 30), 5000


class Path(NamedTuple):
    """Waymarks between data and noise that is too far away for a single density ratio.

    Attributes
    ----------
    waymarks : Waymarks
    proposal : Distribution
        A distribution near the rows, from which log Z is estimated instead of from the noise.
    """

    waymarks: Waymarks
    proposal: Distribution


@dataclass(frozen=True)
class NoiseRule(ChainRule):
    """Noise contrastive estimation with one classifier or several.

    Attributes
    ----------
    sampler : Sampler
    noise_ratio : float
    form : {"logistic", "ranking"}
    path : Path or None
        Waymarks between noise and data; None if a single classifier is trained.
    reach : float or None
        Norm to which the network's input is clipped, if the noise is a flow.
    discrete : bool
        Whether rows are binary or one-hot.
    """

    sampler: Sampler
    noise_ratio: float
    form: str
    path: Path | None
    reach: float | None
    discrete: bool
    has_ceiling = True

    @property
    def n_bridges(self) -> int:
        """Number of networks between noise and data."""
        return 1 if self.path is None else self.path.waymarks.n_bridges

    def network(self, config: Any, spec: Spec) -> nn.Module:
        if self.path is None:
            return confine(build_network(config, spec), self.reach)
        plain = spec._replace(whitening=None)  # each waymark has its own
        networks = [build_network(config, plain) for _ in range(self.n_bridges)]
        return Telescope(networks, self.path.waymarks)

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> NoiseContrastive:
        noise: Any = energy.base
        kind: dict[str, Any] = {"noise_ratio": self.noise_ratio, "form": self.form}
        return NoiseContrastive(energy, noise, sigma=sigma, **kind)

    def proposal(self, energy: NeuralEnergy, net: EnergyNet) -> Distribution | None:
        """The noise, or a mixture near the rows if the noise is far away."""
        if self.path is None:
            return energy.base
        like = next(energy.parameters())
        return self.path.proposal.to(like.device, like.dtype)

    def check_trained(self, net: EnergyNet, rows: Rows) -> None:
        """Warn if noise and data are too far apart for the classifier to learn."""
        history = net.history.to_list()
        accuracy = history[-1].get("accuracy", 0.0) if history else 0.0
        if accuracy < SATURATED or len(rows) < FEWEST_ROWS:
            return
        n, real = self.n_bridges, not self.discrete and self.form == "logistic"
        pairs = "rows and draws of the noise" if n == 1 else "neighbouring waymarks"
        more = [(f"Set n_bridges to {2 * n + 2} or more.", "n_bridges")] if real else []
        warn(
            f"The network classifies {accuracy:.1%} of {pairs} correctly: they are too far apart "
            "for their density ratio to be learned, so that densities are unreliable.",
            TrainingWarning,
            *more,
            ("Choose a base nearer to the data, or a larger sigma.", "base", "sigma"),
        )


class NoiseContrastiveEstimation(NeuralObjective):
    """Noise contrastive estimation: a classifier of the rows against draws of the base.

    See :class:`skebm.NCEDensity` for the method and its references. Rows may be real, binary or
    one-hot; the noise is the `base` of the density, which may be a normalizing flow as well.

    Parameters
    ----------
    noise_ratio : float > 0, default=1
        Number of draws of the noise per row.
    n_bridges : int >= 1 or "auto", default="auto"
        Number of networks between noise and data; ``"auto"`` is 1 if the noise is fitted to the
        rows.
    form : {"logistic", "ranking"}, default="logistic"
        Whether each row is classified by itself, or selected among all draws of a batch.

    Examples
    --------
    >>> from skebm import NeuralDensity
    >>> model = NeuralDensity(objective="nce", base="mixture")
    >>> model.set_params(objective__noise_ratio=4).objective
    NoiseContrastiveEstimation(noise_ratio=4)
    """

    _parameter_constraints: dict = {
        "noise_ratio": [Interval(Real, 0, None, closed="neither")],
        "n_bridges": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "form": [StrOptions({"logistic", "ranking"})],
    }
    of_real_rows = False
    kept = ("n_bridges",)
    takes = NO_CATEGORIES | {
        "base": [
            StrOptions({"auto", *REAL_BASES, *FLOWS, *DISCRETE_BASES}),
            MixtureBase,
            Distribution,
            HasMethods(METHODS),
        ],
        "domain": DOMAIN,
        "sigma": SIGMA,
    }

    def __init__(self, *, noise_ratio=1.0, n_bridges="auto", form="logistic"):
        self.noise_ratio = noise_ratio
        self.n_bridges = n_bridges
        self.form = form

    def optimizer_settings(self, model: Any) -> dict[str, Any]:
        if not weight_decay_of(model):
            return {}
        return {"param_groups": [("shift", {"weight_decay": 0.0})]}  # no decay of log Z

    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        kind: dict[str, Any] = {"deconvolve": model.deconvolve, "stacks": "all"}
        return fit_any_bases(model, base, rows, table, **kind)

    def rule(self, model: Any, start: TrainingStart) -> NoiseRule:
        table = start.table
        if start.rule is None:
            reach = reach_of(start.bases.noisy, start.rows)
            path = self._path(start, table, draw_seed(model.random_state_))
        else:
            reach, path = start.rule.reach, start.rule.path
        return NoiseRule(
            sampler_of(model, table.domain),
            float(self.noise_ratio),
            self.form,
            path,
            reach,
            table.discrete,
        )

    def _path(self, start: TrainingStart, table: Table, seed: int) -> Path | None:
        """Waymarks from the rows to the noise; None for a single classifier."""
        possible = not table.discrete and self.form == "logistic"
        given = isinstance(start.base, Distribution)
        if self.n_bridges == 1 or (self.n_bridges == "auto" and not (possible and given)):
            return None
        if self.form != "logistic":
            raise ValueError(NO_RANKING)
        if not possible:
            raise ValueError(
                f"n_bridges={self.n_bridges} needs real rows, but X has {table.domain} rows."
            )
        noise: Any = start.bases.noisy
        level = None if start.noise is None else torch.as_tensor(start.noise)
        return find_path(start.rows, table, noise, level, self.n_bridges, seed)


def find_path(
    rows: Rows,
    table: Table,
    noise: Distribution,
    sigma: Tensor | None,
    n_bridges: Any,
    seed: int,
) -> Path | None:
    """Waymarks from rows to noise; None if a single classifier is enough.

    If the noise is not Gaussian, it is described by the moments of its draws.
    """
    domain: Any = table.domain
    diagonal = table.image_shape is not None or rows.n_columns > MAX_DENSE
    # Less shrinkage than for a Gaussian that is used as a model: the narrow axes determine the
    # waymarks, and the networks correct them.
    shrinkage = min(max((rows.n_columns / rows.total_weight) ** 2, LEAST_SHRINKAGE), 1.0)
    kind: dict[str, Any] = {"shrinkage": shrinkage, "diagonal": diagonal}
    data = Gaussian.fit(rows.block(0, len(rows)), rows.counts, **kind)
    if sigma is not None:
        sigma = sigma.to(rows.device, rows.dtype)
        data = data.convolved(sigma)
    if not isinstance(noise, Gaussian):
        generator = torch.Generator(rows.device).manual_seed(seed)
        noise = Gaussian.fit(noise.sample(N_DRAWS, generator), **kind)
    unbounded = domain == RealDomain(domain.shape)
    waymarks = fit_waymarks(data, noise, n_bridges, convex=not unbounded)
    if waymarks.n_bridges == 1:
        return None
    if not unbounded:
        x = rows.block(0, len(rows))
        return Path(waymarks, TruncatedGaussian.fit(x, rows.counts, domain.lower, domain.upper))
    if diagonal:
        return Path(waymarks, data)
    mixture = _mixture_by_bic(rows, waymarks, seed)
    return Path(waymarks, mixture if sigma is None else mixture.convolved(sigma))


def _mixture_by_bic(rows: Rows, waymarks: Waymarks, seed: int) -> GaussianMixture:
    """A Gaussian mixture with the number of components chosen by BIC.

    It is fitted to whitened rows, so that its regularisation does not widen narrow axes.
    """
    generator = torch.Generator(rows.device).manual_seed(seed)
    x, counts = rows.block(0, len(rows)).double(), rows.counts.double()
    if len(x) > N_ROWS:
        some = torch.randperm(len(x), generator=generator, device=x.device)[:N_ROWS]
        x, counts = x[some], counts[some]
    centre, whitening = (
        torch.as_tensor(part[0]).to(x) for part in (waymarks.centres, waymarks.whitening_matrices)
    )
    y = (x - centre) @ whitening
    found = [GaussianMixture.fit(y, counts, k, generator=generator) for k in COMPONENTS]
    best = min(found, key=lambda mixture: mixture.bic(y, counts))
    back = torch.linalg.inv(whitening)
    means, covariances = centre + best.means @ back, back @ best.covariances @ back
    return GaussianMixture(best.weights, means, covariances).to(rows.device, rows.dtype)
