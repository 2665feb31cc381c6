"""Neural densities and normalizing flows that teach each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sklearn.base import clone

from skebm._validation import check_is_fitted, draw_seed
from skebm.base import Sampler
from skebm.distributions import Affine, Distribution, NormalizingFlow
from skebm.energies import NeuralEnergy
from skebm.estimators._contrastive_settings import default_sampler
from skebm.estimators._density_settings import Settings, resolve
from skebm.estimators._flow_settings import FLOW_CONTRASTIVE
from skebm.estimators._neural import Neural, withheld
from skebm.estimators._real_bases import fit_flow, noise_level
from skebm.estimators._real_methods import RealMethods
from skebm.estimators._real_rows import RealRows
from skebm.estimators.base import BaseDensity
from skebm.objectives import FlowContrastive
from skebm.training.rows import Rows


class FlowContrastiveDensity(Neural, RealRows, RealMethods, BaseDensity):
    r"""Neural density by flow contrastive estimation: an energy against a flow that learns, too.

    .. math:: \min_{E, \log Z} \max_\phi \;
        \mathbb E_{data} \log\bigl(1 + e^{-r(x)}\bigr)
        + \mathbb E_{q_\phi} \log\bigl(1 + e^{r(x)}\bigr) , \qquad
        r(x) = -E(x) - \log Z - \log q_\phi(x)

    A normalizing flow is fitted to the rows by maximum likelihood first; it is the base of the
    energy, :math:`E(x) = -\log q_0(x) + f(x)`, and what training is watched by. Then the network f
    learns to tell rows from draws of the flow, and the flow to make draws that are not told. Both
    can be used afterwards: the energy by the methods of this class, the flow as `flow_`. log Z is
    learned on the way, and estimated again by importance sampling from the flow.

    Of 200 rows or more a tenth, at most 100, is not shown to the network: by these training is
    watched. It needs zuko: ``pip install "skebm[flows]"``.

    Parameters
    ----------
    network : config object, callable, nn.Module or None, default=None
        f. None is :class:`skebm.energies.MLP`; ``network__hidden_sizes`` and the like can be
        searched over where one is passed. A callable makes a module from a
        :class:`skebm.energies.Spec`; a module is copied, weights and all. Rows (n, ...) in, one
        number a row (n,) out.
    flow : {"coupling", "nsf", "maf"} or nn.Module, default="coupling"
        See :meth:`skebm.distributions.NormalizingFlow.fit`. Draws are made at every step, for which
        autoregressive flows (``"nsf"``, ``"maf"``) need a pass for every column. A flow of zuko is
        copied, and trained from its weights.
    n_flow_steps : int >= 1, default=1000
        Steps of maximum likelihood that the flow takes first, at most.
    flow_learning_rate : float > 0, default=5e-4
        Of the flow against the energy.
    sampler : Sampler or None, default=None
        What moves samples; None is :class:`skebm.samplers.MALA`, tuned.
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the noise that rows get in training, in standard deviations of the
        columns (in units of X with ``standardize=False``), or one for each column: the model is one
        of rows with that noise, which keeps flow and energies from becoming spikes. ``"auto"`` is
        0.75 times the bandwidth of kernels on the rows that is most likely leaving one out,
        between 0.05 and 1; ``"bandwidth"`` that bandwidth itself; None is none.
    standardize : bool, default=True
        Train on columns of mean 0 and variance 1. Likelihoods are those of X in any case.
    learning_rate : float, default=2e-3
        Of Adam, for the energy and log Z.
    learning_rate_decay : {"cosine", "constant"}, default="cosine"
        Of both learning rates. ``"cosine"`` rises over a twentieth of the passes and falls to a
        hundredth.
    batch_size : int or "auto", default="auto"
        Rows per step at most; ``"auto"`` is 128.
    n_iter : int or "auto", default="auto"
        Passes over the data; ``"auto"`` makes about a thousand steps.
    weight_decay : float, default=0
        Of AdamW on the network, per step and relative to the learning rate.
    averaging : float in [0, 1), default=0
        Decay per pass of a moving average of the weights, which is what the model keeps.
    early_stopping : bool, default=False
        Stop when the likelihood of held-out rows stagnates (log Z by draws of the base), and keep
        the best weights.
    validation_fraction : float in (0, 1), default=0.1
        Share of the rows held out; the flow is not fitted to them either.
    n_iter_no_change : int, default=10
        Passes without a gain of `tol` that end training.
    tol : float, default=1e-4
        Smallest gain that counts.
    warm_start : bool, default=False
        Go on from the weights of the previous `fit`, on its base and in its units.
    contamination : float in (0, 0.5] or "auto", default="auto"
        Share of the training rows that `predict` calls outliers; ``"auto"`` is 0.1.
    partition : "auto", PartitionEstimator or None, default="auto"
        How log Z is found, on first need. ``"auto"``: importance sampling from the flow where a
        twentieth of its draws carries the mean, else :class:`skebm.partition.AISBracket`;
        `log_partition_method_` says why. None: not at all; `score_samples` is then -E(x), and
        `score` a proper rule that needs no log Z.
    max_restarts : int, default=10
        How often a diverged training is rolled back, with half the learning rates.
    random_state : int, RandomState instance or None, default=None
        Seed of everything that is drawn.
    verbose : int, default=0
        1 shows a progress bar.
    device : str, default="auto"
        ``"auto"`` is a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation.
    net_params : dict or None, default=None
        Further arguments of the skorch net, also as ``net__<name>``.

    Attributes
    ----------
    flow_ : Distribution
        The trained flow, a distribution of rows in the units of X: ``flow_.log_prob(tensor)``,
        ``flow_.sample(n, generator)``; also as ``noise=`` of :class:`NCEDensity`.
    base_ : NormalizingFlow
        The flow by maximum likelihood, of standardised rows.
    log_partition_learned_ : float
        log Z as the classifier has it, in nats.
    log_partition_, log_partition_std_ : float
        log Z in nats and its standard error.
    log_partition_bounds_ : tuple of float
        Ends of the interval for log Z.
    log_partition_kind_ : {"exact", "probabilistic", "heuristic"}
        What the interval is worth.
    log_partition_parts_ : dict of str to (float, float)
        Estimates that the interval was made of, with their standard errors.
    partition_ : PartitionEstimator or None
        How log Z is found.
    log_partition_method_ : str
        The same in words.
    offset_ : float
        Threshold of `predict` in the units of `score_samples`.
    sigma_ : ndarray of shape (n_features,) or None
        Noise that was added in training, in the units of `sigma`.
    units_ : Units
        Centres and scales of the columns.
    row_shape_ : tuple of int
        Shape of a row.
    history_ : list of dict
        One for each pass: ``train_loss``; ``accuracy``, the mean share of rows and of draws that
        are told right; ``gain_over_base`` and ``flow_gain``, nats a row that the energy (an
        estimate) and the flow are above the flow by maximum likelihood; learning rate of the
        energy, seconds.
    n_iter_, n_restarts_ : int
        Passes that ran, and roll-backs among them.
    sampler_, energy_, net_ : Sampler, NeuralEnergy, EnergyNet
        The kernel, the energy of standardised rows as a torch module, and the skorch net.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)

    See Also
    --------
    NCEDensity : The same against noise that stays as it is.

    References
    ----------
    Gao, Nijkamp, Kingma, Xu, Dai and Wu (2020), "Flow contrastive estimation of energy-based
    models", CVPR.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import make_moons
    >>> from skebm import FlowContrastiveDensity
    >>> X, _ = make_moons(500, noise=0.1, random_state=0)
    >>> model = FlowContrastiveDensity(flow="maf", n_iter=20, random_state=0).fit(X[:400])
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a normal distribution has -1.9
    True
    >>> model.flow_.sample(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """

    _parameter_constraints: dict = FLOW_CONTRASTIVE
    deconvolve, bounds = False, None

    def __init__(
        self,
        network=None,
        *,
        flow="coupling",
        n_flow_steps=1000,
        flow_learning_rate=5e-4,
        sampler=None,
        sigma="auto",
        standardize=True,
        learning_rate=2e-3,
        learning_rate_decay="cosine",
        batch_size="auto",
        n_iter="auto",
        weight_decay=0.0,
        averaging=0.0,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        contamination="auto",
        partition="auto",
        max_restarts=10,
        random_state=None,
        verbose=0,
        device="auto",
        dtype="float32",
        net_params=None,
    ):
        self.network = network
        self.flow = flow
        self.n_flow_steps = n_flow_steps
        self.flow_learning_rate = flow_learning_rate
        self.sampler = sampler
        self.sigma = sigma
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.weight_decay = weight_decay
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.contamination = contamination
        self.partition = partition
        self.max_restarts = max_restarts
        self.random_state = random_state
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.net_params = net_params

    # ---------------------------------------------------------------- hooks of the base class

    def _resolve(self, n_rows: int, *, streaming: bool) -> Settings:
        found = resolve(self, n_rows, None, streaming=streaming)
        sampler = default_sampler(self.units_.domain) if self.sampler is None else self.sampler
        return replace(found, rule=clone(sampler))

    def _prepare(self, rows: Rows, *, going_on: bool) -> None:
        if going_on:
            return
        noise = None if self.sigma is None else noise_level(self.sigma, rows)
        self._noise = None if noise is None else noise.cpu().numpy()
        seed, steps = draw_seed(self.random_state_), self.n_flow_steps
        self.base_ = fit_flow(self.flow, rows, noise, seed, n_steps=steps)
        self._noisy_base = self.base_
        self._learn_reach(rows)

    def _withhold(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        return withheld(rows, generator)

    def _objective(self, settings: Settings, energy: NeuralEnergy) -> FlowContrastive:
        base: Any = energy.base
        noise = None if self._noise is None else torch.as_tensor(self._noise)
        return FlowContrastive(
            energy, base, sigma=None if noise is None else noise.to(next(energy.parameters()))
        )

    def _net_kwargs(self, settings: Settings) -> dict[str, Any]:
        players = [
            ("flow.*", {"lr": self.flow_learning_rate, "weight_decay": 0.0}),
            ("shift", {"weight_decay": 0.0}),  # log Z is no weight
        ]
        return super()._net_kwargs(settings) | {"optimizer__param_groups": players}

    # ---------------------------------------------------------------- what was learned

    @property
    def flow_(self) -> Affine:
        """The trained flow, a distribution of rows in the units of X."""
        check_is_fitted(self)
        flow = self._flow
        centre, scale = (torch.as_tensor(part).to(flow.centre) for part in self.units_[:2])
        return Affine(flow, -centre / scale, 1 / scale)

    @property
    def _flow(self) -> NormalizingFlow:
        """The same of standardised rows."""
        trained: Any = self.net_.module_
        return trained.noise.frozen()

    @property
    def log_partition_learned_(self) -> float:
        """log Z as the classifier has it, in nats."""
        check_is_fitted(self)
        trained: Any = self.net_.module_
        return float(trained.log_partition.detach())

    @property
    def sampler_(self) -> Sampler:
        """What moves samples: a copy of what `fit` was given, or MALA, which tunes itself."""
        return clone(self._settings.rule)

    def _proposal(self, energy: NeuralEnergy) -> Distribution:
        return self._flow
