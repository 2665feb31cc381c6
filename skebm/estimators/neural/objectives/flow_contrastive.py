"""Flow contrastive estimation, of neural densities whose base is a normalizing flow."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from skebm._validation import Interval, StrOptions, draw_seed
from skebm.base import Sampler
from skebm.distributions import Distribution, NormalizingFlow
from skebm.distributions.transformed.flow import FLOWS
from skebm.energies import NeuralEnergy, Spec, build_network
from skebm.estimators.neural.family import SIGMA, Rule, confine, reach_of, sampler_of
from skebm.estimators.neural.objectives.base import REAL_ROWS, NeuralObjective, TrainingStart
from skebm.estimators.tables.bases import Bases, fit_flow, noise_level
from skebm.estimators.tables.table import Table
from skebm.objectives import FlowContrastive
from skebm.training.rows import Rows

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


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
    has_ceiling = True

    def network(self, config: Any, spec: Spec) -> nn.Module:
        return confine(build_network(config, spec), self.reach)

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


class FlowContrastiveEstimation(NeuralObjective):
    """Flow contrastive estimation: a classifier against a flow that is trained to deceive it.

    See :class:`skebm.FlowContrastiveDensity` for the method and its reference. Rows are real; the
    base of the density is the flow, fitted by maximum likelihood.

    Parameters
    ----------
    flow : {"coupling", "nsf", "maf"} or nn.Module, default="coupling"
        Normalizing flow, see :meth:`skebm.distributions.NormalizingFlow.fit`; one of zuko is
        copied, and training starts from its weights.
    n_flow_steps : int >= 1, default=1000
        Maximum number of steps of the initial fit by maximum likelihood.
    flow_learning_rate : float > 0, default=5e-4
        Learning rate of the flow in adversarial training.

    Examples
    --------
    >>> from skebm import NeuralDensity
    >>> model = NeuralDensity(objective="flow_contrastive")
    >>> model.set_params(objective__flow="maf").objective
    FlowContrastiveEstimation(flow='maf')
    """

    _parameter_constraints: dict = {
        "flow": [StrOptions(set(FLOWS)), nn.Module],
        "n_flow_steps": [Interval(Integral, 1, None, closed="left")],
        "flow_learning_rate": [Interval(Real, 0, None, closed="neither")],
    }
    # Each step is as long as several of other objectives: what held-out rows gain by the network
    # they have gained by then (benchmarks/results/flow_steps.md).
    n_steps = 250
    kept = ("flow",)
    takes = REAL_ROWS | {"base": [StrOptions({"auto"})], "bounds": [None], "sigma": SIGMA}

    def __init__(self, *, flow="coupling", n_flow_steps=1000, flow_learning_rate=5e-4):
        self.flow = flow
        self.n_flow_steps = n_flow_steps
        self.flow_learning_rate = flow_learning_rate

    def optimizer_settings(self, model: Any) -> dict[str, Any]:
        players = [
            ("flow.*", {"lr": self.flow_learning_rate, "weight_decay": 0.0}),
            ("shift", {"weight_decay": 0.0}),  # no decay of log Z
        ]
        return {"param_groups": players}

    def fit_bases(
        self, model: Any, base: Any, rows: Rows, table: Table
    ) -> tuple[Bases, np.ndarray | None]:
        noise = None if model.sigma is None else noise_level(model.sigma, rows)
        seed = draw_seed(model.random_state_)
        flow = fit_flow(self.flow, rows, noise, seed, n_steps=self.n_flow_steps)
        return Bases(flow, flow), None if noise is None else noise.cpu().numpy()

    def rule(self, model: Any, start: TrainingStart) -> FlowRule:
        first = start.rule is None
        reach = reach_of(start.bases.clean, start.rows) if first else start.rule.reach
        return FlowRule(sampler_of(model, start.table.domain), reach)
