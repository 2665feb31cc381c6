"""Neural densities by noise contrastive estimation, which also learns log Z."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from skebm._validation import Interval, StrOptions, check_is_fitted, draw_seed, warn
from skebm.base import Real as RealDomain
from skebm.base import Sampler
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
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import DENSITY_CONSTRAINTS, BaseDensity
from skebm.estimators.neural import methods
from skebm.estimators.neural.blueprint import (
    CONFIGS,
    DOMAIN,
    NEURAL_CONSTRAINTS,
    SIGMA,
    ChainRule,
    NeuralBlueprint,
    accepted_input,
    asks_for_bits,
    confined,
    fit_any_bases,
    learn_any_table,
    network_of,
    neural_plan,
    reach_of,
    sampler_of,
    weight_decay_of,
)
from skebm.estimators.tables.bases import DISCRETE_BASES, MAX_DENSE, REAL_BASES, MixtureBase
from skebm.estimators.tables.table import FlatTable, Table
from skebm.objectives import NoiseContrastive
from skebm.objectives.noise_contrastive import NO_RANKING
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

    @property
    def n_bridges(self) -> int:
        """Number of networks between noise and data."""
        return 1 if self.path is None else self.path.waymarks.n_bridges

    def network(self, config: Any, spec: Spec) -> nn.Module:
        if self.path is None:
            return confined(build_network(config, spec), self.reach)
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
        more = f" or n_bridges of at least {2 * n + 2}," if real else ""
        warn(
            f"The network classifies {accuracy:.1%} of {pairs} correctly: they are too far apart "
            "for the classifier to learn their density ratio, so its densities are unreliable. "
            f"Choose noise nearer to the data,{more} or a larger sigma.",
            ConvergenceWarning,
        )


@shared_docs
class NCEDensity(BaseDensity):
    r"""Neural density by noise contrastive estimation: a classifier of data versus known noise.

    .. math:: p(x) = \frac1Z q(x)\, e^{-f(x)} , \qquad
        \log \frac{P(data \mid x)}{P(noise \mid x)} = -f(x) - \log Z - \log \nu

    A noise distribution q is fitted to the rows, and a network f learns to discriminate them from
    draws of q, :math:`\nu` per row [1]_, without Markov chains. log Z is learned as a parameter.
    After `fit` log Z is estimated again, by importance sampling from q, because the error of the
    learned value grows with that of the model, and makes bad fits look good.

    The nearer q is to the data, the better. If it is so far away, more than about 20 nats, that all
    rows are classified correctly, a single classifier cannot learn the density ratio, and a warning
    is given. Rows and draws can then be interpolated, which gives waymarks between data and noise;
    each of `n_bridges` networks discriminates one waymark from the next [3]_.

    If there are 50 rows or more, a tenth, at most 100, are held out from the network to monitor
    training.

    Parameters
    ----------
    <<network>>
    noise : str, MixtureBase or Distribution, default="auto"
        Noise distribution q, which is also the base of the energy. Real columns: ``"gaussian"``
        (with shrunk covariance, or truncated at `bounds`), ``"mixture"`` (a Gaussian mixture;
        settings in :class:`MixtureBase`), ``"kernel"`` (Gaussian kernels of several scales),
        ``"stack"`` (mixtures of several sizes and kernels, weighted by held-out rows:
        :class:`skebm.distributions.Stack`), or the normalizing flows ``"nsf"``, ``"coupling"`` and
        ``"maf"``, fitted to noisy rows (:class:`skebm.distributions.NormalizingFlow`). Among the
        flows, the first is the most accurate, the second is sampled fastest and the third is fitted
        fastest; they need ``pip install "skebm[flows]"``, and have no exact conditionals from which
        `impute` could start. Binary columns: ``"independent"``, ``"chow-liu"`` or
        ``"block-tree"``. One-hot columns: ``"independent"``. ``"auto"`` is the stack for clean rows
        and, with mixtures of low rank, for more than 100 real columns, the mixture for other real
        rows (the Gaussian if there are bounds), the Chow-Liu tree for binary rows and independent
        columns for one-hot ones. A distribution of :mod:`skebm.distributions` is used as it is, in
        the units of X.
    noise_ratio : float > 0, default=1
        :math:`\nu`, the number of draws of the noise per row.
    n_bridges : int >= 1 or "auto", default="auto"
        Number of networks between noise and data, each a copy of `network`, for real rows; 1 is
        plain noise contrastive estimation. ``"auto"``: 1 if the noise is fitted to the rows,
        otherwise as many as are needed for neighbouring waymarks to be at most 4 nats apart (in
        the symmetric KL divergence of Gaussians with their moments).
    form : {"logistic", "ranking"}, default="logistic"
        ``"ranking"`` selects the row among all draws of a batch [2]_: log Z cancels and is not
        learned.
    sampler : Sampler or None, default=None
        Sampler for samples and imputations. None is adaptive :class:`skebm.samplers.MALA`, and
        :class:`~skebm.samplers.GibbsWithGradients` on discrete rows.
    <<domain, sigma, deconvolve, bounds, standardize, learning_rate, batch_size, n_iter>>
    optimizer : AdamW or None, default=None
        Settings of the optimizer; None is :class:`skebm.training.AdamW` with its defaults. Weight
        decay applies to the network, but not to the learned log Z that normalises it: prefer
        `log_partition_`.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the objective on held-out rows no longer improves, and keep the best weights;
        settings in :class:`skebm.training.EarlyStopping`. Recommended for ``noise="kernel"``, as
        the network easily overfits to kernels centred on the training rows. The held-out rows are
        not used to fit the noise either.
    <<warm_start, contamination, partition, compute>>

    Attributes
    ----------
    n_bridges_ : int
        Number of networks between noise and data.
    log_partition_learned_ : float
        log Z as learned by the classifier, in nats; nan with ``form="ranking"``.
    <<log_partition, offset_, sigma_, base_, units_, row_shape_>>
    history_ : list of dict
        One entry per epoch: ``train_loss``; ``accuracy``, the mean fraction of rows and of draws
        that are classified correctly (by the best of several bridges); ``gain_over_base``, the
        estimated mean log-likelihood ratio to the noise in nats (not with several bridges);
        learning rate, seconds.
    <<n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    ContrastiveDivergenceDensity : Maximum likelihood of the same model, with chains.
    ScoreMatchingDensity : Score matching, without a noise distribution.

    References
    ----------
    .. [1] Gutmann and Hyvarinen (2012), "Noise-contrastive estimation of unnormalized statistical
       models, with applications to natural image statistics", JMLR 13.
    .. [2] Ma and Collins (2018), "Noise contrastive estimation and negative sampling for
       conditional models: consistency and statistical efficiency", EMNLP (ranking).
    .. [3] Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skebm import NCEDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = NCEDensity(random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> bool(abs(model.log_partition_learned_ - model.log_partition_) < 0.2)
    True
    """

    _reads_files = True
    _parameter_constraints: dict = (
        DENSITY_CONSTRAINTS
        | NEURAL_CONSTRAINTS
        | {
            "noise": [
                StrOptions({"auto", *REAL_BASES, *FLOWS, *DISCRETE_BASES}),
                MixtureBase,
                Distribution,
            ],
            "noise_ratio": [Interval(Real, 0, None, closed="neither")],
            "n_bridges": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
            "form": [StrOptions({"logistic", "ranking"})],
            "domain": DOMAIN,
            "sigma": SIGMA,
            "deconvolve": ["boolean"],
        }
    )
    _configs = CONFIGS | {"noise": CONFIGS["base"]}
    _blueprint: NeuralBlueprint

    def __init__(
        self,
        network=None,
        *,
        noise="auto",
        noise_ratio=1.0,
        n_bridges="auto",
        form="logistic",
        sampler=None,
        domain="auto",
        sigma="auto",
        deconvolve=True,
        bounds=None,
        standardize=True,
        learning_rate=2e-3,
        batch_size="auto",
        n_iter="auto",
        optimizer=None,
        early_stopping=False,
        warm_start=False,
        contamination="auto",
        partition="auto",
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.noise = noise
        self.noise_ratio = noise_ratio
        self.n_bridges = n_bridges
        self.form = form
        self.sampler = sampler
        self.domain = domain
        self.sigma = sigma
        self.deconvolve = deconvolve
        self.bounds = bounds
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _accepted_input(self, *, reset: bool) -> dict[str, Any]:
        return accepted_input(self, reset=reset)

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> FlatTable:
        return learn_any_table(self, X, weight)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralBlueprint:
        assert isinstance(table, FlatTable)
        if before is None:
            kind: dict[str, Any] = {"deconvolve": self.deconvolve, "stacks": "all"}
            bases, noise = fit_any_bases(self, self.noise, rows, table, **kind)
            reach = reach_of(bases.noisy, rows)
            path = self._path(rows, table, bases.noisy, noise)
        else:
            known: Any = self._blueprint
            bases, noise, reach, path = known.bases, known.noise, known.rule.reach, known.rule.path
        settings: dict[str, Any] = {}
        if weight_decay_of(self):  # no decay of log Z
            settings["param_groups"] = [("shift", {"weight_decay": 0.0})]
        kind = {"noise_ratio": float(self.noise_ratio), "form": self.form}
        return NeuralBlueprint(
            table=table,
            plan=neural_plan(self, rows.n_table, streaming=streaming, optimizer_settings=settings),
            rule=NoiseRule(
                sampler_of(self, table.domain),
                path=path,
                reach=reach,
                discrete=table.discrete,
                **kind,
            ),
            network_config=network_of(self),
            bases=bases,
            noise=noise,
        )

    def _path(
        self, rows: Rows, table: FlatTable, noise: Any, sigma: np.ndarray | None
    ) -> Path | None:
        """Waymarks from the rows to the noise; None for a single classifier."""
        seed = draw_seed(self.random_state_)
        possible = not table.discrete and self.form == "logistic"
        given = isinstance(self.noise, Distribution)
        if self.n_bridges == 1 or (self.n_bridges == "auto" and not (possible and given)):
            return None
        if self.form != "logistic":
            raise ValueError(NO_RANKING)
        if not possible:
            raise ValueError(
                f"n_bridges={self.n_bridges} needs real rows, but X has {table.domain} rows."
            )
        level = None if sigma is None else torch.as_tensor(sigma)
        return find_path(rows, table, noise, level, self.n_bridges, seed)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = asks_for_bits(self.domain)
        return tags

    # ---------------------------------------------------------------- methods

    sample, impute, denoise = methods.sample, methods.impute, methods.denoise
    score_function = methods.score_function
    _score_and_laplacian = methods._score_and_laplacian
    sampler_, sigma_, base_ = methods.sampler_, methods.sigma_, methods.base_
    units_, row_shape_ = methods.units_, methods.row_shape_

    @property
    def n_bridges_(self) -> int:
        """Number of networks between noise and data."""
        check_is_fitted(self)
        rule: Any = self._blueprint.rule
        return rule.n_bridges

    @property
    def log_partition_learned_(self) -> float:
        """log Z as learned by the classifier, in nats; nan with ``form="ranking"``."""
        check_is_fitted(self)
        rule: Any = self._blueprint.rule
        if rule.form == "ranking":
            return math.nan
        module: Any = self.net_.module_
        return float(module.log_partition.detach())

    def noise_posterior(self, X: Any) -> np.ndarray:
        r"""Probability, by the classifier, that each row is from the data and not from the noise.

        .. math:: D(x) = \frac{p(x)}{p(x) + \nu q(x)}

        where p is the model with the log Z that the classifier learned (`log_partition_learned_`;
        `log_partition_` with ``form="ranking"``, which learns none), q is the noise and :math:`\nu`
        is `noise_ratio`. With several bridges it is the probability by a single classifier of data
        and noise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
            In [0, 1].

        References
        ----------
        Gutmann and Hyvärinen (2012), "Noise-contrastive estimation of unnormalized statistical
        models, with applications to natural image statistics", JMLR 13, equation 6.
        """
        rows, rule = self._rows(X), cast(Any, self._blueprint.rule)
        log_z = self.log_partition_ if rule.form == "ranking" else self.log_partition_learned_
        correction = self._map(rows, lambda energy, x: energy.correction(x)).double().numpy()
        found: np.ndarray = expit(-correction - log_z - math.log(rule.noise_ratio))
        return found


def find_path(
    rows: Rows,
    table: FlatTable,
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
