"""Neural densities and normalizing flows by flow contrastive estimation."""

from __future__ import annotations

from typing import Any

import torch

from skebm._validation import check_is_fitted
from skebm.distributions import Affine
from skebm.estimators._docs import insert_shared_docs
from skebm.estimators.base import assign_parameters
from skebm.estimators.neural.density import NeuralDensity
from skebm.estimators.neural.objectives import FlowContrastiveEstimation
from skebm.estimators.neural.objectives.flow_contrastive import flow_of


@insert_shared_docs
class FlowContrastiveDensity(NeuralDensity):
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
        several steps of other objectives, and to at most five times as many epochs as rows; and to
        up to eight times as many while held-out rows gain.
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
    <<converged_, n_iter_, sampler_, n_features_in_>>

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

    _kind = FlowContrastiveEstimation

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
        assign_parameters(self, locals())

    # ---------------------------------------------------------------- the flow

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
