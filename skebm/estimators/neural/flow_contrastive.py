"""Neural densities and normalizing flows by flow contrastive estimation."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from skebm._validation import Interval, StrOptions, check_is_fitted, draw_seed
from skebm.base import Sampler
from skebm.distributions import Affine, Distribution, NormalizingFlow
from skebm.distributions.transformed.flow import FLOWS
from skebm.energies import MLP, NeuralEnergy, Spec, build_network
from skebm.estimators._docs import shared_docs
from skebm.estimators.base import DENSITY_CONSTRAINTS, BaseDensity
from skebm.estimators.neural import methods
from skebm.estimators.neural.blueprint import (
    CONFIGS,
    NEURAL_CONSTRAINTS,
    SIGMA,
    NeuralBlueprint,
    Rule,
    confined,
    network_of,
    neural_plan,
    reach_of,
    sampler_of,
)
from skebm.estimators.tables.bases import Bases, fit_flow, noise_level
from skebm.estimators.tables.table import FlatTable, Table
from skebm.objectives import FlowContrastive
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet

# Optimizer steps by default, each as long as several of other objectives: what held-out rows gain
# by the network they have gained by then (benchmarks/results/flow_steps.md).
N_STEPS = 250


@dataclass(frozen=True)
class FlowRule(Rule):
    """Flow contrastive estimation.

    Attributes
    ----------
    sampler : Sampler
    reach : float or None
        Norm to which the network's input is clipped.
    """

    sampler: Sampler
    reach: float | None

    def network(self, config: Any, spec: Spec) -> nn.Module:
        return confined(build_network(config, spec), self.reach)

    def objective(self, energy: NeuralEnergy, sigma: Tensor | None) -> FlowContrastive:
        base: Any = energy.base
        return FlowContrastive(energy, base, sigma=sigma)

    def proposal(self, energy: NeuralEnergy, net: EnergyNet) -> Distribution:
        return flow_of(net)


def flow_of(net: EnergyNet) -> NormalizingFlow:
    """The trained flow, on standardised rows."""
    trained: Any = net.module_
    found: NormalizingFlow = trained.noise.frozen()
    return found


@shared_docs
class FlowContrastiveDensity(BaseDensity):
    r"""Neural density by flow contrastive estimation, against an adversarial normalizing flow.

    .. math:: \min_{E, \log Z} \max_\phi \;
        \mathbb E_{data} \log\bigl(1 + e^{-r(x)}\bigr)
        + \mathbb E_{q_\phi} \log\bigl(1 + e^{r(x)}\bigr) , \qquad
        r(x) = -E(x) - \log Z - \log q_\phi(x)

    A normalizing flow is first fitted to the rows by maximum likelihood. It is the base of the
    energy, :math:`E(x) = -\log q_0(x) + f(x)`, and the reference for monitoring. The network f is
    then trained to discriminate rows from draws of the flow, and a copy of the flow is trained
    adversarially against it. Both can be used afterwards: the energy by the methods of this class,
    the flow as `flow_`. log Z is learned during training and estimated again by importance
    sampling from the flow.

    If there are 50 rows or more, a tenth, at most 100, are held out to monitor training. The
    estimator needs zuko: ``pip install "skebm[flows]"``.

    Parameters
    ----------
    <<network>>
    flow : {"coupling", "nsf", "maf"} or nn.Module, default="coupling"
        Normalizing flow, see :meth:`skebm.distributions.NormalizingFlow.fit`. Each step draws from
        it, for which autoregressive flows (``"nsf"``, ``"maf"``) need one pass per column. A flow
        of zuko is copied, and training starts from its weights.
    n_flow_steps : int >= 1, default=1000
        Maximum number of steps of the initial fit by maximum likelihood.
    flow_learning_rate : float > 0, default=5e-4
        Learning rate of the flow in adversarial training.
    sampler : Sampler or None, default=None
        Sampler for samples and imputations; None is adaptive :class:`skebm.samplers.MALA`.
    sigma : float, array-like, "auto", "bandwidth" or None, default="auto"
        Standard deviation of the Gaussian noise added to rows in training, or one for each column,
        in standard deviations of the columns (in units of X with ``standardize=False``). The model
        is the density of the noisy rows, which prevents flow and energy from collapsing to spikes.
        ``"bandwidth"`` is the bandwidth that maximises the leave-one-out likelihood of a kernel
        density; ``"auto"`` is 0.75 times that bandwidth, between 0.05 and 1; None is no noise.
    <<standardize>>
    learning_rate : float, default=2e-3
        Learning rate of Adam for the energy and log Z.
    <<batch_size>>
    n_iter : int or "auto", default="auto"
        Number of epochs; ``"auto"`` amounts to about 250 steps, each of which takes as long as
        several steps of other objectives, and to at most five times as many epochs as rows.
    optimizer : AdamW or None, default=None
        Settings of the optimizer; None is :class:`skebm.training.AdamW` with its defaults. Weight
        decay applies to the network only, the schedule to both learning rates.
    early_stopping : bool or EarlyStopping, default=False
        Stop when the likelihood of held-out rows (with log Z from draws of the base) no longer
        improves, and keep the best weights; settings in :class:`skebm.training.EarlyStopping`. The
        held-out rows are not used to fit the flow either.
    <<warm_start, contamination, partition, compute>>

    Attributes
    ----------
    flow_ : Distribution
        The trained flow, a distribution in the units of X: ``flow_.log_prob(tensor)``,
        ``flow_.sample(n, generator)``. It can be passed to :class:`NCEDensity` as ``noise=``.
    base_ : NormalizingFlow
        The flow fitted by maximum likelihood, on standardised rows.
    log_partition_learned_ : float
        log Z as learned by the classifier, in nats.
    <<log_partition, offset_, sigma_, units_, row_shape_>>
    history_ : list of dict
        One entry per epoch: ``train_loss``; ``accuracy``, the mean fraction of rows and of draws
        that are classified correctly; ``gain_over_base`` and ``flow_gain``, the mean log-likelihood
        ratios of the energy (an estimate) and the trained flow to the flow fitted by maximum
        likelihood, in nats; learning rate of the energy, seconds.
    <<n_iter_, sampler_, n_features_in_>>

    See Also
    --------
    NCEDensity : Noise contrastive estimation, against fixed noise.

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
    >>> bool(model.score(X[400:]) > -1.6)  # nats; a Gaussian has -1.9
    True
    >>> model.flow_.sample(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """

    _reads_files = True
    _parameter_constraints: dict = {
        name: kinds
        for name, kinds in (DENSITY_CONSTRAINTS | NEURAL_CONSTRAINTS).items()
        if name != "bounds"
    } | {
        "flow": [StrOptions(set(FLOWS)), nn.Module],
        "n_flow_steps": [Interval(Integral, 1, None, closed="left")],
        "flow_learning_rate": [Interval(Real, 0, None, closed="neither")],
        "sigma": SIGMA,
    }
    _configs = CONFIGS
    _blueprint: NeuralBlueprint

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
        self.flow = flow
        self.n_flow_steps = n_flow_steps
        self.flow_learning_rate = flow_learning_rate
        self.sampler = sampler
        self.sigma = sigma
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
        return {"allow_nd": not isinstance(self.network, MLP | None)}  # others may take images

    def _learn_table(self, X: Any, weight: np.ndarray | None) -> FlatTable:
        return FlatTable.learn(X, weight, standardize=self.standardize)

    def _design(
        self, rows: Rows, table: Table, before: EnergyNet | None, *, streaming: bool
    ) -> NeuralBlueprint:
        assert isinstance(table, FlatTable)
        if before is None:
            noise = None if self.sigma is None else noise_level(self.sigma, rows)
            seed = draw_seed(self.random_state_)
            flow = fit_flow(self.flow, rows, noise, seed, n_steps=self.n_flow_steps)
            bases, reach = Bases(flow, flow), reach_of(flow, rows)
            level = None if noise is None else noise.cpu().numpy()
        else:
            known: Any = self._blueprint
            bases, reach, level = known.bases, known.rule.reach, known.noise
        players = [
            ("flow.*", {"lr": self.flow_learning_rate, "weight_decay": 0.0}),
            ("shift", {"weight_decay": 0.0}),  # no decay of log Z
        ]
        settings = {"param_groups": players}
        return NeuralBlueprint(
            table=table,
            plan=neural_plan(
                self,
                rows.n_table,
                streaming=streaming,
                n_steps=N_STEPS,
                optimizer_settings=settings,
            ),
            rule=FlowRule(sampler_of(self, table.domain), reach),
            network_config=network_of(self),
            bases=bases,
            noise=level,
        )

    # ---------------------------------------------------------------- methods

    sample, impute, denoise = methods.sample, methods.impute, methods.denoise_real
    score_function = methods.score_function
    _score_and_laplacian = methods._score_and_laplacian
    sampler_, sigma_, base_ = methods.sampler_, methods.sigma_, methods.base_
    units_, row_shape_ = methods.units_, methods.row_shape_

    @property
    def flow_(self) -> Affine:
        """The trained flow, a distribution in the units of X."""
        check_is_fitted(self)
        flow = flow_of(self.net_)
        centre, scale = (torch.as_tensor(part).to(flow.centre) for part in self.units_[:2])
        return Affine(flow, -centre / scale, 1 / scale)

    @property
    def log_partition_learned_(self) -> float:
        """log Z as learned by the classifier, in nats."""
        check_is_fitted(self)
        trained: Any = self.net_.module_
        return float(trained.log_partition.detach())
